"""When exchanges leave, while a rank computes what is in them."""

from __future__ import annotations

import pytest

from aiacc.torch.parallel import departures
from aiacc.torch.parallel.departures import Departures


@pytest.fixture
def events(monkeypatch):
    found: list[int | str] = []
    monkeypatch.setattr(departures._core, "flush", lambda: found.append("flush"))
    return found


def test_exchanges_leave_when_this_rank_has_its_part(events):
    leaving = Departures([["a", "b"], [], ["c"], ["a"]], events.append)
    assert events == [1, "flush"]
    leaving.computed(["b"])
    assert events == [1, "flush"]
    leaving.computed(["a"])
    assert events == [1, "flush", 0, 3, "flush"]
    leaving.computed(["c"])
    leaving.give_up()
    assert events == [1, "flush", 0, 3, "flush", 2, "flush"]


def test_all_leave_where_something_fails_for_others_wait(events):
    leaving = Departures([["a"], ["b"]], events.append)
    leaving.computed(["b"])
    leaving.give_up()
    assert events == [1, "flush", 0, "flush"]
