"""What compression="auto" chooses from, and what must not lead it astray."""

import contextlib
import io

import pytest

import aiacc.torch as hvd
from aiacc.autotune import tuner
from aiacc.torch import auto_compression
from tests.parallel.compression.test_auto_compression import (
    _codecs,
    _join_as,
    _optimized,
    _steps,
    _Watch,
)
from tests.support.ranks import run_ranks

#: Of a network so slow that all pays, and of one so fast that nothing does.
_SLOW, _FAST = (1e-9, 1e-3), (0.0, 1e-15)


def _settled(model, optimizer):
    """What rank 0 says until all ranks have compared."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        while not (optimizer._plan._watch.settled or optimizer._plan._over):
            _steps(model, optimizer)
    return said.getvalue()


def _said(compression="auto"):
    """What rank 0 says in a job that ends once all have compared."""
    said = _settled(*_optimized(compression))
    hvd.shutdown()
    return said


def _with_costs(*costs):
    """Each rank has costs of its own; None: it does not know any."""
    _join_as("ab")
    auto_compression.CompressionWatch = _Watch
    mine = costs[hvd.rank()]

    def fit_steps(steps):
        del steps
        if mine is None:
            raise ValueError("no operations")
        return mine

    auto_compression.fit_steps = fit_steps
    auto_compression.busy_s = lambda steps: sum(mine or (0.0, 0.0))
    return _said("auto:int8")


@pytest.mark.parametrize("costs", [(_SLOW, _FAST), (_FAST, _SLOW)])
def test_a_rank_that_waits_for_another_does_not_decide(costs):
    said, _ = run_ranks(2, _with_costs, *costs)
    assert "chosen: none for 1 bucket" in said


def test_what_all_ranks_see_decides():
    said, _ = run_ranks(2, _with_costs, _SLOW, _SLOW)
    assert "chosen: int8 for 1 bucket" in said


def test_a_rank_that_knows_no_costs_leaves_all_as_it_is():
    said, _ = run_ranks(2, _with_costs, _SLOW, None)
    assert "these steps send nothing that compression would shorten" in said


def _on_one_host():
    _join_as("aa")
    return _said()


def test_on_one_host_it_says_that_nothing_is_coded():
    said, _ = run_ranks(2, _on_one_host)
    assert "all ranks share one host, where nothing is coded" in said


def _where_choosing_fails():
    _join_as("ab")

    def choose_each(*args, **options):
        raise MemoryError("no room")

    auto_compression.choose_each = choose_each
    auto_compression.fit_steps = lambda steps: _SLOW
    model, optimizer = _optimized()
    said = _settled(model, optimizer)
    _steps(model, optimizer, 3)
    assert set(_codecs(model, optimizer).values()) == {"none"}
    hvd.shutdown()
    return said


def test_a_choice_that_fails_lets_nobody_wait():
    said, nothing = run_ranks(2, _where_choosing_fails)
    assert "compression: choosing failed, MemoryError: no room" in said
    assert nothing == ""


def _with_few_descriptors():
    """One rank may hardly open anything more."""
    _join_as("ab")
    auto_compression.CompressionWatch = _Watch
    auto_compression.fit_steps = lambda steps: _SLOW
    free = auto_compression._free_descriptors
    assert 0 < free() <= 1 << 20
    auto_compression._free_descriptors = lambda: 70 if hvd.rank() == 1 else free()
    return _said("auto:int8")


def test_codes_that_need_more_sockets_than_a_rank_has_are_not_tried():
    said, _ = run_ranks(2, _with_few_descriptors)
    assert "chosen: none for 1 bucket" in said


def _that_chooses_again():
    """Each comparison begins with what the network costs now."""
    _join_as("ab")
    auto_compression.CompressionWatch = _Watch
    auto_compression.WATCHED = 2
    costs = [_SLOW, _FAST]
    auto_compression.fit_steps = lambda steps: costs[0]
    model, optimizer = _optimized("auto:int8")
    _settled(model, optimizer)
    _steps(model, optimizer)
    assert "int8" in _codecs(model, optimizer).values()
    del costs[0]
    _Watch.good = False
    while optimizer._plan._watch.settled:
        _steps(model, optimizer)
    _Watch.good = True
    _settled(model, optimizer)
    _steps(model, optimizer)
    assert set(_codecs(model, optimizer).values()) == {"none"}
    hvd.shutdown()


def test_a_network_that_has_changed_is_measured_anew():
    run_ranks(2, _that_chooses_again)


def _while_lanes_are_looked_for():
    _join_as("ab")
    auto_compression.fit_steps = lambda steps: _SLOW
    searches = [hvd.rank() == 1]
    tuner.searches = lambda: searches[0]
    model, optimizer = _optimized()
    _steps(model, optimizer, 30)
    assert optimizer._plan._chosen is None
    searches[0] = False
    _settled(model, optimizer)
    assert optimizer._plan._chosen
    hvd.shutdown()


def test_it_waits_for_the_number_of_lanes():
    run_ranks(2, _while_lanes_are_looked_for)
