"""What `awaited` alone does not do: compiled modules, uses that torch does not see, the order."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from aiacc.torch.compile import is_compiled
from aiacc.torch.decoupled.awaited import is_awaited, release
from aiacc.torch.decoupled.bucket import Bucket


def check_owned(model: nn.Module, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise ValueError for a parameter that no module of ``model`` has."""
    owned = {id(parameter) for parameter in model.parameters()}
    for name, parameter in named:
        if id(parameter) not in owned:
            raise ValueError(
                f"parameter {name!r} belongs to no module of model {type(model).__name__} "
                "(expected one that has all parameters of the optimizer); pass the model that is "
                "trained, or use schedule='all_reduce'"
            )


def in_order_of(
    model: nn.Module, named: Sequence[tuple[str, torch.Tensor]]
) -> list[tuple[str, torch.Tensor]]:
    """``named`` as ``model`` has registered them, for forward passes mostly follow that order."""
    place = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return sorted(named, key=lambda entry: place.get(id(entry[1]), len(place)))


class Guards:
    """Who uses parameters without asking their class, and in which order buckets are needed.

    Compiled code checks the class of what it uses, and would be compiled anew: before a compiled
    module is called, hooks wait for all parameters below it; so they do if
    ``torch.compile`` has the whole model. A forward pass of the model in evaluation mode or without
    gradients waits for all as well, for some of torch's modules go other ways then if a parameter
    has a class of its own.

    In the second step every parameter is watched, and current. What gets a gradient, but was not
    seen in use, is used by code that torch does not see. Its bucket is waited for at the end of
    each step from then on.

    Threads: that of the forward pass; hooks of gradients call `check_gradient` in autograd's.
    Ranks: each decides for itself, since waiting for one's own operations concerns no other.
    """

    def __init__(
        self,
        model: nn.Module,
        named: Sequence[tuple[str, torch.Tensor]],
        buckets: Sequence[Bucket],
        settle: Callable[[int], None],
        overwrite: Callable[[], None],
    ) -> None:
        """Hook on to ``model``; ``settle`` waits for a bucket, ``overwrite`` for all."""
        self._model, self._named, self._buckets = model, named, buckets
        self._settle = settle
        #: Buckets that are waited for at the end of each step.
        self.synchronous: set[int] = set()
        #: Buckets in the order in which the second step needed them, as far as that is known.
        self.order: dict[int, None] = {}
        #: Whether this is the second step.
        self.learns = False
        self._steps = 0
        self._bucket_of = {n: b for b, bucket in enumerate(buckets) for n in bucket.members}
        self._modules = list(model.modules())
        self._hooked: set[nn.Module] = set()
        self._hooks: list[RemovableHandle] = []
        untyped: Any = model
        hook_before_load = untyped._register_load_state_dict_pre_hook  # torch 2.4 has no public one
        self._hooks.append(hook_before_load(_Load(model, overwrite), with_module=True))
        self._hook(model, whole=True)
        self._look_for_compiled()

    def remove(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def end_step(self) -> None:
        """After the gathers of a step were started."""
        self._look_for_compiled()
        self._steps += 1
        self.learns = self._steps == 1
        if self.learns:
            for number in range(len(self._buckets)):
                self._settle(number)
                self._buckets[number].watch(self._used)

    def check_gradient(self, index: int) -> None:
        """A gradient has come: was its parameter waited for when it was used?

        Raises:
            RuntimeError: No.
        """
        number = self._bucket_of[index]
        name, parameter = self._named[index]
        if not self.learns:
            raise RuntimeError(
                f"schedule='decoupled': parameter {name!r} has a gradient, but was not used since "
                "the last step as far as torch knows (expected functions of torch, in the same "
                "step); code that torch does not see has got NaN in the place of its values, call "
                "optimizer.flush() before that runs"
            )
        if is_awaited(parameter) and number not in self.synchronous:
            self.synchronous.add(number)
            warnings.warn(
                f"schedule='decoupled': parameter {name!r} was used by code that torch does not "
                f"see, such as TorchScript: {len(self.synchronous)} of {len(self._buckets)} "
                "buckets are waited for at the end of each step from now on, as in "
                "schedule='all_reduce'",
                stacklevel=3,
            )

    def _used(self, index: int) -> None:
        number = self._bucket_of[index]
        self.order.setdefault(number)
        if not self._buckets[number].hidden:  # by a step that another thread has ended meanwhile
            release(self._named[index][1])

    # --- compiled modules

    def _look_for_compiled(self) -> None:
        for module in self._modules:
            if module not in self._hooked and is_compiled(module):
                self._hook(module)

    def _hook(self, module: nn.Module, *, whole: bool = False) -> None:
        self._hooked.add(module)
        below = {id(parameter) for parameter in module.parameters()}
        members = [n for n, (_, parameter) in enumerate(self._named) if id(parameter) in below]
        numbers = sorted({self._bucket_of[index] for index in members})
        guard = Guard([self._buckets[n] for n in numbers], numbers, self._wait, whole=whole)
        self._hooks.append(module.register_forward_pre_hook(guard, prepend=True))

    def _wait(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.order.setdefault(number)
            self._settle(number)


class _Hook:
    """A hook that copies of a module have, too; in pickles one that does nothing."""

    def __deepcopy__(self, memo: Any) -> _Hook:
        """Itself: a copy of the module waits for the same parameters, for nothing."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What guards nothing: another process has no such parameters."""
        return _no_hook, ()


class Guard(_Hook):
    """The forward pre-hook of a compiled module, and of the model."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        numbers: Sequence[int],
        wait: Callable[[Sequence[int]], None],
        *,
        whole: bool,
    ) -> None:
        """Wait for the buckets of these numbers; of the model as a ``whole`` if it is needed."""
        self._buckets, self._numbers, self._whole = buckets, numbers, whole

        def settle(numbers: Sequence[int]) -> None:
            wait(numbers)

        self._wait: Callable[[Sequence[int]], None] = _outside_of_graphs(settle)

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        """Before ``module`` is called."""
        del arguments
        if self._whole and module.training and torch.is_grad_enabled() and not _is_under_dynamo():
            return
        for bucket in self._buckets:
            if not bucket.open:
                self._wait(self._numbers)
                return


#: `torch.compiler.disable`, which does not import dynamo before it is used.
_outside_of_graphs: Any = torch._disable_dynamo  # type: ignore[attr-defined]


class _Load(_Hook):
    """Calls a function before the model is loaded, and not before a copy of it is."""

    def __init__(self, model: nn.Module, function: Callable[[], None]) -> None:
        self._model, self._function = model, function

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if module is self._model:
            self._function()


def _nothing(*arguments: Any) -> None:
    del arguments


def _no_hook() -> Callable[..., None]:
    return _nothing


def _is_under_dynamo() -> bool:
    """Whether torch.compile has the caller, and so what the caller calls."""
    if torch.compiler.is_compiling():
        return True
    callback: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
    if callback is None:  # before torch 2.6
        return "torch._dynamo" in sys.modules
    return callback() is not None
