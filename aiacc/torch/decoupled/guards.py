"""Forward pre-hooks that wait for the parameters which a module is about to use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from aiacc.torch.decoupled.bucket import Bucket
from aiacc.torch.decoupled.uses import Uses


def owners_of(
    model: nn.Module, named: Sequence[tuple[str, torch.Tensor]]
) -> dict[int, list[nn.Module]]:
    """The modules that have each parameter as their own, by its number; several if they share it.

    Raises:
        ValueError: A parameter that no module of ``model`` has.
    """
    number_of = {id(parameter): number for number, (_, parameter) in enumerate(named)}
    owners: dict[int, list[nn.Module]] = {number: [] for number in number_of.values()}
    for module in model.modules():
        for parameter in module._parameters.values():
            number = number_of.get(id(parameter))
            if number is not None and module not in owners[number]:
                owners[number].append(module)
    for number, modules in owners.items():
        if not modules:
            raise ValueError(
                f"parameter {named[number][0]!r} belongs to no module of model "
                f"{type(model).__name__} (expected one that has all parameters of the optimizer); "
                "pass the model that is trained, or use schedule='all_reduce'"
            )
    return owners


def in_order_of(
    model: nn.Module, named: Sequence[tuple[str, torch.Tensor]]
) -> list[tuple[str, torch.Tensor]]:
    """``named`` as ``model`` has registered them, for forward passes mostly follow that order."""
    place = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return sorted(named, key=lambda entry: place.get(id(entry[1]), len(place)))


class _Hook:
    """A hook that copies of a module have, too; in pickles one that does nothing."""

    def __deepcopy__(self, memo: Any) -> _Hook:
        """Itself: a copy of the module guards the same parameters, or others for nothing."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What guards nothing: another process has no such parameters."""
        return _no_guard, ()


class Guard(_Hook):
    """The pre-hook of a module."""

    def __init__(self, before: Callable[[nn.Module, list[int]], None]) -> None:
        """Wait for no bucket yet."""
        self.buckets: list[int] = []
        self._before = before

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        """Before ``module`` is called."""
        del arguments
        self._before(module, self.buckets)


class Guards:
    """Waits for the all-gather of a bucket before the first use of any of its parameters.

    A module that has parameters waits for their buckets. In the first step, whose end waits for
    everything, every use of a parameter is watched: one before its module was called, as of a child
    whose weights its parent uses, is guarded by the module that was called last before it. What is
    used outside of all modules has no guard, and its bucket is waited for at the end of each step.

    A forward pass in evaluation mode or without gradients waits for all buckets at its begin.

    Threads: that of the forward pass; hooks of gradients tell `check_gradient` from autograd's.
    Ranks: each decides for itself, since waiting for one's own operations concerns no other.
    """

    def __init__(
        self,
        model: nn.Module,
        named: Sequence[tuple[str, torch.Tensor]],
        buckets: Sequence[Bucket],
        wait: Callable[[int], None],
        flush: Callable[[], None],
        overwrite: Callable[[], None],
    ) -> None:
        """Hook on to ``model``; ``wait`` waits for a bucket, the others for all (`Exchange`)."""
        self._model, self._named, self._buckets = model, named, buckets
        self._wait, self._flush = wait, flush
        #: Buckets that are waited for at the end of each step.
        self.synchronous: set[int] = set()
        #: Buckets in the order in which forward passes need them, as far as that is known.
        self.order: dict[int, None] = {}
        #: Parameters that were used in the first step before a module waited for them.
        self._unguarded: set[int] = set()
        #: Whether this is the first step.
        self.learns = True
        self._last: nn.Module | None = None
        self._uses: list[Any] = []
        self._numbers = {id(parameter): number for number, (_, parameter) in enumerate(named)}
        self._bucket_of = {n: b for b, bucket in enumerate(buckets) for n in bucket.members}
        self._guards: dict[nn.Module, Guard] = {}
        self._hooks: list[RemovableHandle] = []
        owners = owners_of(model, named)
        for module in model.modules():
            guard = self._guards[module] = Guard(self._before)
            # Before those of old weight_norm and the like, which compute weights from parameters.
            self._hooks.append(module.register_forward_pre_hook(guard, prepend=True))
            untyped: Any = module
            self._hooks.append(untyped.register_state_dict_pre_hook(_Call(flush)))
            self._hooks.append(untyped.register_load_state_dict_pre_hook(_Call(overwrite)))
        for number, modules in owners.items():
            for module in modules:
                self._add(module, self._bucket_of[number])
        self._hooks.append(model.register_forward_hook(_Call(self._leave), always_call=True))

    def remove(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def end_step(self) -> None:
        """After the first step: what is not guarded by now is waited for in each step."""
        self.learns = False
        self._last = None
        if self._unguarded:
            numbers = sorted(self._unguarded)
            self._give_up(numbers, "outside of the forward pass of the model's modules")

    def check_gradient(self, number: int) -> None:
        """A gradient has come. Its parameter was used: was it guarded?"""
        bucket = self._bucket_of[number]
        if self.learns:
            if bucket not in self.order:
                self._unguarded.add(number)
        elif self._buckets[bucket].gathering:
            self._wait(bucket)
            self._give_up(
                [number],
                "with values of the step before perhaps, for no module that was called waits for "
                "it; call optimizer.flush() before such a use",
            )

    def _give_up(self, numbers: Sequence[int], how: str) -> None:
        self.synchronous.update(self._bucket_of[number] for number in numbers)
        warnings.warn(
            f"schedule='decoupled': parameter {self._named[numbers[0]][0]!r} was used {how}: "
            f"{len(self.synchronous)} of {len(self._buckets)} buckets are waited for at the end of "
            "each step from now on, as in schedule='all_reduce'",
            stacklevel=3,
        )

    def _add(self, module: nn.Module, bucket: int) -> None:
        buckets = self._guards[module].buckets
        if bucket not in buckets:
            buckets.append(bucket)

    def _before(self, module: nn.Module, buckets: list[int]) -> None:
        if self.learns:
            self._learn(module, buckets)
        if not module.training or not torch.is_grad_enabled():
            self._flush()
            return
        for bucket in buckets:
            if self._buckets[bucket].gathering:
                self._wait(bucket)

    # --- the first step

    def _learn(self, module: nn.Module, buckets: list[int]) -> None:
        if not torch.is_grad_enabled() or module not in self._guards:
            return
        if module is self._model and not torch.compiler.is_compiling():
            mode: Any = Uses(self._numbers, self._used)
            self._uses.append(mode)
            mode.__enter__()
        self._last = module
        self.order.update(dict.fromkeys(buckets))

    def _used(self, number: int) -> None:
        bucket = self._bucket_of[number]
        if bucket not in self.order and self._last is not None:
            self.order[bucket] = None
            self._add(self._last, bucket)

    def _leave(self) -> None:
        if self._uses:
            self._uses.pop().__exit__(None, None, None)


class _Call(_Hook):
    """A hook of any arguments that calls a function."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        self._function()


def _nothing(*arguments: Any) -> None:
    del arguments


def _no_guard() -> Callable[..., None]:
    return _nothing
