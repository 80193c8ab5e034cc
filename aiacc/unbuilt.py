"""What to say when the compiled part of the package is missing."""

from __future__ import annotations

import sys
from pathlib import Path


def explain(error: ModuleNotFoundError, package: Path | None = None) -> ImportError:
    """The error to raise instead of one that only names ``aiacc._core``."""
    if error.name != "aiacc._core":
        return error
    folder = package or Path(__file__).resolve().parent
    built = sorted(path.name for path in folder.glob("_core.*.so"))
    if built:
        return ImportError(
            f"{folder} has {', '.join(built)}, which is for another Python (expected one for "
            f"{sys.executable}, {sys.version_info.major}.{sys.version_info.minor}); run the Python "
            "that aiacc was built for, or build it for this one: `pip install .` with its pip"
        )
    if (folder.parent / "CMakeLists.txt").exists():
        return ImportError(
            f"aiacc is imported from its source folder {folder.parent}, where it has not been "
            "built (expected aiacc/_core.*.so); run `make build` there and use its "
            ".venv/bin/python, or run Python in another folder to import the installed aiacc"
        )
    return ImportError(
        f"{folder} is incomplete (expected _core.*.so); install aiacc again: `pip install "
        "--force-reinstall .` in its source folder"
    )
