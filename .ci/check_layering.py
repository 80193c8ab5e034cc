"""Checks that folders are the architecture: who may include, import, read and start what.

Prints every violation with its file, its line and what to do; see docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]

_BELOW_CORE = "base planning control cuda kernels engines"
#: Folder of csrc to those it may include from, itself aside.
LAYERS = {
    "base": "",
    "planning": "base",
    "control": "base",
    "cuda": "base",
    "kernels": "base cuda",
    "engines": "base planning control cuda kernels",
    "core": _BELOW_CORE,
    "bindings": f"{_BELOW_CORE} core",
}
#: Stage of the core to those it may include from, itself aside. A tensor meets them in the order
#: submission, negotiation, dispatch, execution; what they are made of points the other way: a table
#: of submissions has requests, a lane runs units. What lies above the stages may include them all.
STAGES = {
    "negotiation": "",
    "submission": "negotiation",
    "execution": "negotiation submission",
    "execution/gpu": "negotiation submission execution",
    "dispatch": "negotiation submission execution execution/gpu",
}
_RENDEZVOUS = "bootstrap bootstrap/providers"
#: Package of aiacc to those it may import from, itself and the modules at the top aside.
PACKAGES = {
    "collectives": "",
    "bootstrap": "bootstrap/providers",
    "bootstrap/providers": "bootstrap",
    "autotune": "collectives planning",
    "array": "collectives",
    "compression": "planning",
    "data": "array data/described data/neighbours",
    "data/described": "",
    "data/neighbours": "array data",
    "optim": "",
    "planning": "",
    "planning/division": "planning",
    "planning/models": "planning",
    "kfac": "planning planning/division planning/models",
    "run": f"{_RENDEZVOUS} array autotune collectives compression kfac planning planning/models",
    "torch": f"{_RENDEZVOUS} autotune collectives compression planning torch/compression "
    "torch/decoupled torch/distributed torch/elastic torch/kfac torch/ops torch/parallel "
    "torch/reducer",
    "torch/parallel": "collectives planning planning/division torch torch/ops",
    "torch/compression": "collectives compression torch",
    "torch/ops": "collectives torch torch/compression",
    "torch/reducer": "autotune collectives compression planning torch torch/compression torch/ops",
    "torch/decoupled": "autotune collectives planning torch torch/compression torch/ops "
    "torch/reducer",
    "torch/kfac": "collectives kfac planning planning/models torch torch/decoupled torch/parallel",
    "torch/distributed": f"{_RENDEZVOUS} collectives compression torch torch/compression "
    "torch/ops torch/reducer",
    "torch/elastic": "collectives torch",
    "tensorflow": "autotune collectives compression planning tensorflow/keras tensorflow/ops",
    "tensorflow/ops": "collectives tensorflow",
    "tensorflow/keras": "collectives planning tensorflow tensorflow/ops",
    "keras": "planning tensorflow tensorflow/keras",
    "compat": "run torch",
    "compat/site": "compat",
}
#: What the modules at the top of aiacc may import.
LOWEST = f"{_RENDEZVOUS} autotune collectives"

#: Folders whose functions are pure, and what nothing in them may include.
PURE = ("csrc/planning/", "csrc/core/negotiation/")
IMPURE_HEADER = re.compile(
    r"(atomic|chrono|condition_variable|future|mutex|thread|unistd\.h|sys/.*"
    r"|csrc/base/(event|log|socket|spin|timeline)\.h)"
)
#: Kernels that use threads; ThreadSanitizer is spared the tests of the others.
THREADED_KERNELS = {"csrc/kernels/lars.cc"}
THREAD_HEADER = re.compile(
    r"(atomic|condition_variable|future|mutex|shared_mutex|thread|csrc/base/thread\.h)"
)
#: What only one folder of csrc may include.
OWNED_HEADERS = {
    "bindings": re.compile(r"(torch|ATen|c10|tensorflow|pybind11|Python\.h|numpy).*"),
    "engines": re.compile(r"mpi\.h"),
    "kernels": re.compile(r"(cuda|nccl)[a-z0-9_]*\.h"),
}
#: Modules that call the core's `prepare`; all others start what `submission` has prepared.
PREPARING = {"aiacc/collectives/submission.py", "aiacc/torch/ops/allreduce.py"}
#: At the top of a folder: a header with its source is one.
MOST_UNITS = 20

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

#: Path, line, what is wrong, and what to do.
Violation = tuple[str, int, str, str]


def main() -> int:
    """Check the files that git knows or would add; 1 if something breaks a rule."""
    folders = ["aiacc", "bench", "cmake", "csrc", "tests", "CMakeLists.txt"]
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name: ROOT / name for name in sorted(names.stdout.splitlines())}
    texts = {
        name: path.read_text() if path.suffix not in {".json", ".md"} else ""
        for name, path in files.items()
        if path.is_file()
    }
    found = sorted(violations(texts))
    for path, line, what, remedy in found:
        sys.stderr.write(f"{path}:{line}: {what}; {remedy}\n")
    return 1 if found else 0


def violations(files: Mapping[str, str]) -> Iterator[Violation]:
    """What breaks the rules in ``files``, the texts of a tree by their paths."""
    sources = {
        path: text
        for path, text in files.items()
        if path.startswith("csrc/") and path.endswith((".h", ".cc", ".cu"))
    }
    modules = {
        path: ast.parse(text, path)
        for path, text in files.items()
        if path.startswith("aiacc/") and path.endswith(".py")
    }
    for path, text in sources.items():
        yield from _of_source(path, text)
    yield from _circles_of_units(sources)
    for path, tree in modules.items():
        yield from _of_module(path, tree)
    yield from _circles_of_modules(modules)
    yield from _large_folders(files)
    yield from _unlisted(files)


# C++ ---------------------------------------------------------------------------------------------


def _includes(text: str) -> Iterator[tuple[int, str]]:
    for found in INCLUDE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def _of_source(path: str, text: str) -> Iterator[Violation]:
    folder = path.split("/")[1]
    if folder not in LAYERS:
        yield path, 1, f"csrc/{folder} has no place", f"add it to LAYERS in {Path(__file__).name}"
        return
    stage = _stage_of(path)
    threads = 0
    for line, header in _includes(text):
        layer = header.split("/")[1] if header.startswith("csrc/") else folder
        if layer not in {folder, *LAYERS[folder].split()}:
            yield path, line, f"{folder} must not include {header}", "includes point downwards"
        for owner, pattern in OWNED_HEADERS.items():
            if folder != owner and pattern.fullmatch(header):
                yield path, line, f"{header} in {folder}", f"only csrc/{owner} may include it"
        if stage is not None and header.startswith("csrc/core/"):
            other = _stage_of(header)
            if other is None:
                remedy = "it is above the stages, which must not know it"
                yield path, line, f"{stage} must not include {header}", remedy
            elif other not in {stage, *STAGES[stage].split()}:
                remedy = f"it may know {STAGES[stage] or 'no other stage'}"
                yield path, line, f"{stage} must not include {header}", remedy
        if path.startswith(PURE) and IMPURE_HEADER.fullmatch(header):
            remedy = "decisions are pure: no thread, clock, log or connection"
            yield path, line, f"{header} in {PurePosixPath(path).parent}", remedy
        if folder == "kernels" and THREAD_HEADER.fullmatch(header):
            threads = threads or line
    if folder == "kernels" and bool(threads) != (path in THREADED_KERNELS):
        what = "a kernel that uses threads" if threads else "this kernel uses no threads"
        yield path, threads or 1, what, "use none, or correct THREADED_KERNELS"
    if path != "csrc/base/env.cc":
        code = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
        for line, words in enumerate(code.splitlines(), 1):
            if re.search(r"\bgetenv\b", words):
                yield path, line, "reads the environment", "only csrc/base/env.cc calls getenv"


def _stage_of(path: str) -> str | None:
    """Stage of a file or an include of the core, None above the stages."""
    parts = PurePosixPath(path).parts
    return "/".join(parts[2:-1]) or None if parts[:2] == ("csrc", "core") else None


def _circles(includes: Mapping[str, set[str]]) -> list[str]:
    """Units that reach themselves by ``includes``, the units that each one knows."""
    reached = {unit: set(others) for unit, others in includes.items()}
    for through in reached:
        for others in reached.values():
            if through in others:
                others |= reached[through]
    return sorted(unit for unit, others in reached.items() if unit in others)


def _circles_of_units(sources: Mapping[str, str]) -> Iterator[Violation]:
    units: dict[str, set[str]] = {}  # a header and its source are one unit
    for path, text in sources.items():
        if path.startswith("csrc/core/"):
            unit = str(PurePosixPath(path).with_suffix(""))
            others = {str(PurePosixPath(name).with_suffix("")) for _, name in _includes(text)}
            units.setdefault(unit, set()).update(others - {unit})
    for unit in _circles({unit: others & units.keys() for unit, others in units.items()}):
        yield f"{unit}.h", 1, "includes itself through others", "break the circle"


# Python ------------------------------------------------------------------------------------------


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _package_of(module: str) -> str | None:
    """Package of aiacc that a dotted name is in, None for what is at the top."""
    parts = module.split(".")
    for end in range(len(parts), 1, -1):
        name = "/".join(parts[1:end])
        if parts[0] == "aiacc" and name in PACKAGES:
            return name
    return None


def _of_module(path: str, tree: ast.Module) -> Iterator[Violation]:
    folder = PurePosixPath(path).parent
    package = _package_of(".".join(folder.parts))
    if "/".join(folder.parts[1:]) not in {"", *PACKAGES}:
        yield path, 1, f"{folder} has no place", f"add it to PACKAGES in {Path(__file__).name}"
    known = LOWEST if package is None else PACKAGES[package]
    for line, module in _imported(ast.walk(tree)):
        other = _package_of(module)
        if other not in {None, package, *known.split()}:
            remedy = f"imports point downwards: it may import {known or 'no other package'}"
            yield path, line, f"{package or 'aiacc'} must not import {module}", remedy
    if (line := _prepares(tree)) and path not in PREPARING:
        remedy = "aiacc/collectives/submission.py does, and its callers start what it gives"
        yield path, line, "prepares a submission itself", remedy
    if (line := _uses_environment(tree)) and path != "aiacc/config.py":
        yield path, line, "uses the environment of the process", "aiacc/config.py does"


def _prepares(tree: ast.Module) -> int:
    """The line in which a module uses what the core offers for submitting, 0 if none."""
    offered = {"prepare", "allreduce_in_place"}
    for node in ast.walk(tree):
        used: set[str] = set()
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("_core"):
            used = {node.attr}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("_core"):
            used = {alias.name for alias in node.names}
        if used & offered:
            return node.lineno
    return 0


def _uses_environment(tree: ast.Module) -> int:
    """The line in which a module touches the environment of the process, 0 if none."""
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        used: set[str] = set()
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os":
            used = {node.attr}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            used = {alias.name for alias in node.names}
        if used & names:
            return node.lineno
    return 0


def _at_import(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Statements that run when a module is imported."""
    for node in statements:
        yield node
        for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not for_types and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from _at_import(getattr(node, part, []))


def _circles_of_modules(modules: Mapping[str, ast.Module]) -> Iterator[Violation]:
    paths = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in modules
    }
    imports: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for _, module in _imported(_at_import(modules[path].body)):
            known = module if module in paths else module.rpartition(".")[0]
            if known in paths and not name.startswith(known):  # itself, or its package
                imports[name].add(known)
    for name in _circles(imports):
        yield paths[name], 1, "imports itself through others", "break the circle"


# Folders and lists -------------------------------------------------------------------------------


def _large_folders(files: Mapping[str, str]) -> Iterator[Violation]:
    units: dict[str, set[str]] = {}
    code = set()
    for name in files:
        path = PurePosixPath(name)
        if path.suffix != ".md":
            units.setdefault(str(path.parent), set()).add(path.stem)
        if path.suffix in {".c", ".cc", ".cu", ".h", ".py"}:
            code.add(str(path.parent))
    for folder, stems in units.items():
        if folder in code and len(stems) > MOST_UNITS:
            what = f"{len(stems)} units (expected at most {MOST_UNITS})"
            yield folder, 1, what, "make a folder of those that belong together"


def _unlisted(files: Mapping[str, str]) -> Iterator[Violation]:
    built = "".join(
        text for path, text in files.items() if path.startswith(("CMakeLists.txt", "cmake/"))
    )
    tests = files.get("tests/cpp/CMakeLists.txt", "")
    listed = {name.removesuffix(".cc") for name in re.findall(r"[\w/.-]+_test(?:\.cc)?\b", tests)}
    for path in files:
        if path.startswith("csrc/") and path.endswith((".cc", ".cu")) and path not in built:
            yield path, 1, "is not built", "list it in CMakeLists.txt or in cmake/"
        if path.startswith("tests/cpp/") and path.endswith("_test.cc"):
            name = path.removeprefix("tests/cpp/").removesuffix(".cc")
            if name not in listed:
                yield path, 1, "is not built", "list it in tests/cpp/CMakeLists.txt"


if __name__ == "__main__":
    sys.exit(main())
