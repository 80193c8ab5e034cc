"""Steps as the core sends them."""

import random

import pytest

from aiacc.planning import planners
from aiacc.planning.cost import ALL_REDUCE, Affine, Table
from aiacc.planning.execution import Sending, arrivals_s, step_s, units_of
from aiacc.planning.models import trace_of
from aiacc.planning.plan import Plan
from tests.unit.planning.instances import made_trace

MIB = 1 << 20
COST = Affine(2e-3, 1e-8)


def _trace(*rows):
    """Tensors of so many bytes that are ready at such times."""
    return made_trace(rows, 0.5, 0.5)


def test_one_tensor_takes_what_it_takes_alone_and_of_several_units_fills_the_lanes():
    trace = _trace((MIB, 1.0))
    # Less the half of the startup, and with it again as the round.
    expected = 1.0 + COST.time(ALL_REDUCE, MIB)
    assert step_s(trace, None, COST, Sending()) == pytest.approx(expected, abs=1e-4)
    trace = _trace((8 * MIB, 1.0))
    one, four = (step_s(trace, None, COST, Sending(2 * MIB, lanes)) for lanes in (1, 4))
    wire_s = COST.b * 8 * MIB
    # The round, the wire, which is never idle, and the wait of what left it last.
    assert four == pytest.approx(1.0 + COST.a / 2 + wire_s + COST.a / 2, abs=1e-4)
    assert one == pytest.approx(1.0 + COST.a / 2 + 4 * COST.a / 2 + wire_s, abs=1e-4)


#: Medians of `aiacc-plan probe` among four hosts, 1 Gbit/s and 10 ms from each to each, units of
#: 8 MiB: operations at a time, MiB of each, milliseconds.
PROBED = (
    *((1, 2.0**-10, 41.1), (1, 2.0**-4, 82.6), (1, 1, 83.2), (1, 4, 89.6), (1, 16, 240.3)),
    *((1, 32, 451.8), (2, 2.0**-10, 41.2), (2, 1, 85.9), (2, 4, 137.8), (2, 16, 453.2)),
    (2, 32, 873.2),
)


@pytest.mark.parametrize(("lanes", "mib", "took_ms"), [row for row in PROBED if row[1] >= 1])
def test_what_was_measured_follows_from_what_a_unit_takes(lanes, mib, took_ms):
    # Of these sizes the model knows only that of a unit, and what bytes add.
    table = Table({
        (ALL_REDUCE, number): [(size * MIB, ms / 1e3) for k, size, ms in PROBED if k == number]
        for number in (1, 2)
    })  # fmt: skip
    seconds = step_s(_trace(*[(mib * MIB, 1.0)] * lanes), None, table, Sending(8 * MIB))
    assert 1e3 * (seconds - 1.0) == pytest.approx(took_ms, rel=0.03)


def test_a_round_waits_for_its_turn_on_the_wire():
    quiet, busy = (
        arrivals_s(_trace((size, 0.98), (1000, 1.0)), None, COST, Sending())[1]
        for size in (1000, 16 * MIB)
    )
    # Each of two messages for up to a slice of four lanes, and its own operation in six steps.
    assert quiet + 1e-3 < busy < quiet + 8 * 5e-3


def test_waits_of_many_ranks_are_filled_by_other_lanes():
    trace = _trace((8 * MIB, 1.0))
    few, many, more = (
        step_s(trace, None, COST, Sending(2 * MIB, 4, ranks=ranks)) for ranks in (2, 9, 1000)
    )
    assert few > many
    assert many == more  # so many steps make no difference any more


def test_views_and_what_comes_in_a_round_travel_as_one():
    trace = _trace(*[(1000, 1.0)] * 100)
    seconds = step_s(trace, None, COST, Sending())
    assert seconds == pytest.approx(1.0 + COST.time(ALL_REDUCE, 100_000), abs=1e-4)
    assert planners.plan("per_tensor", trace, COST).predicted_s > 1.0 + 100 * COST.a
    trace = _trace(*[(3 * MIB // 4, 1.0)] * 4)
    plan = planners.plan("single", trace, COST)
    apart, together = (step_s(trace, plan, COST, Sending(MIB, 1, views)) for views in (False, True))
    assert apart - together == pytest.approx(COST.a / 2, abs=1e-4)  # four units, or three


def test_the_wire_is_as_fast_as_any_large_operation_and_never_faster_than_itself():
    draw = random.Random(0)
    for _ in range(50):
        sizes = [draw.choice((500, 70_000, 3 * MIB)) for _ in range(draw.randint(1, 30))]
        ready = sorted(draw.uniform(0.5, 1.0) for _ in sizes)
        trace = _trace(*zip(sizes, ready, strict=True))
        sending = Sending(draw.choice((MIB // 4, MIB)), draw.randint(1, 5), draw.random() < 0.5)
        plan = draw.choice((None, planners.plan("optimal", trace, COST)))
        seconds = step_s(trace, plan, COST, sending)
        assert seconds >= trace.compute_s
        assert seconds >= ready[0] + COST.b * sum(sizes) * 0.999
        assert seconds <= 1.0 + sum(COST.time(ALL_REDUCE, size) for size in sizes) * 4
    trace = _trace((64 * MIB, 1.0))

    def table(of_two):
        return Table({
            (ALL_REDUCE, 1): [(MIB, 13e-3), (4 * MIB, 52e-3), (32 * MIB, 420e-3)],
            (ALL_REDUCE, 2): [(MIB, 26e-3), (4 * MIB, 104e-3), (32 * MIB, of_two)],
        })  # fmt: skip

    # The longest operation of two was measured while something else took the wire, or was not.
    disturbed, quiet = (step_s(trace, None, table(s), Sending()) for s in (0.88, 0.84))
    assert disturbed == pytest.approx(quiet, abs=1e-12)
    # Two may fill it where one does not.
    assert step_s(trace, None, table(0.6), Sending()) < quiet - 1e-3


def test_the_decoupled_schedule_waits_for_what_it_needs():
    trace = trace_of("resnet50", compute_s=0.3)
    plan = planners.plan("decoupled", trace, COST)
    assert step_s(trace, plan, COST, Sending(lanes=1)) == pytest.approx(plan.predicted_s, rel=0.1)
    late = Plan("one", (tuple(t.name for t in trace.tensors),), schedule="decoupled")
    assert step_s(trace, late, COST, Sending(lanes=1)) > plan.predicted_s


def test_units_have_every_byte_once_and_are_cut_as_the_core_cuts_them():
    draw = random.Random(1)
    for _ in range(200):
        sizes = [draw.randint(1, draw.choice((1000, 5_000_000))) for _ in range(20)]
        unit_bytes, lanes = draw.choice((4096, 65536, MIB)), draw.randint(1, 5)
        units = units_of(sizes, unit_bytes, lanes)
        found = [0.0] * len(sizes)
        for unit in units:
            assert sum(nbytes for _, nbytes in unit) <= unit_bytes or len(unit) == 1
            for number, nbytes in unit:
                found[number] += nbytes
        assert found == pytest.approx(sizes)
    assert units_of([300, 300, 600, 500, 1000], 1000, 4) == [
        [(0, 300), (1, 300)], [(2, 600)], [(3, 500)], [(4, 1000)]
    ]  # fmt: skip
    assert len(units_of([5 * MIB], MIB, 4)) == 8  # a multiple of the lanes
    assert len(units_of([3 * 65536], 65536, 4)) == 3  # but no part below 64 KiB
