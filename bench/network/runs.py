"""Result files of the network: a list of runs, each with where and from what it was measured."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import machine


def begun() -> dict[str, Any]:
    """What every run says of itself: when it began, on what machine, with what versions."""
    return {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": machine.versions(),
        **machine.commit(),
    }


def command(module: str, arguments: Sequence[str]) -> str:
    """How to do it again."""
    return " ".join([f"python -m {module}", *arguments])


def load(path: Path) -> list[dict[str, Any]]:
    """The runs of a file, in the order in which they were added."""
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


def kept(path: Path, add: bool) -> list[dict[str, Any]]:
    """The runs that stay when others are added; none without ``add``, or without the file."""
    return load(path) if add and path.exists() else []


def save(path: Path, runs: Sequence[Any]) -> None:
    """Write the file and, if need be, its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"runs": list(runs)}, indent=1) + "\n")


def record(path: Path, run: Mapping[str, Any]) -> None:
    """Put the run of a cell into a file, in place of an earlier one of that cell."""
    name = run["cell"]["name"]
    save(path, [*(old for old in kept(path, add=True) if old["cell"]["name"] != name), run])
