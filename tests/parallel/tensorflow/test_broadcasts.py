"""Variables that are broadcast all at the same time, on two ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.collectives.dtypes import DTYPE_CODES
from tests.support.learning.keras_training import in_tensorflow


def _value(dtype, rank):
    """A matrix that another rank has other elements of."""
    return tf.cast((tf.reshape(tf.range(6), [2, 3]) + rank) % 2, dtype)


def _check(variables, dtypes, root):
    for variable, dtype in zip(variables, dtypes, strict=True):
        value = tf.convert_to_tensor(variable)
        assert value.dtype.name == dtype
        np.testing.assert_array_equal(
            tf.cast(value, tf.int32), tf.cast(_value(dtype, root), tf.int32)
        )


@in_tensorflow
def test_variables_of_every_dtype():
    rank = hvd.rank()
    dtypes = list(DTYPE_CODES)

    def fresh(make):
        return [make(_value(dtype, rank)) for dtype in dtypes]

    at_once, in_function = fresh(tf.Variable), fresh(tf.Variable)
    assert hvd.broadcast_variables(at_once, 1) == at_once
    _check(at_once, dtypes, 1)
    tf.function(lambda: hvd.broadcast_variables(in_function, 1) and None)()
    _check(in_function, dtypes, 1)
    floats = ["float32", "bfloat16", "float16"]
    of_keras = [keras.Variable(_value(dtype, rank), dtype=dtype) for dtype in floats]
    hvd.broadcast_variables(of_keras, 1)
    _check(of_keras, floats, 1)

    odd = [tf.Variable(float(rank)), tf.Variable(tf.zeros([0, 3])), tf.Variable([rank] * 1000)]
    hvd.broadcast_variables(odd, 1)
    assert odd[0].numpy() == 1.0
    assert odd[2].numpy().tolist() == [1] * 1000
    assert hvd.broadcast_variables([], 0) == []


@in_tensorflow
def test_all_are_submitted_before_one_is_waited_for():
    variables = [tf.Variable([float(i + 10 * hvd.rank())]) for i in range(50)]
    for turn in range(2):
        name = f"w{turn}"
        if hvd.rank() == turn:
            hvd.broadcast_(variables, root_rank=1, name=name)
        else:  # the last first, so that it ends only if all are under way over there
            for i in reversed(range(50)):
                variables[i].assign(hvd.broadcast(variables[i], 1, name=f"{name}[{i}]"))
        assert [float(v[0]) for v in variables] == [10.0 + i for i in range(50)]


def _address(variable):
    return np.frombuffer(memoryview(variable.read_value()), np.uint8).ctypes.data


@in_tensorflow
def test_variables_of_the_root_keep_their_memory():
    variables = [tf.Variable(tf.fill([size], float(hvd.rank()))) for size in (100_000, 3, 70)]
    before = [_address(variable) for variable in variables]
    hvd.broadcast_variables(variables, 0)
    assert all(not variable.numpy().any() for variable in variables)
    if hvd.rank() == 0:
        assert [_address(variable) for variable in variables] == before
    kept = variables[0].read_value()
    copy = hvd.broadcast(variables[0], 0)
    variables[0].assign_add(tf.ones([100_000]))  # not in memory that others still read
    assert not copy.numpy().any()
    assert not kept.numpy().any()
    assert variables[0].numpy().all()


@in_tensorflow
def test_variables_that_do_not_fit():
    rank = hvd.rank()
    variables = [tf.Variable(tf.zeros([1 + (rank if i == 2 else 0)]) + rank) for i in range(4)]
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'?broadcast\.v\[2\]"):
            hvd.broadcast_(variables, 1, name="v")
    assert float(variables[0][0]) == rank  # none is assigned
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"root.*7"):
        hvd.broadcast_variables(variables, 7)
    text = tf.Variable("a", name="text")
    for call in (
        lambda: hvd.broadcast_variables([*variables, text], 0),
        tf.function(lambda: hvd.broadcast_variables([*variables, text], 0)),
    ):
        with pytest.raises(ValueError, match=r"variable 'text:0': dtype string .*_object"):
            call()
    assert hvd.broadcast(tf.constant(rank), 1).numpy() == 1
    hvd.shutdown()
    with pytest.raises(tf.errors.AbortedError):
        hvd.broadcast_variables(variables, 0)
