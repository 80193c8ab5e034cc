"""``torch.distributed.init_process_group("aiacc")``: the engines of aiacc under torch's own API.

Importing `aiacc.torch` registers the backend. It serves DistributedDataParallel and the collectives
of ``torch.distributed`` on tensors of the CPU and of CUDA devices, in groups of all ranks of the
job; groups of some of them are torch's own gloo. Operations are paired by counting them, so every
rank has to call them in the same order, as torch demands anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from aiacc import _core, basics
from aiacc.bootstrap.store import StoreProvider
from aiacc.reduce_ops import Average, Max, Min, Product, Sum
from aiacc.torch.group_work import Futures, GroupWork, Step
from aiacc.torch.tensors import address_and_code, place_of, take_alltoall, take_output

if TYPE_CHECKING:
    # torch's class has overloads that only callers in Python see; torch.distributed uses one each.
    class _Base:
        def __init__(self, rank: int, size: int) -> None: ...
else:
    _Base = dist.ProcessGroup

NAME = "aiacc"

_REDUCTIONS = {
    ReduceOp.SUM: Sum,
    ReduceOp.AVG: Average,
    ReduceOp.PRODUCT: Product,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    ReduceOp.PREMUL_SUM: Sum,
}
#: What the core does not reduce: every rank gathers all, and combines them itself.
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}

Tensors = list[torch.Tensor]


class ProcessGroup(_Base):
    """All ranks of the job. Methods are called by ``torch.distributed``, which documents them.

    Collective: every rank, in the same order.
    Blocks: never; the `GroupWork` that a method returns does.
    """

    def __init__(self, rank: int, size: int, owns_runtime: bool) -> None:
        """Wrap the running runtime; ``owns_runtime``: end it with the group."""
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._owns_runtime = owns_runtime
        self._futures = Futures()
        self._name = ""

    # torch asks for these by the names of its own methods.
    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given to the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called by torch, which finds the group by this name later."""
        self._name = name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name to give to ``init_process_group``."""
        return NAME

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def rank(self) -> int:
        """Number of this process."""
        return self._rank

    def allreduce(self, tensors: Tensors, opts: Any = None) -> GroupWork:
        """Reduce every tensor in place."""
        steps = [
            self._reduce(tensor, tensor, opts.reduceOp if opts else None) for tensor in tensors
        ]
        return self._work(steps, tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> GroupWork:
        """Reduce every tensor in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> GroupWork:
        """Reduce every tensor into that of one rank; the others keep what they have."""
        steps = []
        for tensor in tensors:
            target = tensor if self._rank == opts.rootRank else torch.empty_like(tensor)
            steps.append(self._reduce(tensor, target, opts.reduceOp))
        return self._work(steps, tensors)

    def broadcast(self, tensors: Tensors, opts: Any) -> GroupWork:
        """Overwrite every tensor with that of one rank."""
        return self._work([self._broadcast(tensor, opts.rootRank) for tensor in tensors], tensors)

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> GroupWork:
        """Copy the inputs of all ranks into the lists of outputs."""
        del opts
        pairs = zip(output_tensors, input_tensors, strict=True)
        steps = [self._gather(given, outputs) for outputs, given in pairs]
        return self._work(steps, [tensor for outputs in output_tensors for tensor in outputs])

    def gather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any) -> GroupWork:
        """Copy the inputs of all ranks into the outputs of one."""
        is_root = self._rank == opts.rootRank
        outputs = output_tensors[0] if is_root else None
        return self._work([self._gather(input_tensors[0], outputs)], outputs or [])

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> GroupWork:
        """Copy the inputs of all ranks into one output, one after another."""
        del opts
        return self._work([self._gather(input, [output])], [output])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> GroupWork:
        """`all_gather_single` for several pairs."""
        del opts
        pairs = zip(inputs, outputs, strict=True)
        return self._work([self._gather(given, [output]) for given, output in pairs], outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> GroupWork:
        """Reduce the inputs; every rank gets its part."""
        op = opts.reduceOp if opts else None
        return self._work([self._reduce_scatter(output, input, op)], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> GroupWork:
        """`reduce_scatter_single` for several pairs."""
        op = opts.reduceOp if opts else None
        pairs = zip(outputs, inputs, strict=True)
        return self._work([self._reduce_scatter(out, given, op) for out, given in pairs], outputs)

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None
    ) -> GroupWork:
        """Reduce lists of inputs; every rank gets the one at its place."""
        op = opts.reduceOp if opts else None
        steps = [
            self._reduce_scatter(output, torch.cat([part.reshape(-1) for part in parts]), op)
            for output, parts in zip(output_tensors, input_tensors, strict=True)
        ]
        return self._work(steps, output_tensors)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> GroupWork:
        """Send a part of the input to every rank."""
        del opts
        parts = input_split_sizes or self._even_parts(input.shape[0], "input")
        expected = output_split_sizes or self._even_parts(output.shape[0], "output")
        return self._work([self._exchange(input, parts, [output], expected)], [output])

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> GroupWork:
        """Send one tensor to every rank."""
        del opts
        sent = torch.cat([tensor.reshape(-1) for tensor in input_tensors])
        parts = [tensor.numel() for tensor in input_tensors]
        expected = [tensor.numel() for tensor in output_tensors]
        return self._work([self._exchange(sent, parts, output_tensors, expected)], output_tensors)

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> GroupWork:
        """Send one tensor of one rank to every rank."""
        output = output_tensors[0]
        expected = [0] * self._size
        expected[opts.rootRank] = output.numel()
        if self._rank == opts.rootRank:
            sent = torch.cat([tensor.reshape(-1) for tensor in input_tensors[0]])
            parts = [tensor.numel() for tensor in input_tensors[0]]
        else:
            sent, parts = output.new_empty(0), [0] * self._size
        return self._work([self._exchange(sent, parts, [output], expected)], output_tensors)

    def barrier(self, opts: Any = None) -> GroupWork:
        """Wait for all ranks."""
        del opts
        handle = _core.submit(_core.BARRIER, "", 0, 0, (), 0, 1, 0, 1.0, 1.0, 0)
        return self._work([(handle, None, ())], [])

    def send(self, *_: Any) -> GroupWork:
        """Not available.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "the backend aiacc has no send and recv (expected collectives); create a group for "
            'them by torch.distributed.new_group(backend="gloo")'
        )

    recv = recv_anysource = send

    # Names that older versions of torch call the same by.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        """End the runtime if the group has started it. Called by ``destroy_process_group``."""
        if self._owns_runtime:
            basics.shutdown()
        self._futures.close(join=self._owns_runtime)

    abort = shutdown

    def _work(self, steps: list[Step], outputs: Tensors) -> GroupWork:
        return GroupWork(steps, outputs, self._futures)

    def _reduce(self, tensor: torch.Tensor, target: torch.Tensor, op: Any) -> Step:
        kind = _kind_of(op)
        if kind in _BITWISE:
            return self._gather_and_combine(tensor, target, _BITWISE[kind])
        sent, given = tensor.detach().contiguous(), target.detach()
        received = given if given.is_contiguous() else torch.empty_like(sent)
        address, code = address_and_code(sent, "all_reduce")
        handle = _core.submit(
            _core.ALLREDUCE,
            "",
            address,
            received.data_ptr(),
            tuple(sent.shape),
            code,
            _reduction_of(kind),
            0,
            _factor_of(op, kind),
            1.0,
            0,
            *place_of(sent),
        )
        return handle, _copy_back(received, given), (sent, received)

    def _gather_and_combine(
        self,
        tensor: torch.Tensor,
        target: torch.Tensor,
        combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> Step:
        sent = tensor.detach().contiguous()

        def finish(handle: int) -> None:
            everyones = take_output(handle, sent).reshape(self._size, *sent.shape)
            target.detach().copy_(functools.reduce(combine, everyones))

        return self._submit_gather(sent), finish, (sent,)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> Step:
        given = tensor.detach()
        buffer = given.contiguous()
        address, code = address_and_code(buffer, "broadcast")
        handle = _core.submit(
            _core.BROADCAST,
            "",
            address,
            address,
            tuple(buffer.shape),
            code,
            Sum,
            root,
            1.0,
            1.0,
            0,
            *place_of(buffer),
        )
        return handle, _copy_back(buffer, given), (buffer,)

    def _gather(self, tensor: torch.Tensor, outputs: Tensors | None) -> Step:
        sent = tensor.detach().contiguous()

        def finish(handle: int) -> None:
            received = take_output(handle, sent)
            if outputs is not None:
                _distribute(received, outputs)

        return self._submit_gather(sent), finish, (sent,)

    def _submit_gather(self, sent: torch.Tensor) -> int:
        address, code = address_and_code(sent, "all_gather")
        shape = (sent.numel(),)
        return _core.submit(
            _core.ALLGATHER, "", address, 0, shape, code, Sum, 0, 1.0, 1.0, 0, *place_of(sent)
        )

    def _reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Step:
        kind = _kind_of(op)
        if tensor.numel() != output.numel() * self._size:
            raise ValueError(
                f"[torch] reduce_scatter of {tensor.numel()} elements into {output.numel()} on "
                f"{self._size} ranks (expected {output.numel() * self._size} in the input)"
            )
        given = output.detach()
        sent = tensor.detach().contiguous()
        if kind not in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
            reduced = torch.empty_like(sent)
            handle, finish, used = self._reduce(sent, reduced, op)

            def take_part(handle: int) -> None:
                if finish is not None:
                    finish(handle)
                part = reduced.reshape(self._size, -1)[self._rank]
                given.copy_(part.reshape(given.shape))

            return handle, take_part, used
        received = given if given.is_contiguous() else torch.empty_like(given).contiguous()
        address, code = address_and_code(sent, "reduce_scatter")
        address_and_code(received, "reduce_scatter")
        handle = _core.submit(
            _core.REDUCESCATTER,
            "",
            address,
            received.data_ptr(),
            (self._size, received.numel()),
            code,
            _reduction_of(kind),
            0,
            _factor_of(op, kind),
            1.0,
            0,
            *place_of(sent),
        )
        return handle, _copy_back(received, given), (sent, received)

    def _exchange(
        self, tensor: torch.Tensor, parts: list[int], outputs: Tensors, expected: list[int]
    ) -> Step:
        sent = tensor.detach().contiguous()
        address, code = address_and_code(sent, "all_to_all")
        handle = _core.submit_alltoall(
            "", address, tuple(sent.shape), code, tuple(parts), 0, *place_of(sent)
        )

        def finish(handle: int) -> None:
            output, received = take_alltoall(handle, sent)
            if list(received) != list(expected):
                raise ValueError(
                    f"[torch] all_to_all: rank {self._rank} received parts of {list(received)} "
                    f"(expected {list(expected)}, as the output says); give every rank splits that "
                    "match those of the others"
                )
            _distribute(output, outputs)

        return handle, finish, (sent,)

    def _even_parts(self, rows: int, what: str) -> list[int]:
        if rows % self._size != 0:
            raise ValueError(
                f"[torch] all_to_all: {what} of {rows} rows on {self._size} ranks (expected a "
                f"multiple of {self._size}); give {what}_split_sizes"
            )
        return [rows // self._size] * self._size


def _kind_of(op: Any) -> Any:
    """The kind of a reduction, without its factor."""
    if op is None:
        return ReduceOp.SUM
    return op.op if isinstance(op, ReduceOp) else op  # type: ignore[attr-defined]


def _reduction_of(kind: Any) -> int:
    if kind not in _REDUCTIONS:
        raise ValueError(f"[torch] reduction {kind} (expected one of torch.distributed.ReduceOp)")
    return _REDUCTIONS[kind]


def _factor_of(op: Any, kind: Any) -> float:
    return float(op.factor) if kind == ReduceOp.PREMUL_SUM else 1.0


def _copy_back(received: torch.Tensor, given: torch.Tensor) -> Callable[[int], None] | None:
    """What brings the result into a tensor that the core could not write, else None."""
    if received.data_ptr() == given.data_ptr():
        return None

    def copy(handle: int) -> None:
        del handle
        given.copy_(received)

    return copy


def _distribute(received: torch.Tensor, outputs: Tensors) -> None:
    """Fill the outputs, one after another."""
    total = sum(output.numel() for output in outputs)
    if received.numel() != total:
        raise ValueError(
            f"[torch] {received.numel()} elements came from the ranks (expected {total}, the size "
            "of the outputs); give outputs of the size of all inputs"
        )
    flat = received.reshape(-1)
    parts = torch.split(flat, [output.numel() for output in outputs])
    for part, output in zip(parts, outputs, strict=True):
        output.detach().copy_(part.reshape(output.shape))


def _create(options: Any, backend_options: Any) -> Any:
    """Called by torch with the store of the group."""
    del backend_options
    rank, size = options.group_rank, options.group_size
    owns_runtime = not basics.is_initialized()
    if owns_runtime:
        basics.init_through(StoreProvider(options.store, rank, size))
    elif (basics.rank(), basics.size()) != (rank, size):
        if not dist.is_gloo_available():
            raise ValueError(
                f"group of {size} ranks with this one as {rank}, in a job of {basics.size()} with "
                f"this one as {basics.rank()} (expected all ranks, in their order, for this torch "
                "has no gloo); use hvd.add_process_set"
            )
        # The core learns of sets of ranks from all ranks; torch tells only the members.
        return dist.ProcessGroupGloo(options.store, rank, size, options.timeout)
    return ProcessGroup(rank, size, owns_runtime)


def register() -> None:
    """Make the name "aiacc" known to torch. May be called again."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
