"""K-FAC of several ranks: as one process with the data of all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import aiacc
import aiacc.torch as hvd
from tests.parallel.kfac.kfac_training import (
    COSTS,
    expected,
    loss_of,
    loss_of_all,
    net,
    owners,
    settings,
    trained,
)
from tests.support.ranks import run_ranks


def _all_distributions(wanted, kinds):
    torch.set_num_threads(1)
    hvd.init()
    wanted = torch.from_numpy(wanted)
    for kind in kinds:
        ours, kfac = trained(distribution=kind)
        torch.testing.assert_close(ours, wanted, msg=lambda text, kind=kind: f"{kind}: {text}")
        everyones = hvd.allgather(ours.reshape(1, -1))
        assert all(torch.equal(one, everyones[0]) for one in everyones), kind
        assert kfac.report().distribution == kind
    hvd.shutdown()


@pytest.mark.parametrize(
    ("size", "kinds"),
    [
        (2, ["replicate", "mpd", "spd", "kaisa:0.5", "kaisa:1"]),
        (4, ["replicate", "mpd", "spd", "kaisa:0.25", "kaisa:0.5", "kaisa:1"]),
    ],
)
def test_every_distribution_trains_as_one_process_does(size, kinds):
    run_ranks(size, _all_distributions, expected(range(size)).numpy(), kinds)


def _sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def _in_sets(engine, wanted):
    torch.set_num_threads(1)
    hvd.init()
    assert aiacc.basics.engine() == engine
    pair = hvd.add_process_set([0, hvd.size() - 1])
    for process_set, results in ((hvd.global_process_set, wanted[0]), (pair, wanted[1])):
        for kind, result in results.items():
            if process_set.included():
                ours, _ = trained(process_set, distribution=kind)
                torch.testing.assert_close(ours, torch.from_numpy(result), msg=kind)
    if not pair.included():  # alone, with its own data
        ours, _ = trained(pair)
        torch.testing.assert_close(ours, torch.from_numpy(wanted[2][hvd.rank()]))
    # What was measured and nothing that was given decides now.
    ours, _ = trained(distribution="spd", costs=None)
    torch.testing.assert_close(ours, torch.from_numpy(wanted[0]["spd"]))
    hvd.shutdown()


@pytest.mark.parametrize(
    ("launcher", "engine"), [("explicit", "tcp"), ("mpirun", "mpi")], ids=["tcp", "mpi"]
)
def test_sets_train_as_their_members_together_over_every_engine(launcher, engine):
    alike = expected(range(3)).numpy()
    everybody = {
        "spd": alike,
        "mpd": alike,
        "kaisa:0.3333": alike,
        "dp": expected(range(3), owners(3)).numpy(),
    }
    assert not np.allclose(everybody["dp"], alike)
    pair = {"mpd": expected([0, 2]).numpy()}
    alone = {1: expected([1]).numpy()}
    env = {"AIACC_ENGINE": engine}
    run_ranks(3, _in_sets, engine, (everybody, pair, alone), launcher=launcher, env=env)


class _Sometimes(torch.nn.Module):
    """Has a layer that the even ranks use, and in step 2 nobody."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.extra = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, inputs, step):
        found = self.body(inputs)
        return self.extra(found) if hvd.rank() % 2 == 0 and step != 2 else found


def _use_a_layer_on_some_ranks(kinds):
    torch.set_num_threads(1)
    hvd.init()
    states = []
    for kind in kinds:
        model = _Sometimes()
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        options = settings({"factor_every": 1, "inverse_every": 1, "distribution": kind})
        kfac = hvd.KFAC(model, optimizer, **options)
        for step in range(4):
            optimizer.zero_grad()
            torch.manual_seed(step)  # the same batch on all ranks
            model(torch.randn(8, 4), step).pow(2).sum(1).mean().backward()
            kfac.step()
            optimizer.step()
        kfac.consolidate_state_dict()
        states.append(kfac.state_dict()["factors"])
        kfac.detach()
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, factor in state.items():
            torch.testing.assert_close(factor, states[0][name], msg=name)
    return {name: factor.numpy() for name, factor in states[0].items()}


def test_a_layer_that_some_ranks_use_gets_the_factors_of_those():
    kinds = ["replicate", "mpd", "spd", "kaisa:0.5"]
    ((alone, *_), two) = (run_ranks(n, _use_a_layer_on_some_ranks, kinds[:n]) for n in (1, 2))
    # Rank 0 has the same batches in both jobs; only `body` was used by rank 1 as well.
    assert two[0].keys() == alone.keys() == {"body A", "body G", "extra A", "extra G"}
    np.testing.assert_allclose(two[0]["body A"], alone["body A"], rtol=1e-5)


def _train_and_save(steps, state, kind):
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    options = {"factor_every": 1, "inverse_every": 1, "distribution": kind}
    kfac = hvd.KFAC(model, optimizer, **settings(options))
    if state is not None:
        model.load_state_dict({name: torch.from_numpy(one) for name, one in state[0].items()})
        factors = {name: torch.from_numpy(one) for name, one in state[1]["factors"].items()}
        kfac.load_state_dict({**state[1], "factors": factors})
    for step in steps:
        optimizer.zero_grad()
        batches = range(hvd.rank(), 4, hvd.size())  # four in a step, whatever ranks there are
        sum(loss_of(model, batch, step) / len(batches) for batch in batches).backward()
        kfac.step()
        optimizer.step()
    if steps and kind == "mpd":
        with pytest.raises(ValueError, match="consolidate_state_dict"):
            kfac.state_dict()
    kfac.consolidate_state_dict()
    found = kfac.state_dict()
    hvd.shutdown()
    factors = {name: one.numpy() for name, one in found["factors"].items()}
    return (
        {name: one.numpy() for name, one in model.state_dict().items()},
        {**found, "factors": factors},
    )


def test_a_checkpoint_goes_on_at_another_number_of_ranks():
    saved = run_ranks(2, _train_and_save, [0, 1], None, "mpd")
    assert saved[0][1]["factors"].keys() == saved[1][1]["factors"].keys()
    assert len(saved[0][1]["factors"]) == 8
    for ranks, kind in ((1, "spd"), (3, "kaisa:0.3333")):
        for model, state in run_ranks(ranks, _train_and_save, [], saved[1], kind):
            assert state["step"] == 2
            for name, one in saved[0][0].items():
                np.testing.assert_array_equal(model[name], one)
            assert state["factors"].keys() == saved[0][1]["factors"].keys()
    straight = run_ranks(2, _train_and_save, [0, 1, 2], None, "mpd")[0]
    resumed = run_ranks(2, _train_and_save, [2], saved[0], "spd")[0]
    for name, one in straight[1]["factors"].items():
        np.testing.assert_allclose(resumed[1]["factors"][name], one, rtol=1e-8, atol=1e-12)
    for name, one in straight[0].items():
        np.testing.assert_allclose(resumed[0][name], one, rtol=1e-8, atol=1e-12)


def _disagree():
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    rank = hvd.rank()
    optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())

    def step(**options):
        state = options.pop("state", None)
        kfac = hvd.KFAC(model, options.pop("optimizer", optimizer), **options)
        if state is not None:
            kfac.load_state_dict(state)
        optimizer.zero_grad()
        loss_of(model, rank, 0).backward()
        kfac.step()
        kfac.detach()

    for different in (
        {"damping": 0.1 + rank},
        {"solve": "eigh" if rank else "cholesky"},
        {"lr": 0.1 + rank},
        {"factor_every": lambda number: 1 + rank},  # one would wait for the other's factors
        {"costs": COSTS if rank else None},
        {"costs": dataclasses.replace(COSTS, overlap=1 - rank / 2)},
        {"skip_layers": ["hidden"] if rank else []},
    ):
        with pytest.raises(ValueError, match="other layers, options or costs than the first one"):
            step(**different)
        optimizer.synchronize()
    with pytest.raises(ValueError, match=r"kaisa:0.3.*the share may be 0.5, 1"):
        step(distribution="kaisa:0.3")
    optimizer.synchronize()
    # As who restores parameters on one rank and broadcasts them from there.
    state = {"version": 1, "step": 7, "factors": {}} if rank == 0 else None
    with pytest.raises(ValueError, match=f"step 7 on the first one, {7 if rank == 0 else 0} here"):
        step(state=state)
    optimizer.synchronize()
    step()
    optimizer.step()
    # Nobody reduces these.
    model = net()
    with pytest.raises(ValueError, match="'conv' is not the same on all ranks"):
        step(optimizer=_sgd(model))
    # Here somebody else has, such as DistributedDataParallel.
    plain = _sgd(model)
    plain.zero_grad()
    kfac = hvd.KFAC(model, plain)
    loss_of(model, rank, 0).backward()
    for number, parameter in enumerate(model.parameters()):
        hvd.allreduce_(parameter.grad, name=f"by hand.{number}")
    kfac.step()
    after = model.conv.weight.grad
    assert torch.equal(hvd.broadcast(after, 0), after)
    hvd.shutdown()


def test_ranks_that_differ_are_told_so():
    run_ranks(2, _disagree)


def _break_a_factor(solve):
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
    options = {"factor_every": 1, "inverse_every": 1, "distribution": "mpd"}
    kfac = hvd.KFAC(model, optimizer, **settings({**options, "solve": solve}))
    broken = kfac._layers[0].a
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        if step == 2 and broken.mean is not None:  # its owner alone has it
            broken.mean.fill_(float("inf"))
        before = broken.inverse
        kfac.step()
        optimizer.step()
    torch.testing.assert_close(broken.inverse, before, rtol=0, atol=0)
    failures = hvd.allreduce(torch.tensor([float(kfac.report().failures)]), op=hvd.Sum)
    assert failures.item() == 1
    assert all(one.isfinite().all() for one in model.parameters())
    hvd.shutdown()


@pytest.mark.parametrize("solve", ["cholesky", "eigh"])
def test_a_factor_without_an_inverse_keeps_the_last_one_on_every_rank(solve):
    run_ranks(2, _break_a_factor, solve)


def _scale_and_accumulate():
    torch.set_num_threads(1)
    hvd.init()
    found = []
    for scaled, passes in ((False, 1), (True, 1), (False, 2), (True, 2)):
        model = net()
        plain = _sgd(model)
        optimizer = hvd.DistributedOptimizer(
            plain, model.named_parameters(), backward_passes_per_step=passes
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=True) if scaled else None
        options = settings({"factor_every": 1, "inverse_every": 1, "grad_scaler": scaler})
        kfac = hvd.KFAC(model, optimizer, **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(4):
            optimizer.zero_grad()
            parts = [2 * hvd.rank(), 2 * hvd.rank() + 1]  # in one pass or in two
            for some in [parts] if passes == 1 else [[part] for part in parts]:
                loss = loss_of_all(model, some, step) / passes
                if scaled and step == 1:  # an overflow, after which the scaler takes no step
                    loss = loss * float("inf")
                (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                kfac.step()
                optimizer.step()
            else:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                kfac.step()
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
            scheduler.step()
        kfac.detach()
        assert (kfac.report().dropped > 0) == scaled
        found.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    hvd.shutdown()
    assert all(one.isfinite().all() for one in found)
    return [one.numpy() for one in found]


def test_scaled_and_accumulated_gradients_are_preconditioned_alike():
    plain, scaled, accumulated, both = run_ranks(2, _scale_and_accumulate)[0]
    np.testing.assert_allclose(accumulated, plain, rtol=1e-7)
    np.testing.assert_allclose(both, scaled, rtol=1e-7)
    assert not np.allclose(scaled, plain)  # one step was left out
