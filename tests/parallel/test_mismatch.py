"""Ranks that disagree learn it on every rank, by name, and the job goes on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import aiacc
import aiacc.array as hvd
import aiacc.torch as torch_hvd
from tests.support.ranks import run_ranks


def _disagree(call, *texts):
    """Every rank gets the error; afterwards all still work together."""
    rank = hvd.rank()
    with pytest.raises(aiacc.MismatchError) as failure:
        call(rank)
    message = str(failure.value)
    for text in ("odd.one", "rank 0", f"rank {hvd.size() - 1}", *texts):
        assert text in message, f"{text!r} is not in {message!r}"
    total = hvd.allreduce(np.ones(2), name="afterwards", op=hvd.Sum)
    np.testing.assert_array_equal(total, np.full(2, hvd.size()))
    return message


def _all_disagreements():
    hvd.init()
    last = hvd.size() - 1
    ones = np.ones(6, np.float32)
    messages = [
        _disagree(lambda r: hvd.allreduce(ones[: 5 if r == last else 6], name="odd.one"), "5", "6"),
        _disagree(
            lambda r: hvd.allreduce(ones.astype("f8" if r == last else "f4"), name="odd.one"),
            "float64",
            "float32",
        ),
        _disagree(
            lambda r: hvd.allreduce(ones, name="odd.one", op=hvd.Min if r == last else hvd.Max),
            "Min",
            "Max",
        ),
        _disagree(lambda r: hvd.broadcast(ones, int(r == last), name="odd.one"), "root"),
        _disagree(
            lambda r: hvd.allreduce(
                ones, name="odd.one", op=hvd.Sum, prescale_factor=2.0 if r == last else 1.0
            ),
            "prescale",
        ),
        _disagree(
            lambda r: hvd.allgather(ones.reshape(2, 3) if r != last else ones, name="odd.one"),
            "shape",
        ),
        _disagree(
            lambda r: hvd.allgather(
                ones.reshape(2, 3) if r != last else ones.reshape(3, 2), name="odd.one"
            ),
            "shape",
        ),
    ]
    # A name that was fine (and is cached) may go wrong later, and be fine again.
    hvd.allreduce(ones, name="odd.one")
    hvd.allreduce(ones, name="odd.one")
    messages.append(
        _disagree(lambda r: hvd.allreduce(ones[: 4 if r == last else 6], name="odd.one"), "4", "6")
    )
    np.testing.assert_array_equal(hvd.allreduce(ones, name="odd.one"), ones)
    np.testing.assert_array_equal(hvd.allreduce(ones[:2], name="odd.one"), ones[:2])
    hvd.shutdown()
    return messages


@pytest.mark.parametrize("size", [2, 3])
def test_disagreement_is_an_error_on_every_rank_and_not_fatal(size):
    results = run_ranks(size, _all_disagreements)
    assert all(messages == results[0] for messages in results)


def _same_name_and_another_operation():
    hvd.init()
    rank, last = hvd.rank(), hvd.size() - 1
    ones = np.ones(4, np.float32)
    messages = []
    calls = [
        (lambda: hvd.allreduce(ones, name="odd.one"), lambda: hvd.allgather(ones, name="odd.one")),
        (
            lambda: hvd.grouped_allreduce([ones], name="odd.one"),
            lambda: hvd.synchronize(hvd.broadcast_async(ones, 0, name="odd.one")),
        ),
    ]
    for ours, theirs in calls:
        messages.append(_disagree(lambda r, a=ours, b=theirs: (b if r == last else a)()))
    # The same when all of these are known.
    for call in (call for pair in calls for call in pair):
        call()
    messages.append(_disagree(lambda r: calls[0][r == last]()))
    # In any order is fine.
    reduced = [
        lambda: hvd.allreduce_async(ones, name="both", op=hvd.Sum),
        lambda: hvd.allgather_async(ones, name="both"),
    ]
    handles = [submit() for submit in (reduced if rank == 0 else reduced[::-1])]
    shapes = [hvd.synchronize(handle).shape for handle in (handles if rank == 0 else handles[::-1])]
    assert shapes == [(4,), (4 * hvd.size(),)]
    hvd.shutdown()
    return messages


@pytest.mark.parametrize("size", [2, 3])
def test_one_name_for_two_kinds_of_operations_is_an_error_on_every_rank(size):
    results = run_ranks(size, _same_name_and_another_operation)
    assert all(messages == results[0] for messages in results)
    for kind in ("allreduce.odd.one", "allgather.odd.one"):
        assert kind in results[0][0]
        assert kind in results[0][2]
    for kind in ("grouped_allreduce.odd.one", "broadcast.odd.one"):
        assert kind in results[0][1]


def _torch_disagrees():
    hvd.init()
    ones = torch.ones(4)
    message = _disagree(
        lambda r: (
            torch_hvd.allgather(ones, name="odd.one")
            if r == hvd.size() - 1
            else torch_hvd.allreduce(ones, name="odd.one")
        ),
        "allreduce.odd.one",
        "allgather.odd.one",
    )
    hvd.shutdown()
    return message


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_disagree_in_torch_all_learn_it(size):
    messages = run_ranks(size, _torch_disagrees)
    assert messages == messages[:1] * size


def _outcome(call):
    """What the call gives, or its mismatch."""
    try:
        return call().tolist()
    except aiacc.MismatchError as error:
        return error


def _threads_with_a_kind_each(name):
    hvd.init()
    ones = np.ones(1)
    calls = [
        lambda: hvd.allreduce(ones, name=name, op=hvd.Sum),
        lambda: hvd.allgather(ones, name=name),
    ]
    outcomes = {}

    def early(kind):
        outcomes[kind] = _outcome(calls[kind])

    def late(kind, other):
        # Its data comes late: no event tells that the other one goes on to wait, as it shall, for
        # longer than a rank has to be stuck that has no other thread.
        other.join(2)
        if not isinstance(outcomes.get(1 - kind), Exception):
            outcomes[kind] = _outcome(calls[kind])

    first = threading.Thread(target=early, args=(hvd.rank(),))
    second = threading.Thread(target=late, args=(1 - hvd.rank(), first))
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join()
    hvd.shutdown()
    return [outcomes.get(kind) for kind in range(2)]


@pytest.mark.parametrize("name", [None, "x"])
def test_threads_that_are_slow_on_every_rank_are_waited_for(name):
    results = run_ranks(2, _threads_with_a_kind_each, name)
    assert results == [[[2.0], [1.0, 1.0]]] * 2
