"""Values and models over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiacc import arguments
from aiacc import tensorflow as hvd
from aiacc.collectives.reduce_ops import Average
from aiacc.tensorflow.compression import Compression, Compressor, compressor_of
from aiacc.tensorflow.keras.choice import keras
from aiacc.tensorflow.keras.optimizer import DistributedOptimizer


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """`aiacc.tensorflow.allreduce` of anything that becomes a tensor.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there, outside of graphs.

    Raises:
        ValueError: Bad argument.
        tf.errors.OpError: The operation failed.
    """
    return hvd.allreduce(
        value,
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """`aiacc.tensorflow.allgather` of anything that becomes a tensor.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there, outside of graphs.

    Raises:
        tf.errors.OpError: The operation failed.
    """
    return hvd.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """`aiacc.tensorflow.broadcast` of anything that becomes a tensor.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: until the result is there, outside of graphs.

    Raises:
        tf.errors.OpError: The operation failed.
    """
    return hvd.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """`aiacc.tensorflow.reducescatter` of anything that becomes a tensor.

    Collective: every rank, with the same name, shape, dtype and op.
    Blocks: until the result is there, outside of graphs.

    Raises:
        tf.errors.OpError: The operation failed.
    """
    return hvd.reducescatter(value, op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Load a saved model, and make its optimizer a `DistributedOptimizer`, with its state.

    Collective: no, though every rank needs the file and the wrapped optimizer.
    Blocks: never.

    Args:
        filepath: What ``model.save`` wrote.
        custom_optimizers: Optimizer classes that are none of Keras's.
        custom_objects: Other classes that are none of Keras's, by name.
        compression: Form in which gradients travel.
        legacy_opts: Accepted because Horovod has it.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: What `keras.models.load_model` refuses.
    """
    arguments.check(
        locals(),
        custom_optimizers=arguments.or_none(
            arguments.several(lambda one: isinstance(one, type), "a list of classes")
        ),
        custom_objects=arguments.or_none(arguments.of(Mapping, "a dict of classes by name")),
        legacy_opts=arguments.FLAG,
    )
    compressor_of(compression)  # refuses what is none
    del legacy_opts
    objects = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
