"""``torch.distributed.init_process_group("aiacc")``: the engines of aiacc under torch's own API.

Importing `aiacc.torch` registers the backend. It serves DistributedDataParallel and the collectives
of ``torch.distributed`` on tensors of the CPU and of CUDA devices, in groups of all ranks of the
job; groups of some of them are torch's own gloo. Operations are paired by counting them within
their group, so every rank has to call those of a group in the same order, as torch demands anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from aiacc import basics
from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.collectives import submission
from aiacc.torch.distributed import rendezvous
from aiacc.torch.distributed.collectives import (
    Tensors,
    broadcast_from,
    even_parts,
    exchange,
    gather_into,
    reduce_into,
    reduce_scatter_into,
)
from aiacc.torch.distributed.work import CollectiveWork, Futures, Step

if TYPE_CHECKING:
    # torch's class has overloads that only callers in Python see; torch.distributed uses one each.
    class _Base:
        def __init__(self, rank: int, size: int) -> None: ...
else:
    _Base = dist.ProcessGroup

NAME = "aiacc"


class ProcessGroup(_Base):
    """All ranks of the job. Methods are called by ``torch.distributed``, which documents them.

    Collective: every rank, in the same order.
    Blocks: never; the `CollectiveWork` that a method returns does.
    """

    def __init__(self, rank: int, size: int, group_id: str, owns_runtime: bool) -> None:
        """Wrap the running runtime.

        Args:
            rank: Of this process.
            size: Number of ranks.
            group_id: What torch calls the group; the same on every rank, another for every group.
            owns_runtime: End the runtime with the group.
        """
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._owns_runtime = owns_runtime
        self._futures = Futures()
        self._name = ""
        self._series = group_id.replace(".", "_")  # the core takes what is before a dot for a verb

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

    def allreduce(self, tensors: Tensors, opts: Any = None) -> CollectiveWork:
        """Reduce every tensor in place."""
        steps = [
            reduce_into(self._series, tensor, tensor, opts.reduceOp if opts else None, self._size)
            for tensor in tensors
        ]
        return self._work(steps, tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> CollectiveWork:
        """Reduce every tensor in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> CollectiveWork:
        """Reduce every tensor into that of one rank; the others keep what they have."""
        steps = []
        for tensor in tensors:
            target = tensor if self._rank == opts.rootRank else torch.empty_like(tensor)
            steps.append(reduce_into(self._series, tensor, target, opts.reduceOp, self._size))
        return self._work(steps, tensors)

    def broadcast(self, tensors: Tensors, opts: Any) -> CollectiveWork:
        """Overwrite every tensor with that of one rank."""
        return self._work(
            [broadcast_from(self._series, tensor, opts.rootRank) for tensor in tensors], tensors
        )

    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into the lists of outputs."""
        del opts
        pairs = zip(output_tensors, input_tensors, strict=True)
        steps = [gather_into(self._series, given, outputs) for outputs, given in pairs]
        return self._work(steps, [tensor for outputs in output_tensors for tensor in outputs])

    def gather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into the outputs of one."""
        is_root = self._rank == opts.rootRank
        outputs = output_tensors[0] if is_root else None
        return self._work([gather_into(self._series, input_tensors[0], outputs)], outputs or [])

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        """Copy the inputs of all ranks into one output, one after another."""
        del opts
        return self._work([gather_into(self._series, input, [output])], [output])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """`all_gather_single` for several pairs."""
        del opts
        pairs = zip(inputs, outputs, strict=True)
        return self._work(
            [gather_into(self._series, given, [output]) for given, output in pairs], outputs
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> CollectiveWork:
        """Reduce the inputs; every rank gets its part."""
        op = opts.reduceOp if opts else None
        return self._work(
            [reduce_scatter_into(self._series, output, input, op, self._rank, self._size)], [output]
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """`reduce_scatter_single` for several pairs."""
        op = opts.reduceOp if opts else None
        pairs = zip(outputs, inputs, strict=True)
        return self._work(
            [
                reduce_scatter_into(self._series, out, given, op, self._rank, self._size)
                for out, given in pairs
            ],
            outputs,
        )

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None
    ) -> CollectiveWork:
        """Reduce lists of inputs; every rank gets the one at its index."""
        op = opts.reduceOp if opts else None
        steps = [
            reduce_scatter_into(
                self._series,
                output,
                torch.cat([part.reshape(-1) for part in parts]),
                op,
                self._rank,
                self._size,
            )
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
    ) -> CollectiveWork:
        """Send a part of the input to every rank."""
        del opts
        parts = input_split_sizes or even_parts(input.shape[0], "input", self._size)
        expected = output_split_sizes or even_parts(output.shape[0], "output", self._size)
        return self._work(
            [exchange(self._series, input, parts, [output], expected, self._rank)], [output]
        )

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> CollectiveWork:
        """Send one tensor to every rank."""
        del opts
        sent = torch.cat([tensor.reshape(-1) for tensor in input_tensors])
        parts = [tensor.numel() for tensor in input_tensors]
        expected = [tensor.numel() for tensor in output_tensors]
        return self._work(
            [exchange(self._series, sent, parts, output_tensors, expected, self._rank)],
            output_tensors,
        )

    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> CollectiveWork:
        """Send one tensor of one rank to every rank."""
        output = output_tensors[0]
        expected = [0] * self._size
        expected[opts.rootRank] = output.numel()
        if self._rank == opts.rootRank:
            sent = torch.cat([tensor.reshape(-1) for tensor in input_tensors[0]])
            parts = [tensor.numel() for tensor in input_tensors[0]]
        else:
            sent, parts = output.new_empty(0), [0] * self._size
        return self._work(
            [exchange(self._series, sent, parts, [output], expected, self._rank)], output_tensors
        )

    def barrier(self, opts: Any = None) -> CollectiveWork:
        """Wait for all ranks."""
        del opts
        handle = submission.barrier(verb=f"barrier@{self._series}").start(0, 0)
        return self._work([(handle, None, ())], [])

    def send(self, *_: Any) -> CollectiveWork:
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

    def _work(self, steps: list[Step], outputs: Tensors) -> CollectiveWork:
        return CollectiveWork(steps, outputs, self._futures)


def _create(options: Any, backend_options: Any) -> Any:
    """Called by torch with the store of the group."""
    del backend_options
    rank, size = options.group_rank, options.group_size
    owns_runtime = not basics.is_initialized()
    launched = rendezvous.take_found_here()
    if owns_runtime and launched:
        basics.init()  # as the launcher says, which may have more to offer than a store
    elif owns_runtime:
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
    return ProcessGroup(rank, size, options.group_id, owns_runtime)


def register() -> None:
    """Make the name "aiacc" known to torch, and launchers besides torchrun. May be called again."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        rendezvous.register()
