"""What ranks do together in the course of `keras.Model.fit`, with the Keras of `choice`."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from aiacc import arguments
from aiacc import tensorflow as hvd
from aiacc.tensorflow.gradients import identity
from aiacc.tensorflow.keras.choice import keras


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the variables of model and optimizers from one rank to all, after the first batch.

    Not before it, for only then does an optimizer have all its variables. Optimizers are the one of
    ``compile``, and those that are attributes of the model or of its layers, also in lists and
    dicts. Seeds of Keras 3 stay those of each rank.

    Collective: every rank, in the same place of its list of callbacks.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: list[Any] | None = None
    ) -> None:
        """Copy from ``root_rank`` all but ``local_variables``; ``device`` is not used.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: A negative rank.
        """
        arguments.check(
            locals(), local_variables=arguments.or_none(arguments.of(Iterable, "a list"))
        )
        super().__init__()
        del device
        self._root_rank = root_rank
        self._local = set(map(identity, local_variables or ()))
        self._done = False

    def register_local_var(self, variable: Any) -> None:
        """Leave a variable to each rank."""
        self._local.add(identity(variable))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Copy, once. Blocks: until all ranks are here.

        Raises:
            ValueError: On every rank: the variables of one are not like those of the root.
        """
        del batch, logs
        if self._done:
            return
        parts: list[tuple[str, list[Any]]] = [("the model", self.model.weights)]
        for number, one in enumerate(optimizers_of(self.model)):
            parts.append((f"optimizer {number} ({type(one).__name__})", _state_of(one)))
        parts = [
            (what, [v for v in some if identity(v) not in self._local]) for what, some in parts
        ]
        _check_alike(
            [(what, [tuple(v.shape) for v in some]) for what, some in parts], self._root_rank
        )
        every = {identity(variable): variable for _, some in parts for variable in some}
        hvd.broadcast_variables(every.values(), self._root_rank)
        self._done = True


def optimizers_of(model: keras.Model) -> list[Any]:
    """The optimizer of ``model.compile``, then those that the model and its layers keep; each once.

    Pure.
    """
    found: dict[int, Any] = {}
    older = getattr(keras.optimizers, "legacy", None)
    kinds = (keras.optimizers.Optimizer, getattr(older, "Optimizer", keras.optimizers.Optimizer))

    def look(value: Any) -> None:
        if isinstance(value, kinds):
            found.setdefault(id(value), value)
        elif isinstance(value, dict | list | tuple):
            for one in value.values() if isinstance(value, dict) else value:
                look(one)

    look(getattr(model, "optimizer", None))
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            look(value)
    return list(found.values())


def _state_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer, with those of a loss scale, which tf_keras does not list."""
    state = optimizer.variables
    scale = getattr(optimizer, "_loss_scale", None)
    names = ("current_loss_scale", "counter")
    own = [getattr(scale, name) for name in names if hasattr(scale, name)]
    return [*(state() if callable(state) else state), *own]


def _check_alike(parts: list[tuple[str, list[tuple[int, ...]]]], root_rank: int) -> None:
    """Raise ValueError on every rank if variables of one have other shapes than the root's.

    Collective: every rank. Blocks: until all have answered.
    """
    roots = hvd.broadcast_object(parts, root_rank, name="broadcast.shapes")
    nothing: tuple[str, list[tuple[int, ...]]] = ("nothing", [])
    problem = ""
    for own, other in itertools.zip_longest(parts, roots, fillvalue=nothing):
        if own != other and not problem:
            problem = (
                f"{own[0]} of rank {hvd.rank()} has {len(own[1])} variables of shapes "
                f"{own[1]!s:.200} (expected those of {other[0]} of rank {root_rank}, "
                f"{len(other[1])} of {other[1]!s:.200}); make the same ones on every rank, or "
                "build the optimizer on all before fit: optimizer.build(variables)"
            )
    for text in hvd.allgather_object(problem, name="broadcast.problems"):
        if text:
            raise ValueError(text)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the ranks, in place and in float64.

    Those are numbers, and arrays, tensors and lists of real numbers; anything else is left alone.
    It has to stand before callbacks that use metrics, such as `ReduceLROnPlateau`.

    Collective: every rank, in the same place of its list of callbacks.
    """

    def __init__(self, device: str = "") -> None:
        """Average all numbers of the logs; ``device`` is not used."""
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace what is of numbers by its average. Blocks: until all ranks are here.

        Floating-point arrays and tensors keep their dtype; others become float64.

        Raises:
            ValueError: The ranks have different metrics, or of different shapes.
        """
        del epoch
        logs = {} if logs is None else logs
        given = {name: array for name in sorted(logs) if (array := _real(logs[name])) is not None}
        names = [f"{name}{list(array.shape) or ''}" for name, array in given.items()]
        everyones = hvd.allgather_object(names, name="metrics.names")
        if any(others != names for others in everyones):
            raise ValueError(
                f"metrics {everyones!s:.300} by rank (expected the same on all ranks, for each is "
                "averaged over them); give all ranks the same metrics and validation data"
            )
        values = [array.astype(np.float64).ravel() for array in given.values()]
        averages = hvd.allreduce(np.concatenate([[], *values]), name="metrics", op=hvd.Average)
        ends = np.cumsum([value.size for value in values], dtype=int)
        for (name, array), average in zip(
            given.items(), np.split(averages.numpy(), ends[:-1]), strict=False
        ):
            logs[name] = _like(logs[name], array, average.reshape(array.shape))


def _real(value: Any) -> Any:
    """``value`` as an array; None if it is not one of real numbers."""
    try:
        # NumPy makes of a tensor without dimensions a number, whose dtype it may not know.
        array = np.asarray(value.numpy() if tf.is_tensor(value) else value)
        dtype = tf.as_dtype(array.dtype)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # of strange things, or of lists of several lengths
        return None
    return array if dtype.is_floating or dtype.is_integer or dtype.is_bool else None


def _like(value: Any, array: Any, average: Any) -> Any:
    """``average`` as what ``value`` is, which ``array`` is equal to."""
    kept = average.astype(array.dtype) if tf.as_dtype(array.dtype).is_floating else average
    if tf.is_tensor(value):
        return tf.constant(kept)
    return kept if isinstance(value, np.ndarray) else average.tolist()


_OF_RATES = {
    "initial_lr": arguments.number(0),
    "multiplier": arguments.Rule(
        "a finite number, or a function of the epoch",
        lambda value: callable(value) or arguments.is_number(value),
        lambda value: callable(value) or arguments.FINITE.fits(value),
    ),
    "start_epoch": arguments.FINITE,
    "end_epoch": arguments.or_none(arguments.NUMBER),
    "staircase": arguments.FLAG,
    "momentum_correction": arguments.FLAG,
    "steps_per_epoch": arguments.or_none(arguments.number(0)),
    "warmup_epochs": arguments.number(0),
    "verbose": arguments.Rule(
        "0, 1 or 2",
        lambda value: isinstance(value, bool) or arguments.is_whole(value),
        lambda value: 0 <= value <= 2,
    ),
}


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the learning rate of ``model.optimizer`` by what depends on the epoch.

    Collective: no.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Describe the schedule.

        Args:
            initial_lr: Learning rate that is multiplied.
            multiplier: Constant, or function of the epoch. A constant c is c in every epoch, as
                Horovod's documentation says; its code takes ``c ** (epoch - start_epoch)``, for
                which a function may be given.
            start_epoch: First epoch that it is for.
            end_epoch: First that it is not for any more.
            staircase: Change it per epoch; otherwise per batch, with fractions of an epoch.
            momentum_correction: Accepted because Horovod has it: Keras 3 compiles the momentum into
                the step, where it cannot be changed for a while.
            steps_per_epoch: Batches of an epoch, where Keras does not know them.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: Another wrong argument.
        """
        arguments.check(locals(), **_OF_RATES)
        super().__init__()
        del momentum_correction
        self._initial_lr = initial_lr
        self._multiplier = multiplier
        self._start_epoch = start_epoch
        self._end_epoch = math.inf if end_epoch is None else end_epoch
        self._staircase = staircase
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out how many batches an epoch has.

        Raises:
            ValueError: Nobody knows; the model has no optimizer.
        """
        del logs
        if getattr(self.model, "optimizer", None) is None:
            raise ValueError(
                f"model.optimizer is None (expected the optimizer whose rate {type(self).__name__} "
                "sets); give one to compile, or set the rates of others in a callback of your own"
            )
        if not self._staircase and not self._steps_per_epoch:
            self._steps_per_epoch = self.params.get("steps")
            if not self._steps_per_epoch:
                raise ValueError(
                    "steps_per_epoch=None, and Keras does not know it (expected a number); give "
                    f"steps_per_epoch to {type(self).__name__}"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the learning rate of the epoch."""
        del logs
        self._epoch = epoch
        if self._staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the learning rate of the batch."""
        del logs
        if not self._staircase and self._steps_per_epoch:
            self._adjust(self._epoch + batch / self._steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell the learning rate as ``lr``, as Horovod does."""
        del epoch
        if logs is not None:
            logs["lr"] = _learning_rate(self.model)

    def _adjust(self, epoch: float) -> None:
        if self._start_epoch <= epoch < self._end_epoch:
            factor = self._multiplier(epoch) if callable(self._multiplier) else self._multiplier
            what = f"multiplier({epoch:g})"
            arguments.check({what: factor}, **{what: arguments.FINITE})
            self.model.optimizer.learning_rate = self._initial_lr * factor


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to ``initial_lr``, batch by batch.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2.

    Collective: no.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Describe the warm-up.

        Args:
            initial_lr: Learning rate at its end, which begins as this divided by the ranks.
            warmup_epochs: How long it lasts.
            momentum_correction: See `LearningRateScheduleCallback`.
            steps_per_epoch: See `LearningRateScheduleCallback`.
            verbose: 1: rank 0 prints the learning rate at its end.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: Another wrong argument.
        """
        arguments.check(locals(), **_OF_RATES)
        self._warmup_epochs = warmup_epochs
        self._verbose = verbose
        super().__init__(
            initial_lr,
            self._factor,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def _factor(self, epoch: float) -> float:
        # The last batch of the warm-up has the whole learning rate.
        reached = min(1.0, (epoch + 1.0 / (self._steps_per_epoch or 1)) / self._warmup_epochs)
        return 1.0 / hvd.size() * (1.0 + reached * (hvd.size() - 1.0))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup_epochs - 1 and self._verbose and hvd.rank() == 0:
            rate = _learning_rate(self.model)
            sys.stdout.write(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n"
            )


def _learning_rate(model: keras.Model) -> float:
    return float(np.asarray(model.optimizer.learning_rate))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`keras.callbacks.ModelCheckpoint` of the best model, to best.keras or best.weights.h5.

    Set its ``filepath`` for another place. Give it to one rank alone.

    Collective: no.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str = "epoch",
    ) -> None:
        """See `keras.callbacks.ModelCheckpoint`."""
        super().__init__(
            "best.weights.h5" if save_weights_only else "best.keras",
            monitor,
            verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
