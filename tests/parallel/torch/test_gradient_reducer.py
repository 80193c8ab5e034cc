"""The reducer below DistributedOptimizer: plans from outside, codecs with state, submissions."""

import gc
import weakref
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc import _core
from aiacc.compression.codecs import parse
from aiacc.compression.policy import Policy
from aiacc.torch.reducer.codec import Encoded
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.plan import Planner
from aiacc.torch.reducer.reducer import GradientReducer
from aiacc.torch.reducer.storage import flat_buckets, own_memory
from tests.support.jobs import on_ranks
from tests.support.learning.training import distributed

KINDS = [{}, {"groups": 2}, {"gradient_as_bucket_view": True, "bucket_bytes": 256}]


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def _backward(model):
    """Gradients of this rank that are whole numbers of the rank, so that averages are exact."""
    for parameter in model.parameters():
        parameter.grad = None
    sum(parameter.sum() * (hvd.rank() + 1) for parameter in model.parameters()).backward()


def _check(model):
    for parameter in model.parameters():
        assert parameter.grad.eq((hvd.size() + 1) / 2).all()


@on_ranks(2)
def test_an_operation_is_prepared_once():
    prepare = _core.prepare = mock.Mock(wraps=_core.prepare)
    for options in KINDS:
        model = _net()
        optimizer = distributed(model, torch.optim.SGD(model.parameters(), 0.1), **options)
        by_step = []
        for _ in range(4):
            prepare.reset_mock()
            _backward(model)
            optimizer.synchronize()
            prepared = [call.args[2] for call in prepare.mock_calls]
            by_step.append([name for name in prepared if "weight" in name or "bias" in name])
            _check(model)
        names = [name for name, _ in model.named_parameters()]
        assert sorted(by_step[0]) == sorted(names)
        # Groups and buckets come with the second step, which shows that views do not pay here.
        buckets = len(optimizer.buckets) if options else 0
        expected = [buckets, buckets if "gradient_as_bucket_view" in options else 0, 0]
        assert [len(names) for names in by_step[1:]] == expected


@on_ranks(2)
def test_parameters_may_get_another_shape():
    for options in ({}, {"groups": [[]]}, {"groups": 1}):
        memory = torch.zeros(64)
        parameter, other = nn.Parameter(torch.ones(48)), nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter, other], 0.1), **options)
        for count in (48, 48, 16, 32):
            parameter.data = torch.ones(count)
            memory.fill_(-1)
            parameter.grad = other.grad = None
            # Autograd keeps the very tensor, which is a part of a larger one.
            torch.autograd.backward(
                [parameter, other], [memory[:count].fill_(hvd.rank() + 1.0), torch.ones(3)]
            )
            optimizer.synchronize()
            assert parameter.grad.eq((hvd.size() + 1) / 2).all()
            assert memory[count:].eq(-1).all()  # what lies behind the gradient


# --- plans from outside


def _neighbours(length, gradients):
    """Runs of gradients as they come, but the last one by itself."""
    count = len(gradients) - 1
    return [range(begin, min(begin + length, count)) for begin in range(0, count, length)]


def _twice(gradients):
    return [[0, 1], [1]]


def _members(reducer):
    names = [name for name, _ in reducer.named]
    return [[names[index] for index in bucket.members] for bucket in reducer.buckets]


@on_ranks(2, 3)
def test_plans_from_outside():
    for storage in (own_memory, flat_buckets):
        for length, sizes in ((3, [3, 3, 1, 1]), (7, [7, 1])):
            model = _net()
            options = ReductionOptions(
                planner=Planner(partial(_neighbours, length)), storage=storage
            )
            reducer = GradientReducer(list(model.named_parameters()), options, 1)
            assert [len(bucket.members) for bucket in reducer.buckets] == [1] * 8
            for step in range(3):
                _backward(model)
                reducer.finish()
                _check(model)
                plan = _members(reducer)
                assert [len(bucket) for bucket in plan] == sizes
                if step == 0:  # What is in no bucket of the plan has no flat memory either.
                    flat = [bucket.flat is not None for bucket in reducer.buckets]
                    assert flat == [storage is flat_buckets] * (len(plan) - 1) + [False]
            assert hvd.allgather_object(plan) == [plan] * hvd.size()
            reducer.detach()


@on_ranks(2)
def test_a_plan_that_is_none_is_an_error_and_gradients_go_by_themselves():
    for storage in (own_memory, flat_buckets):
        model = _net()
        options = ReductionOptions(planner=Planner(_twice, argument="doubled"), storage=storage)
        reducer = GradientReducer(list(model.named_parameters()), options, 1)
        _backward(model)
        with pytest.raises(ValueError, match=r"doubled: .*at most once"):
            reducer.finish()
        _check(model)
        _backward(model)
        reducer.finish()
        _check(model)
        assert [len(bucket.members) for bucket in reducer.buckets] == [1] * 8
        reducer.detach()


# --- codecs with state


class _Feedback:
    """Sends whole numbers, and what they leave out with the next ones."""

    def __init__(self, op, named, flat):
        self.op = op
        self.left = None
        self.calls = 0

    def __call__(self, tensors):
        self.calls += 1
        left = self.left or [torch.zeros_like(tensor) for tensor in tensors]
        wanted = [tensor + rest for tensor, rest in zip(tensors, left, strict=True)]
        sent = [tensor.floor() for tensor in wanted]
        self.left = [tensor - one for tensor, one in zip(wanted, sent, strict=True)]

        def decode(handle, _):
            for tensor, one in zip(tensors, sent, strict=True):
                tensor.copy_(one)

        return Encoded(sent, decode)


@on_ranks(2)
def test_codecs_keep_the_state_of_their_bucket():
    for storage in (own_memory, flat_buckets):
        parameters = [nn.Parameter(torch.zeros(3)) for _ in range(4)]
        planner = Planner(partial(_neighbours, 2))
        options = ReductionOptions(op=hvd.Sum, planner=planner, storage=storage, codec=_Feedback)
        reducer = GradientReducer([(str(n), p) for n, p in enumerate(parameters)], options, 1)
        total = torch.zeros(3)
        for step in range(9):
            for parameter in parameters:
                if storage is own_memory:
                    parameter.grad = None
                elif parameter.grad is not None:  # without it views are given up, and the state
                    parameter.grad.zero_()
            sum(parameter.sum() * 0.25 for parameter in parameters).backward()
            reducer.finish()
            if step > 0:  # the buckets of the first step are gone, and so is their state
                total += parameters[0].grad
            assert all(torch.equal(parameters[0].grad, other.grad) for other in parameters)
        codecs = [bucket.codec for bucket in reducer.buckets]
        assert [codec.calls for codec in codecs] == [8, 8, 8]
        assert len(codecs) == len(set(map(id, codecs)))
        assert total.eq(hvd.size() * 8 * 0.25).all()
        reducer.detach()


def _fails_half_way(kind):
    """A backward pass that fails, and whose optimizer is given up; weak references to its memory.

    Nothing is left of it but what the core has to know.
    """
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    policy = Policy(parse("topk:density=0.1"), least_elements=1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        [(f"{kind}.{name}", parameter) for name, parameter in model.named_parameters()],
        compression=policy if kind == "residuals" else "none",
    )
    model[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 8)).sum().backward()
    kept = list(optimizer.feedback.residuals.values()) if kind == "residuals" else []
    return [weakref.ref(tensor) for tensor in [model[1].weight.grad, *kept]]


@on_ranks(2)
def test_memory_of_an_optimizer_that_is_given_up_lives_until_the_core_is_done():
    model = _net()
    optimizer = distributed(model, torch.optim.SGD(model.parameters(), 0.1))
    for kind in ("gradients", "residuals"):
        if hvd.rank() == 0:
            memory = _fails_half_way(kind)
            gc.collect()
            # The other rank comes later: this is still to be written to.
            assert all(reference() is not None for reference in memory), kind
        hvd.barrier()
        if hvd.rank() == 1:
            memory = _fails_half_way(kind)
        for _ in range(2):  # what is done in the first step is forgotten in the second
            _backward(model)
            optimizer.step()
        gc.collect()
        assert all(reference() is None for reference in memory), kind
        hvd.barrier()
