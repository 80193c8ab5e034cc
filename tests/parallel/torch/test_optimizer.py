"""DistributedOptimizer: every class and its copies, sparse gradients, low precision, errors, sets.

That training is the same in every situation is in test_optimizer_situations.py.
"""

import copy
import inspect
import os
from collections import defaultdict, deque, namedtuple
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from tests.parallel.torch.test_optimizer_situations import NET, VIEWS, loss
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    DUPLICATES,
    Recipe,
    Together,
    alone,
    check_learned,
    check_same_everywhere,
    compare,
    distributed,
    flat,
    squares,
    together,
    train,
)
from tests.support.operations import Unloadable

# --- every class of torch, and copies

CLASSES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
)


def _model(name):
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Embedding(9, 3, sparse=True).double()
    layers = [nn.Linear(3, 4, bias=name != "Muon"), nn.Tanh(), nn.Linear(4, 2, bias=name != "Muon")]
    return nn.Sequential(*layers).double()


def _loss(model, rank, batch):
    generator = torch.Generator().manual_seed(100 * batch + rank)
    if isinstance(model, nn.Embedding):
        entries = torch.randint(9, (3 + rank,), generator=generator)
        return model(entries).pow(2).sum()
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return (model(inputs) - 1).pow(2).mean()


def _optimizer(name, parameters):
    if name == "LBFGS":
        options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
        return torch.optim.LBFGS(parameters, **options)
    return getattr(torch.optim, name)([{"params": [p]} for p in parameters], lr=0.05)


def _recipe(name):
    return Recipe(partial(_model, name), partial(_optimizer, name), _loss)


def _steps(name, training):
    assert type(training.optimizer).__name__ == name
    for batch in range(4):
        if name == "LBFGS" or batch % 2:
            training.step_by_closure(batch)
        else:
            train(training, [batch])


@on_ranks(2, 3)
def test_every_optimizer_of_torch():
    assert len(CLASSES) >= 13
    for name in CLASSES:
        # LBFGS decides by losses, whose sums have an order of their own.
        options = {"exactly": name not in ("LBFGS", "SparseAdam")}
        model = compare(partial(_steps, name), _recipe(name), **options).model
        assert not torch.equal(flat(model), flat(_model(name))), name
        if name != "SparseAdam":
            compare(partial(_steps, name), _recipe(name), **VIEWS, **options)


@on_ranks(2, 3, each={"options": [{}, VIEWS], "duplicate": DUPLICATES.values()})
def test_copies_reduce_the_gradients_of_their_own_parameters(options, duplicate):
    def copied(training):
        train(training, range(2))
        original = training.model, training.optimizer
        before = flat(original[0]).clone()
        if hvd.rank() == 0:
            copy.deepcopy(original)  # as for an average that one rank has
        training.model, training.optimizer = duplicate(original)
        assert type(training.optimizer).__name__ == "Adam"
        if isinstance(training, Together):
            names = [list(of._parameter_names.values()) for of in (original[1], training.optimizer)]
            assert names[0] == names[1]
        train(training, range(2, 4))
        assert torch.equal(flat(original[0]), before)
        return list(training.model.parameters())

    compare(copied, _recipe("Adam"), **options)


@on_ranks(2, 3, each={"options": [{}, {**VIEWS, "bucket_bytes": 64}]})
def test_parameters_that_one_rank_has_frozen(options):
    training = together(_recipe("Adam"), **options)
    layer = training.model[0]
    for step in range(3):
        layer.requires_grad_(step == 0 or hvd.rank() > 0)
        before = layer.weight.detach().clone()
        train(training, [step])
        assert not torch.equal(layer.weight, before)
        check_same_everywhere(training.model)


class _Counting(torch.optim.Optimizer):
    """Has state that is no tensor, as optimizers of other packages do."""

    is_elementwise = True

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                entries = self.state[parameter]
                entries["step"] = entries.get("step", 0) + 1
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / entries["step"])


class _LoadsInPlace(_Counting):
    """Loads into the dictionaries that there are."""

    def load_state_dict(self, state_dict):
        parameters = [p for group in self.param_groups for p in group["params"]]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({**saved, "params": group["params"]})
        self.state.clear()
        self.state.update((parameters[n], dict(of)) for n, of in state_dict["state"].items())


@on_ranks(2, each={"kind": [_Counting, _LoadsInPlace, torch.optim.SparseAdam]})
def test_state_that_is_no_tensor_is_broadcast_and_loaded(kind):
    def steps(training):
        train(training, range(2))
        if isinstance(training, Together):
            if hvd.rank() == 1 and not hasattr(training.optimizer, "consolidate_state_dict"):
                for entries in training.optimizer.state.values():
                    entries["step"] = 9
            hvd.broadcast_optimizer_state(training.optimizer, 0)
        training.load(training.state())
        train(training, [2])
        return [entries["step"] for entries in training.state()["state"].values()]

    sparse = kind is torch.optim.SparseAdam
    for options in ({},) if sparse else ({}, {"op": hvd.Adasum}, {"schedule": "decoupled"}):
        recipe = Recipe(partial(_model, kind.__name__), kind, _loss)
        compare(steps, recipe, exactly=not sparse, **options)


_Pair = namedtuple("_Pair", "rows phase")


@on_ranks(2)
def test_any_state_is_broadcast_as_it_is_or_all_ranks_are_told():
    rank, weight = hvd.rank(), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    master, rows = torch.full((2,), 1 + 2**-20), torch.tensor([1, 2])
    odd = {
        **{"phase": "warm", "step": 3, "rows": [rows], "mask": (torch.tensor([True, False]),)},
        **{"in": {"master": master}, "array": np.arange(3), "range": range(3), "none": None},
        **{"pair": _Pair(rows, "x"), "last": deque([master], 3), "lists": defaultdict(list, a=[])},
    }
    optimizer = _Counting([weight])
    if rank == 0:
        optimizer.state[weight].update(odd)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert repr(optimizer.state[weight]) == repr(odd)

    def of(*sizes, kind=_Counting):
        return kind([{"params": [nn.Parameter(torch.ones(1)) for _ in range(n)]} for n in sizes])

    unloadable, lost = of(1), of(1)
    unloadable.state["all"]["entry"] = Unloadable()
    if rank == 1:
        lost.load_state_dict = {}.__getitem__
    for differing, said in {
        of(1, 3) if rank else of(3, 1): r"groups of 1, 3 parameters .expected _Counting with",
        of(1, kind=torch.optim.Adam) if rank else of(1): "Adam with groups of 1",
        **{unloadable: "invalid literal", lost: "unhashable type"},
    }.items():
        with pytest.raises(ValueError, match=f"rank 1: .*{said}"):
            hvd.broadcast_optimizer_state(differing, 0)


# --- gradients that travel in less precision

#: By how much, relatively, a rounding changes a number, and the largest that it makes zero.
_ROUNDING = {"bf16": (2.0**-8, 0.0), "fp16": (2.0**-11, 2.0**-25)}


@on_ranks(2, 3, each={"options": [{}, VIEWS], "name": _ROUNDING})
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


@on_ranks(2)
def test_models_of_bfloat16():
    of_16_bits = squares(4, 6, dtype=torch.bfloat16)
    recipe = Recipe(lambda: _net().bfloat16(), OF_SETS.make_optimizer, of_16_bits)
    compare(partial(train, batches=range(4)), recipe)


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
    (_sparse_adam, {"sparse_as_dense": True, **VIEWS}),
]


@on_ranks(2, 3, each={"uses": _USES, "look_up": _LOOK_UPS, "way": _SPARSE_WAYS})
def test_sparse_gradients(uses, look_up, way):
    make_optimizer, options = way

    def of_entries(model, rank, batch):
        entries = torch.tensor([rank, rank, 5, (rank + batch) % 6])
        value = look_up(model, entries).pow(2).sum()
        return value if _USES[uses](rank, batch) else value.detach()

    steps = partial(train, batches=range(3))
    recipe = Recipe(_embedding, make_optimizer, of_entries)
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


@on_ranks(3, starts=False, each={"options": [{}, {"groups": 2}, VIEWS]})
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
