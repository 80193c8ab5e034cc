"""Pictures of timelines."""

import pytest

from aiacc.planning.simulate import Activity, simulate


def test_a_chart_of_thousands_of_activities_has_few_artists(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    from aiacc.planning import chart

    figures = []
    make = chart._figure
    monkeypatch.setattr(chart, "_figure", lambda title: figures.append(make(title)) or figures[-1])
    activities = [Activity(f"a{i}", "cpu", (0.5,)) for i in range(2000)]
    activities += [Activity(f"b{i}", "network", (1.0,), (f"a{i}",)) for i in range(2000)]
    timeline = simulate(activities, {"network": 2})
    chart.gantt({"some": timeline}, tmp_path / "chart.svg", "some")
    bars = figures[0][1].collections
    assert len(bars) == 3  # the CPU, and the network's two lanes
    assert sum(len(bar.get_paths()) for bar in bars) == 4000
