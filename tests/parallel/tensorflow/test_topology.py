"""Ranks and sizes that are asked when a graph runs."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import ENV, RANKS
from tests.support.ranks import free_port


@on_ranks(RANKS, env=ENV, starts=False)
def test_a_graph_asks_when_it_runs():
    @tf.function(input_signature=[])
    def look():
        of_all = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(name="n")]
        of_sets = [hvd.size_op(1), hvd.process_set_included_op(1), hvd.process_set_included_op()]
        return tf.stack([*of_all, *of_sets])

    assert look.get_concrete_function().output_shapes == [7]  # before init
    with pytest.raises(tf.errors.AbortedError, match=r"hvd\.init\(\)"):
        look()
    hvd.init()
    rank = hvd.rank()
    with pytest.raises(tf.errors.InvalidArgumentError, match="process set 1 is not registered"):
        hvd.size_op(1)
    hvd.add_process_set([1])
    assert look().numpy().tolist() == [rank, RANKS, rank, RANKS, 1, rank, 1]
    eager = [hvd.rank_op(), hvd.size_op(), hvd.size_op(1), hvd.process_set_included_op(1)]
    assert [(value.dtype, value.numpy()) for value in eager] == [
        (tf.int32, number) for number in (rank, RANKS, 1, rank)
    ]
    with pytest.raises(NotImplementedError, match=r"rank_op .*jit_compile=False"):
        tf.function(hvd.rank_op, jit_compile=True)()


@on_ranks(RANKS, env=ENV)
def test_a_traced_function_tells_ranks_of_the_next_job(port):
    """Where they are reversed."""
    look, first = tf.function(lambda: hvd.rank_op()), hvd.rank()
    assert look().numpy() == first
    hvd.shutdown()
    os.environ.update(AIACC_RANK=str(RANKS - 1 - first), AIACC_ADDR=f"127.0.0.1:{port}")
    hvd.init()
    assert hvd.rank() == RANKS - 1 - first
    assert look().numpy() == hvd.rank()
    assert look.experimental_get_tracing_count() == 1


@on_ranks(RANKS, env=ENV, starts=False)
def test_averages_and_gradients_are_those_of_the_next_job(port):
    """What was traced by a rank alone has the sizes and ranks of the job of two that follows."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ.update(AIACC_RANK="0", AIACC_SIZE="1", AIACC_ADDR=f"127.0.0.1:{free_port()}")

    @tf.function
    def look(x):
        slices = tf.IndexedSlices([[4.0]], [0], [1, 1])
        mean = tf.convert_to_tensor(hvd.allreduce(slices))[0, 0]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            gathered = hvd.allgather(x)
            of_gathered = gathered * tf.range(tf.cast(tf.size(gathered), tf.float32))
            sent = hvd.broadcast(x, 0)
            part = hvd.reducescatter(x, op=hvd.Sum)
        local = hvd.DistributedGradientTape(tape)
        local.register_local_source(x)
        grads = [tape.gradient(y, x) for y in (of_gathered, sent, part)]
        return mean, local.gradient(x, x), *grads

    def expect(size, rank):
        hvd.init()
        assert hvd.size() == size
        assert [value.numpy().tolist() for value in look(tf.ones([2]))] == [
            4.0,
            [1.0 / size] * 2,
            [2.0 * rank, 2.0 * rank + 1.0],
            [1.0 if rank == 0 else 0.0] * 2,
            [float(size)] * 2,
        ]
        hvd.shutdown()

    expect(1, 0)
    os.environ.update(AIACC_RANK=str(rank), AIACC_SIZE=str(RANKS), AIACC_ADDR=f"127.0.0.1:{port}")
    expect(RANKS, rank)
    assert look.experimental_get_tracing_count() == 1
