"""``aiacc-plan simulate --kfac`` as its users call it."""

import json

import pytest

from aiacc.kfac import published
from aiacc.kfac.costs import InversionTable, Polynomial, inversion_of
from aiacc.run.plan import main

KFAC = ("simulate", "resnet50", "--kfac")


def test_the_published_cluster(plan):
    out = plan.out(*KFAC)
    assert "simulated" in out.splitlines()[0]
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[1] for row in rows] == ["D-KFAC", "MPD-KFAC", "SPD-KFAC", "ours"]
    for row, seconds in zip(rows, published.MEASURED["resnet50"].totals_s, strict=False):
        assert float(row[2]) == pytest.approx(seconds * 1e3, rel=0.1)
        assert float(row[7]) == pytest.approx(seconds * 1e3, abs=0.06)
    assert len(rows[3]) == 7
    assert float(rows[3][2]) < min(float(row[2]) for row in rows[:3])
    for row in rows:  # parts make up the step
        step, exposed, inverting, sending = map(float, row[2:6])
        assert step == pytest.approx(132.0 + 211.5 + exposed + inverting + sending, abs=0.3)


def test_other_networks_and_numbers_of_ranks(plan):
    out = plan.out(*KFAC, "--net", "alpha=30e-6,gbit=10", "--world", "1,4")
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1"] * 4 + ["4"] * 4
    assert len({row[2] for row in rows[:4]}) == 1  # nothing to distribute
    assert "published" not in out.splitlines()[1]
    alone = plan.rows(*KFAC, "--net", "a=1e-3,b=1e-9,world=4")
    assert [row[0] for row in alone] == ["4"] * 4


def test_nothing_is_hidden_without_overlap(plan):
    arguments = (*KFAC, "--net", "a=1e-3,b=1e-9,world=4", "--overlap")
    exposed = [float(plan.rows(*arguments, share)[2][3]) for share in ("0", "0.5", "1")]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] > exposed[2]


def test_inversions_from_a_file(plan):
    path = plan.file("inversions.json", "[[64, 1e-4], [5000, 1e-4]]")
    rows = plan.rows(*KFAC, "--inversion", path)
    assert float(rows[0][4]) == pytest.approx(108 * 0.1, abs=0.06)
    assert inversion_of(str(path)) == InversionTable(((64, 1e-4), (5000, 1e-4)))
    assert inversion_of("c0=1e-4,c2=0,c3=1e-13") == Polynomial(1e-4, 0.0, 1e-13)


def test_help_names_what_may_be_asked(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "aiacc-plan simulate resnet50 --kfac" in out
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    assert "--inversion" in capsys.readouterr().out


def test_rare_factors_and_inverses(plan):
    out = plan.out(*KFAC, "--every", "10,100")
    assert "every 10 and inverses every 100 steps" in out
    assert "published" not in out.splitlines()[1]
    rows = [line.split() for line in out.splitlines()[2:]]
    for one, other in zip(plan.rows(*KFAC), rows, strict=True):
        assert float(other[4]) == pytest.approx(float(one[4]) / 100, abs=0.06)
        assert float(other[5]) == pytest.approx(float(one[5]) / 100, abs=0.06)
        # SGD's step and a tenth of what factors take, built and sent.
        sgd = 196.8
        factors = float(one[2]) - sgd - float(one[4]) - float(one[5])
        expected = sgd + factors / 10 + float(other[4]) + float(other[5])
        assert float(other[2]) == pytest.approx(expected, abs=0.3)


def test_a_timeline_and_a_picture_of_ours(plan):
    path, picture = plan.folder / "kfac.json", plan.folder / "kfac.svg"
    options = ("--net", "a=1e-3,b=1e-9,world=2", "--chrome", path, "--plot", picture)
    rows = plan.rows(*KFAC, *options)
    assert "<svg" in picture.read_text()
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert sorted(names) == ["compute", "network", "rank 0", "rank 1"]
    end_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert end_us / 1e3 == pytest.approx(float(rows[3][2]), abs=0.06)
