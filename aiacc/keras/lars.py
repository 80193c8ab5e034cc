"""LARS for Keras 3, as `aiacc.optim.LARS` is for torch; see there for the method.

from aiacc.keras.lars import LARS
model.compile(hvd.DistributedOptimizer(LARS(10.0, weight_decay=1e-4)), "mse")
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from typing import Any

import keras
from keras import ops

from aiacc import arguments


@keras.saving.register_keras_serializable(package="aiacc")
class LARS(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """SGD with momentum whose rate of each variable follows from norms.

    A variable whose norm or whose gradient's is 0 has ratio 1. Norms are at least float32.
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float | None = None,
        *,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-8,
        trust_clamp: tuple[float, float] | None = None,
        exclude: Collection[str] = (),
        adapt_one_dimensional: bool = False,
        name: str = "lars",
        **kwargs: Any,
    ) -> None:
        """Update variables in `apply`.

        Args:
            learning_rate: A number or a schedule, of which each variable takes its ratio.
            momentum: What stays of earlier steps.
            nesterov: Nesterov's momentum.
            weight_decay: Multiple of the variables that is added to the gradient, and counts in
                the ratio. (That of Keras's own optimizers is subtracted apart.)
            trust_coefficient: The paper's eta.
            epsilon: Added to the denominator.
            trust_clamp: Least and largest ratio.
            exclude: Patterns of variables' paths, such as ``"*/gamma"``, that have neither ratio
                nor weight decay.
            adapt_one_dimensional: Whether variables of one dimension have them.
            name: Of the optimizer.
            **kwargs: As of every optimizer of Keras.

        Raises:
            TypeError: An option of a wrong type.
            ValueError: A number that makes no sense.
        """
        rate = learning_rate if isinstance(learning_rate, float) else 0.0
        arguments.check(
            {**locals(), "learning_rate": rate},
            learning_rate=arguments.number(0),
            weight_decay=arguments.or_none(arguments.number(0)),
            exclude=arguments.PATTERNS,
        )
        super().__init__(learning_rate, name=name, **kwargs)
        decay = weight_decay or 0.0
        if nesterov and not momentum:
            raise ValueError("nesterov=True with momentum=0 (expected a momentum)")
        self.momentum = momentum
        self.nesterov = nesterov
        self.decay = decay
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self.trust_clamp = None if trust_clamp is None else tuple(trust_clamp)
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        self.adapt_one_dimensional = adapt_one_dimensional

    def build(self, variables: Any) -> None:
        """Make the momenta of ``variables``."""
        if self.built:
            return
        super().build(variables)
        # Here they have their paths; in a strategy's update they have not.
        self.adapted = [self._adapts(variable) for variable in variables]
        momenta = variables if self.momentum else []
        self.momenta = [self.add_variable_from_reference(one, "momentum") for one in momenta]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        rate = ops.cast(learning_rate, variable.dtype)
        change = ops.cast(ops.convert_to_tensor(gradient, sparse=False), variable.dtype)
        index = self._get_variable_index(variable)
        if self.adapted[index]:
            change = self._ratio(variable, change) * (change + self.decay * variable)
        if self.momentum:
            kept = self.momenta[index]
            self.assign(kept, self.momentum * kept + change)
            change = change + self.momentum * kept if self.nesterov else kept
        self.assign_sub(variable, rate * change)

    def _adapts(self, variable: Any) -> bool:
        if len(variable.shape) <= 1 and not self.adapt_one_dimensional:
            return False
        return not any(fnmatch.fnmatchcase(variable.path, pattern) for pattern in self.exclude)

    def _ratio(self, variable: Any, gradient: Any) -> Any:
        weights, slope = (_norm(tensor) for tensor in (variable, gradient))
        below = slope + self.decay * weights + self.epsilon
        known = ops.logical_and(weights > 0, slope > 0)
        ratio = ops.where(known, self.trust_coefficient * weights / below, 1.0)
        if self.trust_clamp is not None:
            ratio = ops.clip(ratio, *self.trust_clamp)
        return ops.cast(ratio, variable.dtype)

    def get_config(self) -> dict[str, Any]:
        """Arguments that make the same optimizer."""
        config: dict[str, Any] = super().get_config()
        config.update(
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.decay,
            trust_coefficient=self.trust_coefficient,
            epsilon=self.epsilon,
            trust_clamp=self.trust_clamp,
            exclude=self.exclude,
            adapt_one_dimensional=self.adapt_one_dimensional,
        )
        return config


def _norm(tensor: Any) -> Any:
    """2-norm, in float32 for 16 bits, whose squares overflow."""
    value = ops.convert_to_tensor(tensor)
    if keras.backend.standardize_dtype(value.dtype) in ("float16", "bfloat16"):
        value = ops.cast(value, "float32")
    return ops.sqrt(ops.sum(ops.square(value)))
