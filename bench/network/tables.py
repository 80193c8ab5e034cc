"""Where results of rows are from that are not of `bench.row` yet. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

_LOCAL = " with local changes"


def provenance(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: when, where and from what; what was added to a run later counts, too."""
    parts = [part for run in runs for part in (run, *run.get("added", ()))]
    commits = sorted({part["commit"][:12] + _LOCAL * part.get("dirty", False) for part in parts})
    first, last = min(part["when"] for part in parts), max(part["when"] for part in parts)
    machines = sorted({_machine_text(part["machine"]) for part in parts})
    return (
        f"Measured {first} to {last} at commit {', '.join(commits)} on {' and '.join(machines)}, "
        f"torch {runs[0]['versions']['torch']}."
    )


def _machine_text(machine: Mapping[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
