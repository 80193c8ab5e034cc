"""Ranks and sizes that are asked when a graph runs."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.parallel.tensorflow.test_ops import ENV, SIZE, TIMEOUT_S
from tests.support.ranks import free_port, run_ranks


def _asked_when_it_runs():
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
    assert look().numpy().tolist() == [rank, SIZE, rank, SIZE, 1, rank, 1]
    eager = [hvd.rank_op(), hvd.size_op(), hvd.size_op(1), hvd.process_set_included_op(1)]
    assert [(value.dtype, value.numpy()) for value in eager] == [
        (tf.int32, number) for number in (rank, SIZE, 1, rank)
    ]
    with pytest.raises(NotImplementedError, match=r"rank_op .*jit_compile=False"):
        tf.function(hvd.rank_op, jit_compile=True)()
    hvd.shutdown()


def test_a_graph_asks_when_it_runs():
    run_ranks(SIZE, _asked_when_it_runs, timeout=TIMEOUT_S, env=ENV)


def _in_the_next_job(address):
    """A function that was traced in one job tells ranks of the next, where they are reversed."""

    @tf.function
    def look():
        return hvd.rank_op()

    hvd.init()
    first = hvd.rank()
    assert look().numpy() == first
    hvd.shutdown()
    os.environ.update(AIACC_RANK=str(SIZE - 1 - first), AIACC_ADDR=address)
    hvd.init()
    assert hvd.rank() == SIZE - 1 - first
    assert look().numpy() == hvd.rank()
    assert look.experimental_get_tracing_count() == 1
    hvd.shutdown()


def test_a_traced_function_follows_to_the_next_job():
    address = f"127.0.0.1:{free_port()}"
    run_ranks(SIZE, _in_the_next_job, address, timeout=TIMEOUT_S, env=ENV)
