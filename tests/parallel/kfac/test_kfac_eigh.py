"""K-FAC by eigenvectors on several ranks: as one process with the data of all."""

from __future__ import annotations

import pytest
import torch

import aiacc
import aiacc.torch as hvd
from tests.parallel.kfac.kfac_training import (
    DAMPING,
    expected,
    loss_of_tokens,
    owners,
    token_net,
    trained,
)
from tests.support.ranks import run_ranks

KINDS = {
    1: ["replicate", "mpd", "spd", "kaisa:1", "dp"],
    2: ["replicate", "mpd", "spd", "kaisa:0.5", "kaisa:1", "dp"],
    3: ["replicate", "mpd", "spd", "kaisa:0.3333", "kaisa:1", "dp"],
}


def _damping(step):
    """Of which most steps have another than that in which factors were decomposed."""
    return DAMPING * (1 + step)


def _expected(ranks, **changes):
    return expected(ranks, solve="eigh", damping=_damping, **changes).numpy()


def _train(process_set=hvd.global_process_set, **changes):
    """Parameters, which are the same on all ranks of the set to the last bit."""
    ours, kfac = trained(process_set, solve="eigh", damping=_damping, **changes)
    if process_set.included():
        everyones = hvd.allgather(ours.reshape(1, -1), process_set=process_set)
        assert all(torch.equal(one, everyones[0]) for one in everyones), changes
    return ours, kfac


def _every_distribution(kinds, alike, apart, tokens):
    torch.set_num_threads(1)
    hvd.init()
    assert aiacc.basics.engine() == "tcp"
    for kind in kinds:
        ours, kfac = _train(distribution=kind)
        wanted = torch.from_numpy(apart if kind == "dp" else alike)
        torch.testing.assert_close(ours, wanted, msg=lambda text, kind=kind: f"{kind}: {text}")
        assert f"K-FAC {kind} by eigh on {hvd.size()} rank(s)" in str(kfac.report())
        assert kfac._stage_costs.square
        if kind != "dp":
            ours, _ = _train(distribution=kind, model=token_net(), loss=loss_of_tokens)
            torch.testing.assert_close(ours, torch.from_numpy(tokens), msg=kind)
    # What was measured and nothing that was given decides now.
    ours, kfac = _train(costs=None)
    torch.testing.assert_close(ours, torch.from_numpy(alike))
    assert hvd.size() == 1 or kfac._stage_costs.square
    hvd.shutdown()


@pytest.mark.parametrize("size", KINDS)
def test_every_distribution_trains_as_one_process_does(size):
    everybody = range(size)
    alike, apart = _expected(everybody), _expected(everybody, sources=owners(size))
    tokens = _expected(everybody, model=token_net(), loss=loss_of_tokens)
    env = {"AIACC_ENGINE": "tcp"}
    run_ranks(size, _every_distribution, KINDS[size], alike, apart, tokens, env=env)


def _in_a_set(together, alone):
    torch.set_num_threads(1)
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    for kind in KINDS[2][:-1]:
        ours, _ = _train(pair, distribution=kind)
        wanted = together if pair.included() else alone
        torch.testing.assert_close(ours, torch.from_numpy(wanted), msg=kind)
    hvd.barrier()  # rank 1, which waits for nobody, would leave before
    hvd.shutdown()


def test_a_set_trains_as_its_members_together():
    run_ranks(3, _in_a_set, _expected([0, 2]), _expected([1]))


def _count_bytes():
    torch.set_num_threads(1)
    hvd.init()
    found = {}
    for solve in ("cholesky", "eigh"):
        for name, changes in (
            ("net", {}),
            ("tokens", {"model": token_net(), "loss": loss_of_tokens}),
        ):
            _, kfac = trained(distribution="mpd", solve=solve, **changes)
            found[solve, name] = kfac.report().nbytes["inverses"]
    hvd.shutdown()
    return found


def test_eigenvectors_and_values_travel_whole_and_diagonals_as_they_are():
    """In float64: d x d + d of a matrix, d of a diagonal."""
    found = run_ranks(2, _count_bytes)
    total = {key: sum(one[key] for one in found) for key in found[0]}
    # A and G of conv, of both groups of grouped, of hidden and of head.
    dims = [10, 4, 18, 18, 2, 2, 17, 16, 17, 5]
    assert total["eigh", "net"] == 8 * sum(d * d + d for d in dims)
    assert total["eigh", "net"] == 2 * total["cholesky", "net"]
    assert total["eigh", "tokens"] == 8 * (11 + sum(d * d + d for d in (6, 19, 5)))
