"""Which works a page says that a peer does faster."""

from types import SimpleNamespace

from bench import overview
from bench.collectives import blocking


def _run(title, **medians):
    return {"title": title, "unit": "s", "samples": {key: [[s]] for key, s in medians.items()}}


def test_a_work_is_lost_where_the_fastest_peer_is_faster_than_the_fastest_of_ours():
    titles = {"a": "A", "b": "B", "x": "X", "y": "Y"}
    module = SimpleNamespace(OURS=("a", "b"), PEERS=("x", "y"), TITLES=titles)
    runs = [
        _run("won", a=3.0, b=1.0, x=2.0, y=4.0),
        _run("lost", a=3.0, b=9.0, x=2.0, y=4.0),
        _run("lost by far", a=4.0, y=1.0),
        _run("without peers", a=1.0),
    ]
    text = overview.loses({"row": (module, runs)})
    assert text.startswith("2 of 3 works")
    assert text.splitlines()[4:] == [
        "| row | lost by far | A: 4.00 s | Y: 1.00 s | 4.00x |",
        "| row | lost | A: 3.00 s | X: 2.00 s | 1.50x |",
    ]


def test_each_size_of_a_blocking_call_is_a_work():
    run = _run("call", **{"aiacc:4": 1.0, "mpich:4": 2.0, "aiacc:64": 3.0})
    found = blocking.contests(run)
    assert [one["title"] for one in found] == ["call, 4 B", "call, 64 B"]
    assert found[0]["samples"] == {"aiacc": [[1.0]], "mpich": [[2.0]]}
