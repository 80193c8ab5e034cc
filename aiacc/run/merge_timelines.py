"""Makes one trace of the timelines of several ranks, on one clock."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_USAGE = "expected `aiaccrun --merge-timelines OUT t.json t.rank1.json ...`, OUT being a new file"


def merge(paths: Sequence[Path], target: Path) -> int:
    """Write the timelines in ``paths`` to ``target`` as one; returns the number of events.

    Raises:
        ValueError: ``target`` is a timeline of a rank; a file is none, is given twice, or two
            are of one rank, or there are fewer than two.
        OSError: A file cannot be read or written.
    """
    if target.resolve() in [path.resolve() for path in paths] or _is_of_a_rank(target):
        raise ValueError(f"{target} is the timeline of a rank, not a file to write; {_USAGE}")
    if len(paths) < 2:
        given = f"only {paths[0]}" if paths else "no timelines"
        raise ValueError(f"{given} to merge into {target}; {_USAGE}")
    seen: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in seen:
            raise ValueError(f"{seen[path.resolve()]} and {path} are the same file; {_USAGE}")
        seen[path.resolve()] = path
    merged = merge_events({str(path): read_events(path) for path in paths})
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in merged)
    target.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return len(merged)


def read_events(path: Path) -> list[Event]:
    """The events of one timeline, also of one that was cut off when its process died.

    Raises:
        ValueError: It is no timeline of aiacc.
    """
    # Not `splitlines`: names of tensors may hold what that takes for ends of lines, as U+2028.
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            event = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break  # the process died while it wrote this
            raise ValueError(f"{path}:{number}: {error} (expected a timeline of aiacc)") from error
        if not isinstance(event, dict):
            raise ValueError(f"{path}:{number}: {text[:40]!r} (expected an event of a timeline)")
        events.append(event)
    if not events or not isinstance(_start_of(events).get(_EPOCH), int | float):
        raise ValueError(
            f"{path} does not tell its time of day (expected a timeline that aiacc has written)"
        )
    return events


def merge_events(timelines: dict[str, list[Event]]) -> list[Event]:
    """All events on the clock of the earliest timeline, which starts at 0. Pure.

    Ranks of one host share a clock that does not jump, so what one of them knows about the time of
    day holds for all of them. Hosts are as far apart as their clocks are. Times become whole
    microseconds: a float of the time of day would be wrong by more than slices are apart.

    Raises:
        ValueError: Two timelines are of one rank.
    """
    files: dict[int, str] = {}
    offsets: dict[str, int] = {}  # to the time of day, by clock
    for name, events in timelines.items():
        rank = int(events[0].get("pid", 0))
        if rank in files:
            raise ValueError(
                f"{files[rank]} and {name} are both of rank {rank} (expected one per rank)"
            )
        files[rank] = name
        offsets.setdefault(_clock_of(name, events), int(_start_of(events)[_EPOCH]))
    shifted: list[Event] = []
    for rank in sorted(files):
        events = timelines[files[rank]]
        offset = offsets[_clock_of(files[rank], events)]
        sort = {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}}
        shifted.append(sort)
        shifted += [_shifted(event, offset) for event in events]
    start = min((event["ts"] for event in shifted if "ts" in event), default=0)
    return [_shifted(event, -start) for event in shifted]


def _shifted(event: Event, offset: int) -> Event:
    if "ts" not in event:
        return event
    start = math.floor(event["ts"])
    moved = {**event, "ts": start + offset}
    if "dur" in event:
        moved["dur"] = math.floor(event["ts"] + event["dur"]) - start
    return moved


def _is_of_a_rank(path: Path) -> bool:
    """Whether it is what a rank has written; what `merge` writes is not."""
    try:
        read_events(path)
    except (ValueError, OSError):
        return False
    return True


_EPOCH = "start_time_since_epoch_in_micros"


def _start_of(events: list[Event]) -> dict[str, Any]:
    arguments = events[0].get("args", {})
    return arguments if isinstance(arguments, dict) else {}


def _clock_of(name: str, events: list[Event]) -> str:
    return str(_start_of(events).get("boot") or name)
