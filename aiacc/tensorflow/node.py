"""How an op of the library is run: at once, or as a node of a graph.

A node of a graph has the name that `node_names` makes for it. Operations that run at once are over
when they return, so all of a kind can have one name. (TensorFlow keeps a kernel for each name that
an op was ever run with.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import tensorflow as tf

from aiacc.collectives.dtypes import DTYPE_CODES
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, set_id
from aiacc.tensorflow import calls, node_names, op_library

#: The rest of the names of operations without a name that run at once; begins as in the core.
_UNNAMED = "noname.tensorflow"

#: The ops have kernels for it alone, whatever device is asked for around them.
DEVICE = "/CPU:0"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def plain(function: _Function) -> _Function:
    """Decorator: `tf.function` calls it as it is, and does not rewrite its Python."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def gradient_of(op: str) -> Callable[[_Function], _Function]:
    """Decorator: the function is the gradient of an op."""
    return cast(Callable[[_Function], _Function], tf.RegisterGradient(op))


def run(
    op: str,
    verb: str,
    name: str | None,
    process_set: ProcessSet | int,
    inputs: Sequence[Any],
    **attributes: Any,
) -> Any:
    """Run a collective op, or add it to the graph that is being built, and return its outputs.

    Args:
        op: Name of the op's function in the library.
        verb: Begins the name that the ranks meet by.
        name: The rest of it, None for an automatic one.
        process_set: The set or its number.
        inputs: All but the tokens.
        **attributes: Of the op, besides those of all.

    Raises:
        ValueError: The process set is not registered.
        NotImplementedError: The graph is to be compiled by XLA.
    """
    function = getattr(op_library.checked(), op)
    number = process_set if isinstance(process_set, int) else set_id(process_set)
    if tf.executing_eagerly():
        wire_name = f"{verb}.{name or _UNNAMED}"
        with tf.device(DEVICE):
            return function(*inputs, [], wire_name=wire_name, process_set_id=number, **attributes)
    graph = tf.compat.v1.get_default_graph()
    refuse_xla(graph, label_of(verb, name))
    calls.name_them()
    token = token_of(graph)
    if name:
        wire_name = node_names.of_given(graph, verb, name, number)
    else:
        wire_name = node_names.of_node(graph, verb, number)
    with graph.name_scope(None), tf.device(DEVICE):
        return function(
            *inputs,
            [token],
            wire_name=wire_name,
            per_call=0 if name else 1,
            loops=node_names.loops_around(graph),
            process_set_id=number,
            name=node_names.label(graph, verb),
            **attributes,
        )


def in_session_graph() -> bool:
    """Whether a graph is being built that a session of `tf.compat.v1` runs, not `tf.function`."""
    return not (tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function)


def name_given_to(op: Any) -> str | None:
    """The name that the caller gave to a node or an op that was run; None if it was automatic."""
    _, _, name = op.get_attr("wire_name").decode().partition(".")
    return None if op.get_attr("per_call") or name.endswith(_UNNAMED) else name


def refuse_xla(graph: Any, what: str) -> None:
    """Raise NotImplementedError if ``graph``, or one that it is part of, is compiled by XLA."""
    while graph is not None:
        # The context has no public name in TensorFlow; without it XLA says that it has no kernel.
        context = getattr(graph, "_control_flow_context", None)
        while context is not None:
            if context.IsXLAContext():
                raise NotImplementedError(
                    f"[tensorflow] {what} in a function with jit_compile=True (expected no "
                    "compilation by XLA, which cannot communicate); pass jit_compile=False to "
                    "tf.function or model.compile"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


def token_of(graph: Any) -> Any:
    """An input without meaning that no optimisation of ``graph`` can foresee.

    Collectives are not stateful, or TensorFlow would run them one after the other. This keeps it
    from computing those whose inputs are constants while it optimises the graph.
    """
    token = getattr(graph, "_aiacc_token", None)
    if token is None:
        with tf.control_dependencies(None), graph.name_scope(None), tf.device(DEVICE):
            token = op_library.load().aiacc_token(name="aiacc_token")
        graph._aiacc_token = token
    return token


def bits_of(factor: float) -> int:
    """A factor as an attribute of an op, whose own floats have 32 bits. Pure."""
    (bits,) = struct.unpack("q", struct.pack("d", factor))
    return int(bits)


def factor_from(bits: int) -> float:
    """The inverse of `bits_of`."""
    (factor,) = struct.unpack("d", struct.pack("q", bits))
    return float(factor)


def tensor_of(value: Any, what: str) -> Any:
    """``value`` as a dense tensor of a dtype that the core knows.

    Raises:
        TypeError: It becomes no tensor.
        ValueError: Its dtype is another, or it is ragged or sparse.
    """
    tensor = _dense(value, what)
    if tensor.dtype.name not in DTYPE_CODES:
        remedy = "cast it"
        if tensor.dtype == tf.string:
            remedy = "use broadcast_object or allgather_object"
        elif tensor.dtype.is_complex:
            remedy = "use tf.math.real and tf.math.imag of it, and tf.complex of the results"
        raise ValueError(
            f"[tensorflow] {what}: dtype {tensor.dtype.name} (expected one of "
            f"{', '.join(DTYPE_CODES)}); {remedy}"
        )
    return tensor


def _dense(value: Any, what: str) -> Any:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise ValueError(
            f"[tensorflow] {what}: a {type(value).__name__} (expected a dense tensor); convert it "
            "(to_tensor, tf.sparse.to_dense), or pass its values"
        )
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"[tensorflow] {what}: {value!r:.100} (expected a tensor, or what becomes one); use "
            "broadcast_object or allgather_object for objects"
        ) from error


#: What elements of other dtypes travel as, which are moved and not added up; it has all of theirs.
_CARRIERS = {
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn"), tf.float16),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz"), tf.float16),
    **dict.fromkeys(("int2", "int4"), tf.int8),
    **dict.fromkeys(("uint2", "uint4"), tf.uint8),
    **{name: getattr(tf, name[1:]) for name in ("qint8", "quint8", "qint16", "quint16", "qint32")},
}


class Moved(NamedTuple):
    """A tensor of any dtype in a form that the core can move."""

    tensor: Any
    #: What makes the result of what has come.
    restore: Callable[[Any], Any]


def moved(value: Any, what: str, rows: bool = False) -> Moved:
    """`tensor_of` where elements are only moved, of numbers of any dtype.

    Args:
        value: What was given.
        what: What it was given for, for errors.
        rows: Whether it has to have a first dimension.

    Raises:
        TypeError: It becomes no tensor.
        ValueError: They are no numbers, or ragged or sparse.
        tf.errors.InvalidArgumentError: It lacks that dimension.
    """
    tensor = _dense(value, what)
    dtype = tensor.dtype
    carrier = _CARRIERS.get(dtype.name)
    if carrier is None and not dtype.is_complex:
        return Moved(tensor_of(tensor, what), lambda came: came)
    if rows and tensor.shape.rank == 0:  # as the core does; what travels has dimensions
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"[tensorflow] {what}: tensor without dimensions (expected at least one, the first of "
            "which is divided among the ranks); use tf.reshape(tensor, [1])",
        )
    if dtype.is_complex:
        parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
        # Of another shape than real numbers that are pairs, which another rank may have.
        parts = tf.expand_dims(parts, -1)
        return Moved(parts, lambda came: tf.complex(came[..., 0, 0], came[..., 1, 0]))
    change = tf.bitcast if dtype.is_quantized else tf.cast
    # As many extents of 1 tell one dtype from others, which another rank may have.
    ones = 1 + list(_CARRIERS).index(dtype.name)
    sent = change(tensor, carrier)[(..., *[tf.newaxis] * ones)]
    return Moved(sent, lambda came: change(came[(..., *[0] * ones)], dtype))


def rows_unknown(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Tell the shapes of nodes whose outputs are like their inputs but in the first dimension."""
    for output, given in zip(outputs, inputs, strict=True):
        if not tf.executing_eagerly() and given.shape.rank:
            output.set_shape([None, *given.shape[1:]])
