"""Several optimizers, and what ends or comes between while parameters are under way."""

import gc
import os
import threading
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled import part as part_module
from aiacc.torch.decoupled.bucket import Bucket
from tests.parallel.decoupled.decoupled_training import (
    DECOUPLED,
    NET,
    all_awaited,
    compare_late,
    loss,
    sgd,
    start,
    wrap,
)
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Alone,
    alone,
    check_learned,
    check_same_everywhere,
    compare,
    gathers_late,
    train,
)


@on_ranks(2)
def test_two_models_of_equal_names_at_the_same_time():
    """Their operations are under way together, and their optimizers step in the other order."""
    ones, jobs = [alone(NET), alone(NET)], [start(), start()]
    for trainings in (ones, jobs):
        for batch in range(5):
            trainings[0].backward(batch)
            trainings[1].backward(10 + batch)
            for training in reversed(trainings):
                training.step()
                training.zero_grad()
    assert all(all_awaited(training.optimizer) for training in jobs)
    for training, expected in zip(jobs, ones, strict=True):
        check_learned(training.model, expected.model, exactly=True)


def _made_anew(steps, training):
    """An optimizer of the same model; the first one is dropped later, as by `gc`."""
    train(training, range(steps))
    old = training.optimizer
    if isinstance(training, Alone):
        training.optimizer = sgd(training.model.parameters())
        train(training, range(5))
        return
    training.optimizer = wrap(training.model)
    for hook in old._exchange._hooks:
        hook.remove()
    train(training, range(3))
    del old
    gc.collect()
    assert all_awaited(training.optimizer)
    train(training, range(3, 5))


def _dropped(training):
    """What is under way when an optimizer is dropped comes nevertheless."""
    train(training, range(3))
    training.optimizer = None
    gc.collect()
    assert all(type(parameter) is nn.Parameter for parameter in training.model.parameters())


def _passes_set_late(training):
    """Gradients that have left are waited for: the next pass adds to them in their memory."""
    train(training, range(3))
    training.zero_grad()
    training.backward(3)
    if not isinstance(training, Alone):
        assert in_flight.held
        training.optimizer.set_backward_passes_per_step(2)
        assert not in_flight.held
    for batch in (4, 5):
        training.backward(batch)
    training.step()


def _wait_interrupted(training):
    """A wait that is interrupted loses nothing: the next use waits again."""
    wait = part_module.wait

    def interrupt(handle, tensors):
        part_module.wait = wait
        raise KeyboardInterrupt

    train(training, range(3))
    if not isinstance(training, Alone):
        part_module.wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            loss(training.model, hvd.rank(), 3)
    train(training, range(3, 5))


_SITUATIONS = [
    *(partial(_made_anew, steps) for steps in (0, 1, 3)),
    *(_dropped, _passes_set_late, _wait_interrupted),
]


@on_ranks(2, each={"situation": _SITUATIONS, "compares": [compare, compare_late]})
def test_what_one_process_learns(situation, compares):
    compares(situation, NET, **DECOUPLED)


@on_ranks(2)
def test_gradients_that_have_left_stay_in_memory_until_another_ranks_have_come():
    """Though the model and the optimizer are dropped."""
    training = train(start(), range(3))
    training.optimizer.flush()
    training.zero_grad()
    if hvd.rank() == 1:
        hvd.barrier()
    training.backward(3)
    if hvd.rank() == 0:
        memory = [
            tensor.untyped_storage().data_ptr()
            for bucket in training.optimizer._exchange.buckets
            for tensor in (bucket._gradients, bucket.gradient)
        ]
        del training
        gc.collect()
        used = [tensor for tensors in in_flight.held.values() for tensor in tensors]
        assert {tensor.untyped_storage().data_ptr() for tensor in used}.issuperset(memory)
        hvd.barrier()
    else:
        training.optimizer._exchange.reduce()
    hvd.barrier()


@on_ranks(2, each={"where": ["hide", "gather"]})
def test_a_step_that_is_interrupted(where):
    """While `step` hides parameters; uses raise until there are new values."""
    training = train(start(), range(3))
    model, optimizer = training.model, training.optimizer
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
        begin, part._gather = part._gather, None  # any error
    with pytest.raises(KeyboardInterrupt if where == "hide" else AssertionError):
        train(training, [3])
    if where == "gather":
        part._gather = begin
    for parameter in model.parameters():
        with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
            parameter.sum()
    model.load_state_dict(saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name])
    train(training, range(4, 6))
    check_same_everywhere(model)


@on_ranks(2)
def test_children_of_a_fork_have_current_values():
    """As workers of a DataLoader; and they end."""
    expected, training = alone(NET), start()
    with gathers_late():
        for one in (expected, training):
            train(one, range(3))
        child = os.fork()
        if child == 0:
            equal = all(map(torch.equal, training.model.parameters(), expected.model.parameters()))
            del training
            gc.collect()
            os._exit(0 if equal else 1)
        assert os.waitpid(child, 0)[1] == 0
        for one in (expected, training):
            train(one, range(3, 5))
        check_learned(training.model, expected.model, exactly=True)


@on_ranks(2)
def test_a_thread_that_reads_during_a_step_waits():
    """It uses a parameter before its gather has started."""
    expected, training = train(alone(NET), range(3)), train(start(), range(2))
    begin, found = Bucket.gather, []
    last = list(training.model.parameters())[-1]
    reader = threading.Thread(target=lambda: found.append(last.clone()))

    def gather(bucket):
        if bucket is training.optimizer._exchange.buckets[0]:
            reader.start()
            reader.join(0.3)  # it would have the values of before by then
        begin(bucket)

    Bucket.gather = gather
    train(training, [2])
    Bucket.gather = begin
    reader.join()
    assert torch.equal(found[0], list(expected.model.parameters())[-1])
    check_learned(training.model, expected.model, exactly=True)


@on_ranks(2)
def test_the_end_of_a_rank_waits_for_the_parameters():
    """Rank 1 ends at once after the last step; rank 0 reads parameters later."""
    expected, training = train(alone(NET), range(2)), start()
    with gathers_late():
        train(training, range(2))
        if hvd.rank() == 1:
            hvd.shutdown()
        else:
            training.optimizer.flush()
        assert not training.optimizer.awaited
        assert all(map(torch.equal, training.model.parameters(), expected.model.parameters()))
