"""Python objects over all ranks, as bytes in arrays of host memory. All front-ends use these."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import numpy as np

from aiacc import _core
from aiacc.array.ops import allgather, broadcast_
from aiacc.process_sets import ProcessSet, global_process_set


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
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    is_root = _core.rank() == root_rank
    data = _pickled(obj) if is_root else np.empty(0, np.uint8)
    size = np.array([data.size], np.int64)
    broadcast_(size, root_rank, name and name + ".sz", process_set)
    if not is_root:
        data = np.empty(int(size[0]), np.uint8)
    broadcast_(data, root_rank, name and name + ".t", process_set)
    return obj if is_root else pickle.loads(data.data)


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
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    data = _pickled(obj)
    sizes = allgather(np.array([data.size], np.int64), name and name + ".sz")
    everyones = allgather(data, name and name + ".t")
    return [pickle.loads(one.data) for one in np.split(everyones, np.cumsum(sizes)[:-1])]


def _pickled(obj: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pickler: Any = pickle
    if importlib.util.find_spec("cloudpickle") is not None:
        pickler = importlib.import_module("cloudpickle")  # also takes functions and classes
    return np.frombuffer(bytearray(pickler.dumps(obj, pickle.HIGHEST_PROTOCOL)), np.uint8)
