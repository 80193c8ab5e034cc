"""What all distributed optimizers of Keras have besides the class of the optimizer in them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from aiacc.tensorflow.gradients import GradientReduction, identity
from aiacc.tensorflow.keras.aggregation import LocalAggregation
from aiacc.tensorflow.recorder import record


class Parts:
    """What they have; an object of its own, so that Keras does not track it."""

    def __init__(self, reduction: GradientReduction, passes: LocalAggregation) -> None:
        self.reduction = reduction
        self.passes = passes
        #: Variables that each rank has for itself, by identity, which is theirs while they exist.
        self.local: dict[int, Any] = {}
        #: Gradients are being applied that are reduced, perhaps by a LossScaleOptimizer around.
        self.reduced_already = False

    def fresh(self) -> Parts:
        """Those of another optimizer with the same settings."""
        parts = Parts(self.reduction, self.passes.fresh())
        parts.local.update(self.local)
        return parts

    def __deepcopy__(self, memo: dict[int, Any]) -> Parts:
        """Those of a copy of the optimizer, which has the same variables for itself."""
        return self.fresh()

    def run(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        scaled: bool,
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        """Call ``apply`` with the gradients of all ranks, if this is the last of the passes.

        Collective: every rank. Blocks: until it is done, outside of graphs.

        Args:
            grads: Of this rank.
            variables: Of the gradients.
            scaled: Also the gradients of local variables shall be finite on all ranks or on none.
            apply: Updates the variables.

        Returns:
            What ``apply`` gave; None with several passes.
        """
        local = [identity(variable) in self.local for variable in variables]
        reduction = self.reduction
        record(grads, variables, local, reduction.sparse_as_dense, reduction.process_set)

        def update(grads: list[Any]) -> Any:
            if scaled and any(local):
                grads = reduction.alike_finite(grads, local)
            reduced = reduction.but_local(grads, variables, local)
            with self.applying():
                return apply(reduced)

        return self.passes.run(grads, variables, update)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Meanwhile gradients are not reduced again."""
        self.reduced_already = True
        try:
            yield
        finally:
            self.reduced_already = False


class Distributed:
    """The first base of every distributed optimizer.

    A LossScaleOptimizer would see for itself whether this rank's gradients are finite, and run the
    optimizer in it only then. So one that is put around a distributed optimizer becomes one, too,
    and reduces the gradients before it looks at them.
    """

    #: Of the optimizer that the class was made for; `from_config` and copies make others.
    _aiacc_first: ClassVar[Parts]
    _aiacc: Parts
    #: LossScaleOptimizer of this Keras, and what it sets on an optimizer when it is put around it.
    _aiacc_scaling: ClassVar[Any]
    _aiacc_mark: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See the class of the optimizer that was wrapped."""
        self.__dict__["_aiacc"] = self._aiacc_first.fresh()
        super().__init__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Also notice a LossScaleOptimizer."""
        super().__setattr__(name, value)
        if name == self._aiacc_mark:
            self._aiacc_share(self._aiacc_around())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles are of the original class, as what is saved: they load without aiacc."""
        del protocol  # from 2 on a pickle has to be of the class itself
        members = {name: value for name, value in vars(self).items() if name != "_aiacc"}
        return _instance(_original(type(self)), members).__reduce_ex__(1)

    def __copy__(self) -> Any:
        """A distributed one, with the same state."""
        return _instance(type(self), vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A distributed one, with a copy of the state."""
        memo[id(self)] = copied = _instance(type(self), {})
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied

    def register_local_var(self, variable: Any) -> None:
        """Leave the gradient of a variable of TensorFlow or Keras to each rank."""
        self._aiacc.local[identity(variable)] = variable

    def _aiacc_around(self) -> Any:
        """The LossScaleOptimizer that has called the caller, None if none has."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            caller = frame.f_locals.get("self")
            if isinstance(caller, self._aiacc_scaling) and caller is not self:
                return caller
            frame = frame.f_back
        return None

    def _aiacc_share(self, outer: Any) -> None:
        """Make ``outer`` a distributed optimizer if it is a LossScaleOptimizer around this one."""
        inner = getattr(outer, "inner_optimizer", None)
        if inner is self and not isinstance(outer, Distributed):
            mixin = next(cls for cls in type(self).__mro__ if Distributed in cls.__bases__)
            convert(outer, mixin, self._aiacc)

    def _aiacc_refuse_around(self) -> None:
        """Raise ValueError if a LossScaleOptimizer that was not noticed applies gradients."""
        if self._aiacc_around() is not None:
            raise ValueError(
                "a DistributedOptimizer in a LossScaleOptimizer that it was put into later, or of "
                "Keras before 3.10 (expected one that was made around it, so that the ranks agree "
                "whether gradients are finite); use DistributedOptimizer(LossScaleOptimizer("
                "optimizer)), with auto_scale_loss=False in model.compile of Keras 3"
            )


def _original(cls: type[Distributed]) -> type:
    """The class that `convert` has derived ``cls`` from."""
    return next(base for base in cls.__mro__ if not issubclass(base, Distributed))


def _instance(cls: type, members: dict[str, Any]) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(members)  # neither Keras's way to set attributes nor TensorFlow's
    return made


def convert(optimizer: Any, mixin: type[Distributed], parts: Parts) -> None:
    """Make ``optimizer`` itself a distributed one, which keeps all that it has.

    Its new class is derived from its own, and has the same name and module. A saved model names
    both: they are those that can load it.
    """
    base: Any = type(optimizer)
    members = {"__module__": base.__module__, "__doc__": base.__doc__, "_aiacc_first": parts}
    # Neither Keras's way to set attributes nor TensorFlow's.
    object.__setattr__(optimizer, "__class__", type(base.__name__, (mixin, base), members))
    optimizer.__dict__["_aiacc"] = parts
