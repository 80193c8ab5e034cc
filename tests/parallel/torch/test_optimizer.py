"""DistributedOptimizer: sparse gradients, low precision, errors, new jobs.

That training is the same in every situation is in test_optimizer_situations.py.
"""

import os
from functools import partial

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from tests.parallel.torch.test_optimizer_situations import Net, images, loss, momentum
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Recipe,
    Together,
    alone,
    check_learned,
    check_parameters,
    check_same_everywhere,
    compare,
    distributed,
    flat,
    squares,
    together,
    train,
)

NET = Recipe(Net, momentum, loss)


# --- gradients that travel in less precision


#: By how much, relatively, a rounding changes a number, and the largest that it makes zero.
_ROUNDING = {"bf16": (2.0**-8, 0.0), "fp16": (2.0**-11, 2.0**-25)}


@pytest.mark.parametrize("name", _ROUNDING)
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
@on_ranks(2, 3)
def test_compressed_gradients_are_exact_but_for_roundings(options, name):
    """Each element is that of exact gradients, but for a rounding per rank and one of the sum."""
    training = together(NET, compression=getattr(hvd.Compression, name), **options)

    def clip_too_early(training):
        training.backward(3)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)
        training.step()

    training.refused(clip_too_early, r"was written to between .* optimizer.synchronize")
    unit, least = _ROUNDING[name]
    parameters = [p for p in training.model.parameters() if p.requires_grad]
    for batch in range(4):
        training.zero_grad()
        training.backward(batch)
        exact = []
        for rank in range(hvd.size()):
            value = loss(training.model, rank, batch)
            exact.append(torch.autograd.grad(value, parameters, allow_unused=True))
        training.synchronize()
        for parameter, *given in zip(parameters, *exact, strict=True):
            found = [g if g is not None else torch.zeros_like(parameter) for g in given]
            bound = (hvd.size() + 1) * (unit * sum(map(torch.abs, found)) / hvd.size() + least)
            assert ((parameter.grad - sum(found) / hvd.size()).abs() <= bound).all()
        training.step()
        check_same_everywhere(training.model)


@on_ranks(2, 3)
def test_models_of_bfloat16():
    model = Net().bfloat16()
    optimizer = distributed(model, momentum(model.parameters()))
    before = flat(model).clone()
    for batch in range(3):
        hidden = model.norm(model.conv(images(hvd.rank(), batch).bfloat16())).mean((2, 3))
        model.used(hidden).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(flat(model), before)
    check_same_everywhere(model)


# --- sparse gradients


_sgd = partial(torch.optim.SGD, lr=1.0)


def _embedding():
    torch.manual_seed(0)
    return nn.Embedding(6, 2, sparse=True).double()


def _of_rows(model, rank, batch):
    return model(torch.tensor([rank, rank, 5, (rank + batch) % 6])).pow(2).sum()


def _sparse_steps(training):
    train(training, range(3))
    assert training.model.weight.grad.is_sparse


@on_ranks(2, 3)
def test_sparse_gradients():
    sgd = Recipe(_embedding, _sgd, _of_rows)
    compare(_sparse_steps, sgd, exactly=False)
    compare(_sparse_steps, sgd, exactly=False, sparse_as_dense=True)
    # SparseAdam refuses dense gradients; Horovod gives it sparse ones again, and so do we.
    adam = Recipe(_embedding, lambda p: torch.optim.SparseAdam(list(p), 0.1), _of_rows)
    for options in ({}, {"groups": 1}, {"gradient_as_bucket_view": True}):
        compare(_sparse_steps, adam, exactly=False, sparse_as_dense=True, **options)

    # Not used by rank 0, which knows by now that the gradient is sparse.
    def of_others(model, rank, batch):
        entries = torch.tensor([3] if rank > 0 or batch == 0 else [], dtype=torch.long)
        value = model(entries).sum()
        return value if rank > 0 or batch == 0 else value.detach()

    compare(partial(train, batches=range(2)), Recipe(_embedding, _sgd, of_others), exactly=False)

    # Not used by rank 0, which cannot know: an error on every rank, and no hang.
    model = _embedding()
    other = hvd.DistributedOptimizer(_sgd(model.parameters()), [("other", model.weight)])
    if hvd.rank() > 0:
        model(torch.tensor([3])).sum().backward()
    with pytest.raises(aiacc.MismatchError, match=r"other.*all(gather|reduce)"):
        other.step()


# --- names, errors, jobs


@on_ranks(2, 3)
def test_parameters_have_names_by_position_if_nobody_names_them():
    model = Net()
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()))
    training = train(Together(model, optimizer, loss), range(4))
    expected = compare(partial(train, batches=range(4)), NET)
    check_parameters(training.model, expected.model, rtol=0, atol=0)
    numbers = range(len(list(model.parameters())))
    assert list(optimizer._parameter_names.values()) == [f"allreduce.noname.0.{n}" for n in numbers]


@on_ranks(2)
def test_gradients_that_are_reduced_twice_are_warned_of():
    training = together(NET)
    training.optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        training.optimizer.step()
    check_same_everywhere(training.model)


@on_ranks(2, 3)
def test_a_gradient_of_another_shape_fails_the_step_on_every_rank():
    """And the next step works."""
    rows = 3 if hvd.rank() == 0 else 2
    odd, fine = nn.Parameter(torch.ones(rows)), nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([odd, fine], 0.1), [("odd", odd), ("fine", fine)]
    )
    (odd.sum() + fine.sum()).backward()
    with pytest.raises(aiacc.MismatchError, match="odd"):
        optimizer.step()
    assert torch.equal(fine.detach(), torch.ones(2))
    optimizer.zero_grad()
    odd.data = torch.ones(2)
    fine.sum().backward()
    optimizer.step()
    torch.testing.assert_close(fine.detach(), torch.full((2,), 0.9))


def _shut_down_in_a_step(training):
    training.backward(0)
    hvd.shutdown()
    training.step()


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
@on_ranks(2, 3)
def test_an_optimizer_outlives_shutdowns_between_and_within_steps(options):
    def outlives(training):
        train(training, range(2))
        if isinstance(training, Together):
            training.refused(_shut_down_in_a_step, "")  # where, depends on how fast the others are
            hvd.shutdown()
            hvd.init()
        train(training, range(2, 4))

    compare(outlives, NET, **options)


# --- process sets: as a single process with the data of the members


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


OF_SETS = Recipe(_net, partial(torch.optim.SGD, lr=0.1), squares(4, 6))


@on_ranks(3, env={"AIACC_ENGINE": "tcp"})
def test_training_in_overlapping_sets():
    assert aiacc.basics.engine() == os.environ["AIACC_ENGINE"]
    # Overlapping sets train at the same time as all ranks do.
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 2], [1, 2], [0])]
    adam = OF_SETS._replace(make_optimizer=partial(torch.optim.Adam, lr=0.1))
    for process_set in (*sets, hvd.global_process_set):
        if process_set.included():
            compare(partial(train, batches=range(4)), adam, process_set=process_set)
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"gradient_as_bucket_view": True}])
@on_ranks(3, starts=False)
def test_sets_may_change_their_numbers(options):
    """The numbers of the two sets change places with each `init`, and the second is late."""
    torch.set_num_threads(1)
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    for life in range(3):
        late = pairs if life == 2 else []
        hvd.init(process_sets=[] if late else pairs[::-1] if life else pairs)
        for process_set in late:
            hvd.add_process_set(process_set)
        if life == 0:
            trainings = [together(OF_SETS, process_set=pair, **options) for pair in pairs]
        for process_set, training in zip(pairs, trainings, strict=True):
            if process_set.included():
                train(training, range(4))
        mine = [process_set.included() for process_set in pairs]
        hvd.barrier()
        hvd.shutdown()
    for process_set, training, included in zip(pairs, trainings, mine, strict=True):
        if included:
            expected = train(alone(OF_SETS, process_set.ranks), [*range(4)] * 3)
            check_learned(training.model, expected.model, exactly=True)
