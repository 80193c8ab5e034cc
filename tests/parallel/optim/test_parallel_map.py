"""Functions of tensors whose results the ranks compute for each other."""

import functools
import os
import warnings
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

import aiacc.torch as hvd
from aiacc.collectives import objects
from aiacc.exceptions import CollectiveError, MismatchError
from aiacc.torch.parallel.mapping import MEASURED
from tests.support.jobs import in_job, on_ranks
from tests.support.ranks import run_ranks

#: Calls of which the last one follows a decision.
KNOWN = MEASURED + 1


def _tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(17, 17), (3, 3), (64, 64), (1, 1), (33, 33), (8, 8), (40, 40)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _inverse(tensor):
    return torch.linalg.inv(tensor @ tensor.T + torch.eye(len(tensor)))


def _odd(tensor):
    """Results of other shapes, dtypes and strides, several of them, and an empty one."""
    values, vectors = torch.linalg.eigh((tensor + tensor.T).double())
    conjugate = vectors.to(torch.complex64).conj()
    return values, vectors.T, tensor > 0, conjugate, tensor[:0], tensor.sum().to(torch.bfloat16)


def _same(one, other):
    one, other = (value if isinstance(value, tuple) else (value,) for value in (one, other))
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


def _check(tensors, function, **options):
    """The results are those of a loop; returns the decision."""
    mapped = hvd.parallel_map(tensors, function, **options)
    assert len(mapped) == len(tensors)
    assert all(map(_same, mapped, map(function, tensors)))
    return mapped.decision


@contextmanager
def _sent():
    """The bytes of each object that this rank gives the others."""
    sizes, pickled = [], objects._pickled

    def recorded(*args):
        data = pickled(*args)
        sizes.append(data.size)
        return data

    with mock.patch.object(objects, "_pickled", recorded):
        yield sizes


@on_ranks(1, pytest.param(2, marks=pytest.mark.nightly), 3)
def test_parallel_map():
    rank, size = hvd.rank(), hvd.size()
    tensors = _tensors()
    for function in (_inverse, _odd):
        for divide in (True, False, None):
            decisions = [
                _check(tensors, function, divide=divide, name=f"{function.__name__}.{divide}")
                for _ in range(KNOWN + 1)
            ]
            if divide is not None:
                assert all(decision.divided == (divide and size > 1) for decision in decisions)
        assert hvd.allgather_object(decisions) == [decisions] * size
        if size > 1:
            # Measured first, then decided for good.
            assert {decision.reason for decision in decisions[:MEASURED]} == {"measures"}
            assert decisions[MEASURED] == decisions[MEASURED + 1]
            assert decisions[MEASURED].serial_s > 0
            assert decisions[MEASURED].divided_s > 0
            assert set(decisions[0].owners) == set(range(size))
    assert _check([], _inverse).divided is False
    _check(tensors, _inverse, cost=lambda tensor: len(tensor) ** 3, name="costs", divide=True)
    _check(tensors, _inverse, cost=[7, 1, 9, 0, 2, 3, 4], name="list", divide=True)
    _check(tensors[:1], _inverse, name="one", divide=True)
    sparse = [torch.eye(3).to_sparse()]  # other ranks have nothing to send
    (result,) = hvd.parallel_map(sparse, torch.Tensor.to_dense, name="sparse", divide=True)
    assert torch.equal(result, torch.eye(3))
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(4), requires_grad=True)
    (result,) = hvd.parallel_map([weight], lambda tensor: tensor * 2, name="grad", divide=True)
    assert not result.requires_grad
    with pytest.raises(ValueError, match=r"costs \[1.0\] of 7 tensors"):
        hvd.parallel_map(tensors, _inverse, cost=[1.0])
    with pytest.raises(ValueError, match=r"costs \['torch.*expected one for each"):
        hvd.parallel_map(tensors, _inverse, cost=torch.Tensor.type)
    with pytest.raises(ValueError, match="tensor 1 is on meta, tensor 0 on cpu"):
        hvd.parallel_map([tensors[0], torch.ones(2, device="meta")], _inverse)
    if size == 3:
        _on_two_of_three(rank)
        _errors(rank)


def _on_two_of_three(rank):
    pair = hvd.add_process_set([0, 2])
    tensors = _tensors(1)
    if rank == 1:
        with pytest.raises(ValueError, match="rank 1 is not in"):
            hvd.parallel_map(tensors, _inverse, process_set=pair)
    else:
        decision = _check(tensors, _inverse, process_set=pair, name="pair", divide=True)
        assert set(decision.owners) == {0, 1}
        with pytest.raises(hvd.ParallelMapError, match=r"\[pair.bad\] rank 2 failed at tensor"):
            hvd.parallel_map(
                tensors,
                functools.partial(_raise, SINGULAR, rank == 2),
                process_set=pair,
                name="pair.bad",
                cost=[3, 1, 2, 1, 1, 1, 1],
            )


class _SilentError(Exception):
    def __str__(self):
        raise ArithmeticError


SINGULAR = ArithmeticError("singular")


def _raise(kind, really, tensor):
    if really:
        raise kind
    return tensor


def _quantised(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give them up
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def _errors(rank):
    tensors = _tensors(2)
    for kind in (KeyboardInterrupt, SystemExit, _SilentError):
        said = hvd.ParallelMapError
        own = rank == 0 and kind is not _SilentError
        with pytest.raises(kind if own else said, match=None if own else kind.__name__):
            hvd.parallel_map(tensors, functools.partial(_raise, kind, rank == 0), divide=True)
    with pytest.raises(hvd.ParallelMapError, match=r"rank 0 .*qint8, layout .*, not quantised"):
        hvd.parallel_map(tensors, _quantised, name="quantised")
    with pytest.raises(ValueError, match=r"a finite sum"):
        hvd.parallel_map(tensors, _inverse, cost=[1.7e308] * len(tensors))
    # The largest comes first, to the first rank.
    with pytest.raises(
        hvd.ParallelMapError,
        match=r"\[bad\] rank 0 failed at tensor 2 of shape \(64, 64\): ArithmeticError: singular",
    ) as raised:
        hvd.parallel_map(tensors, functools.partial(_raise, SINGULAR, rank == 0), name="bad")
    assert isinstance(raised.value.__cause__, ArithmeticError) == (rank == 0)
    with pytest.raises(hvd.ParallelMapError, match=r"rank 0 .* returned a str"):
        hvd.parallel_map(tensors, lambda tensor: "no tensor", name="text")
    with pytest.raises(TypeError, match=r"returned a list .expected a torch.Tensor or a tuple"):
        hvd.parallel_map(tensors, lambda tensor: [tensor], name="list", divide=False)
    with pytest.raises(hvd.ParallelMapError, match=r"layout torch\.sparse_coo on cpu .expected"):
        hvd.parallel_map(tensors, lambda tensor: tensor.to_sparse(), name="sparse")
    with pytest.raises(MismatchError, match=r"tensors differ: 7 .* on rank 0, 6 on rank 1 .expect"):
        hvd.parallel_map(tensors[: 7 - (rank == 1)], _inverse, name="different")
    many = [torch.eye(2)] * 2000
    many[1999 - rank] = torch.eye(3)
    said = r"tensors differ: number 1998 is \(\(2, 2\), .* on rank 0, \(\(3, 3\), .* on rank 1 "
    with _sent() as sizes, pytest.raises(MismatchError, match=said):
        hvd.parallel_map(many, _inverse, name="many")
    assert max(sizes) < (500 if rank == 2 else 100_000)  # whose tensors nobody shows
    with pytest.raises(MismatchError, match=r"function differs?: .*_inverse.* on rank 0, .*_odd"):
        hvd.parallel_map(tensors, _odd if rank == 2 else _inverse, name="different")
    for wrong in (0, 2):
        given = {"cost": lambda tensor: -1.0} if rank == wrong else {}
        error, said = MismatchError, rf"rank {wrong} gave wrong arguments: ValueError: .*-1\.0"
        if rank == wrong:
            error, said = ValueError, r"costs \[-1\.0.* of 7 tensors"
        with pytest.raises(error, match=said):
            hvd.parallel_map(tensors, _inverse, name="wrong", **given)
    _check(tensors, _inverse, name="bad", divide=True)  # the job goes on


@in_job
def _says_so():
    for _ in range(KNOWN):
        decision = hvd.parallel_map(_tensors(), _inverse, name="said").decision
    return decision.reason


def test_the_first_rank_says_what_was_decided(capfd):
    reason, again = run_ranks(2, _says_so)
    assert reason == again
    assert capfd.readouterr().err.count(f"aiacc: said: {reason}\n") == 1


@on_ranks(3, missing=[0])
def test_a_rank_that_dies_is_an_error_on_the_others():
    def function(tensor):
        if hvd.rank() == 0 and len(tensor) == 64:
            os._exit(7)
        return tensor

    with pytest.raises(CollectiveError, match="rank 0"):
        hvd.parallel_map(_tensors(), function, name="dies", divide=True)
