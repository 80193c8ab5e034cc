"""What the benchmark of K-FAC on virtual hosts tells its ranks, and what it makes of results."""

from __future__ import annotations

import json

import pytest

from aiacc.kfac import published
from aiacc.planning.cost import OPERATIONS, Affine
from bench.network.second_order import cells, report
from bench.network.second_order.cells import TITLES, Cell


@pytest.fixture(scope="module")
def cell():
    return Cell(4, 300, 4)


@pytest.fixture(scope="module")
def found(cell):
    # A ring at the wire's rate.
    network = Affine(2e-4, 1.5 * 8 / 300e6)
    return cells.found(cell, network, network)


def test_a_device_is_as_slow_as_its_network(cell):
    factors = sum(dim * (dim + 1) // 2 for dim in published.model("resnet50").dims)
    wire = 1.5 * factors / 16 * 4 * 8 / (300e6 * 1448 / 1514)
    assert cell.slower == pytest.approx(wire / 0.1699, rel=1e-3)
    assert cell.model.compute_s == pytest.approx(0.132 * cell.slower)
    total = sum(cell.inversion.seconds(dim) for dim in cell.model.dims)
    assert total == pytest.approx(0.2742 * cell.slower, rel=0.1)


def test_bursts_between_the_smallest_and_the_largest_operation_do_not_count():
    points = [
        {"operation": operation, "lanes": lanes, "bytes": nbytes, "seconds": seconds / lanes}
        for operation in OPERATIONS
        for lanes in (1, 2)
        for nbytes, seconds in ((1000, 1e-3), (100_000, 2e-3), (1_000_000, 41e-3))
    ]
    cost = cells.sustained(points)
    assert cost.time("broadcast", 100_000) == pytest.approx(5e-3)
    assert cost.time("all_reduce", 1_000_000) == pytest.approx(41e-3)
    # Of two at a time each adds half.
    assert cells.sustained(points, 2).time("all_reduce", 0) == pytest.approx(1e-3 / 4)


def test_ranks_are_told_everything_once_and_in_order(cell, found):
    job = json.loads(json.dumps(cells.job(cell, found, "out.json")))
    factors = {f"{name} {side}" for name, _, _ in job["layers"] for side in "AG"}
    assert len(factors) == 108
    times = [ready_s for _, ready_s in job["moments"]]
    assert times == sorted(times)
    assert times[-1] <= job["compute_s"] + job["factor_s"]
    assert max(t for _, t in job["moments_of_gradients"]) <= job["compute_s"] * (1 + 1e-6)
    packed = sum(a * (a + 1) // 2 + g * (g + 1) // 2 for _, a, g in job["layers"])
    assert packed == pytest.approx((62_348_671 + 14_618_356) / 16, rel=0.02)
    assert [one["name"] for one in job["contenders"]] == list(TITLES)
    for one in job["contenders"]:
        sent = [name for _, names in one["buckets"] for name in names]
        assert sorted(sent) == sorted([*factors, *job["gradients"]])
        # No bucket has both.
        for _, names in one["buckets"]:
            assert len({name in factors for name in names}) == 1
        owned = [
            name
            for name, owner in zip(job["inversion_names"], one["owners"], strict=True)
            if owner is not None
        ]
        assert sorted(name for group in one["together"] for name in group) == sorted(owned)
    assert [one["pipelined"] for one in job["contenders"]] == [False, False, True, True]
    assert job["contenders"][0]["owners"] == [None] * 108


def _run(cell, found, exposed):
    predicted = {one.title: cells.prediction(one) for one in found}
    jobs = [
        {
            title: {
                "seconds": [unsent + more for more in (0.0, exposed[title], 9.0)],
                "unsent_s": [unsent, unsent, 9.0],
            }
            for title in TITLES
            for unsent in [predicted[title]["compute_s"] + predicted[title]["inversion_s"] + 0.1]
        }
    ]
    return {
        "cell": {"hosts": cell.hosts, "mbit": cell.mbit, "shrink": cell.shrink},
        "predicted": predicted,
        "jobs": jobs,
    }


def test_a_verdict_compares_medians_and_exposed_times(cell, found):
    exposed = {one.title: cells.prediction(one)["exposed_s"] for one in found}
    exposed["SPD-KFAC"] *= 1.3
    run = _run(cell, found, exposed)
    assert report.apart(run, "SPD-KFAC") == pytest.approx(0.3)
    assert report.apart(run, "D-KFAC") == pytest.approx(0.0, abs=1e-9)
    text = report.verdict(run)
    assert text.startswith("* 4, 300, 1/4: ours takes 0.")
    assert "is 0% apart" in text
    assert "of the others up to 30%" in text
    assert "**no**" not in text
    exposed["ours"] += 0.05 * run["predicted"]["ours"]["seconds"]
    assert "goal 15%: **no**" in report.verdict(_run(cell, found, exposed))


@pytest.mark.parametrize("text", ["4:1000", "1:1000:2", "4:0:2", "4:1000:0", "x:1:1"])
def test_cells_that_are_none_are_named(text):
    assert cells.chosen("default")[0] == Cell(4, 1000, 2)
    with pytest.raises(ValueError, match=r"cell '.*expected"):
        cells.chosen(text)
