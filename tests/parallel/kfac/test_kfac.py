"""K-FAC of several ranks trains as one process does, in whatever state it is saved and restored."""

import copy
import dataclasses
import json
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from aiacc.kfac import inverses
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import Affine
from aiacc.torch.kfac import buckets
from tests.parallel.kfac.kfac_training import (
    COSTS,
    DAMPING,
    EVERY_STEP,
    expected,
    loss_of,
    loss_of_all,
    loss_of_tokens,
    net,
    owners,
    take_steps,
    token_net,
    trained,
    training,
)
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.training import check_same_everywhere, flat, squares
from tests.support.ranks import run_ranks

CHOLESKY, EIGH = "cholesky", "eigh"


def _damping_of(solve):
    """Of eigenvectors most steps have another than that in which factors were decomposed."""
    return (lambda step: DAMPING * (1 + step)) if solve == EIGH else lambda step: DAMPING


def _expected(ranks, solve=CHOLESKY, **changes):
    return expected(ranks, solve=solve, damping=_damping_of(solve), **changes).numpy()


def _train(*process_set, solve=CHOLESKY, **changes):
    damping = _damping_of(solve)
    return trained(
        *process_set, solve=solve, damping=damping if solve == EIGH else DAMPING, **changes
    )


def _close(ours, wanted, what):
    torch.testing.assert_close(ours, torch.from_numpy(wanted), msg=lambda text: f"{what}: {text}")


@in_job
def _every_distribution(solve, kinds, alike, apart, tokens):
    for kind in kinds:
        ours, kfac = _train(solve=solve, distribution=kind)
        _close(ours, apart if kind == "dp" else alike, kind)
        assert kfac.report().distribution == kind
        assert f"K-FAC {kind} by {solve} on {hvd.size()} rank(s)" in str(kfac.report())
        if kind != "dp":
            ours, _ = _train(solve=solve, distribution=kind, model=token_net(), loss=loss_of_tokens)
            _close(ours, tokens, kind)
    # What was measured and nothing that was given decides now.
    ours, _ = _train(solve=solve, costs=None)
    _close(ours, alike, "measured")


@pytest.mark.parametrize(
    ("solve", "size", "kinds"),
    [
        (EIGH, 1, ["kaisa:1"]),
        (CHOLESKY, 2, ["kaisa:0.5", "kaisa:1"]),
        (EIGH, 2, ["kaisa:0.5", "kaisa:1"]),
        (EIGH, 3, ["kaisa:0.3333", "kaisa:1"]),
        pytest.param(
            CHOLESKY, 4, ["kaisa:0.25", "kaisa:0.5", "kaisa:1"], marks=pytest.mark.nightly
        ),
    ],
)
def test_every_distribution_trains_as_one_process_does(solve, size, kinds):
    everybody = range(size)
    wanted = (
        _expected(everybody, solve),
        _expected(everybody, solve, sources=owners(size)),
        _expected(everybody, solve, model=token_net(), loss=loss_of_tokens),
    )
    assert size == 1 or not np.allclose(wanted[0], wanted[1])
    kinds = ["replicate", "mpd", "spd", "dp", *kinds]
    run_ranks(size, _every_distribution, solve, kinds, *wanted, env={"AIACC_ENGINE": "tcp"})


@in_job
def _in_sets(engine, solves, kinds, wanted):
    assert aiacc.basics.engine() == engine
    pair = hvd.add_process_set([0, hvd.size() - 1])
    for solve in solves:
        for kind in kinds:
            ours, _ = _train(pair, solve=solve, distribution=kind)
            # Who is not in it trains alone, with its own data.
            _close(ours, wanted[solve, pair.included()], kind)
    for kind in ("spd", "mpd", "kaisa:0.3333", "dp"):
        ours, _ = _train(distribution=kind)
        _close(ours, wanted[kind == "dp"], kind)
    ours, _ = _train(distribution="spd", costs=None)
    _close(ours, wanted[False], "measured")
    hvd.barrier()  # rank 1, which waits for nobody, would leave before


@pytest.mark.parametrize(
    ("launcher", "engine"),
    [("explicit", "tcp"), pytest.param("mpirun", "mpi", marks=pytest.mark.nightly)],
)
def test_sets_train_as_their_members_together_over_every_engine(launcher, engine):
    solves, kinds = [CHOLESKY], ["mpd"]
    if engine == "tcp":
        solves, kinds = [CHOLESKY, EIGH], ["replicate", "mpd", "spd", "kaisa:0.5", "kaisa:1"]
    wanted = {(one, True): _expected([0, 2], one) for one in solves}
    wanted |= {(one, False): _expected([1], one) for one in solves}
    wanted |= {False: _expected(range(3)), True: _expected(range(3), sources=owners(3))}
    env = {"AIACC_ENGINE": engine}
    run_ranks(3, _in_sets, engine, solves, kinds, wanted, launcher=launcher, env=env)


@on_ranks(3)
def test_sets_that_overlap_form_others_by_different_names():
    pairs = [hvd.add_process_set(ranks) for ranks in ([0, 2], [1, 2])]
    names = [_train(pair)[1]._ranks.name for pair in pairs if pair.included()]
    assert len(set(names)) == len(names)
    hvd.barrier()


@on_ranks(2)
def test_eigenvectors_and_values_travel_whole_and_diagonals_as_they_are():
    """In float64: d x d + d of a matrix, d of a diagonal."""

    def sent(**options):
        _, kfac = trained(distribution="mpd", **options)
        return sum(hvd.allgather_object(kfac.report().nbytes["inverses"]))

    # A and G of conv, of both groups of grouped, of hidden and of head.
    dims = [10, 4, 18, 18, 2, 2, 17, 16, 17, 5]
    assert sent(solve=EIGH) == 8 * sum(d * d + d for d in dims) == 2 * sent(solve=CHOLESKY)
    of_tokens = sent(solve=EIGH, model=token_net(), loss=loss_of_tokens)
    assert of_tokens == 8 * (11 + sum(d * d + d for d in (6, 19, 5)))


class _Sometimes(nn.Module):
    """Has a layer that the even ranks use, and in step 2 nobody."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.extra = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs, step):
        found = self.body(inputs)
        return self.extra(found) if hvd.rank() % 2 == 0 and step != 2 else found


def _loss_of_sometimes(model, rank, step):
    torch.manual_seed(step)  # the same batch on all ranks
    return model(torch.randn(8, 4), step).pow(2).sum(1).mean()


@in_job
def _use_a_layer_on_some_ranks(kinds):
    states = []
    for kind in kinds:
        model = _Sometimes()
        optimizer, kfac = training(model, **EVERY_STEP, distribution=kind)
        take_steps(model, optimizer, kfac, _loss_of_sometimes, range(4))
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


@on_ranks(2)
def test_scaled_and_accumulated_gradients_are_preconditioned_alike():
    found = []
    for scaled, passes in ((False, 1), (True, 1), (False, 2), (True, 2)):
        model = net()
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
        optimizer, kfac = training(model, **EVERY_STEP, grad_scaler=scaler if scaled else None)
        optimizer.set_backward_passes_per_step(passes)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(4):
            optimizer.zero_grad()
            parts = [2 * hvd.rank(), 2 * hvd.rank() + 1]  # in one pass or in two
            for some in [parts] if passes == 1 else [[part] for part in parts]:
                loss = loss_of_all(model, some, step) / passes
                if scaled and step == 1:  # an overflow, after which the scaler takes no step
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            kfac.step()
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        kfac.detach()
        assert (kfac.report().dropped > 0) == scaled
        found.append(flat(model).numpy())
    assert np.isfinite(found).all()
    plain, scaled, accumulated, both = found
    np.testing.assert_allclose(accumulated, plain, rtol=1e-7)
    np.testing.assert_allclose(both, scaled, rtol=1e-7)
    assert not np.allclose(scaled, plain)  # one step was left out


@on_ranks(2)
def test_ranks_that_differ_are_told_so():
    model, rank = net(), hvd.rank()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())

    def refused(said, state=None, of=optimizer, **options):
        kfac = hvd.KFAC(model, of, **options)
        if state is not None:
            kfac.load_state_dict(state)
        of.zero_grad()
        loss_of(model, rank, 0).backward()
        if said is None:
            kfac.step()
        else:
            with pytest.raises(ValueError, match=said):
                kfac.step()
        kfac.detach()
        if of is optimizer:
            optimizer.synchronize()

    for different in (
        {"damping": 0.1 + rank},
        {"solve": EIGH if rank else CHOLESKY},
        {"lr": 0.1 + rank},
        {"factor_every": lambda number: 1 + rank},  # one would wait for the other's factors
        {"costs": COSTS if rank else None},
        {"costs": dataclasses.replace(COSTS, overlap=1 - rank / 2)},
        {"skip_layers": ["hidden"] if rank else []},
    ):
        refused("other layers, options or costs than the first one", **different)
    refused(r"kaisa:0.3.*the share may be 0.5, 1", distribution="kaisa:0.3")
    # As who restores parameters on one rank and broadcasts them from there.
    state = {"version": 1, "step": 7, "factors": {}} if rank == 0 else None
    refused(f"step 7 on the first one, {7 if rank == 0 else 0} here", state)
    refused(None)
    with optimizer.skip_synchronize():
        optimizer.step()
    # Nobody reduces these.
    model = net()
    refused("'conv' is not the same on all ranks", of=torch.optim.SGD(model.parameters(), 0.1))
    # Here somebody else has, such as DistributedDataParallel.
    plain = torch.optim.SGD(model.parameters(), 0.1)
    plain.zero_grad()
    kfac = hvd.KFAC(model, plain)
    loss_of(model, rank, 0).backward()
    for number, parameter in enumerate(model.parameters()):
        hvd.allreduce_(parameter.grad, name=f"by hand.{number}")
    kfac.step()
    after = model.conv.weight.grad
    assert torch.equal(hvd.broadcast(after, 0), after)


# --- states, lost inverses and new starts


class _TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3).double()

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh().double())


@on_ranks(2)
def test_gradients_of_two_dtypes_travel_together_and_a_rank_may_own_nothing():
    found, loss = [], squares(8, 4, dtype=torch.float32)
    for kind in ("replicate", "kaisa:0.5"):
        model = _TwoDtypes()
        take_steps(model, *training(model, **EVERY_STEP, distribution=kind), loss, range(4))
        found.append(model)
    for ours, wanted in zip(found[1].parameters(), found[0].parameters(), strict=True):
        torch.testing.assert_close(ours, wanted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    both = training(model, **EVERY_STEP, distribution="dp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_steps(model, *both, loss, range(3))


@in_job
def _train_and_save(steps, state, kind):
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP, distribution=kind)
    if state is not None:
        model.load_state_dict({name: torch.from_numpy(one) for name, one in state[0].items()})
        factors = {name: torch.from_numpy(one) for name, one in state[1]["factors"].items()}
        kfac.load_state_dict({**state[1], "factors": factors})

    def loss(model, rank, step):
        batches = range(rank, 4, hvd.size())  # four in a step, whatever ranks there are
        return sum(loss_of(model, batch, step) / len(batches) for batch in batches)

    take_steps(model, optimizer, kfac, loss, steps)
    if steps and kind == "mpd":
        with pytest.raises(ValueError, match="consolidate_state_dict"):
            kfac.state_dict()
    kfac.consolidate_state_dict()
    found = kfac.state_dict()
    factors = {name: one.numpy() for name, one in found["factors"].items()}
    parameters = {name: one.detach().numpy() for name, one in model.state_dict().items()}
    return parameters, {**found, "factors": factors}


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
    for ours, wanted in (
        (resumed[0], straight[0]),
        (resumed[1]["factors"], straight[1]["factors"]),
    ):
        for name, one in wanted.items():
            np.testing.assert_allclose(ours[name], one, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("solve", ["cholesky", "eigh"])
@on_ranks(2)
def test_a_factor_without_an_inverse_keeps_the_last_one_on_every_rank(solve):
    """A of `conv` has none in the last step, on its owner; of dimension 10 is no other factor."""
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP, distribution="mpd", solve=solve)
    take_steps(model, optimizer, kfac, loss_of, range(2))
    name = "eigh" if solve == "eigh" else "cholesky_ex"
    real = getattr(torch.linalg, name)

    def failing(matrices):
        if matrices.shape[-1] != 10:
            return real(matrices)
        return real(torch.full_like(matrices, float("inf")))

    kept = kfac._layers[0].a.inverse.clone()
    setattr(inverses.torch.linalg, name, failing)
    take_steps(model, optimizer, kfac, loss_of, range(2, 3))
    setattr(inverses.torch.linalg, name, real)
    torch.testing.assert_close(kfac._layers[0].a.inverse, kept, rtol=0, atol=0)
    failures = hvd.allreduce(torch.tensor([float(kfac.report().failures)]), op=hvd.Sum)
    assert failures.item() == 1
    assert all(one.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("kind", ["replicate", "spd"])
@on_ranks(2)
def test_what_was_on_its_way_when_a_state_was_loaded_does_not_count(kind):
    found = []
    for passes in (0, 1, 2):
        model = net()
        optimizer, kfac = training(model, **EVERY_STEP, distribution=kind)
        take_steps(model, optimizer, kfac, loss_of, range(6))
        kfac.consolidate_state_dict()
        state, parameters = kfac.state_dict(), copy.deepcopy(model.state_dict())
        # Rank 0 alone, or both, get as far as the backward pass of a batch that is no good.
        if passes == 2 or (passes == 1 and hvd.rank() == 0):
            weights = [module.weight for module in model.children() if module is not model.norm]
            torch.autograd.grad(1000 * loss_of(model, hvd.rank(), 99), weights)
        if passes:
            model.load_state_dict(parameters)
            kfac.load_state_dict(state)
        take_steps(model, optimizer, kfac, loss_of, range(6, 9))
        found.append(flat(model))
        kfac.detach()
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("kind", ["spd", "kaisa:0.5"])
@on_ranks(2)
def test_ranks_stay_alike_in_a_job_that_starts_anew(kind, load):
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP | {"inverse_every": 3}, distribution=kind)
    quick, slow = (Polynomial(seconds, 0.0, 0.0) for seconds in (1e-9, 1.0))
    # Everybody inverts everything in one of the jobs, and owners do in the other.
    for inversion in (slow, quick):
        kfac._costs = StageCosts(inversion, Affine(1e-3, 1e-9), gathered=True)
        steps = range(4) if inversion is slow else range(4, 9)
        take_steps(model, optimizer, kfac, loss_of, steps)
        if inversion is slow:
            kfac.consolidate_state_dict()
            state = copy.deepcopy(kfac.state_dict())
            if load:
                kfac.load_state_dict(state)
            hvd.shutdown()
            hvd.init()
            if load:
                assert kfac.state_dict()["factors"].keys() == state["factors"].keys()
    check_same_everywhere(model)


# --- when factors travel

LAYERS, STEPS = 3, 3


class _Wait(torch.autograd.Function):
    """Does nothing, but waits in its backward pass."""

    @staticmethod
    def forward(ctx, tensor, wait):
        ctx.wait = wait
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.wait()
        return gradient, None


MEASURED = {**EVERY_STEP, "costs": None}


@in_job
def _train_and_wait():
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
    options = {**MEASURED, "fusion": "threshold", "distribution": "replicate"}
    optimizer, kfac = training(layers, **options)
    started, start, ends = [], buckets.allreduce_async_, []

    def recorded(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    buckets.allreduce_async_ = recorded

    def arrived():
        """Wait in the backward pass until the factors of the forward pass are reduced."""
        if not ends:
            return  # in the first step nothing leaves before the ranks have agreed
        while not hvd.poll(started[-1]):
            time.sleep(1e-4)

    for _ in range(STEPS):
        optimizer.zero_grad()
        found = torch.randn(4, 8)
        for layer in layers:
            found = layer(found)
        _Wait.apply(found, arrived).pow(2).sum().backward()
        ends.append(time.monotonic() * 1e6)
        kfac.step()
        optimizer.step()
    return ends


def test_factors_of_the_forward_pass_are_reduced_during_the_backward_pass(tmp_path):
    path = tmp_path / "t.json"
    ends = run_ranks(2, _train_and_wait, env={"AIACC_TIMELINE": str(path)})[0]
    events = json.loads(path.read_text())
    ours = [one for one in events if ".factors." in one.get("name", "")]
    reduced = sorted(one["ts"] + one["dur"] for one in ours if one["cat"] == "ALLREDUCE")
    assert reduced[0] > ends[0]  # where both buckets may be one unit
    later = reduced[-2 * (STEPS - 1) :]
    assert later[0] > reduced[0]
    for step in range(1, STEPS):
        a, g = later[2 * step - 2 : 2 * step]
        assert ends[step - 1] < a < ends[step]
        assert a < g


def _train_by(fusion, kind):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).double()
    optimizer, kfac = training(model, **MEASURED, distribution=kind, fusion=fusion)
    take_steps(model, optimizer, kfac, squares(4, 8), range(8))
    kfac.detach()
    return model, kfac.report().together, optimizer


@on_ranks(2)
def test_a_plan_of_recorded_steps_fuses_factors_and_gradients_and_changes_no_result():
    for kind in ("replicate", "mpd", "spd"):
        model, together, optimizer = _train_by("optimal", kind)
        assert sorted(name for names in together for name in names) == sorted(
            f"{layer} {side}" for layer in range(LAYERS) for side in "AG"
        )
        assert hvd.allgather(torch.tensor([len(together)])).unique().numel() == 1
        assert not optimizer._aiacc_unplanned  # gradients follow the same plan
        for fusion in ("threshold", "bulk"):
            other, _, plain = _train_by(fusion, kind)
            assert len(plain._aiacc_unplanned) == 2 * LAYERS
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two)
