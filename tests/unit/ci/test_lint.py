"""The scripts of `make lint`, of wheels and of Dockerfiles notice what they are for."""

import importlib
from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_program


@pytest.fixture
def script(monkeypatch):
    """Imports a script of .ci by its name; it finds its siblings as when it is run."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module


def _module(statement):
    return f"def later():\n    {statement}\n"


@pytest.mark.parametrize(
    ("path", "text", "line", "said"),
    [
        ("csrc/base/a.h", '\n#include "csrc/core/runtime.h"', 2, "base must not include"),
        ("csrc/planning/a.h", '#include "csrc/control/plane.h"', 1, "planning must not include"),
        ("csrc/other/a.h", "", 1, "csrc/other has no place"),
        ("csrc/engines/a.h", "#  include <torch/extension.h>", 1, "only csrc/bindings may"),
        ("csrc/core/a.h", "#include <mpi.h>", 1, "only csrc/engines may"),
        ("csrc/cuda/a.h", "#include <cuda_runtime.h>", 1, "only csrc/kernels may"),
        ("csrc/engines/a.h", "#include <nccl.h>", 1, "only csrc/kernels may"),
        ("csrc/core/a.h", '/*\n*/ auto x = std::getenv("X");', 2, "only csrc/base/env.cc"),
        ("csrc/base/a.h", "using std::getenv;", 1, "only csrc/base/env.cc"),
        ("csrc/core/negotiation/a.h", '#include "csrc/core/dispatch/lane.h"', 1, "no other stage"),
        ("csrc/core/execution/a.h", '#include "csrc/core/execution/gpu/a.h"', 1, "must not"),
        ("csrc/core/dispatch/a.h", '#include "csrc/core/runtime.h"', 1, "above the stages"),
        ("csrc/planning/a.h", "#include <chrono>", 1, "decisions are pure"),
        ("csrc/core/negotiation/a.h", '#include "csrc/base/log.h"', 1, "decisions are pure"),
        ("csrc/kernels/a.h", "#include <thread>", 1, "a kernel that uses threads"),
        ("csrc/kernels/lars.cc", "", 1, "this kernel uses no threads"),
        ("csrc/core/a.cc", "", 1, "list it in CMakeLists.txt"),
        ("tests/cpp/core/a_test.cc", "", 1, "list it in tests/cpp/CMakeLists.txt"),
        ("aiacc/a.py", "import aiacc.torch", 1, "aiacc must not import aiacc.torch"),
        ("aiacc/run/a.py", "from aiacc.torch import x", 1, "run must not import aiacc.torch.x"),
        ("aiacc/torch/ops/a.py", _module("import aiacc.torch.kfac"), 2, "it may import coll"),
        ("aiacc/optim/a.py", "import aiacc.kfac", 1, "it may import no other package"),
        ("aiacc/other/a.py", "", 1, "aiacc/other has no place"),
        ("aiacc/a.py", "import os\nos.environ", 2, "aiacc/config.py does"),
        ("aiacc/a.py", _module("from os import getenv"), 2, "aiacc/config.py does"),
        ("aiacc/a.py", "from aiacc._core import prepare", 1, "prepares a submission itself"),
        ("aiacc/a.py", _module("f = aiacc._core.prepare"), 2, "prepares a submission itself"),
    ],
)
def test_layering_notices(script, path, text, line, said):
    layering = script("check_layering")
    found = [found for found in layering.violations({path: text}) if said in "; ".join(found[2:])]
    assert [one[:2] for one in found] == [(path, line)]


def test_layering_notices_circles_and_large_folders(script):
    files = {
        "csrc/core/a.h": '#include "csrc/core/b.h"',
        "csrc/core/b.h": "",
        "csrc/core/b.cc": '#include "csrc/core/a.h"',
        "csrc/core/c.h": '#include "csrc/core/a.h"',
        "aiacc/a.py": "from aiacc import b",
        "aiacc/b.py": "try:\n    from aiacc.a import x\nfinally:\n    pass",
        "aiacc/c.py": "import aiacc.d",
        "aiacc/d.py": "if TYPE_CHECKING:\n    import aiacc.c\ndef later():\n    import aiacc.c",
        **{f"bench/{number}.{suffix}": "" for number in range(21) for suffix in ("cc", "h", "md")},
        **{f"bench/results/{number}.json": "" for number in range(30)},
        "CMakeLists.txt": "csrc/core/b.cc",
    }
    found = {path: what for path, _, what, _ in script("check_layering").violations(files)}
    circle = "includes itself through others"
    assert found.pop("csrc/core/a.h") == found.pop("csrc/core/b.h") == circle
    circle = "imports itself through others"
    assert found.pop("aiacc/a.py") == found.pop("aiacc/b.py") == circle
    assert found == {"bench": "21 units (expected at most 20)"}


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("core: fail what waits", ""),
        ("engines/mpi, tests: keep 'x:y' apart", ""),
        (".ci: run all", ""),
        ("core: " + "ä" * 66, ""),
        ("core: " + "x" * 67, "73 characters (expected at most 72)"),
        ("fail what waits", "not of the form"),
        ("core fails: what waits", "not of the form"),
        ("fixup! core: fail what waits", "not of the form"),
        ("core: fail what waits.", "not of the form"),
    ],
)
def test_subjects_of_commits(script, subject, problem):
    assert script("check_commits").problem_of(subject).startswith(problem)
    assert bool(script("check_commits").problem_of(subject)) == bool(problem)


def test_commits_are_those_since_the_rule_without_merges(script, tmp_path):
    commits = script("check_commits").commits
    assert commits(tmp_path, "2030-01-01") == []  # there is no history
    commit = (
        *("git", "-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false"),
        *("commit", "-q", "--allow-empty", "-m"),
    )
    script_of_git = f"""
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
        git init -q . && GIT_COMMITTER_DATE=2029-06-01T12:00:00Z {" ".join(commit)} before
        export GIT_COMMITTER_DATE=2031-06-01T12:00:00Z
        {" ".join(commit)} one && git checkout -q -b side && {" ".join(commit)} two
        git checkout -q - && {" ".join(commit)} three
        git -c user.name=a -c user.email=a merge -q --no-ff -m merged side
    """
    run_program(["sh", "-ec", script_of_git], cwd=tmp_path, check=True)
    found = {subject for _, subject in commits(tmp_path, "2030-01-01T00:00:00+00:00")}
    assert found == {"one", "two", "three"}


def test_commands_that_install_what_strangers_have_put_on_pypi_are_named(script):
    text = """pip install 'aiacc[torch]'
        pip install -U aiacc
        "pip install aiacc-distributed", which nobody has put there yet
        `pip install -U tensorflow` needs no new aiacc
        pip install '.[torch]'  # aiacc from its sources
        pip install 'dist/aiacc_distributed-0.1.0-cp311.whl[torch]' aiacc_distributed-0.1.0.whl"""
    found = script("check_pages").strangers({"a.md": text})
    assert [one.partition(": ")[0] for one in found] == ["a.md:1", "a.md:2", "a.md:3"]


TEXT = """
# syntax is nobody's business
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
ARG FLAGS=-O2
ENV PATH=/venv/bin:$PATH A=${FLAGS}
RUN first \\
 # why
 && second --flag=x
COPY --chown=me:me a b /there/
FROM other AS unused
RUN never
FROM build AS end
RUN --mount=type=bind,from=build,source=/wheels,target=/tmp/w install /tmp/w
ENTRYPOINT ["run", "a b"]
"""


def test_stages_their_instructions_and_variables(script):
    dockerfile = script("dockerfile")
    build, _, end = stages = dockerfile.parse(TEXT)
    assert [stage.name for stage in stages] == ["build", "unused", "end"]
    assert [stage.base for stage in stages] == ["debian:bookworm-slim", "other", "build"]
    assert dockerfile.parse(TEXT, {"BASE": "debian:trixie"})[0].base == "debian:trixie"
    flags, variables, run, copy = build.instructions
    assert (run.line, run.keyword, run.text) == (7, "RUN", "first && second --flag=x")
    assert (dict(copy.flags), copy.words()) == ({"chown": "me:me"}, ["a", "b", "/there/"])
    install, entry = end.instructions
    assert entry.words() == ["run", "a b"]
    assert (dockerfile.mount(install)["source"], dockerfile.source(install)) == ("/wheels", "build")
    assert dockerfile.needed(stages, "end") == [build, end]
    with pytest.raises(ValueError, match=r"no stage 'no' \(expected one of build, unused, end\)"):
        dockerfile.needed(stages, "no")
    # Variables see those before them.
    given = dockerfile.argument(flags, {}, {})
    assert given == {"FLAGS": "-O2"}
    assert dockerfile.argument(flags, {}, {"FLAGS": "-O3"}) == {"FLAGS": "-O3"}
    found = dockerfile.assignments(variables, {"PATH": "/bin", **given})
    assert found == {"PATH": "/venv/bin:/bin", "A": "-O2"}
    assert dockerfile.expand("${NONE:-x}$NONE", {}) == "x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FROM a\nADD x y", "line 2: ADD is not known"),
        ("RUN x", "line 1: RUN before any FROM"),
        ("ARG X=1", "no FROM"),
        ("FROM a b", "line 1: FROM a b"),
        ("FROM a\nRUN x \\", "line 2: an instruction that does not end"),
    ],
)
def test_what_is_refused(script, text, problem):
    with pytest.raises(ValueError, match=problem):
        script("dockerfile").parse(text)


def test_what_a_build_does_not_see(script):
    rules = ["# why", "build", "aiacc/*.so", "**/__pycache__"]
    seen = ("aiacc/build", "aiacc/torch/x.so", "#x")
    ignored = ("build", "aiacc/_core.so", "tests/unit/__pycache__")
    is_ignored = script("docker_check").is_ignored
    assert [path for path in (*seen, *ignored) if is_ignored(path, rules)] == [*ignored]


NAME = "aiacc_distributed-0.1.0-cp312-cp312-manylinux_2_35_x86_64.whl"
FILES = [
    "aiacc/_core.cpython-312-x86_64-linux-gnu.so",
    "aiacc/libaiacc_core.so",
    "aiacc/libaiacc_tensorflow.so",
]


@pytest.mark.parametrize(
    ("files", "name", "problem"),
    [
        (FILES, NAME.replace("manylinux_2_35", "linux"), "not a manylinux wheel"),
        (FILES, NAME.replace("cp312", "cp313"), "no aiacc/_core.cpython-313-"),
        (FILES[:2], NAME, "no aiacc/libaiacc_tensorflow.so"),
        ([*FILES, "aiacc.libs/libmpi.so.12"], NAME, "copied aiacc.libs/libmpi.so.12"),
    ],
)
def test_a_wheel_that_must_not_leave(script, files, name, problem):
    problems = script("wheels").problems
    assert problems(FILES, NAME) == []
    (found,) = problems(files, name)
    assert problem in found


def test_a_checked_environment_with_a_compiler_is_refused(script, tmp_path):
    path = tmp_path / "venv" / "bin"
    path.mkdir(parents=True)
    without_compiler = script("wheel_check").without_compiler
    assert without_compiler(tmp_path)["PATH"] == str(path)
    (path / "g++").touch(mode=0o755)
    with pytest.raises(RuntimeError, match=r"has g\+\+ \(expected no compiler\)"):
        without_compiler(tmp_path)


def test_interpreters_that_cannot_compile_are_left_out(script, tmp_path):
    for name, text in (("python3.13", "exit 1"), ("python3.12", "echo 3.12")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    broken, works = (str(tmp_path / name) for name in ("python3.13", "python3.12"))
    assert script("wheels").interpreters([broken, works]) == {"3.12": works}
    version_of = script("wheel_check").version_of
    assert version_of(Path(NAME)) == "3.12"
    with pytest.raises(ValueError, match="for no version of CPython"):
        version_of(Path("aiacc_distributed-0.1.0-py3-none-any.whl"))
