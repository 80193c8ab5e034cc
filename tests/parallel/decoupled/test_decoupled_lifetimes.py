"""Several optimizers, and what ends or comes between while parameters are under way."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled import part as part_module
from aiacc.torch.decoupled.bucket import Bucket
from tests.parallel.decoupled.decoupled_training import (
    begin,
    check_equal,
    gather_late,
    loss,
    net,
    train,
    wrap,
)
from tests.support.ranks import run_ranks


def _two():
    """Two models of equal names, whose operations are under way at the same time."""
    torch.set_num_threads(1)
    hvd.init()
    pairs = {}
    for schedule in ("all_reduce", "decoupled"):
        models = [net(), net()]
        optimizers = [wrap(m, torch.optim.SGD(m.parameters(), 0.1), schedule) for m in models]
        if schedule == "all_reduce":  # not at the same time
            train(models[0], optimizers[0], range(5))
            train(models[1], optimizers[1], range(10, 15))
        else:
            for step in range(5):
                loss(models[0], step, hvd.rank()).backward()
                loss(models[1], 10 + step, hvd.rank()).backward()
                for optimizer in reversed(optimizers):
                    optimizer.step()
                    optimizer.zero_grad()
            assert all(b.gathering for o in optimizers for b in o._exchange.buckets)
        pairs[schedule] = models
    for found, expected in zip(pairs["decoupled"], pairs["all_reduce"], strict=True):
        check_equal(found, expected)
    hvd.shutdown()


def test_two_models_of_equal_names_at_the_same_time():
    run_ranks(2, _two)


def _anew(steps):
    """Another optimizer for the same model; the first one is dropped later, as by `gc`."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = [net(), net()]
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        train(model, optimizer, range(steps))
        old = optimizer
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        if schedule == "all_reduce":
            del old
        else:
            for hook in old._exchange._hooks:
                hook.remove()
        for step in range(5):
            train(model, optimizer, [step])
            if step == 2 and schedule == "decoupled":
                del old
                gc.collect()
                assert all(bucket.gathering for bucket in optimizer._exchange.buckets)
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_optimizer_made_anew(steps):
    run_ranks(2, _anew, steps)


def _dropped():
    """What was under way when the optimizer goes comes nevertheless."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = [net(), net()]
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        train(model, optimizer, range(3))
        del optimizer
        gc.collect()
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_an_optimizer_that_is_dropped():
    run_ranks(2, _dropped)


def _dropped_on_the_way():
    """Gradients that have left stay in memory until another rank's have come."""
    model, optimizer = begin()
    train(model, optimizer, range(3))
    optimizer.flush()
    optimizer.zero_grad()
    if hvd.rank() == 1:
        hvd.barrier()
    loss(model, 3, hvd.rank()).backward()
    if hvd.rank() == 0:
        memory = [
            tensor.untyped_storage().data_ptr()
            for bucket in optimizer._exchange.buckets
            for tensor in (bucket._gradients, bucket.gradient)
        ]
        del model, optimizer
        gc.collect()
        used = [tensor for tensors in in_flight.held.values() for tensor in tensors]
        assert {tensor.untyped_storage().data_ptr() for tensor in used}.issuperset(memory)
        hvd.barrier()
    else:
        optimizer._exchange.reduce()
    hvd.barrier()
    hvd.shutdown()


def test_a_model_and_an_optimizer_that_are_dropped_on_the_way():
    run_ranks(2, _dropped_on_the_way)


def _sets_passes():
    """Gradients that have left are waited for: the next backward pass writes to their memory."""
    torch.set_num_threads(1)
    hvd.init()
    models = [net(), net()]
    for model, early in zip(models, (False, True), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
        train(model, optimizer, range(3))
        if not early:
            optimizer.set_backward_passes_per_step(3)
        optimizer.zero_grad()
        loss(model, 3, hvd.rank()).backward()
        if early:
            assert any(bucket.scattered for bucket in optimizer._exchange.buckets)
            optimizer.set_backward_passes_per_step(2)
            assert not in_flight.held
        for step in (4, 5):
            loss(model, step, hvd.rank()).backward()
        optimizer.step()
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_passes_that_are_set_after_gradients_have_left():
    run_ranks(2, _sets_passes)


def _interrupted(where):
    """An interrupt while `step` hides parameters; uses raise until there are new values."""
    model, optimizer = begin()
    train(model, optimizer, range(3))
    optimizer.flush()
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    bucket = optimizer._exchange.buckets[1]
    if where == "hide":

        class _Interrupts(list):
            def __getitem__(self, position):
                bucket._covers = covers  # once
                raise KeyboardInterrupt

            def __iter__(self):
                return iter([self[0]])

        covers = bucket._covers
        bucket._covers = _Interrupts()
    else:
        (part,) = bucket._parts
        start, part._gather = part._gather, None  # any error
    with pytest.raises(KeyboardInterrupt if where == "hide" else AssertionError):
        train(model, optimizer, [3])
    if where == "gather":
        part._gather = start
    for parameter in model.parameters():
        with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
            parameter.sum()
    model.load_state_dict(saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name])
    train(model, optimizer, range(4, 6))
    check_equal(model, model)
    hvd.shutdown()


@pytest.mark.parametrize("where", ["hide", "gather"])
def test_a_step_that_is_interrupted(where):
    run_ranks(2, _interrupted, where)


def _interrupted_wait():
    """An interrupt of a wait loses nothing: the next use waits again."""
    torch.set_num_threads(1)
    hvd.init()
    models = [net(), net()]
    wait = part_module.wait

    def interrupted(handle, tensors):
        part_module.wait = wait
        raise KeyboardInterrupt

    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        train(model, optimizer, range(3))
        if schedule == "decoupled":
            part_module.wait = interrupted
            with pytest.raises(KeyboardInterrupt):
                loss(model, 3, hvd.rank())
        train(model, optimizer, range(3, 5))
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_a_wait_that_is_interrupted():
    run_ranks(2, _interrupted_wait)


def _forks():
    """Children of a fork, as workers of a DataLoader, have current values, and end."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = [net(), net()]
    optimizers = []
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizers.append(wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule))
        train(model, optimizers[-1], range(3))
    child = os.fork()
    if child == 0:
        equal = all(map(torch.equal, models[1].parameters(), models[0].parameters()))
        del optimizers
        gc.collect()
        os._exit(0 if equal else 1)
    assert os.waitpid(child, 0)[1] == 0
    train(models[0], optimizers[0], range(3, 5))
    train(models[1], optimizers[1], range(3, 5))
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_forks_between_steps():
    run_ranks(2, _forks)


def _reads():
    """Another thread that uses a parameter before its gather has started waits, too."""
    torch.set_num_threads(1)
    hvd.init()
    models = [net(), net()]
    optimizers = [
        wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True)
    ]
    train(models[0], optimizers[0], range(3))
    train(models[1], optimizers[1], range(2))
    start, found = Bucket.gather, []
    last = list(models[1].parameters())[-1]
    reader = threading.Thread(target=lambda: found.append(last.clone()))

    def gather(bucket):
        if bucket is optimizers[1]._exchange.buckets[0]:
            reader.start()
            reader.join(0.3)  # it would have the values of before by then
        start(bucket)

    Bucket.gather = gather
    train(models[1], optimizers[1], [2])
    Bucket.gather = start
    reader.join()
    assert torch.equal(found[0], list(models[0].parameters())[-1])
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_a_thread_that_reads_during_a_step():
    run_ranks(2, _reads)
