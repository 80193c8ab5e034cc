"""``torch.distributed.init_process_group("aiacc")``: the engines of aiacc under torch's own API.

Importing `aiacc.torch` registers the backend. It serves everything that is built on the collectives
of ``torch.distributed`` and on its ``send`` and ``recv``, such as DistributedDataParallel, device
meshes and FSDP, on tensors of the CPU and of CUDA devices, in the group of all ranks and in those
that ``new_group`` makes of some: other ranks take no part in these and are not waited for.
Collectives are paired by counting them within their group, so every rank has to call those of a
group in the same order, as torch demands anyway; messages are paired by group, ranks and tag.

The ``timeout`` of a group, or of one call of those that torch lets have one, counts from the call
on, also where nobody waits. When it has passed the job ends: CollectiveTimeoutError here, and
ShutdownError, which says why, on the other ranks.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from aiacc import _core, basics
from aiacc.collectives import submission
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import global_process_set, leave_process_set
from aiacc.torch.adapter import wait
from aiacc.torch.distributed import rendezvous
from aiacc.torch.distributed.collectives import (
    Tensors,
    broadcast_from,
    even_parts,
    exchange,
    gather_into,
    joined,
    reduce_into,
    reduce_scatter_into,
)
from aiacc.torch.distributed.groups import Group, open_group
from aiacc.torch.distributed.messages import Receive, send_to
from aiacc.torch.distributed.sparse import reduce_sparse
from aiacc.torch.distributed.work import CollectiveWork, Futures, Limit, Step, seconds_of

if TYPE_CHECKING:
    # torch's class has overloads that only callers in Python see; torch.distributed uses one each.
    class _Base:
        def __init__(self, rank: int, size: int) -> None: ...
else:
    _Base = dist.ProcessGroup

NAME = "aiacc"
DEVICES = ["cpu", "cuda"]
#: Peer timeouts that others have to finish, as long as a lane waits before it is suspected.
_PATIENCE = 15


class ProcessGroup(_Base):
    """Ranks of the job. Methods are called by ``torch.distributed``, which documents them.

    Collective: every rank of the group, in the same order; `send`, `recv` and `recv_anysource` are
        not.
    Blocks: never; the `CollectiveWork` that a method returns does.
    """

    #: Asked of what `_get_backend` returns.
    supports_coalescing = supports_splitting = supports_shrinking = supports_time_estimate = False

    def __init__(self, group: Group, owns_runtime: bool, timeout: timedelta) -> None:
        """Wrap the running runtime; ``owns_runtime``: end it with the group."""
        super().__init__(group.rank, group.size)
        self._group = group
        self._others = tuple(number for number in group.ranks if number != group.ranks[group.rank])
        self._owns_runtime = owns_runtime
        self.set_timeout(timeout)
        self._futures = Futures()
        self._name = ""

    # torch asks for these by the names of its own methods.
    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch has given to the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Called by torch, which finds the group by this name later."""
        self._name = name

    # The C++ of torch 2.4 does not find those.
    group_name = property(getGroupName)
    _set_group_name = setGroupName

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name to give to ``init_process_group``."""
        return NAME

    def size(self) -> int:
        """Number of ranks."""
        return self._group.size

    def rank(self) -> int:
        """Number of this process in the group."""
        return self._group.rank

    def set_timeout(self, timeout: timedelta) -> None:
        """Operations that are called from now on may take so long."""
        self._limit_s = seconds_of(timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may be; ``torch.distributed.checkpoint`` takes the first."""
        return [torch.device(name) for name in DEVICES]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """What serves tensors on ``device``; ``batch_isend_irecv`` of torch 2.14 asks for it."""
        if device.type not in DEVICES:
            raise RuntimeError(f"{NAME} serves no tensors on {device} (expected one of {DEVICES})")
        return self

    def allreduce(self, tensors: Tensors, opts: Any = None) -> CollectiveWork:
        """Reduce every tensor in place."""
        op = opts.reduceOp if opts else None

        def steps() -> Iterator[Step]:
            for tensor in tensors:
                if tensor.layout is torch.sparse_coo:
                    yield reduce_sparse(self._group, tensor, op)
                else:
                    yield reduce_into(self._group, tensor, tensor, op)

        return self._work("all_reduce", steps(), tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> CollectiveWork:
        """Reduce every tensor in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> CollectiveWork:
        """Reduce every tensor into that of one rank; the others keep what they have."""
        is_root = self._is_root(opts)
        steps = (
            reduce_into(self._group, one, one if is_root else torch.empty_like(one), opts.reduceOp)
            for one in tensors
        )
        return self._work("reduce", steps, tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> CollectiveWork:
        """Overwrite every tensor with that of one rank."""
        steps = (broadcast_from(self._group, tensor, opts.rootRank) for tensor in tensors)
        return self._work("broadcast", steps, tensors, opts)

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into the lists of outputs."""
        pairs = zip(output_tensors, input_tensors, strict=True)
        steps = (gather_into(self._group, given, outputs) for outputs, given in pairs)
        everyones = [tensor for outputs in output_tensors for tensor in outputs]
        return self._work("all_gather", steps, everyones, opts)

    def allgather_coalesced(
        self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """Copy the inputs of all ranks; ``output_lists`` has a list for each of them."""
        by_input = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(by_input, input_list, opts)

    def gather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into the outputs of one."""
        is_root = self._is_root(opts)
        outputs = output_tensors[0] if is_root else None
        steps = [gather_into(self._group, input_tensors[0], outputs)]
        return self._work("gather", steps, outputs or [], opts)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into one output, one after another."""
        steps = [gather_into(self._group, input, [output])]
        return self._work("all_gather", steps, [output], opts)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """`all_gather_single` for several pairs."""
        pairs = zip(inputs, outputs, strict=True)
        steps = (gather_into(self._group, given, [output]) for given, output in pairs)
        return self._work("all_gather", steps, outputs, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        """Reduce the inputs; every rank gets its part."""
        op = opts.reduceOp if opts else None
        steps = [reduce_scatter_into(self._group, output, input, op)]
        return self._work("reduce_scatter", steps, [output], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """`reduce_scatter_single` for several pairs."""
        op = opts.reduceOp if opts else None
        pairs = zip(outputs, inputs, strict=True)
        steps = (reduce_scatter_into(self._group, out, given, op) for out, given in pairs)
        return self._work("reduce_scatter", steps, outputs, opts)

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None
    ) -> CollectiveWork:
        """Reduce lists of inputs; every rank gets the one at its index."""
        op = opts.reduceOp if opts else None
        steps = (
            reduce_scatter_into(self._group, output, joined(parts, "reduce_scatter"), op)
            for output, parts in zip(output_tensors, input_tensors, strict=True)
        )
        return self._work("reduce_scatter", steps, output_tensors, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> CollectiveWork:
        """Send a part of the input to every rank."""
        parts = input_split_sizes or even_parts(input.shape[0], "input", self.size())
        expected = output_split_sizes or even_parts(output.shape[0], "output", self.size())
        steps = [exchange(self._group, input, parts, [output], expected)]
        return self._work("all_to_all", steps, [output], opts)

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """Send one tensor to every rank."""
        sent = joined(input_tensors, "all_to_all")
        parts = [tensor.numel() for tensor in input_tensors]
        expected = [tensor.numel() for tensor in output_tensors]
        steps = [exchange(self._group, sent, parts, output_tensors, expected)]
        return self._work("all_to_all", steps, output_tensors, opts)

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> CollectiveWork:
        """Send one tensor of one rank to every rank."""
        is_root, output = self._is_root(opts), output_tensors[0]
        expected = [0] * self.size()
        expected[opts.rootRank] = output.numel()
        if is_root:
            sent = joined(input_tensors[0], "scatter")
            parts = [tensor.numel() for tensor in input_tensors[0]]
        else:
            sent, parts = output.new_empty(0), [0] * self.size()
        steps = [exchange(self._group, sent, parts, [output], expected)]
        return self._work("scatter", steps, output_tensors, opts)

    def barrier(self, opts: Any = None) -> CollectiveWork:
        """Wait for all ranks."""
        verb = f"barrier@{self._group.series}"
        handle = submission.barrier(self._group.process_set, verb).start(0, 0)
        return self._work("barrier", [(handle, None, ())], [], opts)

    def monitored_barrier(self, *arguments: Any, **options: Any) -> None:
        """Refused, by torch itself before 2.14."""
        del arguments, options
        raise ValueError(
            f"monitored_barrier is only implemented for GLOO backend (found {NAME!r}); use "
            "barrier, whose error names the ranks that did not come within the timeout"
        )

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> CollectiveWork:
        """Send to one rank, which calls `recv` with the same tag. Over when that has the tensor."""
        steps = (send_to(self._group, tensor, target, tag) for tensor in tensors)
        return self._limited(steps, [], self._message_limit("send", target))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> CollectiveWork:
        """Receive from one rank; several of the same tag in the order in which they are sent."""
        (tensor,) = tensors
        limit = self._message_limit("recv", source)
        return Receive(self._group, tensor, source, tag, self._futures, limit)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> CollectiveWork:
        """Receive from whichever rank sends first."""
        (tensor,) = tensors
        limit = Limit(self._limit_s, "recv", self._others)
        return Receive(self._group, tensor, None, tag, self._futures, limit)

    # Names that older versions of torch call the same by.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        """Leave the group, and end the runtime if it has started that.

        Called by ``destroy_process_group``.

        Blocks: where it ends the runtime, until the other ranks do so, too, for groups without this
            rank end with it; at most 15 times ``AIACC_PEER_TIMEOUT_S``.
        """
        if self._owns_runtime and self.size() > 1:
            self._let_others_finish()
        self.abort()

    def abort(self) -> None:
        """`shutdown` which waits for nobody. Others that still wait for this rank get an error."""
        if self._owns_runtime:
            basics.shutdown()
        elif self._group.process_set is not global_process_set:
            leave_process_set(self._group.process_set)
        self._futures.close(join=self._owns_runtime)

    def _let_others_finish(self) -> None:
        limit_s = _PATIENCE * float(_core.config()["peer_timeout_s"])
        timer = threading.Timer(limit_s, basics.shutdown)
        timer.start()
        try:
            verb = f"destroy_process_group@{self._group.series}"
            # An error tells that they are gone.
            with contextlib.suppress(CollectiveError, ValueError):
                wait(submission.barrier(verb=verb).start(0, 0), ())
        finally:
            timer.cancel()
            timer.join()

    def _is_root(self, opts: Any) -> bool:
        return self._group.number_of(opts.rootRank) == self._group.number_of(self.rank())

    def _work(
        self, operation: str, steps: Iterable[Step], outputs: Tensors, opts: Any
    ) -> CollectiveWork:
        own_s = seconds_of(opts.timeout) if opts else math.inf
        limit = Limit(own_s if own_s < math.inf else self._limit_s, operation, self._others)
        return self._limited(steps, outputs, limit)

    def _limited(self, steps: Iterable[Step], outputs: Tensors, limit: Limit) -> CollectiveWork:
        started: list[Step] = []
        try:
            started.extend(steps)
        except BaseException:
            if started:  # the core uses their memory until they are done, whoever waits
                CollectiveWork(started, [], self._futures, limit)
            raise
        return CollectiveWork(started, outputs, self._futures, limit)

    def _message_limit(self, operation: str, other: int) -> Limit:
        return Limit(self._limit_s, operation, self._group.ranks[other : other + 1])


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    """Called by torch on the ranks of the group."""
    del backend_options
    return ProcessGroup(*open_group(options), options.timeout)


def register() -> None:
    """Make the name "aiacc" known to torch, and launchers besides torchrun. May be called again."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
        rendezvous.register()
        _shut_down_with_torch()


def _shut_down_with_torch() -> None:
    """Have ``destroy_process_group`` call `shutdown` where torch has that of NCCL called only.

    A torch without this function of its own calls that of every group.
    """
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    torchs: Any = getattr(module, "_shutdown_backend", None)
    if torchs is None:
        return

    def shut_down(group: Any) -> None:
        if isinstance(group, ProcessGroup):
            group.shutdown()
        else:
            torchs(group)

    module._shutdown_backend = shut_down
