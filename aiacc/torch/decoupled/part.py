"""A part of a bucket: its reduce-scatter and its all-gather."""

from __future__ import annotations

import torch

from aiacc import _core
from aiacc.collectives import submission
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import device_and_stream_of, device_of, view_of, wait
from aiacc.torch.decoupled import in_flight
from aiacc.torch.reducer.options import ReductionOptions


class Part:
    """Flat memory of parameters and gradients, in as many shards as ranks, and what is under way.

    Attributes:
        scattering: Whether a reduce-scatter was started, and not waited for.
        gathering: Whether no `finish_gather` has succeeded since `gather`.
    """

    def __init__(
        self, memory: torch.Tensor, gradients: torch.Tensor, shard: torch.Tensor, mine: torch.Tensor
    ) -> None:
        """All flat: of ``memory`` this rank's shard, and ``mine`` for its reduced gradients."""
        self._memory, self._gradients = memory, gradients
        self._shard, self._mine = shard, mine
        self._name = ""
        self._scatter: _core.Submission | None = None
        self._gather: _core.Submission | None = None
        self._scatter_handle: int | None = None
        self._gather_handle: int | None = None

    @property
    def scattering(self) -> bool:  # noqa: D102  # see the class
        return self._scatter_handle is not None

    @property
    def gathering(self) -> bool:  # noqa: D102  # see the class
        return self._gather_handle is not None

    def prepare(self, name: str, options: ReductionOptions) -> None:
        """Submit by this name and with these options from now on."""
        self._name = name
        code = view_of(self._memory, name).code
        device, process_set = device_of(self._memory), options.process_set
        self._scatter = submission.reducescatter(
            name,
            tuple(self._gradients.shape),
            code,
            device,
            options.op,
            options.prescale_factor,
            options.postscale_factor,
            process_set,
        )
        self._gather = submission.allgather(
            name, tuple(self._shard.shape), code, device, process_set
        )

    def scatter(self) -> None:
        """Start the reduce-scatter of the gradients, which are all there. Never blocks."""
        assert self._scatter is not None
        stream = device_and_stream_of(self._gradients)[1]
        handle = self._scatter.start(self._gradients.data_ptr(), self._mine.data_ptr(), stream)
        in_flight.held[handle] = (self._gradients, self._mine)
        self._scatter_handle = handle

    def finish_scatter(self) -> None:
        """Wait for it.

        Blocks: until it is done; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: It failed.
        """
        handle = self._scatter_handle
        if handle is None:
            return
        try:
            wait(handle, (self._gradients, self._mine))
        except (CollectiveError, ValueError):  # after an interrupt it is still under way
            self._scatter_handle = None
            in_flight.held.pop(handle, None)
            raise
        self._scatter_handle = None
        del in_flight.held[handle]

    def gather(self) -> None:
        """Start the all-gather of the parameters, whose shard is updated. Never blocks."""
        assert self._gather is not None
        memory = self._memory
        stream = device_and_stream_of(memory)[1]
        room = memory.data_ptr() if memory.is_cpu else 0
        handle = self._gather.start(self._shard.data_ptr(), room, stream)
        in_flight.held[handle] = (memory,)
        self._gather_handle = handle

    def finish_gather(self) -> None:
        """Wait until the parameters are current.

        Blocks: until they are; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: The all-gather failed; parameters of other ranks may not be current.
        """
        handle = self._gather_handle
        if handle is None:
            return
        memory = self._memory
        try:
            wait(handle, (memory,))
            if memory.is_cpu:
                shape = _core.take_output(handle)[1]
            else:
                shape = _core.output_shapes(handle)[0]
                _, stream = device_and_stream_of(memory)
                _core.take_into(handle, (memory.data_ptr(),), stream)
        except (CollectiveError, ValueError):  # after an interrupt it is still under way
            self._gather_handle = None
            in_flight.held.pop(handle, None)
            raise
        self._gather_handle = None
        del in_flight.held[handle]
        if tuple(shape) != tuple(memory.shape):
            raise CollectiveError(f"{self._name}: gathered {shape} (expected {memory.shape})")

    def forget(self) -> bool:
        """Drop what was under way, which the core has let go of; whether parameters were."""
        unfinished = self.gathering
        for handle in (self._scatter_handle, self._gather_handle):
            in_flight.held.pop(handle, None)  # type: ignore[arg-type]
        self._scatter_handle = self._gather_handle = None
        return unfinished
