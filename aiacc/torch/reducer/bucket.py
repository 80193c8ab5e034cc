"""A bucket of gradients: one operation, which is started once in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from aiacc import _core
from aiacc.collectives import submission
from aiacc.collectives.memory import lacks_memory
from aiacc.torch import streams
from aiacc.torch.adapter import LOWEST_ADDRESS, view_of
from aiacc.torch.ops.tensor_list import group_view_of
from aiacc.torch.reducer.codec import Codec, Encoded, gathering
from aiacc.torch.reducer.gradients import Gradients
from aiacc.torch.reducer.options import ReductionOptions
from aiacc.torch.reducer.plan import Plan
from aiacc.torch.reducer.storage import Flat
from aiacc.torch.reducer.watched import unwatch, watch

#: What is under way: its handle; the tensors whose memory the core uses, which so stay alive; what
#: to do once it is done, or if it fails. (A plain tuple, which takes a tenth of the time of a named
#: one.)
InFlight: TypeAlias = tuple[int, Sequence[torch.Tensor], "Then", Callable[[], None] | None]
#: Of a gradient that has left: which it was, after how many writes, and its memory, which the core
#: uses: a tensor may be given other memory, as `Module.to` does.
Left: TypeAlias = tuple[int, int, torch.UntypedStorage | None]
#: Gives what is under way in its place, if anything is. Its arguments are those of `decode`.
Then: TypeAlias = Callable[[int, bool], InFlight | None] | None


class Bucket:
    """Gradients that are reduced as one operation.

    What is constant of the operation is prepared once, and anew when the tensors differ from those
    before in more than their addresses.

    Attributes:
        members: Numbers of the gradients.
        flat: The tensor of which they are views; None: they have memory of their own.
        single: Whether it has one gradient in memory of its own, which so may be sparse.
        name: Pairs the operation with those of other ranks.
        codec: For dense gradients.
        awaited: Gradients that are still to come in this step; 0 once the bucket was submitted.
    """

    def __init__(
        self,
        number: int,
        members: Sequence[int],
        gradients: Gradients,
        options: ReductionOptions,
        flat: Flat | None = None,
    ) -> None:
        """Await all of ``members``."""
        self.members = tuple(members)
        self.flat = None if flat is None else flat.memory
        self._memory = None if flat is None else flat.memory.untyped_storage()
        named = [(gradients.names[index], gradients.parameters[index]) for index in members]
        self.codec = options.codec(options.op, named, flat)
        self.awaited = len(members)
        self._gradients = gradients
        self._options = options
        self._parameters = [gradients.parameters[index] for index in members]
        self._first = self._parameters[0]
        self.single = flat is None and len(members) == 1
        self.name = gradients.names[members[0]]
        #: What errors call it.
        self._what = f"gradient of {self.name!r}"
        if flat is not None:
            self.name = f"bucket.{number}.{self.name}"
            self._what = f"bucket {number} of gradients"
        elif len(members) > 1:
            self._what = f"gradients in the group of {self.name!r}"
        #: What was prepared for each of the operations that follow one another, and for what.
        self._prepared: dict[int, tuple[tuple[Any, ...], _core.Submission]] = {}
        #: The same, if the tensors before travelled as they are; and what the first of them was.
        self._again: _core.Submission | None = None
        self._dtype, self._device, self._shape = torch.float32, -1, torch.Size()
        #: Of the gradients that have left in this step.
        self._left: list[Left] = []

    def start(self) -> InFlight:
        """Start reducing its gradients, which are there or have zeros in their place.

        Raises:
            ValueError: The codec or the core does not take them.
            CollectiveError: Not initialised, or an earlier failure was fatal.
        """
        gradients = self._gradients
        tensors = gradients.of(self.members) if self.flat is None else [self.flat]
        dense = tensors[0].layout is torch.strided
        encode = self.codec if dense else self._gathering()
        encoded = encode(tensors)
        sent = encoded.tensors
        as_they_are = sent is tensors and encoded.decode is None and not encoded.changes
        in_flight = self._submit(encoded, 0, gradients.adopting(self.members))
        self._again = self._prepared[0][1] if as_they_are else None
        self._dtype, self._device, self._shape = sent[0].dtype, sent[0].get_device(), sent[0].shape
        if not dense:
            gradients.sparse[self.members[0]] = tensors[0].sparse_dim()
        return in_flight

    def _submit(self, encoded: Encoded, part: int, adopt: Callable[[], None] | None) -> InFlight:
        """Start one of the operations that follow one another; `adopt` comes after the last."""
        sent = encoded.tensors
        view = view_of(sent[0], self._what) if len(sent) == 1 else group_view_of(sent, self._what)
        key = view.spec, encoded.wire, encoded.gathers
        if part not in self._prepared or self._prepared[part][0] != key:
            self._prepared[part] = key, self._prepare(view.spec, encoded, part)
        prepared = self._prepared[part][1]
        address: Any = view[0]
        given = _addresses(encoded.inputs) or address
        residuals = [_addresses(encoded.residuals)] if encoded.residuals else []
        output = (0,) * len(sent) if encoded.gathers else address
        handle = prepared.start(given, output, view.stream, *residuals)
        if encoded.inputs or encoded.residuals:
            sent = [*sent, *encoded.inputs, *encoded.residuals]
        return handle, sent, self._after(encoded.decode, part, adopt), encoded.undo

    def _after(
        self,
        decode: Callable[[int, bool], Encoded | None] | None,
        part: int,
        adopt: Callable[[], None] | None,
    ) -> Then:
        if decode is None and adopt is None:
            return None

        def then(handle: int, coded: bool) -> InFlight | None:
            more = None if decode is None else decode(handle, coded)
            if more is not None:
                return self._submit(more, part + 1, adopt)
            if adopt is not None:
                adopt()
            return None

        return then

    def start_again(self) -> InFlight | None:
        """The fast path of `start`, if only the addresses of the tensors have changed since."""
        prepared = self._again
        if prepared is None:
            return None
        tensors: list[Any]
        if self.flat is not None:
            tensors = [self.flat]
        elif len(self._parameters) == 1:
            tensors = [self._first.grad]
        else:
            tensors = [parameter.grad for parameter in self._parameters]
        handle = prepared.start_in_place(*tensors)
        if handle is None and len(tensors) == 1:
            handle = self._start_by_attributes(prepared, tensors[0])
        return None if handle is None else (handle, tensors, None, None)

    def mark(self) -> list[Left]:
        """Note the gradients as they leave, for `written`; to be kept until they are reduced."""
        grads = [parameter.grad for parameter in self._parameters]
        memory = self._memory
        self._left = [
            (id(g), 0, None) if g is None else (id(g), g._version, memory or _memory_of(g))
            for g in grads
        ]
        for g in grads:
            if g is not None:
                watch(g)
        return self._left

    def written(self) -> str | None:
        """What was done to a gradient since `mark`, if anything; asked once a step.

        Other ranks step with a gradient that was dropped here: it had left.
        """
        left, self._left = self._left, []
        found: str | None = None
        for parameter, (which, version, memory) in zip(self._parameters, left, strict=False):
            grad = parameter.grad
            if grad is not None:
                unwatch(grad)
            if found is not None:
                continue
            if grad is None:
                found = None if which == id(None) else "dropped"
            elif id(grad) != which:
                found = "replaced"
            elif memory is not None and not _is_same(grad.untyped_storage(), memory):
                found = "given other memory"
            elif grad._version != version:
                found = "written to"
        return found

    def _start_by_attributes(
        self, prepared: _core.Submission, tensor: torch.Tensor | None
    ) -> int | None:
        """The same for one tensor on a GPU, or of an older torch."""
        device = self._device
        if (
            tensor is None
            or tensor.dtype is not self._dtype
            or tensor.get_device() != device
            or tensor.shape != self._shape
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
            or tensor.is_neg()
        ):
            return None
        address = tensor.data_ptr()
        if address < LOWEST_ADDRESS and lacks_memory(tensor):
            return None
        stream = 0 if device < 0 else streams.current_stream(device)
        return prepared.start(address, address, stream)

    def _gathering(self) -> Codec:
        return gathering(self._first, self._what, self._options.op, self._options.process_set)

    def _prepare(self, spec: submission.Spec, encoded: Encoded, part: int) -> _core.Submission:
        options = self._options
        name = self.name if part == 0 else f"{self.name}.part.{part}"
        verb = options.verb()
        if encoded.gathers:
            # Under the name that a dense gradient would have: ranks that disagree on the form get
            # an error, and do not wait for one another.
            return submission.allgather(name, *spec, options.process_set, verb, options.op)
        return submission.allreduce(
            name,
            *spec,
            options.op,
            options.prescale_factor,
            options.postscale_factor,
            options.process_set,
            encoded.wire,
            verb,
        )


def _memory_of(gradient: torch.Tensor) -> torch.UntypedStorage | None:
    """None: it is sparse, and what travels of it is a copy."""
    return gradient.untyped_storage() if gradient.layout is torch.strided else None


def _is_same(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    return one is other or one.data_ptr() == other.data_ptr()


def _addresses(tensors: Sequence[torch.Tensor]) -> Any:
    """As `_core.Submission.start` takes them; an empty tuple for none."""
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    return addresses[0] if len(addresses) == 1 else addresses


def form(plan: Plan, gradients: Gradients, options: ReductionOptions) -> list[Bucket]:
    """Buckets of these gradients, which are brought to their places in them.

    Raises:
        ValueError: The storage does not take them.
    """
    parameters = gradients.parameters
    made = [options.storage([parameters[index] for index in members]) for members in plan]
    before = gradients.leave()
    buckets = []
    for number, (members, flat) in enumerate(zip(plan, made, strict=True)):
        if flat is not None:
            gradients.place(zip(members, flat.views, strict=True))
        buckets.append(Bucket(number, members, gradients, options, flat))
    for index in gradients.views:
        gradients.move(index)
    for index, view in before.items():
        # A view counts writes to all of its former bucket, which would look like writes to it.
        if index not in gradients.views and parameters[index].grad is view:
            parameters[index].grad = view.clone()
    gradients.end_step()
    return buckets
