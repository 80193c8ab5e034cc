"""Parameters that travel together: reduce-scatter of gradients, all-gather of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from aiacc.exceptions import CollectiveError
from aiacc.planning.execution import parts_of
from aiacc.torch.decoupled.awaited import awaited, release
from aiacc.torch.decoupled.layout import Segment, divide
from aiacc.torch.decoupled.part import Part
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.places import bring_back, is_at, put
from aiacc.torch.reducer.storage import strides_in
from aiacc.torch.reducer.watched import Gradient

#: How many tensors have a storage; torch that does not tell counts none.
_references = getattr(torch._C, "_storage_Use_Count", lambda storage: 0)


class Bucket:
    """The flat memory of some parameters and of their gradients, and what is under way with it.

    Parameters become views of it. The shards of this rank are updated in place, and gathered into
    the memory of which they are parts. Meanwhile `hide` lets whoever uses a parameter wait, and
    gives it other memory, of NaN: what torch does not see, such as a function of C++, finds no old
    values.

    Attributes:
        members: Numbers of the parameters.
        awaited: Gradients that are still to come in this step.
        layout: Where the members are, and whose shard has what of them.
        gradient: Reduced gradients of this rank's shards, once `finish_scatter` has returned.
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
        lanes: int,
    ) -> None:
        """Bring ``parameters``, which have one dtype and device, into flat memory."""
        first = parameters[0]
        self.members = tuple(members)
        self.awaited = len(self.members)
        self._number, self._name = number, name
        self._position = {index: position for position, index in enumerate(self.members)}
        sizes, width = [p.numel() for p in parameters], first.element_size()
        parts = parts_of(sum(sizes) * width, lanes)
        self.layout = layout = divide(sizes, width, ranks, parts)
        self._memory = first.detach().new_zeros(layout.elements)
        self._gradients = first.detach().new_zeros(layout.elements)
        self.gradient = first.detach().new_zeros(layout.shard * parts)
        self._parts = [
            Part(memory, gradients, memory[rank * layout.shard :][: layout.shard], mine)
            for memory, gradients, mine in zip(
                torch.split(self._memory, layout.part),
                torch.split(self._gradients, layout.part),
                torch.split(self.gradient, layout.shard),
                strict=True,
            )
        ]
        self.open = True
        self.hidden = False
        self._parameters = tuple(parameters)
        self._places: list[torch.Tensor] = []
        self._gradient_places: list[torch.Tensor] = []
        self._covers: list[torch.Tensor] = []
        for parameter, offset in zip(parameters, layout.offsets, strict=True):
            form = parameter.shape, strides_in(parameter), offset
            place = self._memory.as_strided(*form)
            place.copy_(parameter.detach())
            parameter.data = place
            self._places.append(place)
            self._gradient_places.append(self._gradients.as_strided(*form))
        #: The gradients, as others see them.
        self._views = [_seen(place) for place in self._gradient_places]
        self._kinds: dict[type, type] = {}  # what `hide` makes of them
        self._guards: list[type | None] = [None] * len(parameters)  # their last classes by this
        self._storage = self._memory.untyped_storage()
        self._at_rest = 0
        self._version = 0  # of the gradients, after what is written here
        self._written = False

    @property
    def gathering(self) -> bool:
        """Whether no `finish_gather` has succeeded since `gather`."""
        return any(part.gathering for part in self._parts)

    @property
    def scattered(self) -> bool:
        """Whether the reduce-scatter of this step was started, and not waited for."""
        return any(part.scattering for part in self._parts)

    def reclaim(self, index: int) -> bool:
        """Let the parameter of this number be a view of the flat memory again, with its values.

        Somebody may have given it other memory. False if that is of another shape, dtype or device.
        """
        position = self._position[index]
        return bring_back(self._parameters[position], self._places[position])

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
        """A number that every change of the shards increases."""
        return self._memory._version

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

    def own(self, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        """A segment of this rank: its parameters, and their place in `gradient`."""
        begin, size = (
            self.layout.offsets[segment.member] + segment.begin,
            segment.end - segment.begin,
        )
        return self._memory[begin:][:size], self.gradient[segment.offset :][:size]

    def take(self, index: int, parameter: torch.Tensor) -> None:
        """Bring the gradient of ``parameter``, which is dense, to its place; it is a view then."""
        position, gradient = self._position[index], parameter.grad
        if gradient is not None and not self._is_taken(position, gradient):
            put(gradient.detach(), self._gradient_places[position])
            parameter.grad = self._view(position)
        self._version = self._gradients._version

    def replaced(self, come: Sequence[int]) -> bool:
        """Whether a parameter of these numbers has a gradient, but not the one that was taken.

        Or that one with other memory.
        """
        for position in map(self._position.__getitem__, come):
            gradient = self._parameters[position].grad
            if gradient is not None and not self._is_taken(position, gradient):
                return True
        return False

    def _is_taken(self, position: int, gradient: torch.Tensor) -> bool:
        place = self._gradient_places[position]
        return gradient is self._views[position] and is_at(gradient, place)

    def _view(self, position: int) -> torch.Tensor:
        """What is the gradient of a parameter; another object if that of before was moved."""
        place = self._gradient_places[position]
        if not is_at(self._views[position], place):
            self._views[position] = _seen(place)
        return self._views[position]

    @property
    def written(self) -> bool:
        """Whether somebody else has written to the gradients since they were taken."""
        return self._gradients._version != self._version

    def check_writes(self, come: Sequence[int]) -> None:
        """Before the last gradients are taken: were those of the numbers ``come`` left alone?

        `finish_scatter` tells.
        """
        self._written = bool(come) and (self.written or self.replaced(come))

    def prepare(self, options: ReductionOptions) -> None:
        """Submit with these options from now on."""
        self._name = f"{options.verb()}.{self._number}.{self._name}"
        for number, part in enumerate(self._parts):
            part.prepare(f"{self._name}.{number}" if number else self._name, options)

    def scatter(self) -> None:
        """Start the reduce-scatter of the gradients, with zeros for those that are None.

        A gradient is None if none came, or if another hook dropped it. Never blocks.
        """
        for parameter, place in zip(self._parameters, self._gradient_places, strict=True):
            if parameter.grad is None:
                place.zero_()
        self._version = self._gradients._version
        for part in self._parts:
            part.scatter()

    def finish_scatter(self) -> bool:
        """Wait for it; false if somebody has written to gradients that were taken, or replaced one.

        Blocks: until it is done; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: It failed.
        """
        self._finish(Part.finish_scatter)
        unwritten = not self._written and not self.written
        self._written = False
        return unwritten

    # --- parameters

    def gather(self) -> None:
        """Start the all-gather of the parameters, whose shard is updated. Never blocks."""
        for part in self._parts:
            part.gather()

    def finish_gather(self) -> None:
        """Wait until the parameters are current.

        Blocks: until they are; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: The all-gather failed; parameters of other ranks may not be current.
        """
        self._finish(Part.finish_gather)

    def forget(self) -> bool:
        """Drop what was under way, which the core has let go of; whether parameters were."""
        self.awaited = len(self.members)
        unfinished = [part.forget() for part in self._parts]
        return any(unfinished)

    def _finish(self, finish: Callable[[Part], None]) -> None:
        """Wait for all parts, and raise the first failure."""
        failure: CollectiveError | ValueError | None = None
        for part in self._parts:
            try:
                finish(part)
            except (CollectiveError, ValueError) as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _seen(place: torch.Tensor) -> torch.Tensor:
    """``place`` as others see it."""
    return place.detach().as_subclass(Gradient)
