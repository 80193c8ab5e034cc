r"""Prepared submissions: what is constant of a collective, started with addresses and a stream.

Like the persistent operations of MPI (MPI-4.0, section 6.12): a `Submission` is made once and
started once per step, or made for a single call. It holds no memory and no session, and outlives
both.

Every front-end makes its submissions here. Arguments that all functions share:

* ``name``: pairs this call with those of the other ranks; None or "" for an automatic one.
* ``shape`` and ``dtype``: of this rank's tensor, the dtype as in `DTYPE_CODES`, or as `carrier_of`
  gives it. For a group a tuple of each, with an entry for every tensor; `start` then takes tuples
  of addresses.
* ``device``: -1 for host memory, else the ordinal of the CUDA device that all the memory is on.
* ``process_set``: the ranks that take part.
* ``verb``: begins the op name; unnamed calls are counted by it. None: the name of the function,
  after "grouped\_" for a group.

They never block. All raise TypeError and ValueError for arguments that the core does not know, and
for a process set that is not registered. What depends on the job is checked when a submission
starts.
"""

from __future__ import annotations

from typing import TypeAlias

from aiacc import _core, arguments
from aiacc._core import Submission as Submission
from aiacc.collectives.dtypes import CODES, core_code, factor_of
from aiacc.collectives.reduce_ops import Sum
from aiacc.process_sets import ProcessSet, global_process_set, set_id

Shape: TypeAlias = tuple[int, ...]
#: Of one tensor, or of the tensors of a group.
Shapes: TypeAlias = "Shape | tuple[Shape, ...]"
Dtypes: TypeAlias = "int | tuple[int, ...]"
#: Shape, dtype and device, in the order of the arguments below.
Spec: TypeAlias = tuple[Shapes, Dtypes, int]

#: The core's wire formats (csrc/base/dtype.h): of tensors that travel as they are, and of float32
#: that it narrows.
AS_THEY_ARE, AS_FLOAT16, AS_BFLOAT16, AS_FLOAT8_E4M3, AS_FLOAT8_E5M2 = range(5)

#: The core's number of an operation, by what its op name begins with.
_KINDS = {
    "allreduce": _core.ALLREDUCE,
    "allgather": _core.ALLGATHER,
    "broadcast": _core.BROADCAST,
    "alltoall": _core.ALLTOALL,
    "reducescatter": _core.REDUCESCATTER,
    "barrier": _core.BARRIER,
    "join": _core.JOIN,
}

#: Those that only move elements.
_MOVES = ("allgather", "broadcast", "alltoall")


def allreduce(
    name: str | None,
    shape: Shapes,
    dtype: Dtypes,
    device: int,
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: int = AS_THEY_ARE,
    verb: str | None = None,
) -> Submission:
    """An all-reduce. Input and output of `start` are equal for one in place.

    Args:
        name: See above.
        shape: See above.
        dtype: See above.
        device: See above.
        op: Reduction, see `reduce_ops`.
        prescale_factor: Multiplies the input of every rank.
        postscale_factor: Multiplies the result.
        process_set: See above.
        wire: How float32 travels, see `_core.prepare`.
        verb: See above.
    """
    factors = prescale_factor, postscale_factor
    return _prepare("allreduce", verb, name, shape, dtype, device, process_set, op, *factors, wire)


def allgather(
    name: str | None,
    shape: Shapes,
    dtype: Dtypes,
    device: int,
    process_set: ProcessSet = global_process_set,
    verb: str | None = None,
    op: int = Sum,
) -> Submission:
    """An all-gather; the output of `start` is 0, for the core allocates.

    In host memory it may also be room for equal shapes of all ranks; see `_core.Submission.start`.

    Args:
        name: See above.
        shape: See above.
        dtype: See above.
        device: See above.
        process_set: See above.
        verb: See above.
        op: What the ranks make of the rows, on which they have to agree; the core moves them only.
    """
    return _prepare("allgather", verb, name, shape, dtype, device, process_set, op)


def broadcast(
    name: str | None,
    shape: Shape,
    dtype: int,
    device: int,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    verb: str | None = None,
) -> Submission:
    """A broadcast from ``root_rank``, a global rank; the input of `start` is read there only."""
    if type(root_rank) is not int or not 0 <= root_rank < 1 << 31:
        arguments.check({"root_rank": root_rank})
    return _prepare("broadcast", verb, name, shape, dtype, device, process_set, root=root_rank)


def alltoall(
    name: str | None,
    shape: Shape,
    dtype: int,
    device: int,
    splits: tuple[int, ...],
    process_set: ProcessSet = global_process_set,
    verb: str | None = None,
) -> Submission:
    """An all-to-all of ``splits[i]`` rows for the i-th member; the output of `start` is 0."""
    return _prepare("alltoall", verb, name, shape, dtype, device, process_set, splits=splits)


def reducescatter(
    name: str | None,
    shape: Shapes,
    dtype: Dtypes,
    device: int,
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    verb: str | None = None,
) -> Submission:
    """A reduce-scatter, Average or Sum, whose output has `splits.scattered_rows` rows."""
    factors = prescale_factor, postscale_factor
    return _prepare("reducescatter", verb, name, shape, dtype, device, process_set, op, *factors)


def barrier(process_set: ProcessSet = global_process_set, verb: str | None = None) -> Submission:
    """A barrier: both addresses of `start` are 0."""
    return _prepare("barrier", verb, None, (), 0, -1, process_set)


def join() -> Submission:
    """Joining: both addresses of `start` are 0, and `_core.take_join` has the result."""
    return _prepare("join", None, None, (), 0, -1, global_process_set)


def _prepare(
    kind: str,
    verb: str | None,
    name: str | None,
    shape: Shapes,
    dtype: Dtypes,
    device: int,
    process_set: ProcessSet,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire: int = AS_THEY_ARE,
    root: int = 0,
    splits: tuple[int, ...] = (),
) -> Submission:
    if verb is None:
        verb = "grouped_" + kind if isinstance(dtype, tuple) else kind
    if name is not None and type(name) is not str:  # the core takes 0 for no name
        arguments.check({"name": name})
    number = set_id(process_set)
    try:
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
            arguments.check(factors)
        if (max(dtype, default=0) if isinstance(dtype, tuple) else dtype) >= CODES:
            codes = dtype if isinstance(dtype, tuple) else (dtype,)
            if kind in _MOVES:
                prescale_factor = factor_of(codes)
            own = tuple(map(core_code, codes))
            dtype = own if codes is dtype else own[0]
        return _core.prepare(
            _KINDS[kind],
            verb,
            name,
            shape,
            dtype,
            number,
            device,
            op,
            prescale_factor,
            postscale_factor,
            wire,
            root,
            splits,
        )
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise arguments.explained(error, locals()) from None
