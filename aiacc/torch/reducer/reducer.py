"""Reduces gradients while the backward pass still computes others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from aiacc import _core, basics
from aiacc.autotune.tuner import step_done
from aiacc.collectives import submission
from aiacc.collectives.reduce_ops import Average
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.exceptions import CollectiveError
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch import streams
from aiacc.torch.adapter import refusal, view_of, wait
from aiacc.torch.compression.compressors import Compression, Compressor
from aiacc.torch.compression.encode import Sent, to_send
from aiacc.torch.ops import sparse


class ReductionOptions(NamedTuple):
    """How gradients are reduced; equal on all ranks."""

    op: int = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    process_set: ProcessSet = global_process_set
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False


NamedParameters: TypeAlias = Sequence[tuple[str, torch.Tensor]]

#: What is under way: its handle; the tensors whose memory the core uses, which so stay alive; what
#: to do once it is done, or None. (A plain tuple, which takes a tenth of the time of a named one.)
_InFlight: TypeAlias = tuple[int, Sequence[torch.Tensor], Callable[[], None] | None]


class GradientReducer:
    """Submits each gradient as soon as autograd has accumulated it, and waits for all.

    Threads: hooks run in autograd's thread; the other methods must not run during a backward pass.
    Ranks: every rank has the same parameter names, in any order.
    """

    def __init__(
        self,
        named_parameters: NamedParameters,
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
        #: Parameters whose gradients have been sparse: they have none in a form of zeros.
        self._sparse: set[int] = set()
        #: With sparse_as_dense: sparse dimensions of the gradients that were made dense to travel.
        self._sparse_dims: dict[int, int] = {}
        self.add(named_parameters)
        basics.at_init(self.reset)

    @property
    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Name and parameter of every gradient that is reduced."""
        return list(zip(self._names, self._parameters, strict=True))

    @property
    def options(self) -> ReductionOptions:
        """How gradients are reduced."""
        return self._options

    @property
    def passes(self) -> int:
        """Backward passes that are accumulated before a gradient is submitted."""
        return self._passes

    @property
    def attached(self) -> bool:
        """Whether there is anything to reduce; never in a job of one rank."""
        return bool(self._hooks)

    def arguments(self) -> tuple[Any, ...]:
        """What its class is to be called with to get another one like it."""
        return self.named, self._options, self._passes

    def add(self, named_parameters: NamedParameters) -> None:
        """Reduce the gradients of these parameters too."""
        for name, parameter in named_parameters:
            self._names.append(name)
            self._parameters.append(parameter)
            self._left.append(self._passes)
        self._attach()

    @property
    def under_way(self) -> bool:
        """Whether a backward pass has run since the last `finish`."""
        return bool(self._in_flight) or self._left.count(self._passes) != len(self._left)

    def set_passes(self, backward_passes_per_step: int) -> None:
        """Accumulate this many backward passes before a gradient is submitted."""
        self._passes = backward_passes_per_step
        self._start_step()

    def reset(self) -> None:
        """Forget what was under way, without waiting. Call it when the core has let go of it."""
        self._in_flight.clear()
        self._start_step()
        self.detach()  # hooks know the number of a process set that may have another now
        self._attach()

    def drop(self) -> None:
        """Wait for what is under way, whatever comes of it, and start the step anew."""
        _core.flush()
        self._wait()
        self._start_step()

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def finish(self) -> None:
        """Submit what no backward pass has, then wait for all in the order of submission.

        A parameter without gradient takes part with zeros, for another rank may have one.

        Collective: every rank of the process set.
        Blocks: until every gradient is reduced or failed; of CUDA tensors until that is queued.

        Raises:
            CollectiveError: The first failure. The reducer is ready for the next step.
        """
        self._attach()  # parameters that were frozen until now, a process set that is new
        if not self._hooks:
            return
        failure = self._submit_missing()
        _core.flush()
        failure = self._wait() or failure
        self._restore_sparse()
        self._start_step()
        step_done()
        if failure is not None:
            raise failure

    def _start_step(self) -> None:
        self._left[:] = [self._passes] * len(self._left)

    def _submit_missing(self) -> Exception | None:
        """The first failure, or None. The others are submitted, for other ranks wait for them."""
        failure: Exception | None = None
        if len(self._in_flight) == len(self._parameters):
            return None
        for index in self._hooks:
            if self._left[index] > 0:
                try:
                    self._submit_what_is_there(index)
                except (CollectiveError, ValueError) as error:
                    failure = failure or error
        return failure

    def _submit_what_is_there(self, index: int) -> None:
        """Submit a gradient that the backward pass has not: that of an earlier pass, or zeros."""
        parameter = self._parameters[index]
        if parameter.grad is not None:
            self._submit(index)
        elif index in self._sparse:
            self._submit_sparse(index, sparse.empty_like(parameter))
        else:
            self._send(index, *self._zeros(index))

    def _zeros(self, index: int) -> tuple[torch.Tensor, Callable[[], None] | None]:
        """A gradient for a parameter that has none, and what to do when it is reduced."""
        parameter = self._parameters[index]
        zeros = self._new_zeros(index)
        if parameter.requires_grad:
            parameter.grad = zeros
            return zeros, None

        # Frozen, perhaps on this rank only. If it is everywhere, no step shall touch it.
        def adopt() -> None:
            if zeros.any():
                parameter.grad = zeros

        return zeros, adopt

    def _new_zeros(self, index: int) -> torch.Tensor:
        return torch.zeros_like(self._parameters[index], requires_grad=False)

    def _wait(self) -> Exception | None:
        """The first failure, or None. What an interrupt leaves can be waited for again."""
        in_flight = self._in_flight
        failure: Exception | None = None
        while in_flight:
            handle, used, then = in_flight[0]
            try:
                wait(handle, used)
                if then is not None:
                    then()
            except (CollectiveError, ValueError) as error:  # later: the others still use memory
                failure = failure or error
            in_flight.popleft()
        return failure

    def _restore_sparse(self) -> None:
        """Give the optimizer gradients of the layout that autograd gave: some take no other."""
        for index, sparse_dim in self._sparse_dims.items():
            parameter = self._parameters[index]
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                parameter.grad = parameter.grad.detach().to_sparse(sparse_dim)

    def _attach(self) -> None:
        """Put hooks on the parameters that need one and have none."""
        if len(self._hooks) == len(self._parameters) or not self._has_company():
            return
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad and index not in self._hooks:
                register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
                self._hooks[index] = register(self._hook(index, parameter))

    def _has_company(self) -> bool:
        process_set = self._options.process_set
        return (
            basics.is_initialized()
            and basics.size() > 1
            and process_set.process_set_id is not None
            and bool(process_set.included())
        )

    def _hook(self, index: int, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """What autograd calls with the parameter, once per backward pass."""
        name = self._names[index]
        # Locals of a closure are the fastest names that Python has.
        flush, left, in_flight, parameters = (
            _core.flush,
            self._left,
            self._in_flight,
            self._parameters,
        )
        prepares = self._options.compression is Compression.none
        start: Any = None  # of a gradient of the next two
        dtype, device = torch.float32, -1

        def hook(parameter: torch.Tensor) -> None:
            nonlocal start, dtype, device
            passes = left[index] - 1
            if passes != 0:
                if passes < 0:
                    raise self._overrun(index)
                left[index] = passes
                return
            gradient = parameter.grad
            assert gradient is not None
            if gradient.dtype is not dtype or gradient.get_device() != device:
                start = None
            plain = gradient.is_contiguous() and not gradient.is_neg()
            if start is not None and plain:
                address = gradient.data_ptr()
                stream = 0 if device < 0 else streams.current_stream(device)
                in_flight.append((start(address, address, stream), (gradient,), None))
                left[index] = 0
            else:
                self._submit(index)
                if prepares and plain and gradient.layout is torch.strided:
                    spec = view_of(gradient, name).spec
                    start, dtype, device = self._prepared(name, spec).start, gradient.dtype, spec[2]
            if len(in_flight) == len(parameters):
                flush()

        return hook

    def _overrun(self, index: int) -> AssertionError:
        return AssertionError(
            f"gradient of {self._names[index]!r} was computed more than "
            f"backward_passes_per_step={self._passes} times before step(); increase "
            "backward_passes_per_step to accumulate gradients locally"
        )

    def _submit(self, index: int) -> None:
        """Submit the gradient of a parameter, whatever its form."""
        gradient = self._parameters[index].grad
        assert gradient is not None
        if gradient.layout is not torch.strided and not self._options.sparse_as_dense:
            self._submit_sparse(index, gradient)
        else:
            self._send(index, self._dense(index))

    def _dense(self, index: int) -> torch.Tensor:
        """The gradient of a parameter, which this makes dense if it has to."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            if not self._options.sparse_as_dense:
                raise refusal(gradient, f"gradient of {self._names[index]!r}")
            self._sparse_dims[index] = gradient.sparse_dim()
            gradient = parameter.grad = gradient.to_dense()
        return gradient.detach()

    def _send(
        self, index: int, gradient: torch.Tensor, then: Callable[[], None] | None = None
    ) -> None:
        """Submit a dense gradient to be reduced in place; ``then`` runs after that."""
        (sent,), restore, wire = self._to_send([gradient])
        handle = self._start(self._names[index], sent, f"gradient of {self._names[index]!r}", wire)
        self._in_flight.append((handle, (sent,), _both(restore, then)))
        self._left[index] = 0

    def _start(self, name: str, sent: torch.Tensor, what: str, wire: int) -> int:
        """Start reducing ``sent`` in place; ``what`` it is, for errors."""
        view = view_of(sent, what)
        prepared = self._prepared(name, view.spec, wire)
        return prepared.start(view.address, view.address, view.stream)

    def _prepared(
        self, name: str, spec: submission.Spec, wire: int = AS_THEY_ARE
    ) -> _core.Submission:
        options = self._options
        return submission.allreduce(
            name,
            *spec,
            options.op,
            options.prescale_factor,
            options.postscale_factor,
            options.process_set,
            wire,
        )

    def _to_send(self, gradients: Sequence[torch.Tensor]) -> Sent:
        """What to submit for gradients that are reduced as one operation."""
        return to_send(self._options.compression, gradients, self._options.op)

    def _submit_sparse(self, index: int, gradient: torch.Tensor) -> None:
        """Gather the entries of all ranks, under the name that a dense gradient would have.

        So ranks that disagree on the form get an error, and do not wait for one another.
        """
        options, parameter = self._options, self._parameters[index]
        what = f"gradient of {self._names[index]!r}"
        sparse.check_sparse(gradient, what)
        sparse.check_sparse_op(options.op, what)
        rows = sparse.pack_rows(gradient)
        handle = sparse.submit_rows("allreduce", self._names[index], rows, options.process_set)
        divide_by = sparse.divisor(options.op, options.process_set)

        def store() -> None:
            parameter.grad = sparse.take_rows(handle, rows, gradient, divide_by)

        self._in_flight.append((handle, (rows,), store))
        self._sparse.add(index)
        self._left[index] = 0


def _both(
    first: Callable[[], None] | None, second: Callable[[], None] | None
) -> Callable[[], None] | None:
    if first is None or second is None:
        return first or second

    def run() -> None:
        first()
        second()

    return run
