"""Hooks that compute the factors of a step where their data is."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from aiacc.kfac.factors import gradient_factor, input_factor
from aiacc.kfac.fisher import terms_of
from aiacc.kfac.rows import batched
from aiacc.torch.kfac.factor import Factor
from aiacc.torch.kfac.layers import FactoredModule
from aiacc.torch.kfac.moments import Recording


class Pass:
    """A forward pass of the model.

    Attributes:
        last: Rows and channels of the layer that has computed last.
        terms: Over which its loss is a mean, as its outputs tell; None: they have not.
    """

    def __init__(self) -> None:
        self.last = (1, 1)
        self.terms: int | None = None


class Capture:
    """Adds to factors while the model computes.

    A is computed before the forward pass of its module, where its input is known; G where the
    gradient of the output is, before the module's own backward pass.

    Attributes:
        model: That computes.
        wanted: Whether this step is one that builds factors.
        seconds: Spent in the hooks; on a GPU, until the work was queued.
        passes: Gives the backward passes of a step, which may change between two.
        loss_terms: Gives the terms over which the loss of a pass is a mean; None: see `terms_of`.
        terms: Those of the last pass that was asked for.
        recording: Notes when factors are ready; None: nobody does.
        dropped: Whether passes were forgotten; see `follow_weights`.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[FactoredModule],
        ready: Callable[[Factor], None],
        approx: str,
    ) -> None:
        """Hook the layers of ``model``; ``ready`` is told of every factor that all uses are in."""
        self.model, self._ready, self._approx = model, ready, approx
        self.wanted = False
        self.seconds = 0.0
        self.passes: Callable[[], int] = lambda: 1
        self.recording: Recording | None = None
        self.loss_terms: Callable[[], float] | None = None
        self.terms = 0.0
        self._pass = Pass()
        #: The backward pass and the forward pass that `loss_terms` was asked in last.
        self._asked: tuple[int, Pass | None] = (-1, None)
        #: Of the loss, by which gradients are divided; None: gradients count nothing now.
        self.loss_scale: Callable[[], float] | None = None
        self._layers = list(layers)
        self._warned = False
        #: Whether the optimizer has stepped since this model computed, and whether that was told.
        self._taken = self._told = False
        #: Whether weights have got gradients since the last pass began.
        self._came = False
        self._late: set[str] = set()
        self._skipped: set[str] = set()
        self._hooks: list[RemovableHandle] = []
        self.dropped = False
        self._of_weights: list[RemovableHandle] = []
        self.follow_weights()
        reference = weakref.ref(self)
        first: Any = _Begin(reference)
        self._hooks.append(model.register_forward_pre_hook(first))
        for layer in layers:
            module = layer.module
            before: Any = _Before(reference, layer)  # torch's type has callables without keywords
            self._hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(_After(reference, layer)))
        self._hooks.append(model.register_forward_hook(_End(reference)))

    def skip(self, names: Sequence[str]) -> None:
        """Compute these factors no more, for nobody needs them here."""
        self._skipped = set(names)

    def detach(self) -> None:
        """Remove the hooks."""
        self.leave_weights()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def follow_weights(self) -> None:
        """From now on forget passes whose gradients are dropped before anybody steps with them.

        Not for long: a factor may have left when its gradients are dropped.
        """
        self.leave_weights()
        reference = weakref.ref(self)

        def came(_: torch.Tensor) -> None:
            capture = reference()
            if capture is not None:
                capture._came = True

        for layer in self._layers:
            if layer.weight.is_leaf and layer.weight.requires_grad:
                register: Any = layer.weight.register_post_accumulate_grad_hook  # untyped in torch
                self._of_weights.append(register(came))

    def leave_weights(self) -> None:
        """Let all passes count that come from now on."""
        for hook in self._of_weights:
            hook.remove()
        self._of_weights.clear()
        self._came = self.dropped = False

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice when it takes the gradients; see `warn_of_late`."""
        reference = weakref.ref(self)

        def stepped(*_: Any) -> None:
            capture = reference()
            if capture is not None:
                capture._taken = True

        register: Any = optimizer.register_step_post_hook  # untyped in torch
        self._hooks.append(register(stepped))

    def warn_of_late(self) -> None:
        """Once, if the optimizer has taken the gradients of this step, which builds factors."""
        if self._taken and not self._told and any(layer.a.uses for layer in self._layers):
            self._told = True
            warnings.warn(
                "K-FAC: optimizer.step() has come before kfac.step(), so K-FAC has changed nothing "
                "(expected backward(), kfac.step(), optimizer.step()); call kfac.step() first",
                stacklevel=3,
            )

    def warn_of_nothing(self, step: int, sampled: bool) -> None:
        """Once, if the step has built no A or no G here.

        Args:
            step: Its number.
            sampled: Whether G comes from `KFAC.sample`.
        """
        sides = {"A": [layer.a for layer in self._layers], "G": [layer.g for layer in self._layers]}
        missing = [
            side
            for side, all_ in sides.items()
            if (built := [one for one in all_ if one.name not in self._skipped])
            and not any(one.uses for one in built)
        ]
        if missing and not self._warned:
            self._warned = True
            rest = "sample()" if sampled else "a backward pass"
            warnings.warn(
                f"K-FAC: step {step} of this rank has built no factor {missing[0]} (expected a "
                f"forward pass in training mode, and {rest}, before step()); its last ones stay",
                stacklevel=3,
            )

    @contextmanager
    def scaled(self, loss_scale: float, loss_terms: int) -> Iterator[None]:
        """In this context gradients are those of another loss."""
        before = self.loss_scale, self.loss_terms
        self.loss_scale, self.loss_terms = lambda: loss_scale, lambda: loss_terms
        try:
            yield
        finally:
            self.loss_scale, self.loss_terms = before

    def _open(self, factor: Factor) -> bool:
        """Whether this step takes more of it."""
        if factor.name in self._skipped:
            return False
        most = factor.uses_per_pass * self.passes()
        if most and factor.uses >= most:
            if factor.name not in self._late:
                self._late.add(factor.name)
                warnings.warn(
                    f"K-FAC: factor {factor.name!r} came more often than {most} times in a step "
                    "(expected as often as in the first one, for it leaves when all uses are in); "
                    "what comes later does not count. Give KFAC backward_passes_per_step if "
                    "gradients are accumulated",
                    stacklevel=2,
                )
            return False
        return True

    def before(self, layer: FactoredModule, inputs: torch.Tensor) -> None:
        """A forward pass of the layer with these inputs is about to begin."""
        if self._active:
            self._taken = False
            self._begin_pass()
            if self.recording is not None:
                self.recording.begin()
        wanted = self._active and layer.why_not is None and inputs.numel()
        if wanted and self._open(layer.a):
            self._add(layer.a, layer.module, inputs, partial(input_factor, approx=self._approx))

    def _begin_pass(self) -> None:
        """Forget the passes before this one if their gradients are there no more."""
        if not self._came or torch._C._current_graph_task_id() >= 0:  # checkpointing recomputes
            return
        self._came = False
        if all(layer.weight.grad is None for layer in self._layers):
            self.dropped = True
            for layer in self._layers:
                for factor in layer.factors:
                    factor.clear()

    def after(self, layer: FactoredModule, output: torch.Tensor) -> None:
        """It has ended."""
        if (
            self.wanted and torch._C._current_graph_task_id() < 0
        ):  # no checkpointing that recomputes
            channels = layer.weight.shape[-1 if isinstance(layer.module, nn.Embedding) else 0]
            self._pass.last = (output.numel() // max(channels, 1), channels)
        if self._active and layer.why_not is None and output.requires_grad:
            register: Any = output.register_hook  # untyped in torch
            register(partial(self._on_gradient, layer, self._pass))

    def begin(self) -> None:
        """A forward pass of the model begins."""
        if torch._C._current_graph_task_id() < 0:
            self._pass = Pass()

    def end(self, outputs: Any) -> None:
        """It ends, and has given these."""
        if self._active and torch._C._current_graph_task_id() < 0:
            self._pass.terms = terms_of(outputs, *self._pass.last)

    @property
    def _active(self) -> bool:
        return self.wanted and self.model.training and torch.is_grad_enabled()

    def _terms(self, of_pass: Pass) -> float:
        if self.loss_terms is not None:
            backward = torch._C._current_graph_task_id()
            if self._asked != (backward, of_pass):
                self.terms, self._asked = self.loss_terms(), (backward, of_pass)
        else:
            self.terms = of_pass.last[0] if of_pass.terms is None else of_pass.terms
        return self.terms

    def _on_gradient(self, layer: FactoredModule, of_pass: Pass, gradient: torch.Tensor) -> None:
        if self.loss_scale is None or not self.wanted or not gradient.numel():
            return
        if self._open(layer.g):
            scale, terms = self.loss_scale(), self._terms(of_pass)
            build = partial(
                gradient_factor, approx=self._approx, loss_terms=max(terms, 1), loss_scale=scale
            )
            # A loss of nothing counts nothing.
            self._add(layer.g, layer.module, gradient, build, counts=terms > 0)

    def _add(
        self,
        factor: Factor,
        module: nn.Module,
        values: torch.Tensor,
        build: Callable[[nn.Module, torch.Tensor], torch.Tensor],
        counts: bool = True,
    ) -> None:
        began = time.perf_counter()
        with torch.no_grad():
            factor.add(build(module, values), batched(module, values).shape[0] if counts else 0)
            self.seconds += time.perf_counter() - began
            if factor.uses == factor.uses_per_pass * self.passes():
                if self.recording is not None:
                    self.recording.mark(factor.name)
                self._ready(factor)


class _Hook:
    """Tells the capture of a layer, or of the model; a copy has hooks, too, that tell nobody."""

    def __init__(
        self,
        reference: Callable[[], Capture | None] = lambda: None,
        layer: FactoredModule | None = None,
    ) -> None:
        self._reference, self._layer = reference, layer

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def _meant(self, module: nn.Module) -> tuple[Capture, FactoredModule] | None:
        capture, layer = self._reference(), self._layer
        if capture is None or layer is None or module is not layer.module:
            return None
        return capture, layer

    def _of(self, model: nn.Module) -> Capture | None:
        capture = self._reference()
        return capture if capture is not None and capture.model is model else None


class _Before(_Hook):
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if meant := self._meant(module):
            capture, layer = meant
            capture.before(layer, args[0] if args else next(iter(kwargs.values())))


class _After(_Hook):
    def __call__(self, module: nn.Module, _: Any, output: torch.Tensor) -> None:
        if meant := self._meant(module):
            capture, layer = meant
            capture.after(layer, output)


class _Begin(_Hook):
    def __call__(self, module: nn.Module, args: Any) -> None:
        if capture := self._of(module):
            capture.begin()


class _End(_Hook):
    def __call__(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if capture := self._of(module):
            capture.end(outputs)
