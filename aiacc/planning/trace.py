"""What a training step asks of the network: which bytes are ready when, and needed when. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from aiacc import arguments

#: Of the JSON form; one that differs is refused.
VERSION = 1
#: No whole number in a trace is as large.
_MOST = 1 << 63
#: Of a pass, in seconds: a longer one was written in other units.
_LONGEST_S = 86_400.0
_TIME = f"seconds, 0 to {_LONGEST_S:.0f}"
#: Of a whole number in a file; Python reads no more than 640 with any setting.
_MOST_DIGITS = 600


class TraceError(ValueError):
    """A trace that cannot be read, or that contradicts itself; the text names the field."""


@dataclass(frozen=True)
class Tensor:
    """One gradient."""

    name: str
    bytes: int
    dtype: str
    #: Seconds from the start of the step, with its forward pass, until the gradient is ready.
    ready_s: float
    #: Seconds from the start of a forward pass until the parameter is first used.
    need_s: float


@dataclass(frozen=True)
class Trace:
    """A training step on one rank, or the slowest of all ranks.

    A step is a forward pass, a backward pass, and what communication adds to them. Tensors are in
    the order in which their gradients become ready.
    """

    model: str
    tensors: tuple[Tensor, ...]
    forward_s: float
    #: Of the backward pass; the last gradient is ready at its end, or before.
    backward_s: float
    #: "measured", or "modelled": computed from a table of layers.
    source: str

    def __post_init__(self) -> None:
        if not self.tensors:
            raise TraceError("tensors: none (expected at least one)")
        if self.source not in ("measured", "modelled"):
            raise TraceError(f"source: {self.source!r} (expected measured or modelled)")
        for name in ("forward_s", "backward_s"):
            if not 0 <= getattr(self, name) <= _LONGEST_S:
                raise TraceError(f"{name}: {getattr(self, name)} (expected {_TIME})")
        names = set()
        for number, tensor in enumerate(self.tensors):
            at = f"tensors[{number}]"
            if tensor.name in names:
                raise TraceError(f"{at}.name: {tensor.name!r} comes twice (expected unique names)")
            names.add(tensor.name)
            if tensor.bytes < 1:
                raise TraceError(f"{at}.bytes: {tensor.bytes} (expected >= 1)")
            if not 0 <= tensor.ready_s <= self.compute_s * (1 + 1e-9):
                raise TraceError(
                    f"{at}.ready_s: {tensor.ready_s} (expected 0 to forward_s + backward_s, "
                    f"{self.compute_s})"
                )
            if not 0 <= tensor.need_s <= self.forward_s * (1 + 1e-9):
                raise TraceError(
                    f"{at}.need_s: {tensor.need_s} (expected 0 to forward_s, {self.forward_s})"
                )
        for number, (one, other) in enumerate(pairwise(self.tensors)):
            if other.ready_s < one.ready_s:
                raise TraceError(
                    f"tensors[{number + 1}].ready_s: {other.ready_s} is before that of the tensor "
                    f"before it, {one.ready_s} (expected the order in which they become ready)"
                )

    @property
    def compute_s(self) -> float:
        """Seconds of a step whose communication costs nothing."""
        return self.forward_s + self.backward_s

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(tensor.bytes for tensor in self.tensors)

    def encode(self) -> str:
        """As JSON; `decode` reads it."""
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def decode(text: str) -> Trace:
        """Inverse of `encode`. Raises TraceError, with line or field, for anything else."""
        try:
            fields = parse_json(text)
        except ValueError as error:
            raise TraceError(
                f"{error}; expected the text of a file as `aiacc-plan profile` writes it"
            ) from error
        if not isinstance(fields, dict):
            raise TraceError("the file holds no JSON object (expected a trace)")
        if "buckets" in fields:
            raise TraceError(
                "the file holds a plan (expected the trace that the plan was made of, as "
                "`aiacc-plan profile` writes it)"
            )
        if fields.get("version") != VERSION:
            raise TraceError(f"version: {fields.get('version')!r} (expected {VERSION})")
        rows = fields.get("tensors")
        if not isinstance(rows, list):
            raise TraceError(
                "tensors: no list (expected the trace that `aiacc-plan profile` writes; a network "
                "goes with --net)"
            )
        tensors = tuple(
            Tensor(
                name=_take(row, "name", str, f"tensors[{number}]."),
                bytes=_take(row, "bytes", int, f"tensors[{number}]."),
                dtype=_take(row, "dtype", str, f"tensors[{number}]."),
                ready_s=_take(row, "ready_s", float, f"tensors[{number}]."),
                need_s=_take(row, "need_s", float, f"tensors[{number}]."),
            )
            for number, row in enumerate(rows)
        )
        return Trace(
            model=_take(fields, "model", str),
            tensors=tensors,
            forward_s=_take(fields, "forward_s", float),
            backward_s=_take(fields, "backward_s", float),
            source=_take(fields, "source", str),
        )


def parse_json(text: str) -> Any:
    """What a file of this package holds. Raises ValueError, which says where it is no JSON."""
    arguments.check({"text": text})

    def whole(digits: str) -> int:
        if len(digits) <= _MOST_DIGITS:
            return int(digits)
        line = text.count("\n", 0, text.index(digits)) + 1
        raise ValueError(
            f"line {line}: a number of {len(digits)} digits (expected {_MOST_DIGITS} at most)"
        )

    try:
        return json.loads(text, parse_int=whole)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: no JSON ({error.msg})") from error
    except RecursionError as error:
        raise ValueError("lists or objects in each other (expected less nesting)") from error


def _take(fields: Any, name: str, kind: type, at: str = "") -> Any:
    value: Any = fields.get(name) if isinstance(fields, Mapping) else None
    good = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
    expected = "" if good and not isinstance(value, bool) else kind.__name__
    if not expected and isinstance(value, int) and abs(value) >= _MOST:
        expected = _TIME if kind is float else "less than 2^63"
    if not expected and isinstance(value, str) and not _is_text(value):
        expected = "characters that UTF-8 has"
    if expected:
        raise TraceError(f"{at}{name}: {value!r:.50} (expected {expected})")
    return float(value) if kind is float else value


def _is_text(value: str) -> bool:
    """Whether it can be printed: JSON spells halves of characters, too."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def typical(steps: Sequence[Trace]) -> Trace:
    """The medians of what several steps of one rank took. Steps must have the same tensors."""
    return _combined(steps, median)


def slowest(ranks: Sequence[Trace]) -> Trace:
    """What the ranks have in common: a collective begins when the last of them is ready."""
    return _combined(ranks, max)


def times_of(trace: Trace) -> list[float]:
    """All times of a trace, as `with_times` takes them: ranks may combine them one by one.

    Those of the backward pass count from its start, so that a slow forward pass of one rank does
    not count twice; tensors come by name.
    """
    rows = sorted(trace.tensors, key=lambda tensor: tensor.name)
    ready = [tensor.ready_s - trace.forward_s for tensor in rows]
    return [trace.forward_s, trace.backward_s, *ready, *(tensor.need_s for tensor in rows)]


def with_times(trace: Trace, times: Sequence[float]) -> Trace:
    """Inverse of `times_of`: the tensors of ``trace`` at other times, in their order."""
    forward_s, backward_s = times[:2]
    rows = sorted(trace.tensors, key=lambda tensor: tensor.name)
    ready, need = times[2 : 2 + len(rows)], times[2 + len(rows) :]
    tensors = [
        dataclasses.replace(tensor, ready_s=forward_s + later, need_s=min(forward_s, first))
        for tensor, later, first in zip(rows, ready, need, strict=True)
    ]
    tensors.sort(key=lambda tensor: tensor.ready_s)
    return dataclasses.replace(
        trace,
        tensors=tuple(tensors),
        forward_s=forward_s,
        backward_s=max(backward_s, tensors[-1].ready_s - forward_s),
    )


def _combined(traces: Sequence[Trace], choose: Any) -> Trace:
    if not traces:
        raise TraceError("no traces (expected one or more)")
    names = [{tensor.name for tensor in trace.tensors} for trace in traces]
    for number, other in enumerate(names):
        differing = other ^ names[0]
        if differing:
            raise TraceError(
                f"trace {number} differs from trace 0 in {sorted(differing)[0]!r} (expected the "
                "same tensors in all)"
            )
    columns = zip(*map(times_of, traces), strict=True)
    return with_times(traces[0], [choose(column) for column in columns])
