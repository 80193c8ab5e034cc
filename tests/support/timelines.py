"""What viewers want of a timeline."""

import collections
import itertools


def check_rows(events):
    """Slices of a row do not overlap, asynchronous events end, and times are whole microseconds."""
    rows, begun = collections.defaultdict(list), {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            span = (event["ts"], event["ts"] + event["dur"])
            rows[event["pid"], event["tid"]].append(span)
        elif event["ph"] in "be":
            ends = begun.setdefault((event["cat"], event["id"]), {})
            assert event["ph"] not in ends, event
            ends[event["ph"]] = event["ts"]
        assert type(event.get("ts", 0)) is type(event.get("dur", 0)) is int, event
    for spans in rows.values():
        spans.sort()
        for before, after in itertools.pairwise(spans):
            assert before[1] <= after[0], (before, after)
    for ends in begun.values():
        assert ends["b"] <= ends["e"]
