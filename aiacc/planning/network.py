"""Networks as files and on command lines: which costs they have among how many ranks. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiacc.planning.cost import (
    ALL_REDUCE,
    Affine,
    Analytic,
    Contention,
    CostModel,
    Hierarchical,
    Table,
)

VERSION = 1
#: Models that answer for any number of ranks.
_FORMULAS = ("analytic", "hierarchical")
#: Startup and seconds per byte that the authors of MG-WFBP and DeAR fitted to their clusters, as
#: their releases have them, and the number of ranks.
PUBLISHED = {
    "10gbe-8": (5.23e-4, 8.57e-10, 8),
    "10gbe-16": (9.08e-4, 7.40e-10, 16),
    "10gbe-32": (4.04e-3, 8.64e-10, 32),
    "10gbe-64": (7.04e-3, 9.64e-10, 64),
    "56gbib-16": (2.36e-4, 4.06e-10, 16),
    "100gbib-64": (8.06e-4, 5.89e-10, 64),
}


class NetworkError(ValueError):
    """A network that cannot be read; the text names the field."""


@dataclass(frozen=True)
class Network:
    """A network, as far as costs tell."""

    fields: Mapping[str, Any]

    @property
    def world(self) -> int | None:
        """Ranks that it was measured with; None if that is not known, or costs are a formula."""
        return None if self._kind in _FORMULAS else self.fields.get("world")

    @property
    def _kind(self) -> str:
        return str(self.fields.get("model"))

    def cost(self, ranks: int | None = None) -> CostModel:
        """Costs among so many ranks. Raises NetworkError if they are not known."""
        if self._kind in ("affine", "table") and ranks is not None and ranks != self.world:
            raise NetworkError(
                f"this network was measured with {self.world or 'a number of'} ranks, which says "
                f"nothing about {ranks} (expected a network by alpha and gbit, or no --world)"
            )
        try:
            return _cost(self.fields, ranks)
        except (TypeError, KeyError) as error:
            raise NetworkError(f"{self._kind}: {error} (see aiacc-plan networks)") from error

    def encode(self) -> str:
        """As JSON; `network_of` reads a file with it."""
        return json.dumps({"version": VERSION, **self.fields}, indent=1)


def affine(a: float, b: float, world: int | None) -> Network:
    """Costs of a + b M, in seconds and seconds per byte, among ``world`` ranks."""
    return Network({"model": "affine", "a": a, "b": b, "world": world})


def network_of(text: str) -> Network:
    """A network by what a user wrote: a path, a name in PUBLISHED, or ``alpha=30e-6,gbit=10``.

    Raises NetworkError, which names what is wrong.
    """
    if text in PUBLISHED:
        return affine(*PUBLISHED[text])
    if "=" in text:
        return _checked(_fields_of(text))
    path = Path(text)
    if not path.is_file():
        raise NetworkError(
            f"network {text!r} (expected a file, one of {', '.join(PUBLISHED)}, or fields such as "
            "a=1e-3,b=8e-10 or alpha=30e-6,gbit=10)"
        )
    try:
        fields = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise NetworkError(f"{path}, line {error.lineno}: no JSON ({error.msg})") from error
    if not isinstance(fields, dict) or fields.pop("version", None) != VERSION:
        raise NetworkError(f"{path}: no network of version {VERSION}")
    return _checked(fields)


def _fields_of(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            fields[name.strip()] = value if name.strip() == "algorithm" else float(value)
        except ValueError as error:
            raise NetworkError(f"{name.strip()}={value} (expected a number)") from error
    fields["model"] = "analytic" if "alpha" in fields else "affine"
    return fields


def _checked(fields: dict[str, Any]) -> Network:
    network = Network(fields)
    network.cost(2 if fields.get("model") in _FORMULAS else network.world)
    return network


def _cost(fields: Mapping[str, Any], ranks: int | None) -> CostModel:
    known = {
        "affine": {"a", "b", "of", "world", "capacity"},
        "analytic": {"algorithm", "alpha", "gbit", "gamma", "capacity"},
        "table": {"points", "world"},
        "hierarchical": {"inside", "between", "local"},
    }
    kind = fields.get("model")
    if kind not in known:
        raise NetworkError(f"model: {kind!r} (expected one of {', '.join(known)})")
    strange = sorted(fields.keys() - known[kind] - {"model", "comment"})
    if strange:
        raise NetworkError(
            f"{kind}: unknown {', '.join(strange)} (expected {', '.join(sorted(known[kind]))})"
        )
    contention = Contention(float(fields.get("capacity", 1.0)))
    if kind == "affine":
        of = {name: (float(a), float(b)) for name, (a, b) in fields.get("of", {}).items()}
        return Affine(float(fields["a"]), float(fields["b"]), of, contention)
    if kind == "analytic":
        if ranks is None:
            raise NetworkError("the number of ranks is missing (give --world)")
        beta = 8e-9 / float(fields["gbit"])
        algorithm, gamma = str(fields.get("algorithm", "ring")), float(fields.get("gamma", 0.0))
        return Analytic(algorithm, float(fields["alpha"]), beta, gamma, ranks, contention)
    if kind == "hierarchical":
        if ranks is None:
            raise NetworkError("the number of ranks is missing (give --world)")
        local = int(fields["local"])
        hosts = max(1, ranks // local)
        return Hierarchical(
            _cost(fields["inside"], min(local, ranks)), _cost(fields["between"], hosts), local
        )
    points: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in fields["points"]:
        key = str(row.get("operation", ALL_REDUCE)), int(row.get("lanes", 1))
        points.setdefault(key, []).append((float(row["bytes"]), float(row["seconds"])))
    return Table({key: sorted(row) for key, row in points.items()})
