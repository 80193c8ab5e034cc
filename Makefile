# Everything from a fresh clone: `make demo`, `make test`. Needs g++, make, python3 >= 3.10 with venv.
# Done work leaves a stamp under build/stamps, so that running again is quick.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.0
# Without what it depends on: that is tensorflow, which tensorflow-cpu stands for.
TF_KERAS ?= tf_keras==2.21.0
# What tests of K-FAC compare with, without what it depends on but does not need here.
CURVLINOPS := curvlinops-for-pytorch==3.0.1 einconv==0.1.0 einops==0.8.2 linear-operator==0.6.1 tqdm==4.70.1
# What tests of aiacc.optim compare with, without torchvision, which would bring another torch.
TIMM := timm==1.0.31
# What tests of aiacc.data load data with; without torch, which would be another one.
TORCHDATA := torchdata==0.11.0

# What bench/ compares with; Horovod and UCC are built elsewhere, see bench/README.md.
PEERS := mpi4py==4.1.2 aiohttp==3.14.5 diskcache==5.6.3 webdataset==1.0.2
# Without what it depends on: that is another torch.
SOAP := pytorch_optimizer==4.1.0
# In a place of its own, for it brings an mpirun.
ONECCL := oneccl==2022.1.2 oneccl-devel==2022.1.2 impi-rt==2021.18.1

VENV := .venv
BIN := $(VENV)/bin
STAMPS := build/stamps
PYTEST_ARGS ?=
CMAKE_FLAGS ?=
# nproc would say what OMP_NUM_THREADS says, which is exported below to what make starts.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
# Two more than there are cores: the longest tests only wait for timeouts.
CTEST_JOBS ?= $(shell expr $(JOBS) + 2)

BUILD_TOOLS := setuptools==80.9.0 pybind11==3.1.0 cmake==3.31.10 ninja==1.13.0 mpich==5.0.2

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Ranks share the cores: one thread per rank unless the user says otherwise.
export OMP_NUM_THREADS ?= 1

CXX_FILES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.c')

# Configures and builds one preset: $(call cmake,preset,flags).
define cmake
@mkdir -p build
@$(BIN)/cmake --preset $(1) $(2) $(CMAKE_FLAGS) >build/$(1).log || (cat build/$(1).log; exit 1)
$(BIN)/cmake --build --preset $(1)
endef

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

.PHONY: demo
demo: build  ## train on real digits, two ranks
	$(BIN)/aiaccrun -np 2 python examples/digits.py

.PHONY: test
test:  ## C++ and Python tests; says how long each stage took
	@$(PYTHON) .ci/stages.py "set-up!=make gtest build/stamps/package" "build!=make build" \
	  "C++ tests, build=make test-cpp-build" "C++ tests=make test-cpp" "Python tests=make test-python"

.PHONY: quick
quick: $(STAMPS)/package  ## in minutes: unit tests, one job of ranks per front-end; builds no C++
	$(BIN)/python .ci/python_tests.py --markers "fast and not nightly" $(PYTEST_ARGS)

.PHONY: nightly
nightly:  ## all that is too slow for every change, see tests/README.md
	@$(PYTHON) .ci/stages.py "set-up!=make gtest build/stamps/package build/stamps/peers" \
	  "build!=make build" "C++ tests=make test-cpp-nightly" "Python tests=make test-python-nightly" \
	  "clang-tidy of all=make tidy TIDY_ARGS=" \
	  "ThreadSanitizer of all=make tsan SANITIZER_FLAGS=-DAIACC_TSAN_ALL=ON" \
	  "torch's own tests=make torch-tests" "oldest and newest versions=make versions" \
	  "wheels=make wheel wheel-check" "images=make docker-check" \
	  "speed beside what is kept=$(BIN)/python -m bench --alarm"

.PHONY: build
build: $(STAMPS)/package  ## the core, in place (aiacc/*.so)
	$(call cmake,dev)
	@sed -n 's/^-- aiacc: //p' build/dev.log

.PHONY: test-cpp-build
test-cpp-build: gtest $(STAMPS)/package
	$(call cmake,dev,-DAIACC_TESTS=ON -DAIACC_NIGHTLY=OFF)

.PHONY: test-cpp
test-cpp: test-cpp-build  ## C++ tests
	$(BIN)/ctest --preset dev -j $(CTEST_JOBS)

.PHONY: test-cpp-nightly
test-cpp-nightly: gtest $(STAMPS)/package
	$(call cmake,dev,-DAIACC_TESTS=ON -DAIACC_NIGHTLY=ON)
	$(BIN)/ctest --preset dev -j $(CTEST_JOBS)

.PHONY: test-python
test-python: build  ## Python tests, PYTEST_ARGS are passed on
	$(BIN)/python .ci/python_tests.py $(PYTEST_ARGS)

.PHONY: test-python-nightly
test-python-nightly: build
	$(BIN)/python .ci/python_tests.py --markers nightly $(PYTEST_ARGS)

VERSIONS ?=

.PHONY: versions
versions: build  ## tests on the oldest and newest torch, TensorFlow and Python; writes the counts
	$(BIN)/python -m tests.compat.versions $(VERSIONS)

.PHONY: torch-tests
torch-tests: build  ## torch's own tests for process groups, on aiacc and gloo; writes the counts
	$(BIN)/python -m tests.compat.torch_distributed_tests

.PHONY: asan tsan
asan tsan: %: %-build  ## C++ tests under sanitizers
	$(BIN)/ctest --preset $@ -j $(CTEST_JOBS)

.PHONY: asan-build tsan-build
asan-build tsan-build: gtest $(STAMPS)/tools
	$(call cmake,$(@:-build=),$(SANITIZER_FLAGS))

# With the interpreter that has torch for CUDA, not with .venv: see .ci/gpu_check.py.
GPU_PYTHON ?= $(PYTHON)
GPU_STAGES ?=

.PHONY: gpu-check
gpu-check:  ## on a machine with a GPU: build, tests/gpu, bench/gpu (GPU_STAGES="build test bench")
	$(GPU_PYTHON) .ci/gpu_check.py $(GPU_STAGES)

.PHONY: lint
lint: $(STAMPS)/package  ## formatting, types, layering, pages, images, commits; changes nothing
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python .ci/check_layering.py
	$(BIN)/python .ci/check_images.py
	$(BIN)/python .ci/check_pages.py
	$(BIN)/python .ci/check_commits.py

.PHONY: format
format: $(STAMPS)/package  ## rewrite the files as the formatters want them
	@$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

TIDY_ARGS ?= --changed

.PHONY: tidy
tidy: $(STAMPS)/tidy build  ## clang-tidy over what has changed since main (TIDY_ARGS= all of csrc)
	$(BIN)/python .ci/tidy.py --jobs $(JOBS) $(TIDY_ARGS)

.PHONY: bench
bench: gtest build $(STAMPS)/peers  ## measure all rows, keep results and tables (ROWS="collectives step": some)
	$(BIN)/cmake --preset dev -DAIACC_TESTS=ON $(CMAKE_FLAGS) >build/dev.log
	$(BIN)/cmake --build --preset dev --target negotiation_bench codes_bench
	$(BIN)/python -m bench $(or $(ROWS),all) --write

.PHONY: wheel
wheel: $(STAMPS)/release  ## manylinux wheels in dist/, for each CPython from 3.11 to 3.13 that is here
	CMAKE_ARGS="$(CMAKE_FLAGS)" $(BIN)/python .ci/wheels.py

.PHONY: wheel-check
wheel-check: $(STAMPS)/tools  ## install and run the wheels of dist/ where there is no compiler
	$(BIN)/python .ci/wheel_check.py --torch '$(TORCH)' --tensorflow '$(TENSORFLOW)'

DOCKER_CHECK_ARGS ?=

.PHONY: docker-check
docker-check: $(STAMPS)/release  ## lint docker/, execute the Dockerfiles without docker (superuser)
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml
	$(BIN)/hadolint docker/*.Dockerfile
	.ci/apt_install debootstrap iproute2 nftables openssh-client
	PYTHONPATH=. $(BIN)/python .ci/docker_check.py $(DOCKER_CHECK_ARGS)

.PHONY: docs
docs: build  ## regenerate the generated pages
	$(BIN)/python -m aiacc.run.help_env --markdown >docs/environment.md

.PHONY: gtest
gtest:
	@.ci/install_gtest

.PHONY: clean
clean:  ## remove what was built, keep .venv
	rm -rf build dist *.egg-info aiacc/*.so aiacc/include aiacc/sources

# Interpreter, build tools, torch and TensorFlow. Those come first and pinned: whatever depends on them
# must not choose others.
$(STAMPS)/tools: Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(BUILD_TOOLS)
	$(BIN)/python -m pip install -q $(TORCH)
	$(BIN)/python -m pip install -q $(TENSORFLOW)
	$(BIN)/python -m pip install -q --no-deps $(TF_KERAS)
	$(BIN)/python -m pip install -q --no-deps $(CURVLINOPS) $(TIMM) $(TORCHDATA)
	@mkdir -p $(@D) && touch $@

# The package in place with its development tools; C++ changes only need `cmake --build`. What has the
# name aiacc in pip is a stranger's, or this one from when that was its name: both have its folder.
$(STAMPS)/package: $(STAMPS)/tools pyproject.toml setup.py
	$(BIN)/python -m pip uninstall -qq -y aiacc
	AIACC_SKIP_CMAKE=1 $(BIN)/python -m pip install -q --no-build-isolation -e '.[dev,examples,mpi]'
	@touch $@

$(STAMPS)/peers: $(STAMPS)/package
	.ci/apt_install nftables openmpi-bin
	$(BIN)/python -m pip install -q $(PEERS)
	$(BIN)/python -m pip install -q --no-deps $(SOAP)
	$(PYTHON) -m venv build/peers/oneccl
	build/peers/oneccl/bin/python -m pip install -q $(ONECCL)
	@touch $@

$(STAMPS)/release: $(STAMPS)/package
	AIACC_SKIP_CMAKE=1 $(BIN)/python -m pip install -q --no-build-isolation -e '.[release]'
	@touch $@

$(STAMPS)/tidy: $(STAMPS)/package
	$(BIN)/python -m pip install -q --no-build-isolation 'clang-tidy==23.1.4'
	@touch $@
