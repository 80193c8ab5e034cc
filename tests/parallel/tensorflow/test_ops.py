"""Operations of `aiacc.tensorflow`, at once and in functions, on two ranks."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support import operations
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import ENV, RANKS, in_tensorflow

SIZE = RANKS
FRONT = operations.Frontend(hvd, tf.constant, lambda tensor: tensor.numpy(), in_place=False)


@in_tensorflow
def test_every_operation_and_dtype_at_once():
    cases = operations.table(hvd.rank(), hvd.size(), shapes=operations.FEW_SHAPES)
    for number, case in enumerate(cases):
        operations.check(FRONT, case, number)
    operations.check_objects(hvd)
    operations.check_complex_numbers_are_no_pairs(FRONT)
    operations.check_join(FRONT)
    hvd.barrier()


@pytest.mark.fast
@in_tensorflow
def test_in_a_function():
    dtypes = [d for d in operations.DTYPES if d.name in ("float32", "bfloat16", "int64", "bool")]
    cases = list(operations.table(hvd.rank(), hvd.size(), dtypes, operations.FEW_SHAPES))

    @tf.function
    def everything():
        return [operations.call(FRONT, case, operations.given(FRONT, case)) for case in cases]

    for case, result in zip(cases, everything(), strict=True):
        operations.compare(FRONT, case, result)

    @tf.function
    def reduced_constant():  # TensorFlow must not compute it while it optimises the graph
        return hvd.allreduce(tf.constant([1.0]) * hvd.rank(), op=hvd.Sum)

    for _ in range(2):
        assert reduced_constant().numpy().tolist() == [1.0]

    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def look(rows):
        results = [
            *(hvd.allreduce(rows), hvd.broadcast(rows, 0), hvd.alltoall(rows)),
            *(hvd.allgather(rows[:1]), hvd.grouped_reducescatter([rows])[0]),
        ]
        shapes.extend(result.shape.as_list() for result in results)

    look.get_concrete_function()
    assert shapes == [[None, 2]] * 5


@on_ranks(SIZE, env={**ENV, "AIACC_ENGINE": "tcp"})  # ranks that share memory do not narrow
def test_factors_compression_and_slices():
    rank = hvd.rank()
    ones = tf.ones([2], tf.float64)
    third = hvd.allreduce(ones, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=0.1)
    assert third.numpy().tolist() == [(1 / 3 + 1 / 3) * 0.1] * 2  # factors are doubles
    exact = tf.constant([1.0 + 2.0**-5, 2.0**-30]) * (rank + 1)
    narrowed = hvd.allreduce(exact, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert narrowed.numpy().tolist() == [3.0 + 3 * 2.0**-5, 0.0]
    assert narrowed.dtype == tf.float32
    wide = tf.constant([1.0 + 2.0**-12], tf.float64)
    for reduced in (
        hvd.allreduce(wide, compression=hvd.Compression.bf16),
        hvd.reducescatter(tf.concat([wide, wide], 0), compression=hvd.Compression.bf16),
    ):
        assert reduced.dtype == tf.float64
        assert reduced.numpy().tolist() == [1.0]
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(1.0, average=False).numpy() == 2.0
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    assert hvd.allreduce(tf.zeros([0, 3])).shape == [0, 3]
    assert hvd.allreduce(tf.constant([1.0, 0.0]), op=hvd.Adasum).numpy().tolist() == [1.0, 0.0]

    slices = tf.IndexedSlices(tf.ones([rank + 1, 2]) * 4, tf.range(rank + 1), [3, 2])
    for op, expected in ((hvd.Sum, [8, 4, 0]), (hvd.Average, [4, 2, 0])):
        reduced = hvd.allreduce(slices, op=op)
        assert isinstance(reduced, tf.IndexedSlices)
        assert tf.convert_to_tensor(reduced)[:, 0].numpy().tolist() == expected
        odd = tf.IndexedSlices(tf.constant([1 + 2 * rank, 2 - rank]), tf.constant([0, 1]), [2])
        whole = hvd.allreduce(odd, op=op)
        assert tf.convert_to_tensor(whole).numpy().tolist() == [n * expected[1] / 4 for n in (4, 3)]
        _, again = hvd.grouped_allreduce([1.0, slices], op=op, name="with.slices")
        assert tf.convert_to_tensor(again)[:, 1].numpy().tolist() == expected
    with pytest.raises(NotImplementedError, match="op=Max"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(NotImplementedError, match=r"prescale_factor=2\.0.*sparse_as_dense=True"):
        hvd.allreduce(slices, prescale_factor=2.0)

    assert hvd.broadcast_object_fn(root_rank=1)(rank) == 1


@in_tensorflow
def test_gradients():
    def differentiate(call, inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = zip(call(inputs), upstream, strict=True)
            loss = tf.add_n([tf.reduce_sum(one * other) for one, other in outputs])
        return tape.gradient(loss, inputs)

    def compiled(call, inputs, upstream):
        return tf.function(lambda: differentiate(call, inputs, upstream))()

    for way in (differentiate, compiled):
        operations.check_gradients(FRONT, way)


@in_tensorflow
def test_a_function_may_submit_in_any_order():
    rank, count = hvd.rank(), 500
    order = np.random.default_rng(rank).permutation(count).tolist()

    @tf.function
    def step(x):
        results = {i: hvd.allreduce(x * i, op=hvd.Sum, name=f"n{i}") for i in order}
        return [results[i] for i in range(count)]

    for _ in range(2):
        sums = step(tf.constant([1.0, rank]))
        assert np.stack(sums).tolist() == [[2.0 * i, 1.0 * i] for i in range(count)]


@in_tensorflow
def test_errors():
    rank = hvd.rank()
    differs, invalid = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    gather = lambda: hvd.allgather(tf.zeros([1], ["float32", "int32"][rank]), name="t")  # noqa: E731
    shapes = tf.constant([[3, 2], [3 + rank, 2]])
    three, more = (tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), shape) for shape in shapes)
    by_op = lambda: hvd.allreduce(three, name="rows", op=[hvd.Sum, hvd.Average][rank])  # noqa: E731
    traced = tf.function(lambda: hvd.allreduce(1.0))
    traced()
    float8 = ["float8_e4m3fn", "float8_e5m2"][rank]
    for call, error, text in (
        (lambda: hvd.allreduce(tf.ones([2 + rank]), name="shapes"),
         differs, r"allreduce\.shapes.*\[2\].*\[3\]"),
        (tf.function(gather), differs, "float32"),
        (lambda: hvd.allreduce(more), differs, r"\[0, 3, 2\].*\[0, 4, 2\]"),
        (by_op, differs, "op Sum.*op Average"),
        (tf.function(by_op), differs, "op Sum.*op Average"),
        (lambda: hvd.allreduce([three, tf.ones([3])][rank]), differs, r"\[0, 3, 2\].*\[3\]"),
        (lambda: hvd.alltoall(tf.ones([4]), splits=[5, 0]), invalid, r"splits \[5, 0\]"),
        (lambda: hvd.alltoall(tf.ones([3])), invalid, "3 rows for 2 ranks"),
        (lambda: hvd.allgather(1.0), invalid, "without dimensions"),
        (lambda: hvd.allgather(1j), invalid, "without dimensions"),
        (lambda: hvd.alltoall(tf.cast(1.0, "float8_e5m2")), invalid, "without dimensions"),
        (lambda: hvd.broadcast(tf.cast(1.0, float8), 0, name="f8"), differs, r"f8.*shape"),
        (tf.function(lambda: hvd.allgather(tf.cast([1], ["int4", "uint4"][rank]), name="i4")),
         differs, r"i4.*dtype"),
        (lambda: hvd.allreduce(tf.zeros([1], tf.complex64)), ValueError, "complex64"),
        (lambda: hvd.reducescatter(tf.ones([2]), op=hvd.Max), hvd.HorovodInternalError, "op=Max"),
        (tf.function(lambda: hvd.allreduce(1.0), jit_compile=True),
         NotImplementedError, "jit_compile=False"),
        (tf.function(lambda: traced(), jit_compile=True), invalid, "Detected unsupported op"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == 2.0  # the job is alive
    hvd.shutdown()
    with pytest.raises(tf.errors.AbortedError, match=r"hvd\.init\(\)"):
        hvd.allreduce(1.0)


@on_ranks(SIZE, env=ENV, missing={1})
def test_a_lost_rank():
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tf.errors.UnknownError, match="rank 1"):
        hvd.allreduce(1.0)


@in_tensorflow
def test_join_process_sets_and_a_second_start():
    rank = hvd.rank()
    for _ in range(rank):  # rank 1 has more data
        hvd.allreduce(1.0)
    assert tf.function(hvd.join)().numpy() == 1
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == 2.0

    alone = [hvd.add_process_set([number]) for number in range(hvd.size())]
    mine = alone[rank]
    assert hvd.allreduce(float(rank), op=hvd.Sum, process_set=mine).numpy() == rank
    assert hvd.allgather([rank], process_set=mine).numpy().tolist() == [rank]
    assert hvd.reducescatter([1.0, 2.0], process_set=mine).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
        hvd.allreduce(1.0, process_set=alone[1 - rank])
    tf.function(hvd.barrier)()
    hvd.shutdown()
    hvd.init()
    if rank == 0:  # what one rank alone submits in vain must not part the names of later calls
        with pytest.raises(tf.errors.InvalidArgumentError):
            hvd.allgather(1.0)
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == 2.0
