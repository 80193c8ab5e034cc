"""Python objects over all ranks, as bytes in host memory."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aiacc import _core, arguments
from aiacc.collectives import submission
from aiacc.collectives.dtypes import DTYPE_CODES
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Max, Sum
from aiacc.process_sets import ProcessSet, global_process_set

#: Bytes that travel at a time to one rank, of all ranks together.
_AT_A_TIME = 32 << 20
#: The least number that `new_number` has given to no object here.
_unused = 0


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object to every rank.

    Collective: every rank, with the same name and root.
    Blocks: until the object is there.

    Args:
        obj: Anything that cloudpickle takes, or pickle if that is not installed; ignored except on
            the root.
        root_rank: Global rank to copy from.
        name: Pairs this call with the calls of the other ranks.
        process_set: Ranks that take part.

    Returns:
        ``obj`` itself on the root, a copy of it elsewhere.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: A wrong argument; on every rank if the root cannot pickle ``obj``, on one that
            cannot unpickle it.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    arguments.check(locals())
    is_root = _core.rank() == root_rank
    sent = _pickled(obj, label_of("broadcast_object", name)) if is_root else _Sent()
    size = np.array([sent.size], np.int64)
    _broadcast(size, root_rank, name and name + ".sz", process_set)
    data = sent.data if is_root else np.empty(abs(int(size[0])), np.uint8)
    _broadcast(data, root_rank, name and name + ".t", process_set)
    if size[0] < 0:
        raise ValueError(str(data.data, "utf-8").rstrip()) from sent.error
    if is_root:
        return obj
    return _unpickled(data, label_of("broadcast_object", name), root_rank)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Collect a Python object of every rank.

    Collective: every rank, with the same name.
    Blocks: until all objects are there.

    Args:
        obj: Anything that cloudpickle takes, or pickle if that is not installed.
        name: Pairs this call with the calls of the other ranks.

    Returns:
        Copies of the objects in rank order.

    Raises:
        TypeError: ``name`` is no string.
        ValueError: On every rank if one cannot pickle its object; on one that cannot unpickle one.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return gather_objects(obj, name, global_process_set)


def gather_objects(
    obj: Any, name: str | None, process_set: ProcessSet, to: int | None = None
) -> list[Any]:
    """`allgather_object` among the ranks of a process set.

    Collective: every rank of the set, with the same name and ``to``.
    Blocks: until all objects are there.

    Args:
        obj: See there.
        name: See there.
        process_set: Ranks that take part.
        to: Index in the set of the one rank that gets the objects, so that the others need no
            memory for them but a few MiB; None: all do.

    Returns:
        Copies of the objects in rank order; none on ranks that do not get them.
    """
    arguments.check({"name": name, "process_set": process_set})
    sent = _pickled(obj, label_of("allgather_object", name))
    data = sent.data
    sizes = _allgather(np.array([sent.size], np.int64), name and name + ".sz", process_set)
    if sizes.min() < 0:  # their errors in the place of all objects
        said = data if sent.size < 0 else np.empty(0, np.uint8)
        texts = _allgather(said, name and name + ".t", process_set)
        raise ValueError(str(texts.data, "utf-8").rstrip()) from sent.error
    if to is None:
        everyones = _allgather(data, name and name + ".t", process_set)
    else:
        everyones = _sent_to(to, data, sizes, name and name + ".t", process_set)
        if process_set.rank() != to:
            return []
    ranks = process_set.ranks or range(len(sizes))
    parts = zip(np.split(everyones, np.cumsum(sizes)[:-1]), ranks, strict=True)
    return [_unpickled(one, label_of("allgather_object", name), rank) for one, rank in parts]


def maxima(
    numbers: Sequence[float], name: str, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The largest of all ranks at each place of a list: int64 if all are int, else float64.

    Collective: every rank of the set, with the same name and as many numbers. Not while a rank has
    joined.
    Blocks: until all have answered.

    Raises:
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return _reduced(numbers, Max, name, process_set)


def new_number(name: str, process_set: ProcessSet = global_process_set) -> int:
    """A number for an object, the same on all ranks, that none of them has for another one.

    It is for names of operations. What a rank counts by itself is not: another one may have made
    more such objects, or take part in more process sets.

    Collective: every rank of the set, with the same name. Not while a rank has joined.
    Blocks: until all have answered.

    Raises:
        CollectiveError: The operation failed.
    """
    global _unused
    (number,) = maxima([_unused], name, process_set)
    _unused = number + 1
    return int(number)


def sums(
    numbers: Sequence[float], name: str, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """As `maxima`, the sums of all ranks; ranks that have joined answer with zeros."""
    return _reduced(numbers, Sum, name, process_set)


def _reduced(numbers: Sequence[float], op: int, name: str, process_set: ProcessSet) -> list[Any]:
    array = np.array(numbers)
    prepared = submission.allreduce(
        name, array.shape, DTYPE_CODES[array.dtype.name], -1, op, process_set=process_set
    )
    address = array.ctypes.data
    _finish(prepared.start(address, address), array)
    result: list[Any] = array.tolist()
    return result


class _Sent(NamedTuple):
    """An object as bytes, or in UTF-8 why it has none, as a line."""

    data: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
    error: Exception | None = None

    @property
    def size(self) -> int:
        """What the ranks are told before the bytes come; below 0 of an error."""
        return self.data.size if self.error is None else -self.data.size


def _pickled(obj: Any, what: str) -> _Sent:
    pickler: Any = pickle
    if importlib.util.find_spec("cloudpickle") is not None:
        pickler = importlib.import_module("cloudpickle")  # also takes functions and classes
    try:
        data = pickler.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever the object raises: all ranks learn it
        text = (
            f"[objects] {what}: {type(obj).__name__} on rank {_core.rank()} that "
            f"{pickler.__name__} does not take: {type(error).__name__}: {error!s:.1000} "
            "(expected an object that can be pickled); send what it can be made of\n"
        )
        return _Sent(np.frombuffer(bytearray(text.encode(errors="replace")), np.uint8), error)
    return _Sent(np.frombuffer(bytearray(data), np.uint8))


def _unpickled(data: npt.NDArray[Any], what: str, sender: int) -> Any:
    """ValueError if this rank cannot: others may have what it takes."""
    try:
        return pickle.loads(data.data)
    except Exception as error:  # whatever the object raises
        raise ValueError(
            f"[objects] {what}: the object of rank {sender} cannot be unpickled on rank "
            f"{_core.rank()}: {type(error).__name__}: {error!s:.1000} (expected one whose classes "
            "can be imported on every rank); send what it can be made of"
        ) from error


def _broadcast(
    array: npt.NDArray[Any], root_rank: int, name: str | None, process_set: ProcessSet
) -> None:
    """Overwrite ``array``."""
    code = DTYPE_CODES[array.dtype.name]
    prepared = submission.broadcast(name, array.shape, code, -1, root_rank, process_set)
    address = array.ctypes.data
    _finish(prepared.start(address, address), array)


def _allgather(
    array: npt.NDArray[Any], name: str | None, process_set: ProcessSet
) -> npt.NDArray[Any]:
    code = DTYPE_CODES[array.dtype.name]
    prepared = submission.allgather(name, array.shape, code, -1, process_set)
    handle = prepared.start(array.ctypes.data, 0)
    _finish(handle, array)
    data, shape = _core.take_output(handle)
    return data.view(array.dtype).reshape(shape)


def _sent_to(
    to: int,
    array: npt.NDArray[Any],
    sizes: npt.NDArray[np.int64],
    name: str | None,
    process_set: ProcessSet,
) -> npt.NDArray[Any]:
    """The rows of all ranks on one of them; none on the others.

    All get them piece by piece, and drop them: an all-to-all would connect every two ranks.
    """
    rows = max(1, _AT_A_TIME // len(sizes))
    whole = np.empty(sizes.sum() if process_set.rank() == to else 0, array.dtype)
    begins = np.cumsum(sizes) - sizes
    for first in range(0, sizes.max(), rows):
        piece = _allgather(array[first : first + rows], name, process_set)
        if process_set.rank() == to:
            parts = np.clip(sizes - first, 0, rows)
            ends = np.cumsum(parts)
            for at, end, size in zip(begins + first, ends, parts, strict=True):
                whole[at : at + size] = piece[end - size : end]
    return whole


def _finish(handle: int, array: npt.NDArray[Any]) -> None:
    pending[handle] = (_wait, array, None, None)  # so that an interrupt does not free its memory
    synchronize(handle)


def _wait(handle: int, array: object) -> None:
    del array
    _core.wait(handle)
