"""One table of collective operations, and what NumPy says that they give, for every front-end.

    front = Frontend(aiacc.torch, to_torch, from_torch)
    for number, case in enumerate(table(hvd.rank(), hvd.size(), DTYPES)):
        check(front, case, number)

Cases are those of one rank: what it gives, and what it gets. Inputs are small whole numbers, whose
sums and products are exact in every dtype.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from aiacc.collectives.dtypes import DTYPE_CODES
from aiacc.collectives.objects import gather_objects
from aiacc.collectives.splits import scattered_rows
from aiacc.process_sets import global_process_set

DTYPES = [np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPE_CODES]
#: What is moved, and not added up.
MOVED = [np.dtype(getattr(ml_dtypes, n, n)) for n in ("complex64", "complex128", "float8_e5m2")]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (4, 5, 6), (4097,)]
#: Fewer, for front-ends of which each operation takes long.
FEW_SHAPES = [(), (0,), (3, 4)]
REDUCTIONS = {"Sum": np.add, "Min": np.minimum, "Max": np.maximum, "Product": np.multiply}
#: Of bools.
LOGICAL = {
    "Sum": np.logical_or,
    "Min": np.logical_and,
    "Max": np.logical_or,
    "Product": np.logical_and,
}


class Case(NamedTuple):
    """A call of this rank: what it gives, an array or a group of them, and what it gets."""

    verb: str
    given: Any
    expected: Any
    op: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    #: Gradients of the loss by results; what it gets are then those by what it gives.
    upstream: Sequence[Any] = ()


class Frontend(NamedTuple):
    """A module with Horovod's functions, and its tensors."""

    hvd: ModuleType
    tensor: Callable[[np.ndarray], Any]
    array: Callable[[Any], np.ndarray]
    #: Whether allreduce_ and the like write into the tensor that they are given.
    in_place: bool = True
    #: Whether alltoall_async tells the splits that came also to those who gave none.
    tells_splits: bool = True


def everyones(
    size: int, shape: Sequence[int], dtype: Any = np.float32, seed: int = 0
) -> list[np.ndarray]:
    """An array of every rank."""
    return [_of_rank(rank, shape, dtype, seed) for rank in range(size)]


def _of_rank(rank: int, shape: Sequence[int], dtype: Any, seed: int) -> np.ndarray:
    generator = np.random.default_rng([rank, seed, *shape])
    values = generator.integers(0, 4, size=tuple(shape)).astype(dtype)
    return values * values.dtype.type(1 - 2j) if values.dtype.kind == "c" else values


def reduced(op: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The reduction of the arrays of all ranks."""
    combine = (LOGICAL if inputs[0].dtype == bool else REDUCTIONS)[op]
    return functools.reduce(combine, inputs).astype(inputs[0].dtype)


def part(whole: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The rows that a rank has of what is scattered."""
    begin = sum(scattered_rows(len(whole), r, size) for r in range(rank))
    return whole[begin : begin + scattered_rows(len(whole), rank, size)]


def table(
    rank: int, size: int, dtypes: Sequence[np.dtype] = DTYPES, shapes: Sequence[Any] = SHAPES
) -> Iterator[Case]:
    """All operations."""
    yield from reductions(rank, size, dtypes, shapes)
    yield from averages_and_factors(rank, size, dtypes)
    yield from limits(rank, size, dtypes)
    moved = [*dtypes, *MOVED]
    yield from gathers(rank, size, moved)
    yield from broadcasts(rank, size, moved, shapes)
    yield from all_to_alls(rank, size, moved)
    yield from scatters(rank, size, dtypes)
    yield from groups(rank, size)


def reductions(
    rank: int, size: int, dtypes: Sequence[np.dtype], shapes: Sequence[Any]
) -> Iterator[Case]:
    for seed, (dtype, op, shape) in enumerate(itertools.product(dtypes, REDUCTIONS, shapes)):
        inputs = everyones(size, shape, dtype, seed)
        yield Case("allreduce", inputs[rank], reduced(op, inputs), op)


def averages_and_factors(rank: int, size: int, dtypes: Sequence[np.dtype]) -> Iterator[Case]:
    twelve = np.array([12, 24, 0])  # divided by 1, 2, 3 and 4 without rest
    for dtype in dtypes:
        if dtype.kind != "b":
            same = twelve.astype(dtype)
            yield Case("allreduce", same, same)
            yield Case("allreduce", same, same, "Average")
    # Averages of integers are truncated toward zero, those of floats are the nearest numbers.
    given = np.array([1, 2, -3], np.int32)
    total = given * sum(range(1, size + 1))
    yield Case("allreduce", given * (rank + 1), np.trunc(total / size).astype(np.int32))
    for dtype in (np.float16, np.float32, np.float64):
        whole = np.arange(1, 500).astype(dtype)
        yield Case("allreduce", whole * (rank == 0), whole / dtype(size))
    # Factors of integers are applied per rank, before the sum, and truncated.
    ones = np.array([1, 3], np.int64)
    yield Case("allreduce", ones, np.array([0, size]), "Sum", {"prescale_factor": 0.5})
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    for given in (np.array([1.0, 2.0], np.float32), np.array([1.0, 2.0])):
        yield Case("allreduce", given, given * 2 * size, "Sum", factors)


def limits(rank: int, size: int, dtypes: Sequence[np.dtype]) -> Iterator[Case]:
    """Exact up to the limits of integers; Python's numbers are as long as they have to be."""
    for dtype in (dtype for dtype in dtypes if dtype.kind in "iu"):
        most = np.iinfo(dtype).max // size
        mine, total = np.array([most - rank], dtype), sum(most - r for r in range(size))
        yield Case("allreduce", mine, np.array([total], dtype), "Sum")
        yield Case("allreduce", mine, np.array([most], dtype), "Max")
        yield Case("allreduce", mine, np.array([most - size + 1], dtype), "Min")
        yield Case("allreduce", mine, np.array([total // size], dtype))
        if dtype.kind == "i":
            yield Case("allreduce", -mine, np.array([-(total // size)], dtype))


def gathers(rank: int, size: int, dtypes: Sequence[np.dtype]) -> Iterator[Case]:
    for seed, dtype in enumerate(dtypes):
        ragged = [_of_rank(r, (2 * r, 3), dtype, seed) for r in range(size)]  # none from rank 0
        nothing = [np.zeros((0, 2), dtype)] * size
        for inputs in (everyones(size, (2, 3), dtype, seed), ragged, nothing):
            yield Case("allgather", inputs[rank], np.concatenate(inputs))


def broadcasts(
    rank: int, size: int, dtypes: Sequence[np.dtype], shapes: Sequence[Any]
) -> Iterator[Case]:
    for seed, (dtype, shape) in enumerate(itertools.product(dtypes, shapes)):
        inputs = everyones(size, shape, dtype, seed)
        for root in range(size):
            yield Case("broadcast", inputs[rank], inputs[root], options={"root_rank": root})


def all_to_alls(rank: int, size: int, dtypes: Sequence[np.dtype]) -> Iterator[Case]:
    # Rank r sends s + r rows to rank s, nothing from rank 0 to itself, and keeps the last row.
    splits = np.add.outer(np.arange(size), np.arange(size)).astype(np.int32)
    evenly = np.full(size, 2, np.int32)
    for seed, (dtype, tail) in enumerate(itertools.product(dtypes, [(), (3,), (0,)])):
        inputs = [_of_rank(r, (sum(splits[r]) + 1, *tail), dtype, seed) for r in range(size)]
        parts = [np.split(inputs[r], np.cumsum(splits[r])) for r in range(size)]
        expected = [np.concatenate([parts[r][rank] for r in range(size)]), splits[:, rank]]
        for given in (splits[rank].tolist(), splits[rank]):
            yield Case("alltoall", inputs[rank], expected, options={"splits": given})
        even = everyones(size, (2 * size, *tail), dtype, seed)
        rows = slice(2 * rank, 2 * rank + 2)
        yield Case("alltoall", even[rank], [np.concatenate([e[rows] for e in even]), evenly])
        nothing = np.empty((0, *tail), dtype)
        yield Case("alltoall", nothing, [nothing, 0 * evenly])


def scatters(rank: int, size: int, dtypes: Sequence[np.dtype]) -> Iterator[Case]:
    shapes = [(2 * size,), (2 * size + 1, 3), (1, 2), (0, 2), (size, 0)]
    for seed, (dtype, shape) in enumerate(itertools.product(dtypes, shapes)):
        inputs = everyones(size, shape, dtype, seed)
        expected = part(reduced("Sum", inputs), rank, size)
        yield Case("reducescatter", inputs[rank], expected, "Sum")
    twelve = np.full((size + 1, 2), 12.0)
    mine = part(twelve, rank, size)
    yield Case("reducescatter", twelve, mine)
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    yield Case("reducescatter", twelve, mine * 1.5 * size, "Sum", factors)


def groups(rank: int, size: int) -> Iterator[Case]:
    dtypes = (np.float32, np.int64, np.float64, ml_dtypes.bfloat16, np.float32)
    shapes = ((), (5,), (0, 3), (2, 3), (70_000,))
    kinds = list(enumerate(zip(shapes, dtypes, strict=True)))
    all_of_each = [everyones(size, shape, dtype, seed) for seed, (shape, dtype) in kinds]
    mine = [inputs[rank] for inputs in all_of_each]
    for op in REDUCTIONS:
        yield Case("grouped_allreduce", mine, [reduced(op, i) for i in all_of_each], op)
    same = [np.full(2, 12.0, np.float32), np.full(3, 12.0)]
    yield Case("grouped_allreduce", same, same)
    ragged = [
        [_of_rank(r, (r, 2), np.float32, 0) for r in range(size)],
        everyones(size, (2, 3), np.int8, 1),
        [np.ones((0, 2))] * size,
        *(everyones(size, (2, 1), dtype) for dtype in MOVED),
    ]
    for _ in range(2):  # the second time they are known
        rows = [inputs[rank] for inputs in ragged]
        yield Case("grouped_allgather", rows, [np.concatenate(inputs) for inputs in ragged])
    scattered = [everyones(size, (size + 1, 2)), everyones(size, (3,), np.int32, 1)]
    parts = [part(reduced("Sum", inputs), rank, size) for inputs in scattered]
    yield Case("grouped_reducescatter", [inputs[rank] for inputs in scattered], parts, "Sum")
    whole = [np.full((size + 1, 2), 6.0), np.full(1, size, np.int32)]
    yield Case("grouped_reducescatter", whole, [part(one, rank, size) for one in whole])


def check(front: Frontend, case: Case, number: int = 0) -> None:
    """Make the call in every form that the front-end has."""
    name = f"{case.verb}.{number}"
    tensors = given(front, case)
    compare(front, case, call(front, case, tensors))
    compare(front, case, call(front, case, tensors, name=name))
    if hasattr(front.hvd, f"{case.verb}_async"):
        _check_handle(front, case, call(front, case, tensors, "_async", name=name))
    assert_equal(_arrays(front, tensors), case.given)
    if front.in_place and hasattr(front.hvd, f"{case.verb}_"):
        _check_same(case, tensors, call(front, case, tensors, "_", name=name))
        assert_equal(_arrays(front, tensors), case.expected)
        tensors = given(front, case)
        handle = call(front, case, tensors, "_async_", name=name)
        _check_same(case, tensors, front.hvd.synchronize(handle))
        assert_equal(_arrays(front, tensors), case.expected)


def given(front: Frontend, case: Case) -> Any:
    """The tensor or the tensors that a case takes."""
    if isinstance(case.given, list):
        return [front.tensor(array.copy()) for array in case.given]
    return front.tensor(case.given.copy())


def call(front: Frontend, case: Case, tensors: Any, form: str = "", name: str | None = None) -> Any:
    """What the call gives in one form."""
    function = getattr(front.hvd, case.verb + form)
    options = {"op": getattr(front.hvd, case.op)} if case.op else {}
    if "name" in inspect.signature(function).parameters:  # Horovod has left it out of one
        options["name"] = name
    return function(tensors, **options, **case.options)


def compare(front: Frontend, case: Case, result: Any, tells_splits: bool = False) -> None:
    """Check the result of a call. Of an all-to-all without splits it is one tensor."""
    one_of_two = case.verb == "alltoall" and not case.options and not tells_splits
    assert_equal(_arrays(front, result), case.expected[0] if one_of_two else case.expected)


def _check_handle(front: Frontend, case: Case, handle: Any) -> None:
    compare(front, case, front.hvd.synchronize(handle), front.tells_splits)
    assert front.hvd.synchronize(handle) is None  # as Horovod does
    with pytest.raises(ValueError, match=str(handle)):
        front.hvd.poll(handle)


def _check_same(case: Case, tensors: Any, result: Any) -> None:
    if isinstance(case.given, list):
        assert all(one is other for one, other in zip(result, tensors, strict=True))
    else:
        assert result is tensors


def _arrays(front: Frontend, result: Any) -> Any:
    if isinstance(result, list | tuple):
        return [front.array(one) for one in result]
    return front.array(result)


def assert_equal(actual: Any, expected: Any) -> None:
    """Compare arrays, or lists of them: dtype, shape and bits."""
    if isinstance(expected, list):
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
        return
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


def gradients(rank: int, size: int) -> Iterator[Case]:
    """Gradients of operations as Horovod has them."""
    shape = (2 * size + 1, 2)
    upstream = _upstreams(size, shape)
    x, mean, total = np.ones(shape, np.float32), sum(upstream) / size, sum(upstream)
    mine = upstream[rank]
    factors = {"prescale_factor": 2.0, "postscale_factor": 3.0}
    yield Case("allreduce", [x], [mean], upstream=[mine])
    yield Case("allreduce", [x], [total], "Sum", upstream=[mine])
    yield Case("allreduce", [x], [6 * total], "Sum", factors, upstream=[mine])
    two = [x, np.ones((), np.float32)]
    scalars = [np.float32(r + 1) for r in range(size)]
    up, gradient = [mine, scalars[rank]], [2 * total, 2 * sum(scalars)]
    yield Case("grouped_allreduce", two, gradient, "Sum", {"prescale_factor": 2.0}, upstream=up)
    for root in range(size):
        expected = mean if rank == root else 0 * mean
        yield Case("broadcast", [x], [expected], options={"root_rank": root}, upstream=[mine])
    # Rows of different number: each rank gets back those that it gave.
    rows = np.ones((rank + 1, 2), np.float32)
    ups = _upstreams(size, (size * (size + 1) // 2, 2))
    begin = rank * (rank + 1) // 2
    of_rows = (sum(ups) / size)[begin : begin + rank + 1]
    yield Case("allgather", [rows], [of_rows], upstream=[ups[rank]])
    up = ups[rank]
    yield Case("grouped_allgather", [rows] * 2, [of_rows, 2 * of_rows], upstream=[up, 2 * up])
    ups = [np.full((size * (size + 1) // 2, 2), r + 1, np.float32) for r in range(size)]
    sent = np.repeat(np.arange(1, size + 1), rank + 1).astype(np.float32)
    back, splits = np.stack([sent, sent], 1), {"splits": [rank + 1] * size}
    yield Case("alltoall", [np.ones_like(back)], [back], options=splits, upstream=[ups[rank]])
    up = np.full(2 * size, rank + 1, np.float32)
    evenly = np.repeat(np.arange(1, size + 1), 2).astype(np.float32)
    yield Case("alltoall", [np.ones_like(up)], [evenly], upstream=[up])
    for op, factor in (("Sum", size), ("Average", 1)):
        up, whole = part(total, rank, size), factor * total
        yield Case("reducescatter", [x], [6 * whole], op, factors, upstream=[up])
        yield Case("grouped_reducescatter", [x, x], [whole, 2 * whole], op, upstream=[up, 2 * up])


def _upstreams(size: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    weights = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return [weights * (rank + 1) for rank in range(size)]


def check_gradients(front: Frontend, differentiate: Callable[..., list[Any]]) -> None:
    """Check the table above.

    Args:
        front: What is tested.
        differentiate: Gradients by ``inputs`` of the sum of the products of the tensors that
            ``call(inputs)`` gives and of ``upstream``.
    """
    one = np.ones(2, np.float32)
    ops = ["Min", "Max", "Product", *(["Adasum"] if front.hvd.size() < 3 else [])]
    for op, verb in itertools.product(ops, ("allreduce", "grouped_allreduce")):
        call = functools.partial(_outputs, front, Case(verb, one, one, op), "g")
        with pytest.raises(NotImplementedError, match=f"allreduce of 'g' with op={op} has no grad"):
            differentiate(call, [front.tensor(one)], [front.tensor(one)])
    for case in gradients(front.hvd.rank(), front.hvd.size()):
        for name in (None, "gradient"):
            inputs, upstream = ([front.tensor(a) for a in of] for of in (case.given, case.upstream))
            found = differentiate(functools.partial(_outputs, front, case, name), inputs, upstream)
            for one, other in zip(found, case.expected, strict=True):
                message = f"{case.verb} {case.op}"
                np.testing.assert_allclose(front.array(one), other, rtol=2.5e-7, err_msg=message)


def _outputs(front: Frontend, case: Case, name: str | None, inputs: list[Any]) -> list[Any]:
    if case.verb.startswith("grouped_"):
        return list(call(front, case, inputs, name=name))
    result = call(front, case, inputs[0], name=name)
    return [result[0] if "splits" in case.options else result]


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("x",)


def check_objects(hvd: ModuleType) -> None:
    """Objects of different length."""
    rank, size = hvd.rank(), hvd.size()
    of_all = [{"rank": r, "text": "x" * 1000 * r} for r in range(size)]
    for name in (None, "object"):
        assert hvd.allgather_object(of_all[rank], name=name) == of_all
        for root in range(size):
            assert hvd.broadcast_object(of_all[rank], root, name=name) == of_all[root]
    for value in (None, {"a": [1, "x"] * 5000}, b""):
        assert hvd.broadcast_object(value if rank == 0 else object(), name="o") == value
    # What only the last one's pickles lack is told to all, and the next objects find each other.
    odd = threading.Lock() if rank == size - 1 else "x"
    for call in (
        lambda name: hvd.allgather_object(odd, name=name),
        lambda name: hvd.broadcast_object(odd, size - 1, name=name),
        lambda name: gather_objects(odd, name or "to", global_process_set, 0),
    ):
        for name in (None, "object"):
            with pytest.raises(ValueError, match=rf"lock on rank {size - 1} that.*cannot pickle"):
                call(name)
    with pytest.raises(ValueError, match=rf"object of rank 0 .*unpickled on rank {rank}: Val"):
        hvd.allgather_object(Unloadable() if rank == 0 else "x")
    assert hvd.allgather_object(rank, name="object") == list(range(size))


def check_join(front: Frontend) -> None:
    """Ranks with more data go on with zeros of those that have joined."""
    hvd, rank, size = front.hvd, front.hvd.rank(), front.hvd.size()
    for _ in range(3):
        for step in range(rank + 1):
            remaining = np.float32(sum(1 for r in range(size) if r >= step))
            ones = front.tensor(np.ones(3, np.float32))
            total = hvd.allreduce(ones, op=hvd.Sum, name=f"step{step}")
            assert_equal(front.array(total), np.full(3, remaining))
            average = hvd.allreduce(front.tensor(np.full(3, size, np.float32)))
            assert_equal(front.array(average), np.full(3, remaining))
            whole = front.tensor(np.ones(2, np.int64))
            both = hvd.grouped_allreduce([ones, whole], op=hvd.Sum)
            assert_equal(front.array(both[1]), np.full(2, remaining, np.int64))
        last = int(hvd.join())
        everyones = front.array(hvd.allgather(front.tensor(np.array([last]))))
        assert everyones.tolist() == [size - 1] * size


def check_complex_numbers_are_no_pairs(front: Frontend) -> None:
    """Ranks that give other numbers than the last one learn it, though the bytes are as many."""
    hvd, last = front.hvd, front.hvd.size() - 1
    given = np.ones((2, 2), np.float32) if hvd.rank() == last else np.ones(2, np.complex64)
    if last > 0:
        with pytest.raises(Exception, match=r"broadcast\.numbers(?s:.*)rank"):
            hvd.broadcast(front.tensor(given), 0, name="numbers")


def check_bool_has_no_average(front: Frontend) -> None:
    """It would be False for True and True."""
    hvd, true = front.hvd, front.tensor(np.array([True, True]))
    ones = front.tensor(np.ones(2))
    for verb, given in (
        *(("allreduce", true), ("allreduce_", true), ("reducescatter", true)),
        *(("allreduce_async", true), ("allreduce_async_", true)),
        *(("grouped_allreduce", [ones, true]), ("grouped_allreduce_async_", [ones, true])),
    ):
        if not hasattr(hvd, verb) or (verb.endswith("_") and not front.in_place):
            continue
        for options in ({}, {"op": hvd.Average}):
            with pytest.raises(ValueError, match=r"op=Average of bool.* cast to float32"):
                getattr(hvd, verb)(given, **options)
