"""Random faults: how they are chosen, what the collectives give, and how a run is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bench.network.faults.plan import (
    FATAL,
    HARMLESS,
    KINDS,
    STEPS,
    Report,
    choose,
    events,
    judge,
)
from bench.network.faults.work import operations, sent, splits, tensors, wanted
from bench.network.tables import faults_table, faults_text

_DONE = Report("done", checked=100)
_LOST = "[control] rank 1 has not answered within 4 s (AIACC_PEER_TIMEOUT_S)"
_ERROR = Report("error", checked=30, type="PeerLostError", text=_LOST, late_s=1.5)
_KILLED = Report(code=-9)


def test_the_choice_follows_from_the_seed_and_consecutive_seeds_take_all_kinds():
    faults = [choose(seed) for seed in range(200)]
    assert faults == [choose(seed) for seed in range(200)]
    counts = Counter(fault.kind for fault in faults)
    assert counts.keys() == KINDS.keys()
    assert min(counts.values()) >= 200 // len(KINDS)
    assert len({replace(fault, seed=0, kind="") for fault in faults}) == 200


def test_settings_and_moments_vary():
    faults = [choose(seed) for seed in range(200)]
    assert {fault.engine for fault in faults} == {"tcp", "hierarchical"}
    assert {fault.lanes for fault in faults} == {1, 2, 3, 4}
    assert {len(fault.ranks_of) for fault in faults} == {2, 3, 4}
    assert {len(set(fault.ranks_of)) for fault in faults} == {1, 2}, "no uneven hosts, or only"
    assert min(fault.step for fault in faults) == -1
    assert all(fault.step < STEPS for fault in faults)
    assert all(0 <= fault.victim < fault.size for fault in faults)
    assert all(fault.other != fault.host for fault in faults)
    assert {fault.short_io for fault in faults if fault.kind == "none"} == {False}
    assert {fault.short_io for fault in faults if fault.kind == "short_io"} == {True}


def test_some_kinds_alone():
    assert {choose(seed, ["kill"]).kind for seed in range(5)} == {"kill"}
    assert choose(7, ["kill"]) != choose(8, ["kill"])
    with pytest.raises(ValueError, match=r"'fire' \(expected one of none, kill"):
        choose(0, ["fire"])


def _fault(kind, **changes):
    fault = replace(
        choose(0, [kind]), ranks_of=(2, 1, 1), victim=1, other=2, short_io=False, peer_timeout_s=4.0
    )
    return replace(fault, **{"step": 3, **changes})


def test_events():
    (kill,) = events(_fault("kill"))
    assert (kill.ranks, kill.signal) == ((1,), "SIGKILL")
    stop, go = events(_fault("freeze_long", amount=6))
    assert (stop.signal, go.signal, go.after_s) == ("SIGSTOP", "SIGCONT", 6)
    down, up = events(_fault("link_2s"))
    assert (down.host, down.up, down.after_s, up.up, up.after_s) == (0, False, 0, True, 2)
    unplug, kill = events(_fault("half_open"))
    assert not unplug.up
    assert unplug.after_s < kill.after_s, "the ranks would be heard dying"
    assert kill.ranks == (0, 1), "all of the host"
    (loss,) = events(_fault("one_way_loss"))
    assert (loss.host, loss.target, loss.loss) == (0, 2, 1)
    assert all(events(_fault(kind)) for kind in KINDS if kind not in ("none", "short_io"))


def _judged(kind, reports, struck=True, left=(), **changes):
    return judge(_fault(kind, **changes), dict(enumerate(reports)), 100, struck, left)


def test_right_numbers_everywhere_and_clear_errors_everywhere():
    assert _judged("reorder", [_DONE] * 4).outcome == "survived"
    assert _judged("link_2s", [_DONE] * 4).outcome == "survived"
    assert _judged("link_2s", [_ERROR] * 4).outcome == "clear error"
    assert _judged("kill", [_ERROR, _KILLED, _ERROR, _ERROR]).outcome == "clear error"
    assert _judged("half_open", [_KILLED, _KILLED, _ERROR, _ERROR]).outcome == "clear error"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (Report("wrong", type="WrongResultError", text="3 of 9 differ"), "wrong: WrongResultError"),
        (Report("bug", type="KeyError", text="'x'"), "bug: KeyError"),
        (replace(_ERROR, code=None), "hangs"),
        (Report("", code=None), "hangs"),
        (Report("", code=-11), "no report, exit code -11"),
        (Report("", code=0), "no report, exit code 0"),
        (replace(_ERROR, code=1), "exit code 1"),
        (replace(_ERROR, text="lost the connection"), "not a clear error"),
        (replace(_ERROR, type="CollectiveError"), "not a clear error"),
        (replace(_ERROR, type="MismatchError"), "not a clear error"),
        (replace(_ERROR, type="ShutdownError"), "not a clear error"),
        (replace(_ERROR, text="rank 3 is gone"), "names [3] (expected of [1])"),
        (replace(_ERROR, late_s=3.5), "noticed after 3.5 s"),
    ],
)
def test_a_survivor_of_a_kill_that_has_neither_is_wrong(bad, problem):
    result = _judged("kill", [_ERROR, _KILLED, bad, _ERROR])
    assert result.outcome == "wrong"
    assert problem in result.problems[0]
    assert result.problems[0].startswith("rank 2: ")


def test_a_survivor_without_a_report_is_missed():
    result = judge(_fault("kill"), {0: _ERROR, 1: _KILLED, 3: _ERROR}, 100, True)
    assert result.problems == ["rank 2: no report, exit code 0"]


def test_a_rank_that_says_done_must_have_checked_everything():
    result = _judged("none", [_DONE, replace(_DONE, checked=99), _DONE, _DONE])
    assert result.problems == ["rank 1: done after 99 tensors (expected 100)"]


@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_a_harmless_fault_is_no_reason_to_fail(kind):
    reports = [replace(report, short_calls=9) for report in [_ERROR] * 4]
    result = _judged(kind, reports, short_io=kind == "short_io")
    assert result.problems == ["failed (expected to survive)"]


@pytest.mark.parametrize("kind", sorted(FATAL))
def test_a_fatal_fault_that_nobody_notices_is_wrong(kind):
    assert _judged(kind, [_DONE] * 4).problems == ["nobody noticed (expected a clear error)"]


def test_a_fault_that_comes_too_late_changes_nothing():
    assert _judged("kill", [_DONE] * 4, struck=False).outcome == "survived"


def test_either_side_of_a_dead_link_loses_the_other():
    inside, outside = (replace(_ERROR, text=f"rank {rank} is lost", late_s=5) for rank in (0, 3))
    assert _judged("link_gone", [outside, outside, inside, inside]).outcome == "clear error"
    wrong = _judged("link_gone", [inside, outside, inside, outside]).problems
    assert [problem[:14] for problem in wrong] == ["rank 0: names ", "rank 3: names "]


def test_a_rank_that_freezes_while_it_starts_only_comes_late():
    assert _judged("freeze_long", [_DONE] * 4, step=-1, amount=6).outcome == "survived"


def test_a_rank_that_is_killed_while_others_leave_owes_no_report():
    assert _judged("kill", [_DONE, _KILLED, _DONE, _DONE], struck=False).outcome == "survived"
    dead = _judged("kill", [_DONE, _DONE, _KILLED, _DONE], struck=False)
    assert dead.problems == ["rank 2: no report, exit code -9"]


def test_who_is_done_may_leave_before_the_others_hear_of_the_fault():
    left = replace(_ERROR, type="ShutdownError", text="rank 0 has shut down")
    assert _judged("link_2s", [_DONE, left, left, left]).outcome == "clear error"


def test_a_frozen_rank_answers_for_itself_when_it_goes_on():
    own = replace(_ERROR, text="rank 0 closed the connection", late_s=11.0)
    assert _judged("freeze_long", [_ERROR, own, _ERROR, _ERROR], amount=6).outcome == "clear error"
    hanging = replace(own, code=None)
    assert _judged("freeze_long", [_ERROR, hanging, _ERROR, _ERROR]).outcome == "wrong"


def test_short_calls_have_to_be_there_and_only_where_they_belong():
    assert "0 calls" in _judged("short_io", [_DONE] * 4, short_io=True).problems[0]
    assert "7 calls" in _judged("none", [replace(_DONE, short_calls=7)] * 4).problems[0]


def test_processes_that_are_left_behind_are_reported():
    assert _judged("none", [_DONE] * 4, left=["process 7 in host 1"]).problems == [
        "left behind: process 7 in host 1"
    ]


def _row(kind, outcome, late_s=(), **more):
    ranks = [{"outcome": "error", "late_s": one, "short_calls": 2} for one in late_s]
    row = {"kind": kind, "outcome": outcome, "ranks": ranks, "checked": 1000, "short_io": False}
    return {**row, "step": 3, "victim": 1, **more}


def test_table():
    rows = [
        _row("kill", "clear error", [0.1, 0.2, 0.6]),
        _row("kill", "wrong", short_io=True),
        _row("kill", "clear error", [9.0], step=-1),
        _row("freeze_long", "clear error", [3.0, 8.0]),
        _row("reorder", "survived"),
    ]
    runs = [{"rows": rows[:2]}, {"rows": rows[2:]}]
    lines = faults_table(runs).splitlines()
    assert "| a rank is killed (SIGKILL) | 3 | 0 | 2 | 1 | 0.20 (0.60) |" in lines
    assert any(
        line.endswith("time limit (SIGSTOP) | 1 | 0 | 1 | 0 | 3.00 (3.00) |") for line in lines
    )
    assert lines[-1] == "| all | 5 | 1 | 3 | 1 |  |"
    assert faults_text(runs).startswith(
        "5 runs, 5,000 tensors checked element by element; 1 of the"
    )


def _reduced(inputs):
    return [sum(parts) for parts in zip(*inputs, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_wanted_is_what_the_collective_gives(size):
    for operation in operations(5, 1, size):
        inputs = [sent(operation, rank, size) for rank in range(size)]
        outputs = [wanted(operation, rank, size) for rank in range(size)]
        assert all(np.abs(one).max(initial=0) < 2**24 for one in outputs[0]), "not exact in fp32"
        if "allreduce" in operation.kind:
            given = [_reduced(inputs)] * size
        elif operation.kind == "broadcast":
            given = [inputs[operation.root]] * size
        elif operation.kind == "allgather":
            given = [[np.concatenate([one for (one,) in inputs])]] * size
        elif operation.kind == "reducescatter":
            given = [[part] for part in np.array_split(_reduced(inputs)[0], size)]
        else:
            parts = [
                np.split(inputs[rank][0], np.cumsum(splits(operation, rank, size))[:-1])
                for rank in range(size)
            ]
            given = [[np.concatenate([one[rank] for one in parts])] for rank in range(size)]
        for right, got in zip(given, outputs, strict=True):
            assert len(right) == len(got)
            assert all(np.array_equal(a, b) for a, b in zip(right, got, strict=True)), operation
            assert [a.dtype for a in got] == [operation.dtype] * len(got)


def test_numbers_differ_between_steps_ranks_and_places():
    before, after = operations(3, 0, 4), operations(3, 1, 4)
    large = [next(one for one in step if one.name == "large0") for step in (before, after)]
    assert large[0].elements == large[1].elements
    assert large[0].dtype == large[1].dtype
    assert large[0].elements * 4 > 1 << 20
    first, second = (sent(one, 0, 4)[0] for one in large)
    assert not np.any(first == second)
    assert not np.any(first == sent(large[0], 1, 4)[0])
    assert not np.any(first[:-1] == first[1:])


def test_what_a_run_contains():
    kinds = Counter(one.kind for step in range(STEPS) for one in operations(9, step, 3))
    assert set(kinds) == {
        *("allreduce", "allreduce_", "grouped_allreduce", "allgather", "broadcast"),
        *("reducescatter", "alltoall"),
    }
    assert tensors(9, STEPS, 3) == sum(kinds.values()) + 2 * kinds["grouped_allreduce"]
