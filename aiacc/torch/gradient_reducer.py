"""Reduces gradients while the backward pass still computes others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from aiacc import _core, basics
from aiacc.exceptions import CollectiveError
from aiacc.reduce_ops import Average
from aiacc.torch.compression import Compression, Compressor
from aiacc.torch.tensors import DTYPE_CODES, address_and_code, refusal


class ReductionOptions(NamedTuple):
    """How gradients are reduced; equal on all ranks."""

    op: int = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    process_set_id: int = 0
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False


#: A submitted gradient: its handle; the tensor whose memory the core uses until that is done; where
#: the result goes if that is a converted copy of the gradient, else None; what `decompress` needs.
#: (A plain tuple, which takes a tenth of the time of a named one.)
_InFlight: TypeAlias = tuple[int, torch.Tensor, torch.Tensor | None, object]


class GradientReducer:
    """Submits each gradient as soon as autograd has accumulated it, and waits for all.

    Threads: hooks run in autograd's thread; the other methods must not run during a backward pass.
    Ranks: every rank has the same parameter names, in any order.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, torch.Tensor]],
        options: ReductionOptions,
        backward_passes_per_step: int,
    ) -> None:
        """Attach to the parameters, if there is another rank to reduce with."""
        self._options = options
        self._passes = backward_passes_per_step
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        #: Backward passes until the gradient is submitted; 0 once it was. Hooks hold this very
        #: list and the next queue, so both are only changed in place.
        self._left: list[int] = []
        self._in_flight: deque[_InFlight] = deque()
        self._hooks: dict[int, RemovableHandle] = {}
        self.add(named_parameters)
        basics.at_init(self.reset)

    def add(self, named_parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Reduce the gradients of these parameters too."""
        for name, parameter in named_parameters:
            self._names.append(name)
            self._parameters.append(parameter)
            self._left.append(self._passes)
        self._attach()

    @property
    def active(self) -> bool:
        """Whether there is anything to reduce; never in a job of one rank."""
        return bool(self._hooks)

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last `finish`."""
        return bool(self._in_flight) or self._left.count(self._passes) != len(self._left)

    def set_passes(self, backward_passes_per_step: int) -> None:
        """Accumulate this many backward passes before a gradient is submitted."""
        self._passes = backward_passes_per_step
        self._left[:] = [self._passes] * len(self._left)

    def reset(self) -> None:
        """Forget what was under way, without waiting. Call it when the core has let go of it."""
        self._in_flight.clear()
        self._left[:] = [self._passes] * len(self._left)
        self._attach()

    def drop(self) -> None:
        """Wait for what is under way, whatever comes of it, and start the step anew."""
        _core.flush()
        self._wait()
        self._left[:] = [self._passes] * len(self._left)

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def finish(self) -> None:
        """Submit what no backward pass has, then wait for all in the order of submission.

        A parameter without gradient takes part with zeros, for another rank may have one.

        Collective: every rank.
        Blocks: until every gradient is reduced or failed.

        Raises:
            CollectiveError: The first failure. The reducer is ready for the next step.
        """
        if not self._hooks:
            return
        self._attach()  # parameters that were frozen until now
        failure: Exception | None = None
        if len(self._in_flight) < len(self._parameters):
            try:
                self._submit_missing()
            except Exception as error:  # raised below, after the others are done
                failure = error
            _core.flush()
        failure = self._wait() or failure
        self._left[:] = [self._passes] * len(self._left)
        if failure is not None:
            raise failure

    def _submit_missing(self) -> None:
        for index, parameter in enumerate(self._parameters):
            if self._left[index] > 0 and index in self._hooks and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter, requires_grad=False)
                self._submit_converted(index)

    def _wait(self) -> Exception | None:
        """The first failure, or None. What an interrupt leaves can be waited for again."""
        wait, in_flight = _core.wait, self._in_flight
        failure: Exception | None = None
        while in_flight:
            handle, sent, gradient, ctx = in_flight[0]
            try:
                wait(handle)
                if gradient is not None:
                    with torch.no_grad():
                        gradient.copy_(self._options.compression.decompress(sent, ctx))
            except (CollectiveError, ValueError) as error:  # later: the others still use memory
                failure = failure or error
            in_flight.popleft()
        return failure

    def _attach(self) -> None:
        if len(self._hooks) == len(self._parameters) or basics.size() == 1:
            return
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad and index not in self._hooks:
                register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
                self._hooks[index] = register(self._hook(index, parameter))

    def _hook(self, index: int, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """What autograd calls with the parameter, once per backward pass."""
        # Locals of a closure are the fastest names that Python has.
        kind, submit, flush = _core.ALLREDUCE, _core.submit, _core.flush
        name, shape = "allreduce." + self._names[index], tuple(parameter.shape)
        op, prescale, postscale, process_set_id, compression, _ = self._options
        left, in_flight, parameters = self._left, self._in_flight, self._parameters
        codes = DTYPE_CODES if compression is Compression.none else {}

        def hook(parameter: torch.Tensor) -> None:
            passes = left[index] - 1
            if passes != 0:
                if passes < 0:
                    raise AssertionError(
                        f"gradient of {self._names[index]!r} was computed more than "
                        f"backward_passes_per_step={self._passes} times before step(); increase "
                        "backward_passes_per_step to accumulate gradients locally"
                    )
                left[index] = passes
                return
            gradient = parameter.grad
            assert gradient is not None
            code = codes.get(gradient.dtype)
            if code is not None and gradient.is_cpu and gradient.is_contiguous():
                address = gradient.data_ptr()
                handle = submit(
                    kind,
                    name,
                    address,
                    address,
                    shape,
                    code,
                    op,
                    0,
                    prescale,
                    postscale,
                    process_set_id,
                )
                in_flight.append((handle, gradient, None, None))
                left[index] = 0
            else:
                self._submit_converted(index)
            if len(in_flight) == len(parameters):
                flush()

        return hook

    def _submit_converted(self, index: int) -> None:
        """Submit a gradient of any form: compressed, of another layout, sparse."""
        parameter, options = self._parameters[index], self._options
        gradient = parameter.grad
        assert gradient is not None
        what = f"gradient of {self._names[index]!r}"
        with torch.no_grad():
            if gradient.layout is not torch.strided:
                if not options.sparse_as_dense:
                    raise refusal(gradient, what)
                gradient = parameter.grad = gradient.to_dense()
            gradient = gradient.detach()
            compressed, ctx = options.compression.compress(gradient)
            sent = compressed.contiguous()
        address, code = address_and_code(sent, what)
        handle = _core.submit(
            _core.ALLREDUCE,
            "allreduce." + self._names[index],
            address,
            address,
            tuple(sent.shape),
            code,
            options.op,
            0,
            options.prescale_factor,
            options.postscale_factor,
            options.process_set_id,
        )
        in_place = address == gradient.data_ptr() and ctx is None
        self._in_flight.append((handle, sent, None if in_place else gradient, ctx))
        self._left[index] = 0
