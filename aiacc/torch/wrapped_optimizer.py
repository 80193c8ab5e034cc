"""Optimizers that are of a subclass of the class of the one that they wrap."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.amp.grad_scaler import OptState

from aiacc.process_sets import ProcessSet
from aiacc.torch.reducer.options import ReductionOptions

if TYPE_CHECKING:
    from torch.optim import Optimizer as _Base
else:
    # At run time the class of the wrapped optimizer follows in the MRO.
    _Base = object

_Mixin = TypeVar("_Mixin")

#: Public methods that mixins put before those of the wrapped class. Of other public names that they
#: have the wrapped optimizer's own comes first; what mixins need themselves begins with "_aiacc".
REPLACED = {
    *("step", "zero_grad", "synchronize", "skip_synchronize", "set_backward_passes_per_step"),
    *("state_dict", "load_state_dict", "add_param_group"),
}

if TYPE_CHECKING:
    offered = setting = property
else:

    class offered:  # noqa: N801 - as property
        """A property of a mixin that gives way to an attribute of the wrapped optimizer."""

        def __init__(self, read: Callable[[Any], Any]) -> None:
            self.read, self.__doc__ = read, read.__doc__

        def __get__(self, instance: Any, owner: type) -> Any:
            return self if instance is None else self.read(instance)

    class setting(offered):  # noqa: N801 - as property
        """One that was an argument: nobody sets it later and believes that this changes it."""

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            own = {} if instance is None else vars(instance)
            return own[self.name] if self.name in own else super().__get__(instance, owner)

        def __set__(self, instance: Any, value: Any) -> None:
            if self.name not in vars(instance):
                raise AttributeError(
                    f"optimizer.{self.name} = {value!r:.100} (expected nothing: it is as the "
                    "optimizer was wrapped); pass it to DistributedOptimizer"
                )
            vars(instance)[self.name] = value


class ScaledOptimizer(_Base):
    """What a GradScaler of each rank steps, or skips, as those of the other ranks do."""

    #: Names by parameter, as Horovod offers them.
    _aiacc_names: dict[torch.Tensor, str]
    #: What a scaler notes of the step of the gradients that are reduced, once it is asked for it.
    _aiacc_account: Mapping[str, Any] = MappingProxyType({})

    #: Of the parameters of all groups, when they were last found to be reduced.
    _aiacc_ids: Sequence[int] = ()

    def _aiacc_reduced_parameters(self) -> Iterable[torch.Tensor]:
        """Those in groups of which other ranks hear."""
        return self._aiacc_names

    def _aiacc_check_groups(self) -> None:
        """Raise ValueError if a group has a parameter that is not reduced: ranks would differ.

        What is put into ``param_groups`` tells nobody.
        """
        ids = [id(parameter) for group in self.param_groups for parameter in group["params"]]
        if ids == self._aiacc_ids:
            return
        reduced = set(map(id, self._aiacc_reduced_parameters()))
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in reduced:
                    raise ValueError(
                        f"parameter {index} of optimizer.param_groups[{number}], of shape "
                        f"{tuple(parameter.shape)}, was put there after the optimizer was wrapped "
                        "(expected parameters whose gradients are reduced); use "
                        "optimizer.add_param_group(), or make the DistributedOptimizer anew"
                    )
        self._aiacc_ids = ids

    def _aiacc_prepare_for(self, scaler: torch.amp.GradScaler, account: dict[str, Any]) -> None:
        """Let every rank's scaler find the same in gradients. Collective, blocks."""
        raise NotImplementedError

    @offered
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._aiacc_names

    @property
    def _aiacc_is_over(self) -> bool:
        """Whether a scaler has ended that step, which it may have skipped."""
        return self._aiacc_account.get("stage") is OptState.STEPPED

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What GradScaler.step asks before it looks at gradients. Others get the answer alone."""
        asking = sys._getframe(1)
        if asking.f_code.co_name == "step":
            scaler = asking.f_locals.get("self")  # it says nowhere else who it is
            if isinstance(scaler, torch.amp.GradScaler):
                account = scaler._per_optimizer_states[id(self)]
                self._aiacc_prepare_for(scaler, account)
                self._aiacc_account = account
        name = "_step_supports_amp_scaling"
        return bool(vars(self).get(name, getattr(wrapped_class(self), name, False)))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = supports


class ReducingOptimizer(ScaledOptimizer):
    """What is the same of both schedules that reduce gradients."""

    _aiacc_synchronized: bool
    _aiacc_should_synchronize: bool

    @property
    def _aiacc_options(self) -> ReductionOptions:
        raise NotImplementedError

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context `step` does not synchronise, because `synchronize` was called before."""
        self._aiacc_should_synchronize = False
        try:
            yield
        finally:
            self._aiacc_should_synchronize = True

    @setting
    def op(self) -> int:
        """Reduction of the gradients."""
        return self._aiacc_options.op

    @setting
    def gradient_predivide_factor(self) -> float:
        """What gradients are divided by before the sum, and multiplied by afterwards."""
        return self._aiacc_options.postscale_factor

    @setting
    def sparse_as_dense(self) -> bool:
        """Whether sparse gradients are reduced as dense ones."""
        return self._aiacc_options.sparse_as_dense

    @setting
    def process_set(self) -> ProcessSet:
        """Ranks that take part."""
        return self._aiacc_options.process_set

    @staticmethod
    def _aiacc_check_clearable(under_way: bool) -> None:
        if under_way:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or synchronize() "
                "(expected after one of them, or while backward passes are accumulated); call one "
                "of them first, since the gradients are being reduced"
            )

    @staticmethod
    def _aiacc_check_reduced(reduced: bool, calls: str = "synchronize()") -> None:
        if not reduced:
            raise ValueError(
                "optimizer.step() inside skip_synchronize(), but gradients are not reduced "
                f"(expected {calls} after the last backward pass); call it"
            )


def instance_of(mixin: type[_Mixin], wrapped: type) -> _Mixin:
    """One without attributes, of a class that puts ``mixin`` before ``wrapped``, named like it.

    What ``wrapped`` has by a name that Horovod leaves alone comes before the mixin's.
    """
    offers = {name for cls in mixin.__mro__[:-1] for name in vars(cls) if name[0] != "_"}
    own = {
        name: inspect.getattr_static(wrapped, name)
        for name in (offers - REPLACED) | {"_parameter_names"}
        if hasattr(wrapped, name)
    }
    members = {**own, "__doc__": wrapped.__doc__}
    subclass: Any = type(wrapped.__name__, (mixin, wrapped), members)
    made: _Mixin = subclass.__new__(subclass)
    return made


def wrapped_class(distributed: object) -> type:
    """The ``wrapped`` of `instance_of`."""
    return type(distributed).__bases__[1]


def take_over(distributed: Any, optimizer: torch.optim.Optimizer) -> None:
    """Let ``distributed``, which is no more than an instance, have what ``optimizer`` has."""
    # Not by __init__, whose arguments are unknown. A scheduler may have put a step() of its own on
    # the instance, which would call the wrapped optimizer's.
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
    distributed.__dict__.update(attributes)
    for cls in type(optimizer).__mro__:
        for slot in vars(cls).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it may be empty
                    slot.__set__(distributed, slot.__get__(optimizer))
    if len(attributes) != len(vars(optimizer)):
        # The scheduler warns unless the wrapped optimizer steps, of which it keeps this record.
        distributed.register_step_post_hook(lambda *_: setattr(optimizer, "_opt_called", True))


@contextmanager
def kept_shared(distributed: torch.optim.Optimizer) -> Iterator[None]:
    """Let groups and state that are loaded in this context go into the dicts that there are.

    torch makes new ones; but the wrapped optimizer has these, and a scheduler that was made of it
    would set learning rates that nobody reads. A class may also load into those that there are.
    """
    groups, state = distributed.param_groups, distributed.state
    kept = list(groups)
    yield
    loaded, entries = list(map(dict, distributed.param_groups)), dict(distributed.state)
    for group, options in zip(kept, loaded, strict=True):
        group.clear()
        group.update(options)
    state.clear()
    state.update(entries)
    groups[:] = kept
    distributed.param_groups, distributed.state = groups, state
