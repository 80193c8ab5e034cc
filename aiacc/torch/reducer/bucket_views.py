"""Gradients that live in persistent flat buckets, which are reduced as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aiacc.torch.adapter import device_of
from aiacc.torch.reducer.bucket_layout import Entry, is_dense, lay_out
from aiacc.torch.reducer.bucketed_reducer import BatchReducer, numbered
from aiacc.torch.reducer.consensus import answer_of_first, everywhere
from aiacc.torch.reducer.reducer import NamedParameters, ReductionOptions


class BucketReducer(BatchReducer):
    """Lays gradients out as views of buckets, and submits each bucket as one tensor.

    The first step reduces gradients singly and watches in which order they come. The order of the
    first rank then decides on the buckets of all. That happens again after parameters have come
    (`add`, or one that was frozen) and after `aiacc.init`.

    Gradients whose parameter had no ``grad`` when the backward pass came are copied into their
    place, which takes less time than to clear the place and to add to it; otherwise autograd adds
    to the bucket itself.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
        options: ReductionOptions,
        backward_passes_per_step: int,
        bucket_bytes: int,
    ) -> None:
        """Fill buckets up to ``bucket_bytes`` each; a larger gradient has a bucket of its own."""
        self._bucket_bytes = bucket_bytes
        self._flats: list[torch.Tensor] = []
        self._views: dict[int, torch.Tensor] = {}
        #: The order in which gradients came, of the last step that was watched.
        self._order: list[int] = []
        self._arrivals: dict[int, None] = {}
        self._after: dict[int, Callable[[], None]] = {}
        super().__init__(named_parameters, options, backward_passes_per_step)

    def arguments(self) -> tuple[Any, ...]:
        """See `GradientReducer.arguments`."""
        return *super().arguments(), self._bucket_bytes

    @property
    def buckets(self) -> tuple[torch.Tensor, ...]:
        """The flat buckets; none before the first step is done."""
        return tuple(self._flats)

    def _attach(self) -> None:
        attached = len(self._hooks)
        super()._attach()
        self._undecided = self._undecided or len(self._hooks) != attached

    def _start_step(self) -> None:
        super()._start_step()
        self._after.clear()  # what a failure may have left

    def _accumulated(self, index: int) -> None:
        if self._undecided:
            self._arrivals[index] = None
        view = self._views.get(index)
        parameter = self._parameters[index]
        if view is not None and parameter.grad is not view:
            view.copy_(self._dense(index))
            parameter.grad = view

    def _new_zeros(self, index: int) -> torch.Tensor:
        view = self._views.get(index)
        return super()._new_zeros(index) if view is None else view.zero_()

    def _fill(self, index: int) -> None:
        _, then = self._zeros(index)
        if then is not None:
            self._after[index] = then

    def _submit_batch(self, number: int) -> None:
        flat = self._flats[number]
        (sent,), restore, wire = self._to_send([flat])
        if restore is None and not self._after:
            handle = self._start_bucket(number, flat, wire)
            self._in_flight.append((handle, (flat,), None))
            return
        after = [self._after.pop(index, None) for index in self._batches[number]]

        def finish() -> None:
            for step in (restore, *after):
                if step is not None:
                    step()

        handle = self._start_bucket(number, sent, wire)
        self._in_flight.append((handle, (sent,), finish))

    def _start_bucket(self, number: int, sent: torch.Tensor, wire: int) -> int:
        """Start reducing a bucket in the form ``sent``."""
        name = f"bucket.{number}.{self._names[self._batches[number][0]]}"
        return self._start(name, sent, f"bucket {number} of gradients", wire)

    def _agree(self) -> None:
        """Form buckets for the order that was watched."""
        rest = [*self._order, *reversed(self._hooks)]
        order = [index for index in dict.fromkeys([*self._arrivals, *rest]) if self._fits(index)]
        places = numbered({self._names[i]: device_of(self._parameters[i]) for i in order})
        described = {
            self._names[index]: (*self._description(index), places[self._names[index]])
            for index in order
        }
        process_set = self._options.process_set
        agreed = answer_of_first(list(described.items()), "order_of_buckets", process_set)
        self._arrivals.clear()
        if not everywhere(dict(agreed) == described, "contents_of_buckets", process_set):
            self._form([])
            raise ValueError(
                "gradient_as_bucket_view: the ranks have parameters of different names, shapes, "
                "dtypes or memory formats, or have divided them among their GPUs in different ways "
                "(expected the same everywhere); make the same model on every rank, or leave out "
                "gradient_as_bucket_view"
            )
        number_of = {name: index for index, name in enumerate(self._names)}
        self._order = [number_of[name] for name, _ in agreed]
        self._form(self._order)

    def _fits(self, index: int) -> bool:
        return index in self._hooks and index not in self._sparse

    def _description(self, index: int) -> tuple[Any, ...]:
        parameter = self._parameters[index]
        return tuple(parameter.shape), self._strides(parameter), str(parameter.dtype)

    def _strides(self, parameter: torch.Tensor) -> tuple[int, ...]:
        """Of the gradient: the parameter's, as autograd wants them, if they fill memory."""
        if is_dense(parameter.shape, parameter.stride()):
            return parameter.stride()
        return torch.empty(parameter.shape, device="meta").stride()

    def _form(self, order: list[int]) -> None:
        """Make buckets for these parameters, with the gradients that they have."""
        members = [self._parameters[index] for index in order]
        entries = [Entry(p.numel(), p.element_size(), (p.dtype, device_of(p))) for p in members]
        layout = lay_out(entries, self._bucket_bytes)
        self._flats = []
        self._views = {}
        for bucket in layout:
            like = members[bucket.members[0]]
            flat = like.detach().new_zeros(bucket.elements)
            self._flats.append(flat)
            for number, offset in zip(bucket.members, bucket.offsets, strict=True):
                parameter = members[number]
                strides = self._strides(parameter)
                view = flat.as_strided(parameter.shape, strides, offset)
                self._views[order[number]] = view
                if parameter.grad is None:
                    continue
                sparse_dim = self._sparse_dims.get(order[number])
                view.copy_(self._dense(order[number]))
                parameter.grad = view if sparse_dim is None else view.to_sparse(sparse_dim)
        self._set_batches([[order[number] for number in bucket.members] for bucket in layout])
