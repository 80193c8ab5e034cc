"""Folders are the architecture: who may include, import and read what."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Folder to the folders it may include from, itself aside.
LAYERS = {
    "base": set(),
    "planning": {"base"},
    "control": {"base"},
    "cuda": {"base"},
    "kernels": {"base", "cuda"},
    "engines": {"base", "planning", "control", "cuda", "kernels"},
    "core": {"base", "planning", "control", "cuda", "kernels", "engines"},
    "bindings": {"base", "planning", "control", "cuda", "kernels", "engines", "core"},
}
#: Stage of the core to those it may include from, itself aside. A tensor meets them in the order
#: submission, negotiation, dispatch, execution; what they are made of points the other way: a table
#: of submissions has requests, a lane runs units. What lies above the stages may include them all.
STAGES = {
    "negotiation": set(),
    "submission": {"negotiation"},
    "execution": {"negotiation", "submission"},
    "execution/gpu": {"negotiation", "submission", "execution"},
    "dispatch": {"negotiation", "submission", "execution", "execution/gpu"},
}
#: Package of aiacc to those it may import from, itself and the modules at the top aside.
PACKAGES = {
    "collectives": set(),
    "bootstrap": {"bootstrap/providers"},
    "bootstrap/providers": {"bootstrap"},
    "autotune": {"collectives"},
    "array": {"collectives"},
    "compression": {"planning"},
    "data": {"array", "data/neighbours"},
    "data/neighbours": {"array", "data"},
    "optim": set(),
    "planning/division": {"planning"},
    "kfac": {"planning", "planning/division", "planning/models"},
    "run": {
        "autotune",
        "bootstrap",
        "bootstrap/providers",
        "array",
        "collectives",
        "compression",
        "kfac",
        "planning",
        "planning/models",
    },
    "torch": {
        "collectives",
        "compression",
        "planning",
        "autotune",
        "bootstrap",
        "bootstrap/providers",
        "torch/ops",
        "torch/compression",
        "torch/decoupled",
        "torch/kfac",
        "torch/reducer",
        "torch/distributed",
        "torch/elastic",
        "torch/parallel",
    },
    "torch/parallel": {
        "collectives",
        "planning",
        "planning/division",
        "torch",
        "torch/ops",
    },
    "torch/compression": {"collectives", "compression", "torch"},
    "torch/ops": {"collectives", "torch", "torch/compression"},
    "torch/reducer": {
        "collectives",
        "compression",
        "autotune",
        "planning",
        "torch",
        "torch/ops",
        "torch/compression",
    },
    "torch/decoupled": {
        "collectives",
        "autotune",
        "planning",
        "torch",
        "torch/ops",
        "torch/compression",
        "torch/reducer",
    },
    "torch/kfac": {
        "collectives",
        "kfac",
        "planning",
        "planning/models",
        "torch",
        "torch/decoupled",
        "torch/parallel",
    },
    "torch/distributed": {
        "collectives",
        "compression",
        "bootstrap",
        "bootstrap/providers",
        "torch",
        "torch/compression",
        "torch/reducer",
    },
    "torch/elastic": {"collectives", "torch"},
    "tensorflow": {
        "autotune",
        "collectives",
        "compression",
        "planning",
        "tensorflow/ops",
        "tensorflow/keras",
    },
    "tensorflow/ops": {"collectives", "tensorflow"},
    "tensorflow/keras": {"collectives", "planning", "tensorflow", "tensorflow/ops"},
    "keras": {"planning", "tensorflow", "tensorflow/keras"},
    "compat": {"torch"},
}
#: What the modules at the top of aiacc may import.
LOWEST = {"autotune", "bootstrap", "bootstrap/providers", "collectives"}
#: Folders whose functions are pure: no thread, no clock, no log, no connection.
PURE = ("planning", "core/negotiation")
IMPURE_HEADER = re.compile(
    r"^(atomic|chrono|condition_variable|future|mutex|thread|unistd\.h|sys/.*"
    r"|csrc/base/(event|log|socket|spin|timeline)\.h)$"
)
#: Kernels that use threads; ThreadSanitizer is spared the tests of the others.
THREADED_KERNELS = {"csrc/kernels/lars.cc"}
THREAD_HEADER = re.compile(
    r"^(atomic|condition_variable|future|mutex|shared_mutex|thread|csrc/base/thread\.h)$"
)
#: Modules that call the core's `prepare`; all others start what `submission` has prepared.
PREPARING = ["aiacc/collectives/submission.py", "aiacc/torch/ops/allreduce.py"]
#: At the top of a folder: a header with its source is one.
MOST_UNITS = 20
FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "mxnet")
FRAMEWORK_HEADER = re.compile(r"^(torch|ATen|c10|tensorflow|pybind11|Python\.h|numpy)")
CUDA_HEADER = re.compile(r"^(cuda|nccl)[a-z0-9_]*\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

SOURCES = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cc", ".cu"})
MODULES = sorted((ROOT / "aiacc").rglob("*.py"))
OTHERS = sorted(
    path
    for folder in ("tests", "bench")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".c", ".cc", ".h", ".py"}
)


def name_of(path):
    return str(path.relative_to(ROOT))


def violations(folder, text):
    """What of ``text``, a file of ``folder``, breaks the rules for C++."""
    for include in INCLUDE.findall(text):
        if include.startswith("csrc/"):
            layer = include.split("/")[1]
            if layer != folder and layer not in LAYERS[folder]:
                yield f"{folder} must not include {include}"
        elif FRAMEWORK_HEADER.match(include) and folder != "bindings":
            yield f"{include} may be included in bindings only"
        elif include == "mpi.h" and folder != "engines":
            yield "mpi.h may be included in engines only"
        elif CUDA_HEADER.match(include) and folder != "kernels":
            yield f"{include} may be included in kernels only"
    if folder != "base" and re.search(r"\bgetenv\s*\(", COMMENT.sub("", text)):
        yield "getenv may be called in base/env.cc only"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_includes_point_downwards(path):
    folder = path.relative_to(ROOT / "csrc").parts[0]
    text = path.read_text()
    assert list(violations(folder, text)) == []
    if folder == "base" and path.name != "env.cc":
        assert "getenv" not in COMMENT.sub("", text)


def stage_of(path):
    """Stage of a file or an include of the core, None above the stages."""
    parts = Path(path).parts
    return "/".join(parts[2:-1]) or None if parts[:2] == ("csrc", "core") else None


def stage_violations(stage, text):
    """What of ``text``, a file of ``stage``, looks at a stage that it must not know."""
    for include in INCLUDE.findall(text):
        if not include.startswith("csrc/core/"):
            continue
        other = stage_of(include)
        if other is None:
            yield f"{stage} must not include {include}, which is above the stages"
        elif other != stage and other not in STAGES[stage]:
            yield f"{stage} must not include {include}"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if stage_of(name_of(p)) is not None], ids=name_of
)
def test_stages_of_the_core_know_those_below(path):
    assert list(stage_violations(stage_of(name_of(path)), path.read_text())) == []


@pytest.mark.parametrize(
    ("stage", "include"),
    [
        ("negotiation", "csrc/core/submission/tensor_table.h"),
        ("submission", "csrc/core/dispatch/lane.h"),
        ("execution", "csrc/core/execution/gpu/device_path.h"),
        ("dispatch", "csrc/core/coordinator.h"),
    ],
)
def test_the_rule_for_stages_notices(stage, include):
    assert list(stage_violations(stage, f'#include "{include}"'))


@pytest.mark.parametrize(
    "path", [path for folder in PURE for path in (ROOT / "csrc" / folder).iterdir()], ids=name_of
)
def test_decisions_are_pure(path):
    assert [name for name in INCLUDE.findall(path.read_text()) if IMPURE_HEADER.match(name)] == []


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.is_relative_to(ROOT / "csrc/kernels")], ids=name_of
)
def test_kernels_start_no_threads(path):
    threaded = any(THREAD_HEADER.match(name) for name in INCLUDE.findall(path.read_text()))
    assert threaded == (name_of(path) in THREADED_KERNELS)


def unit_of(name):
    """A header and its source are one unit."""
    return str(Path(name).with_suffix(""))


def circles(includes):
    """Units that reach themselves by ``includes``, a set of units for each."""
    reached = {unit: set(others) for unit, others in includes.items()}
    for through in reached:
        for others in reached.values():
            if through in others:
                others |= reached[through]
    return sorted(unit for unit, others in reached.items() if unit in others)


def test_no_unit_of_the_core_includes_itself_through_others():
    core = [path for path in SOURCES if path.is_relative_to(ROOT / "csrc" / "core")]
    includes = {unit_of(name_of(path)): set() for path in core}
    for path in core:
        unit = unit_of(name_of(path))
        others = {unit_of(name) for name in INCLUDE.findall(path.read_text())}
        includes[unit] |= (others & set(includes)) - {unit}
    assert circles(includes) == []


def test_the_rule_for_circles_notices():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


def imported(tree):
    """Modules that a module imports when it is imported, or later."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module):
    """Package of aiacc that a dotted name is in, None for what is at the top."""
    parts = module.split(".")
    if parts[0] != "aiacc":
        return None
    while parts:
        name = "/".join(parts[1:])
        if name in PACKAGES:
            return name
        parts = parts[:-1]
    return None


def import_violations(package, text):
    """What of ``text``, a module of ``package``, imports a package that it must not know."""
    known = LOWEST if package is None else PACKAGES[package]
    for module in imported(ast.parse(text)):
        other = package_of(module)
        if other is not None and other != package and other not in known:
            yield f"{package} must not import {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_downwards(path):
    folder = path.parent.relative_to(ROOT / "aiacc")
    package = package_of(".".join(("aiacc", *folder.parts)))
    assert list(import_violations(package, path.read_text())) == []


def test_few_modules_prepare_submissions_themselves():
    found = [name_of(path) for path in MODULES if submits(ast.parse(path.read_text()))]
    assert sorted(found) == PREPARING


def submits(tree):
    """Whether a module uses what the core offers for submitting."""
    offered = {"prepare", "allreduce_in_place"}
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("_core"):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("_core"):
            used |= {alias.name for alias in node.names}
    return bool(offered & used)


@pytest.mark.parametrize(
    "text", ["f = _core.prepare", "from aiacc._core import prepare", "aiacc._core.prepare(1)"]
)
def test_the_rule_for_submissions_notices(text):
    assert submits(ast.parse(text))


def at_import(tree):
    """Statements that run when a module is imported."""
    for node in tree:
        yield node
        for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from at_import(getattr(node, part, []))


def test_no_module_imports_itself_through_others():
    names = {
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in MODULES
    }
    imports = {}
    for name, path in names.items():
        imports[name] = set()
        for node in at_import(ast.parse(path.read_text()).body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for module in imported(node):
                    known = module if module in names else module.rpartition(".")[0]
                    if known in names and not name.startswith(known):  # itself, or its package
                        imports[name].add(known)
    assert circles(imports) == []


@pytest.mark.parametrize(
    ("package", "text"),
    [
        ("collectives", "from aiacc.torch import adapter"),
        ("array", "import aiacc.torch.ops.allgather"),
        ("torch/ops", "from aiacc.torch.reducer.reducer import GradientReducer"),
        ("bootstrap", "from aiacc.run import local"),
        ("compression", "from aiacc.collectives import reduce_ops"),
        ("compression", "import aiacc.torch.compression.compressors"),
        ("kfac", "import aiacc.run.plan"),
        ("torch", "import aiacc.tensorflow"),
        ("tensorflow", "from aiacc.torch import adapter"),
        (None, "import aiacc.torch"),
    ],
)
def test_the_rule_for_imports_notices(package, text):
    assert list(import_violations(package, text))


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in [*SOURCES, *MODULES, *OTHERS]}),
    ids=name_of,
)
def test_folders_are_small(folder):
    units = {path.stem for path in folder.iterdir() if path.is_file() and path.suffix != ".md"}
    assert len(units) <= MOST_UNITS


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("base", '#include "csrc/core/runtime.h"'),
        ("planning", '#include "csrc/control/control_plane.h"'),
        ("engines", "#  include <torch/extension.h>"),
        ("core", "#include <pybind11/pybind11.h>"),
        ("core", "#include <mpi.h>"),
        ("engines", "#include <nccl.h>"),
        ("cuda", "#include <cuda_runtime.h>"),
        ("core", 'const char* x = std::getenv("X");'),
    ],
)
def test_the_rule_notices(folder, text):
    assert list(violations(folder, text))


def test_every_source_is_built():
    built = "".join(p.read_text() for p in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").iterdir()])
    missing = [
        name_of(path) for path in SOURCES if path.suffix != ".h" and name_of(path) not in built
    ]
    assert missing == []


def test_every_cpp_test_is_registered():
    listed = (ROOT / "tests/cpp/CMakeLists.txt").read_text()
    tests = sorted((ROOT / "tests/cpp").rglob("*_test.cc"))
    names = [str(path.relative_to(ROOT / "tests/cpp").with_suffix("")) for path in tests]
    built = [name for name in names if f"aiacc_test({name})" in listed or f" {name}.cc" in listed]
    assert built == names


def uses_environment(tree):
    """Whether a module touches the environment of the process."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
            and node.attr in {"environ", "environb", "getenv", "putenv", "unsetenv"}
        ):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            return any(alias.name in {"environ", "getenv"} for alias in node.names)
    return False


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_environment_is_read_in_one_module(path):
    allowed = path == ROOT / "aiacc" / "config.py"
    assert uses_environment(ast.parse(path.read_text())) == allowed


@pytest.mark.parametrize(
    "module",
    [
        "aiacc",
        "aiacc.array",
        "aiacc.run.main",
        "aiacc.bootstrap",
        "aiacc.compression.explain",
        "aiacc.data",
        "aiacc.kfac.placement",
    ],
)
def test_importing_aiacc_imports_no_framework(module):
    program = (
        f"import sys, {module}\n"
        f"print(*(name for name in {FRAMEWORKS!r} + ('mpi4py',) if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == []
