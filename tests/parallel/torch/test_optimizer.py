"""DistributedOptimizer: sparse gradients, low precision, errors, new jobs.

That training is the same in every situation is in test_optimizer_situations.py.
"""

import os
from functools import partial
from itertools import product

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
_sparse_adam = partial(torch.optim.SparseAdam, lr=0.1)


def _embedding():
    torch.manual_seed(0)
    return nn.Embedding(6, 2, sparse=True).double()


#: Which look up entries, with gradients of one sparse dimension and of two.
_LOOK_UPS = (
    lambda model, entries: model(entries),
    lambda model, entries: model.weight.gather(0, entries[:, None].expand(-1, 2), sparse_grad=True),
)
#: Which rank uses the embedding in which step.
_USES = {
    "by all": lambda rank, step: True,
    "not by rank 0 at first": lambda rank, step: rank > 0 or step > 0,
    "not by rank 0 later": lambda rank, step: rank > 0 or step == 0,
    "by rank 1 alone": lambda rank, step: rank == 1,
    "by none at first, then by rank 1": lambda rank, step: rank == 1 and step > 0,
}
#: SparseAdam refuses dense gradients; Horovod gives it sparse ones again, and so do we.
_SPARSE_WAYS = [
    *((make, {"sparse_as_dense": dense}) for make in (_sgd, _sparse_adam) for dense in (0, 1)),
    (_sgd, {"gradient_predivide_factor": 2.0}),
    (_sparse_adam, {"sparse_as_dense": True, "groups": 1}),
    (_sparse_adam, {"sparse_as_dense": True, "gradient_as_bucket_view": True}),
]


@pytest.mark.parametrize("uses", _USES)
@on_ranks(2, 3)
def test_sparse_gradients(uses):
    def of_entries(look_up, model, rank, batch):
        entries = torch.tensor([rank, rank, 5, (rank + batch) % 6])
        value = look_up(model, entries).pow(2).sum()
        return value if _USES[uses](rank, batch) else value.detach()

    steps = partial(train, batches=range(3))
    for look_up, (make_optimizer, options) in product(_LOOK_UPS, _SPARSE_WAYS):
        recipe = Recipe(_embedding, make_optimizer, partial(of_entries, look_up))
        if uses.startswith("by none") and make_optimizer is _sparse_adam:
            training = steps(together(recipe, **options))  # one process would give it zeros
            check_same_everywhere(training.model)
        else:
            training = compare(steps, recipe, exactly=False, **options)
        assert training.model.weight.grad.is_sparse


@on_ranks(2, 3)
def test_ranks_that_differ_in_the_form_of_a_gradient_are_told():
    for joins, text in ((False, "all(gather|reduce)"), (True, "joined")):
        model = _embedding()
        optimizer = distributed(model, _sgd(model.parameters()))
        if hvd.rank() == 0 and joins:
            hvd.join()
            continue
        rows = model.weight if hvd.rank() == 0 else model(torch.tensor([3]))
        rows.sum().backward()
        with pytest.raises(aiacc.MismatchError, match=rf"weight.*{text}.*sparse_as_dense=True"):
            optimizer.step()
        if joins:
            hvd.join()
    training = together(NET, sparse_as_dense=hvd.rank() == 1)
    text = r"different sparse_as_dense: .*this one (True|False).* pass the same sparse_as_dense"
    training.refused(partial(train, batches=[0]), text)


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


@on_ranks(2, 3)
def test_a_rank_may_join_before_its_first_step():
    sgd = NET._replace(make_optimizer=_sgd)
    for options in ({}, {"sparse_as_dense": True}):
        training = together(sgd, **options)
        train(training, range(0 if hvd.rank() == 0 else 2))
        last = hvd.join()
        hvd.broadcast_parameters(training.model.state_dict(), root_rank=last)
        check_same_everywhere(train(training, range(2, 4)).model)


@on_ranks(2)
def test_gradients_that_are_reduced_twice_are_warned_of():
    training = together(NET)
    training.optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        training.optimizer.step()
    check_same_everywhere(training.model)


@on_ranks(2, 3)
def test_a_gradient_of_another_shape_fails_the_step_on_every_rank():
    """And one that a rank misses does not, though its form is disputed too; the next step works."""
    rows = 3 if hvd.rank() == 0 else 2
    odd, fine = nn.Parameter(torch.ones(rows)), nn.Parameter(torch.ones(2))
    table = nn.Embedding(3, 1, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([odd, fine, table.weight], 0.1),
        [("odd", odd), ("fine", fine), ("table", table.weight)],
    )
    used = [table(torch.tensor([1])).sum()] * (hvd.rank() > 0)
    sum([odd.sum(), fine.sum(), *used]).backward()
    with pytest.raises(aiacc.MismatchError, match="odd"):
        optimizer.step()
    assert torch.equal(fine.detach(), torch.ones(2))
    average = torch.tensor([[0.0], [1 - 1 / hvd.size()], [0.0]])
    torch.testing.assert_close(table.weight.grad.to_dense(), average)
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
