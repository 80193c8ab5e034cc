"""Records when the gradients of a step are ready and its parameters are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as torch_modules
from torch.utils.hooks import RemovableHandle

from aiacc.autotune.profile import Profile, next_path, refuse, wanted
from aiacc.planning.trace import Tensor, Trace
from aiacc.process_sets import ProcessSet
from aiacc.torch.compile import is_compiled
from aiacc.torch.reducer.reducer import GradientReducer

#: A moment: seconds of the host's clock, or an event on a stream of a GPU.
Mark = Any


@dataclass
class _Step:
    """What the hooks have seen of a step so far."""

    #: The end of the step before.
    before: Mark = None
    start: Mark = None
    forward_end: Mark = None
    #: The module whose forward pass began the step; as a number, for it must not live on.
    root: int = 0
    needed: dict[int, Mark] = field(default_factory=dict)
    ready: dict[int, Mark] = field(default_factory=dict)


class StepRecorder:
    """Hooks that note moments, and wait for nothing: times are worked out after the last step.

    With parameters on several GPUs moments are of the host's clock: when work was queued there.

    A step begins with the forward pass of a module that has some of the parameters. With several
    backward passes per step, what counts is the last one. What a backward pass computes again,
    where activations are checkpointed, is part of it. A module that no Python calls (scripted, or
    compiled in place) is not seen: a step then begins where the gradients of the one before were
    reduced.

    Threads: hooks run where torch runs modules and autograd; the other methods must not run at the
    same time.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, torch.Tensor]],
        left_out: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Attach to the parameters that need a gradient, and to all modules.

        Args:
            named_parameters: Names and parameters.
            left_out: Names of those that no plan can have, as far as known in the end.
        """
        self._left_out = left_out
        self._parameters = [(name, p) for name, p in named_parameters if p.requires_grad]
        self._index = {p: index for index, (_, p) in enumerate(self._parameters)}
        self._gpus = {p.device for _, p in self._parameters if p.is_cuda}
        self._now: Callable[[], Mark] = time.perf_counter
        self._between = _between_times
        if len(self._gpus) == 1:  # events of several have no common clock
            self._now, self._between = partial(_event, *self._gpus), _between_events
        self._steps: list[_Step] = []
        self._step = _Step()
        self._end: Mark = None
        self._hooks: list[RemovableHandle] = [
            torch_modules.register_module_forward_pre_hook(_untraced(self._before_forward)),
            torch_modules.register_module_forward_hook(_untraced(self._after_forward)),
        ]
        for index, (_, parameter) in enumerate(self._parameters):
            register: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
            self._hooks.append(register(self._on_gradient(index)))

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every gradient, by name."""
        return {name: p.numel() * p.element_size() for _, name, p in self._plannable()}

    def misses(self, named_parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether some of these need a gradient by now that is not noted."""
        return any(p.requires_grad and p not in self._index for _, p in named_parameters)

    def step_done(self) -> None:
        """Note that gradients were reduced. Steps without any gradient do not count.

        Blocks: until all GPUs have done what was queued, if parameters are on several.
        """
        if len(self._gpus) > 1:
            self._synchronize()
        step, self._step = self._step, _Step()
        step.before = self._end
        if step.start is None:
            step.start = self._end
        self._end = self._now()
        if step.ready and step.start is not None:
            self._steps.append(step)

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def traces(self, model: str) -> list[Trace]:
        """What was recorded, a trace for each step.

        Blocks: until the GPU has done what was recorded, if the parameters are there.
        """
        self._synchronize()
        return [self._trace(model, step) for step in self._steps] if self._plannable() else []

    def leads(self) -> list[float]:
        """Seconds from the end of a step until the next one begins, as `traces` has it.

        Blocks: as `traces` does.
        """
        self._synchronize()
        steps = [step for step in self._steps if step.before is not None]
        return [self._between(step.before, step.start) for step in steps]

    def _synchronize(self) -> None:
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)

    # --- hooks

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        step = self._step
        if not torch.is_grad_enabled() or _in_backward():
            return
        if step.ready and id(module) == step.root:  # one more backward pass before the step
            step = self._step = _Step()
        if step.start is None and not step.ready:
            if not any(parameter in self._index for parameter in module.parameters()):
                return
            step.start, step.root = self._now(), id(module)
        own = module.parameters() if is_compiled(module) else module._parameters.values()
        for parameter in own:  # nothing tells when compiled code comes to modules in it
            index = None if parameter is None else self._index.get(parameter)
            if index is not None and index not in step.needed:
                step.needed[index] = self._now()

    def _after_forward(self, *_: Any) -> None:
        step = self._step
        if step.start is not None and not step.ready and not _in_backward():
            step.forward_end = self._now()

    def _on_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            self._step.ready[index] = self._now()

        return hook

    # --- times

    def _plannable(self) -> list[tuple[int, str, torch.Tensor]]:
        names = self._left_out()
        numbered = enumerate(self._parameters)
        return [(index, name, p) for index, (name, p) in numbered if name not in names]

    def _trace(self, model: str, step: _Step) -> Trace:
        since = {index: self._between(step.start, mark) for index, mark in step.ready.items()}
        first, last = min(since.values()), max(since.values())
        forward_s = first
        if step.forward_end is not None:
            forward_s = min(first, self._between(step.start, step.forward_end))
        tensors = []
        for index, name, parameter in self._plannable():
            needed = step.needed.get(index)
            tensors.append(
                Tensor(
                    name,
                    max(1, parameter.numel() * parameter.element_size()),
                    str(parameter.dtype).removeprefix("torch."),
                    since.get(index, last),  # one without gradient leaves after the others
                    0.0 if needed is None else min(forward_s, self._between(step.start, needed)),
                )
            )
        tensors.sort(key=lambda tensor: tensor.ready_s)
        return Trace(model, tuple(tensors), forward_s, last - forward_s, "measured")


def profile_of(reducer: GradientReducer) -> Profile | None:
    """What AIACC_PROFILE asks for, if it does."""
    process_set = reducer.options.process_set
    if not wanted(process_set) or not any(p.requires_grad for _, p in reducer.named):
        return None
    return Profile(next_path(), lambda: recorder_of(reducer), process_set)


def recorder_of(reducer: GradientReducer) -> StepRecorder:
    """That of what ``reducer`` reduces, as far as a plan can have it."""
    return StepRecorder(reducer.named, reducer.sparse_names)


def tell_of_no_profile(of: str, process_set: ProcessSet) -> None:
    """Warn, where AIACC_PROFILE asks for a profile, that there is none of such an optimizer."""
    if wanted(process_set):
        refuse(
            f"of an optimizer with {of} (expected schedule='all_reduce' and another op than "
            "Adasum); record without it, the trace is good for plans of both schedules",
            stacklevel=4,
        )


def _in_backward() -> bool:
    """Whether autograd is running, and a module computes again what was not kept."""
    return torch._C._current_graph_task_id() != -1  # as `torch.utils.module_tracker` asks


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """``hook``, which torch.compile leaves out of its graphs, and breaks none for."""

    def call(*arguments: Any) -> None:
        hook(*arguments)

    outside: Any = torch._disable_dynamo(call)  # type: ignore[attr-defined]

    def untraced(*arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            outside(*arguments)

    return untraced


def _event(gpu: torch.device) -> Mark:
    event: Mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(gpu))  # another GPU may be the current one
    return event


def _between_times(start: Mark, end: Mark) -> float:
    return max(0.0, float(end - start))


def _between_events(start: Mark, end: Mark) -> float:
    return max(0.0, float(start.elapsed_time(end)) / 1e3)
