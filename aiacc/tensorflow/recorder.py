"""Records when the gradients of a compiled step are ready: a profile for `aiacc-plan`.

For each gradient the graph has a node that gives the time at which the gradient is there: when the
kernel that sends it could start. What these nodes give comes to Python in one call at the end of a
step, until there are enough steps; nothing waits for it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from aiacc.autotune.profile import COUNTED, WARM_UP, Profile, next_path, refuse, wanted
from aiacc.collectives.dtypes import DTYPE_CODES
from aiacc.planning.trace import Tensor, Trace
from aiacc.process_sets import ProcessSet
from aiacc.tensorflow import node, op_library
from aiacc.tensorflow.planned import names_of


class Gradient(NamedTuple):
    """What a trace says of a gradient besides its times."""

    name: str
    bytes: int
    dtype: str


class MomentRecorder:
    """Moments of steps, as `record` gets them. Threads: one at a time."""

    def __init__(self, gradients: Sequence[Gradient]) -> None:
        """Expect a moment for the start of a step, then one for each of these."""
        self._gradients = gradients
        self._moments: Sequence[int] = ()
        self._steps: list[Sequence[int]] = []

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every gradient, by name."""
        return {gradient.name: gradient.bytes for gradient in self._gradients}

    def note(self, moments: Sequence[int]) -> None:
        """Keep the moments of a step that is about to be over, in nanoseconds of any clock."""
        self._moments = moments

    def step_done(self) -> None:
        """Note the end of a step."""
        self._steps.append(self._moments)

    def detach(self) -> None:
        """Nothing: the graph counts the steps for itself."""

    def traces(self, model: str) -> list[Trace]:
        """What was recorded, a trace for each step."""
        return [trace_of(model, self._gradients, moments) for moments in self._steps]


def trace_of(model: str, gradients: Sequence[Gradient], moments: Sequence[int]) -> Trace:
    """The trace of a step whose start and gradients came at these moments, in nanoseconds. Pure.

    Of the forward pass it is only known that it ends before the first gradient comes. When it needs
    which parameter is not known: it may be the start.
    """
    start = min(moments)  # the node that tells it may have been run late
    ready = [(moment - start) / 1e9 for moment in moments[1:]]
    forward_s = min(ready)
    tensors = [
        Tensor(gradient.name, max(1, gradient.bytes), gradient.dtype, at, 0.0)
        for gradient, at in zip(gradients, ready, strict=True)
    ]
    tensors.sort(key=lambda tensor: tensor.ready_s)
    return Trace(model, tuple(tensors), forward_s, max(ready) - forward_s, "measured")


class _Recording:
    """The profile of the gradients of some variables, in however many graphs they are computed."""

    def __init__(self, gradients: Sequence[Gradient], process_set: ProcessSet) -> None:
        self._gradients = gradients
        with tf.init_scope(), tf.device(node.DEVICE):
            self._left = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._profile = Profile(next_path(), self._record, process_set)

    def _record(self) -> MomentRecorder:
        """Await the first steps, of a job that may have started anew."""
        with tf.init_scope():
            self._left.assign(WARM_UP + COUNTED)
        self._recorder = MomentRecorder(self._gradients)
        return self._recorder

    def add_to_graph(self, moments: Any) -> None:
        """Hand ``moments`` on when they are there, in the first steps."""

        def hand_on() -> None:
            self._left.assign_sub(1)
            tf.numpy_function(self._take, [moments], [])

        with tf.device(node.DEVICE):
            tf.cond(self._left > 0, hand_on, lambda: None)

    def end(self) -> None:
        """Tell of a file that is not written."""
        self._profile.end()

    def _take(self, moments: npt.NDArray[np.int64]) -> None:
        """Blocks: in the last step until all ranks have got so far, which wait for nothing here."""
        self._recorder.note(moments.tolist())
        self._profile.step_done()


#: By the identities of variables, while these exist: a function that is traced again, and a tape
#: that is made anew in it, go on with the profile that was begun.
_recordings: dict[tuple[int, ...], _Recording] = {}


def _forget(key: tuple[int, ...]) -> None:
    """The variables of a recording are gone."""
    if (recording := _recordings.pop(key, None)) is not None:
        recording.end()


def record(
    grads: Sequence[Any],
    variables: Sequence[Any],
    local: Sequence[bool],
    sparse_as_dense: bool,
    process_set: ProcessSet,
) -> None:
    """Let the graph that is being built record its steps, if AIACC_PROFILE asks for it.

    Collective: building is not; the graph's 13th step is, of every rank of ``process_set``.

    Args:
        grads: Tensors, `tf.IndexedSlices` or None.
        variables: Of the gradients.
        local: Which of them are not reduced.
        sparse_as_dense: Whether `tf.IndexedSlices` travel as dense tensors; else they are left out.
        process_set: Ranks that reduce gradients.
    """
    if not wanted(process_set):
        return
    if tf.executing_eagerly() or node.in_session_graph():
        _tell_of_no_function()
        return
    names = names_of(variables) if all(map(_is_variable, variables)) else []
    chosen = [
        i
        for i in range(len(names))
        if not local[i] and _values_of(grads[i], sparse_as_dense) is not None
    ]
    if not chosen:
        return
    key = tuple(id(variables[i]) for i in chosen)
    if key not in _recordings:
        gradients = [_described(names[i], variables[i]) for i in chosen]
        _recordings[key] = _Recording(gradients, process_set)
        end = weakref.finalize(variables[chosen[0]], _forget, key)
        end.atexit = False  # type: ignore[misc] # a property, which mypy does not see
    graph = tf.compat.v1.get_default_graph()
    with tf.control_dependencies(list(graph.inputs)):
        start = _moment(graph, [])
    each = [_moment(graph, [_values_of(grads[i], sparse_as_dense)]) for i in chosen]
    with tf.device(node.DEVICE):
        moments = tf.stack([start, *each])
    _recordings[key].add_to_graph(moments)


def _moment(graph: Any, tensors: Sequence[Any]) -> Any:
    """A node that gives the time at which ``tensors`` are there."""
    with graph.name_scope(None), tf.device(node.DEVICE):
        moment = op_library.checked().aiacc_moment(
            tensors, [node.token_of(graph)], name="aiacc_moment"
        )
    moment.set_shape([])
    return moment


def _values_of(grad: Any, sparse_as_dense: bool) -> Any:
    """What to wait for; None for what no plan can have."""
    if isinstance(grad, tf.IndexedSlices):
        grad = grad.values if sparse_as_dense else None
    if grad is None:
        return None
    tensor = tf.convert_to_tensor(grad)
    return tensor if tensor.dtype.name in DTYPE_CODES else None


def _described(name: str, variable: Any) -> Gradient:
    dtype = tf.as_dtype(variable.dtype)
    elements = tf.TensorShape(variable.shape).num_elements() or 0
    return Gradient(name, elements * dtype.size, dtype.name)


def _is_variable(source: Any) -> bool:
    return isinstance(source, tf.Variable) or hasattr(source, "path")


@functools.cache
def _tell_of_no_function() -> None:
    refuse(
        "of gradients outside of a tf.function (expected in one: outside they travel after the "
        "backward pass, whatever the plan)",
        stacklevel=3,
    )
