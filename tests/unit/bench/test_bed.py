"""What is pure of the virtual network and its random faults; tests/parallel puts beds up."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bench.bed import launch, plan
from bench.bed.plan import Spec
from bench.network.allreduce import Way
from bench.network.faults.plan import FATAL, HARMLESS, KINDS, STEPS, Report, choose, events, judge
from bench.network.faults.work import operations, sent, tensors


def test_torchrun_starts_an_agent_on_every_host():
    agents = launch.starts(Spec(hosts=2), "torchrun", 4, ["prog"])
    ranks = [agent.command[agent.command.index("--node-rank") + 1] for agent in agents]
    assert ([agent.host for agent in agents], ranks) == ([0, 1], ["0", "1"])


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Spec(name="a-b"), "name 'a-b'"),
        (Spec(hosts=0), "0 hosts"),
        (Spec(flow_mbit=-1), "negative rate"),
        (Spec(slow=0.5, flow_mbit=0), "and a flow cap"),
        (Spec(loss=2), "cannot be"),
    ],
)
def test_a_bed_that_cannot_be_is_refused(spec, problem):
    with pytest.raises(ValueError, match=problem):
        spec.check()


def test_flows_that_are_slow_uncapped_or_have_another_congestion_control():
    slow = plan.shaping(Spec(flow_mbit=200, slow=0.25))
    assert any(f":{plan.SLOW_MINOR:x} " in line and "ceil 50000000" in line for line in slow)
    uncapped = plan.shaping(Spec(flow_mbit=0, nic_mbit=1000))
    assert len(uncapped) == 3
    assert "default f0" in uncapped[0]
    assert not Spec(flow_mbit=0, nic_mbit=0).capped
    spec = Spec(hosts=3, congestion="cubic")
    assert plan.interior(spec, 1)[-1].endswith("src 10.77.0.2 congctl cubic")
    assert "congctl" not in " ".join(plan.interior(replace(spec, congestion=""), 1))


def test_what_the_bus_bandwidth_may_be_at_most_and_the_flows_that_an_engine_promises():
    for spec, way, per_host, expected in (
        (Spec(), "tcp:2", 1, 500),
        (Spec(), "tcp:8", 1, 1000),
        (Spec(slow=0.25), "tcp:3", 1, 562.5),
        (Spec(flow_mbit=0), "tcp:1", 1, 1000),
        (Spec(), "hierarchical:1", 2, 500),
        (Spec(), "mpi:1", 2, 250),
        (Spec(nic_mbit=0), "hierarchical-mpi:2", 4, 2000),
    ):
        assert Way.of(way).limit_mbit(vars(spec), per_host) == expected, (spec, way)
    for way, hosts, per_host, flows in (
        ("tcp:3", 4, 1, 3),
        ("tcp:3", 4, 2, None),
        ("hierarchical:3", 4, 2, 6),
        ("mpi:3", 2, 1, 3),
        ("hierarchical-mpi:3", 2, 2, 6),
        ("hierarchical-mpi:3", 3, 2, None),
    ):
        assert Way.of(way).promised(hosts, per_host) == flows, way
    assert Way.of("tcp:4:8MiB").variables["AIACC_UNIT_BYTES"] == "8MiB"


_DONE = Report("done", checked=100)
_LOST = "[control] rank 1 has not answered within 4 s (AIACC_PEER_TIMEOUT_S)"
_ERROR = Report("error", checked=30, type="PeerLostError", text=_LOST, late_s=1.5)
_KILLED = Report(code=-9)
UNCLEAR = ("CollectiveError", "MismatchError", "ShutdownError")


def test_faults_follow_from_the_seed_and_take_all_kinds_settings_and_moments():
    faults = [choose(kind, seed) for kind in KINDS for seed in range(20)]
    assert faults == [choose(kind, seed) for kind in KINDS for seed in range(20)]
    assert len({replace(fault, seed=0, kind="") for fault in faults}) == len(faults)
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


def _fault(kind, **changes):
    fault = replace(choose(kind, 0), ranks_of=(2, 1, 1), victim=1, other=2, short_io=False)
    return replace(fault, **{"step": 3, **changes})


def test_events():
    (kill,) = events(_fault("kill"))
    assert (kill.ranks, kill.signal) == ((1,), "SIGKILL")
    stop, go = events(_fault("freeze_long", amount=6))
    assert (stop.signal, go.signal, go.after_s) == ("SIGSTOP", "SIGCONT", 6)
    paths = [(one.host, one.target, one.loss, one.after_s) for one in events(_fault("link_2s"))]
    assert paths == [(0, None, 1, 0), (None, 0, 1, 0), (0, None, 0, 2), (None, 0, 0, 2)]
    *unplug, kill = events(_fault("half_open"))
    assert unplug == events(_fault("link_gone"))
    assert unplug[-1].after_s < kill.after_s, "the ranks would be heard dying"
    assert kill.ranks == (0, 1), "all of the host"
    (loss,) = events(_fault("one_way_loss"))
    assert (loss.host, loss.target, loss.loss) == (0, 2, 1)
    assert all(events(_fault(kind)) for kind in KINDS if kind not in ("none", "short_io"))


def _judged(kind, reports, struck=True, left=(), **changes):
    return judge(_fault(kind, **changes), dict(enumerate(reports)), 100, struck, left)


#: Of another rank, of the link's other side, of its own connection, of one that has left.
_OF_3 = replace(_ERROR, text="rank 3 is lost", late_s=5)
_OF_0 = replace(_ERROR, text="rank 0 is lost", late_s=5)
_OWN = replace(_ERROR, text="rank 0 closed the connection", late_s=11.0)
_LEFT = replace(_ERROR, type="ShutdownError", text="rank 0 has shut down")


@pytest.mark.parametrize(
    ("kind", "reports", "outcome", "how"),
    [
        ("reorder", [_DONE] * 4, "survived", {}),
        ("link_2s", [_DONE] * 4, "survived", {}),
        ("link_2s", [_ERROR] * 4, "clear error", {}),
        ("kill", [_ERROR, _KILLED, _ERROR, _ERROR], "clear error", {}),
        ("half_open", [_KILLED, _KILLED, _ERROR, _ERROR], "clear error", {}),
        # It came too late and changes nothing; who is killed while others leave owes no report.
        ("kill", [_DONE] * 4, "survived", {"struck": False}),
        ("kill", [_DONE, _KILLED, _DONE, _DONE], "survived", {"struck": False}),
        # Either side of a dead link loses the other.
        ("link_gone", [_OF_3, _OF_3, _OF_0, _OF_0], "clear error", {}),
        # A rank that freezes while it starts only comes late.
        ("freeze_long", [_DONE] * 4, "survived", {"step": -1, "amount": 6}),
        # A frozen rank answers for itself when it goes on.
        ("freeze_long", [_ERROR, _OWN, _ERROR, _ERROR], "clear error", {"amount": 6}),
        ("freeze_long", [_ERROR, replace(_OWN, code=None), _ERROR, _ERROR], "wrong", {}),
        # Who is done may leave before the others hear of the fault.
        ("link_2s", [_DONE, _LEFT, _LEFT, _LEFT], "clear error", {}),
    ],
)
def test_what_ranks_may_do_after_a_fault(kind, reports, outcome, how):
    assert _judged(kind, reports, **how).outcome == outcome


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
        *((replace(_ERROR, type=one), "not a clear error") for one in UNCLEAR),
        (replace(_ERROR, text="rank 3 is gone"), "names [3] (expected of [1])"),
        (replace(_ERROR, late_s=3.5), "noticed after 3.5 s"),
    ],
)
def test_a_survivor_of_a_kill_that_has_neither_is_wrong(bad, problem):
    result = _judged("kill", [_ERROR, _KILLED, bad, _ERROR])
    assert result.outcome == "wrong"
    assert problem in result.problems[0]
    assert result.problems[0].startswith("rank 2: ")


_SHORT = [replace(report, short_calls=9) for report in [_ERROR] * 4]


@pytest.mark.parametrize(
    ("kind", "reports", "problem"),
    [
        *((kind, _SHORT, "failed (expected to survive)") for kind in sorted(HARMLESS)),
        *((kind, [_DONE] * 4, "nobody noticed (expected a clear error)") for kind in sorted(FATAL)),
    ],
)
def test_what_is_harmless_fails_nobody_and_what_is_fatal_is_noticed(kind, reports, problem):
    assert _judged(kind, reports, short_io=kind == "short_io").problems == [problem]


def test_problems_are_named():
    few, short = replace(_DONE, checked=99), replace(_DONE, short_calls=7)
    problems = _judged("none", [_DONE, few, _DONE, _DONE]).problems
    assert problems == ["rank 1: done after 99 tensors (expected 100)"]
    problems = _judged("kill", [_DONE, _DONE, _KILLED, _DONE], struck=False).problems
    assert problems == ["rank 2: no report, exit code -9"]
    problems = _judged("link_gone", [_OF_0, _OF_3, _OF_0, _OF_3]).problems
    assert [problem[:14] for problem in problems] == ["rank 0: names ", "rank 3: names "]
    assert "0 calls" in _judged("short_io", [_DONE] * 4, short_io=True).problems[0]
    assert "7 calls" in _judged("none", [short] * 4).problems[0]
    left = _judged("none", [_DONE] * 4, left=["process 7 in host 1"]).problems
    assert left == ["left behind: process 7 in host 1"]


def test_a_run_has_all_operations_and_numbers_that_differ_by_step_rank_and_place():
    kinds = Counter(one.kind for step in range(STEPS) for one in operations(9, step, 3))
    assert set(kinds) == {
        *("allreduce", "allreduce_", "grouped_allreduce", "allgather", "broadcast"),
        *("reducescatter", "alltoall"),
    }
    assert tensors(9, STEPS, 3) == sum(kinds.values()) + 2 * kinds["grouped_allreduce"]
    before, after = operations(3, 0, 4), operations(3, 1, 4)
    large = [next(one for one in step if one.name == "large0") for step in (before, after)]
    assert large[0].elements == large[1].elements
    assert large[0].dtype == large[1].dtype
    assert large[0].elements * 4 > 1 << 20
    first, second = (sent(one, 0, 4)[0] for one in large)
    assert not np.any(first == second)
    assert not np.any(first == sent(large[0], 1, 4)[0])
    assert not np.any(first[:-1] == first[1:])
