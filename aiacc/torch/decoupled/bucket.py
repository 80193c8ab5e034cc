"""Parameters that travel together: reduce-scatter of gradients, all-gather of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from aiacc import _core
from aiacc.collectives import submission
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import device_and_stream_of, device_of, view_of, wait
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled.awaited import awaited, release
from aiacc.torch.decoupled.layout import divide
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.storage import strides_in

#: How many tensors have a storage; torch that does not tell counts none.
_references = getattr(torch._C, "_storage_Use_Count", lambda storage: 0)


class Bucket:
    """The flat memory of some parameters and of their gradients, and what is under way with it.

    Parameters become views of it. The shard of this rank is updated in place, and gathered into the
    memory of which it is a part. Meanwhile `hide` lets whoever uses a parameter wait, and gives it
    other memory, of NaN: what torch does not see, such as a function of C++, finds no old values.

    Attributes:
        members: Numbers of the parameters.
        awaited: Gradients that are still to come in this step.
        layout: Where the members are, and whose shard has what of them.
        shard: The parameters in it.
        gradient: Their reduced gradients, once `finish_scatter` has returned.
        open: Whether any use of any parameter is of no interest: no `hide` or `watch` since `show`.
        hidden: Whether there was `hide` since `show`.
    """

    def __init__(
        self,
        number: int,
        members: Sequence[int],
        parameters: Sequence[torch.Tensor],
        name: str,
        rank: int,
        ranks: int,
    ) -> None:
        """Bring ``parameters``, which have one dtype and device, into flat memory."""
        first = parameters[0]
        self.members = tuple(members)
        self.awaited = len(self.members)
        self._number, self._name = number, name
        self._position = {index: position for position, index in enumerate(self.members)}
        self.layout = layout = divide([p.numel() for p in parameters], first.element_size(), ranks)
        self._memory = first.detach().new_zeros(layout.elements)
        self._gradients = first.detach().new_zeros(layout.elements)
        self.gradient = first.detach().new_zeros(layout.shard)
        self.shard = self._memory[rank * layout.shard :][: layout.shard]
        self.open = True
        self.hidden = False
        self._parameters = tuple(parameters)
        self._views: list[torch.Tensor] = []
        self._places: list[torch.Tensor] = []
        self._covers: list[torch.Tensor] = []
        for parameter, offset in zip(parameters, layout.offsets, strict=True):
            form = parameter.shape, strides_in(parameter), offset
            place = self._memory.as_strided(*form)
            place.copy_(parameter.detach())
            parameter.data = place
            self._places.append(place)
            self._views.append(self._gradients.as_strided(*form))
        self._kinds: dict[type, type] = {}  # what `hide` makes of them
        self._guards: list[type | None] = [None] * len(parameters)  # their last classes by this
        self._storage = self._memory.untyped_storage()
        self._at_rest = 0
        self._scattering: int | None = None
        self._gathering: int | None = None
        self._scatter: _core.Submission | None = None
        self._gather: _core.Submission | None = None
        self._version = 0  # of the gradients, after what is written here
        self._written = False

    @property
    def gathering(self) -> bool:
        """Whether no `finish_gather` has succeeded since `gather`."""
        return self._gathering is not None

    @property
    def scattered(self) -> bool:
        """Whether the reduce-scatter of this step was started, and not waited for."""
        return self._scattering is not None

    def reclaim(self, index: int) -> bool:
        """Let the parameter of this number be a view of the flat memory again, with its values.

        Somebody may have given it memory of its own, ``parameter.data = ...``. False if that is of
        another shape, dtype or device.
        """
        position = self._position[index]
        parameter, place = self._parameters[position], self._places[position]
        if parameter.data_ptr() != place.data_ptr():
            if (parameter.shape, parameter.dtype, parameter.device) != (
                place.shape,
                place.dtype,
                place.device,
            ):
                return False
            place.copy_(parameter.detach())
            parameter.data = place
        return True

    # --- who uses parameters

    def cover(self, nothing: torch.Tensor) -> None:
        """Have ``nothing``, as large as this bucket at least, in the place of hidden parameters.

        As large, for compiled code may take no notice of strides, and other threads may be reading.
        """
        self._covers = [
            nothing.as_strided(place.shape, place.stride(), place.storage_offset())
            for place in self._places
        ]

    def count(self) -> None:
        """Now nobody else has views of the parameters."""
        self._at_rest = _references(self._storage._cdata)

    @property
    def viewed(self) -> bool:
        """Whether somebody has a view of a parameter, whose uses `hide` does not see."""
        return bool(_references(self._storage._cdata) > self._at_rest)

    @property
    def version(self) -> int:
        """A number that every change of the shard increases."""
        return self.shard._version

    def hide(self, wait: Callable[[], None]) -> None:
        """Let whoever uses a parameter call ``wait`` before, which calls `show` or raises.

        Undone by `show`, also if it did not come to its end.
        """
        self.open, self.hidden = False, True
        with torch._C.DisableTorchFunctionSubclass():
            for position, parameter in enumerate(self._parameters):
                kind = type(parameter)
                if kind not in self._kinds:
                    self._kinds[kind] = awaited(kind, wait)
                self._guards[position] = self._kinds[kind]
                parameter.__class__ = self._kinds[kind]
                parameter.data = self._covers[position]

    def watch(self, tell: Callable[[int], None]) -> None:
        """Let whoever uses a parameter ``tell`` its number before, which calls `release`."""
        self.open = False
        for position, parameter in enumerate(self._parameters):
            index = self.members[position]
            kind = awaited(type(parameter), partial(tell, index))
            self._guards[position] = kind
            parameter.__class__ = kind

    def show(self) -> None:
        """Undo `hide` and `watch`, of this bucket: another one may have the parameters by now."""
        with torch._C.DisableTorchFunctionSubclass():
            for position, parameter in enumerate(self._parameters):
                if type(parameter) is self._guards[position]:
                    if self.hidden:
                        parameter.data = self._places[position]
                    release(parameter)
        self.open, self.hidden = True, False

    # --- gradients

    def take(self, index: int, parameter: torch.Tensor) -> None:
        """Bring the gradient of ``parameter``, which is dense, to its place; it is a view then."""
        view, gradient = self._views[self._position[index]], parameter.grad
        if gradient is not None and gradient is not view:
            view.copy_(gradient.detach())
            parameter.grad = view
        self._version = self._gradients._version

    def has(self, index: int, parameter: torch.Tensor) -> bool:
        """Whether ``parameter`` has no other gradient than the one that was taken."""
        return parameter.grad is None or parameter.grad is self._views[self._position[index]]

    @property
    def written(self) -> bool:
        """Whether somebody else has written to the gradients since they were taken."""
        return self._gradients._version != self._version

    def check_writes(self) -> None:
        """Before the last gradients are taken: `finish_scatter` tells what `written` is now."""
        self._written = self.written

    def put_zeros(self, index: int) -> None:
        """Take part with zeros for a parameter without gradient."""
        self._views[self._position[index]].zero_()
        self._version = self._gradients._version

    def prepare(self, options: ReductionOptions, job: int) -> None:
        """Submit with these options from now on, in names with the number of ``job``.

        Every rank has the same number for the same optimizer, and another one for each.
        """
        self._name = f"decoupled.{job}.{self._number}.{self._name}"
        code = view_of(self._memory, self._name).code
        device, process_set = device_of(self._memory), options.process_set
        self._scatter = submission.reducescatter(
            self._name,
            tuple(self._gradients.shape),
            code,
            device,
            options.op,
            options.prescale_factor,
            options.postscale_factor,
            process_set,
        )
        self._gather = submission.allgather(
            self._name, tuple(self.shard.shape), code, device, process_set
        )

    def scatter(self) -> None:
        """Start the reduce-scatter of the gradients, which are all there. Never blocks."""
        assert self._scatter is not None
        stream = device_and_stream_of(self._gradients)[1]
        handle = self._scatter.start(self._gradients.data_ptr(), self.gradient.data_ptr(), stream)
        in_flight.held[handle] = (self._gradients, self.gradient)
        self._scattering = handle

    def finish_scatter(self) -> bool:
        """Wait for it; false if somebody has written to gradients that were taken.

        Blocks: until it is done; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: It failed.
        """
        handle = self._scattering
        if handle is not None:
            try:
                wait(handle, (self._gradients, self.gradient))
            except (CollectiveError, ValueError):  # after an interrupt it is still under way
                self._scattering = None
                in_flight.held.pop(handle, None)
                raise
            self._scattering = None
            del in_flight.held[handle]
        unwritten = not self._written and not self.written
        self._written = False
        return unwritten

    # --- parameters

    def gather(self) -> None:
        """Start the all-gather of the parameters, whose shard is updated. Never blocks."""
        assert self._gather is not None
        memory = self._memory
        stream = device_and_stream_of(memory)[1]
        room = memory.data_ptr() if memory.is_cpu else 0
        handle = self._gather.start(self.shard.data_ptr(), room, stream)
        in_flight.held[handle] = (memory,)
        self._gathering = handle

    def finish_gather(self) -> None:
        """Wait until the parameters are current.

        Blocks: until they are; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: The all-gather failed; parameters of other ranks may not be current.
        """
        handle = self._gathering
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
            self._gathering = None
            in_flight.held.pop(handle, None)
            raise
        self._gathering = None
        del in_flight.held[handle]
        if tuple(shape) != tuple(memory.shape):
            raise CollectiveError(f"{self._name}: gathered {shape} (expected {memory.shape})")

    def forget(self) -> bool:
        """Drop what was under way, which the core has let go of; whether parameters were."""
        unfinished = self.gathering
        for handle in (self._scattering, self._gathering):
            in_flight.held.pop(handle, None)  # type: ignore[arg-type]
        self._scattering = self._gathering = None
        self.awaited = len(self.members)
        return unfinished
