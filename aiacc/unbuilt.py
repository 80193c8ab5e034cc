"""What to say when the compiled part of the package is missing, or cannot be loaded."""

from __future__ import annotations

import sys
from pathlib import Path


def explain(error: ImportError, package: Path | None = None) -> None:
    """Raise a better ImportError than one that only names ``aiacc._core`` or its library."""
    folder = package or Path(__file__).resolve().parent
    if isinstance(error, ModuleNotFoundError):
        if error.name == "aiacc._core":
            raise ImportError(_why(folder)) from None
    elif error.path is not None and Path(error.path).name.startswith("_core."):
        # The loader names the library that it did not find, or what it misses in it.
        what = f"libaiacc_core.so of the same build beside it); {_again(folder)}"
        if "failed to map" in str(error):
            what = "room for it); raise the limit of address space (ulimit -v), or get more memory"
        raise ImportError(
            f"{error.path} cannot be loaded: {error} (expected {what}",
            name="aiacc._core",
            path=error.path,
        ) from error


def check_folder_of(core: str) -> None:
    """Raise ImportError unless ``aiacc._core``, this file, is in the folder of the Python sources.

    An editable installation offers its own to the sources of any other folder that has none.
    """
    if not Path(core).parent.samefile(Path(__file__).parent):
        raise ImportError(
            f"{_why(Path(__file__).resolve().parent)}; this Python has {core}, which "
            "belongs to another aiacc"
        )


def _why(folder: Path) -> str:
    """Why there is no compiled part in this folder, and what to do."""
    built = sorted(path.name for path in folder.glob("_core.*.so"))
    if built:
        return (
            f"{folder} has {', '.join(built)}, which is for another Python (expected one for "
            f"{sys.executable}, {sys.version_info.major}.{sys.version_info.minor}); run the Python "
            "that aiacc was built for, or build it for this one: `pip install .` with its pip"
        )
    if _is_source(folder):
        return (
            f"aiacc is imported from its source folder {folder.parent}, where it has not been "
            f"built (expected aiacc/_core.*.so); {_again(folder)} and use its "
            ".venv/bin/python, or run Python in another folder to import the installed aiacc"
        )
    return f"{folder} is incomplete (expected _core.*.so); {_again(folder)}"


def _is_source(folder: Path) -> bool:
    return (folder.parent / "CMakeLists.txt").exists()


def _again(folder: Path) -> str:
    """How the compiled part comes into this folder."""
    if _is_source(folder):
        return f"run `make build` in {folder.parent}"
    return "install aiacc again: `pip install --force-reinstall .` in its source folder"
