"""Networks as files and on command lines: which costs they have among how many ranks. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiacc.planning.cost import (
    ALL_REDUCE,
    OPERATIONS,
    Affine,
    Analytic,
    Contention,
    CostModel,
    Hierarchical,
    Table,
)
from aiacc.planning.execution import Sending
from aiacc.planning.trace import parse_json

VERSION = 1
#: No number of a network is larger, so that no time overflows.
_MOST = 1e18
_MIB = 1 << 20
#: Of an all-reduce of 1 MiB, and of each MiB of one of 1 GiB, far beyond most tables: longer ones
#: were written in other units.
_SLOWEST_S = 60.0
#: Models that answer for any number of ranks.
_FORMULAS = ("analytic", "hierarchical")
#: Of the job that measured a table, and their bounds: those of AIACC_LANES and AIACC_UNIT_BYTES.
_SENDING = {"lanes": (1, 64), "unit_bytes": (256, 1 << 30)}
#: Fields that analytic networks alone have.
_ANALYTIC = {"alpha", "gbit", "gamma", "algorithm"}
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

    def sending(self, ranks: int | None) -> Sending:
        """Parameters of the core in the job that measured it, as far as they are known."""
        known: dict[str, Any] = {
            name: int(self.fields[name]) for name in _SENDING if name in self.fields
        }
        if ranks is not None:
            known["ranks"] = ranks
        return dataclasses.replace(Sending(), **known)

    @property
    def _kind(self) -> str:
        return str(self.fields.get("model"))

    def cost(self, ranks: int | None = None) -> CostModel:
        """Costs among so many ranks. Raises NetworkError if they are not known."""
        if self._kind in ("affine", "table") and ranks is not None and ranks != self.world:
            raise NetworkError(
                f"this network was measured with {self.world or 'a number of'} ranks, which says "
                f"nothing about {ranks} (expected a network by alpha and gbit, or no --world, or "
                f"world={ranks} among its fields if that is how many there were)"
            )
        return _cost(self.fields, ranks)

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
        fields = _parsed(path.read_text())
        if not isinstance(fields, dict) or not fields.keys().isdisjoint({"tensors", "buckets"}):
            kind = "no JSON object" if not isinstance(fields, dict) else "a trace or a plan"
            raise NetworkError(
                f"the file holds {kind} (expected a network, as `aiacc-plan probe` writes it)"
            )
        if (version := fields.pop("version", None)) != VERSION:
            raise NetworkError(f"version: {version!r} (expected {VERSION})")
        return _checked(fields)
    except (ValueError, RecursionError) as error:
        raise NetworkError(f"{path}: {error}") from error


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise NetworkError(
            f"{error}; expected the text of a file as `aiacc-plan probe` writes it"
        ) from error


def _fields_of(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (side.strip() for side in part.partition("="))
        if not name:
            raise NetworkError(
                f"{part.strip()!r} in {text!r} (expected NAME=NUMBER, as in a=1e-3,b=8e-10)"
            )
        if name in fields:
            raise NetworkError(f"{name}: comes twice in {text!r} (expected once)")
        try:
            fields[name] = value if name == "algorithm" else float(value)
        except ValueError as error:
            raise NetworkError(f"{name}: {value!r} (expected a number)") from error
    fields["model"] = "affine" if _ANALYTIC.isdisjoint(fields) else "analytic"
    return fields


def _checked(fields: dict[str, Any]) -> Network:
    network = Network(fields)
    cost = network.cost(2 if fields.get("model") in _FORMULAS else network.world)
    for mib in (1, 1024):
        seconds, most = float(cost.time(ALL_REDUCE, mib * _MIB)), mib * _SLOWEST_S
        if seconds > most:
            raise NetworkError(
                f"an all-reduce of {mib * _MIB} bytes takes {seconds:.3g} s (expected {most:g} s "
                "at most); a, alpha and a table's times are in seconds, b in seconds per byte, "
                "gbit in Gbit/s"
            )
    return network


def _cost(fields: Mapping[str, Any], ranks: int | None) -> CostModel:
    kind = _kind_of(fields)
    contention = Contention(_number(fields, "capacity", 1.0, least=1.0))
    if kind == "affine":
        a, b = _number(fields, "a"), _number(fields, "b")
        return Affine(a, b, _pairs(fields.get("of", {})), contention)
    if kind == "table":
        return _table(fields.get("points"))
    if ranks is None:
        raise NetworkError("the number of ranks is missing (give --world)")
    if kind == "analytic":
        gbit = _number(fields, "gbit")
        if gbit < 1 / _MOST:
            raise NetworkError(f"gbit: {gbit:g} (expected a bandwidth, > 0)")
        algorithm = str(fields.get("algorithm", "ring"))
        alpha, gamma = _number(fields, "alpha"), _number(fields, "gamma", 0.0)
        return Analytic(algorithm, alpha, 8e-9 / gbit, gamma, ranks, contention)
    local = int(_number(fields, "local", least=1, whole=True))
    inside = _cost(_level(fields, "inside"), min(local, ranks))
    hosts = -(-ranks // local)  # the last one may have fewer ranks
    return Hierarchical(inside, _cost(_level(fields, "between"), hosts), local)


def _kind_of(fields: Mapping[str, Any]) -> str:
    """The model of a network whose fields are all known."""
    known = {
        "affine": {"a", "b", "of", "world", "capacity"},
        "analytic": _ANALYTIC | {"capacity"},
        "table": {"points", "world", *_SENDING},
        "hierarchical": {"inside", "between", "local"},
    }
    kind = fields.get("model")
    if not isinstance(kind, str) or kind not in known:
        raise NetworkError(f"model: {kind!r} (expected one of {', '.join(known)})")
    strange = sorted(map(str, fields.keys() - known[kind] - {"model", "comment"}))
    if strange:
        raise NetworkError(
            f"{kind}: unknown {', '.join(strange)} (expected {', '.join(sorted(known[kind]))})"
        )
    if fields.get("world") is not None:
        _number(fields, "world", least=1, whole=True)
    for name, (least, most) in _SENDING.items():
        if name in fields:
            _number(fields, name, least=least, below=most + 1, whole=True)
    return kind


def _number(
    fields: Mapping[str, Any],
    name: str,
    default: float | None = None,
    at: str = "",
    *,
    least: float = 0.0,
    below: float = _MOST,
    whole: bool = False,
) -> float:
    value = fields.get(name, default)
    said = "missing" if value is None else f"{value!r:.50}"
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (good and least <= value < below and (not whole or value == int(value))):
        raise NetworkError(
            f"{at}{name}: {said} (expected a {'whole ' if whole else ''}number, "
            f">= {least:g}{f' and < {below:.10g}' if good and value >= below else ''})"
        )
    return float(value)


def _level(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    level = fields.get(name)
    if not isinstance(level, Mapping):
        raise NetworkError(f"{name}: {level!r} (expected the network of this level, an object)")
    return level


def _pairs(of: Any) -> dict[str, tuple[float, float]]:
    pairs: dict[str, tuple[float, float]] = {}
    for name, pair in (of if isinstance(of, Mapping) else {"": of}).items():
        if name not in OPERATIONS or not isinstance(pair, list) or len(pair) != 2:
            raise NetworkError(
                f"of: {name!r}: {pair!r} (expected pairs [a, b] of {', '.join(OPERATIONS)})"
            )
        both = dict(zip("ab", pair, strict=True))
        pairs[name] = _number(both, "a", at=f"of.{name}."), _number(both, "b", at=f"of.{name}.")
    return pairs


def _table(rows: Any) -> Table:
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise NetworkError("points: expected a list of objects with bytes and seconds")
    points: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number, row in enumerate(rows):
        at = f"points[{number}]."
        operation = row.get("operation", ALL_REDUCE)
        if operation not in OPERATIONS:
            raise NetworkError(
                f"{at}operation: {operation!r} (expected one of {', '.join(OPERATIONS)})"
            )
        lanes = int(_number(row, "lanes", 1, at, least=1, whole=True))
        point = _number(row, "bytes", None, at), _number(row, "seconds", None, at)
        points.setdefault((operation, lanes), []).append(point)
    if not any(operation == ALL_REDUCE for operation, _ in points):
        raise NetworkError(f"points: none of {ALL_REDUCE} (expected two sizes of it at least)")
    return Table({key: sorted(row) for key, row in points.items()})
