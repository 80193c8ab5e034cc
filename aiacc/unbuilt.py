"""What to say when the compiled part of the package is missing."""

from __future__ import annotations

import sys
from pathlib import Path


def explain(error: ModuleNotFoundError, package: Path | None = None) -> ImportError:
    """The error to raise instead of one that only names ``aiacc._core``."""
    if error.name != "aiacc._core":
        return error
    return ImportError(_why(package or Path(__file__).resolve().parent))


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
    if (folder.parent / "CMakeLists.txt").exists():
        return (
            f"aiacc is imported from its source folder {folder.parent}, where it has not been "
            "built (expected aiacc/_core.*.so); run `make build` there and use its "
            ".venv/bin/python, or run Python in another folder to import the installed aiacc"
        )
    return (
        f"{folder} is incomplete (expected _core.*.so); install aiacc again: `pip install "
        "--force-reinstall .` in its source folder"
    )
