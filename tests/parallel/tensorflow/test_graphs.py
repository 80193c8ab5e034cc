"""When and by which names the collectives of a `tf.function` travel, on two ranks."""

import json
import os
import threading

import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import ENV as ONE_THREAD
from tests.support.learning.keras_training import RANKS
from tests.support.ranks import free_port

ENV = {"TF_NUM_INTEROP_THREADS": "4"}
#: For what hangs without the property that is tested.
DEADLOCK_S = 60.0


@on_ranks(2, env=ENV)
def test_iterations_that_run_at_once_may_have_one_name():
    @tf.function
    def together(start):  # nothing makes an iteration wait for the one before
        def body(i, totals):
            value = tf.cast(i, tf.float32) + start
            total = hvd.allreduce(value, op=hvd.Sum, name="in.loop")
            return i + 1, totals.write(i, total)

        totals = tf.TensorArray(tf.float32, size=40, element_shape=[])
        _, totals = tf.while_loop(
            lambda i, _: i < 40, body, (0, totals), parallel_iterations=16, maximum_iterations=40
        )
        return totals.stack()

    for start in (0.0, 5.0):
        rank = hvd.rank()
        sums = together(tf.constant(start + rank))
        assert sums.numpy().tolist() == [2 * (i + start) + 1 for i in range(40)]


@on_ranks(1, starts=False)
def test_importing_leaves_tensorflow_to_be_configured():
    tf.config.threading.set_inter_op_parallelism_threads(3)
    assert tf.config.threading.get_inter_op_parallelism_threads() == 3


@on_ranks(2, env=ENV, starts=False)
def test_a_gradient_travels_while_others_are_computed(tmp_path):
    """The gradient of the first layer is ready when that of the last one has been reduced."""
    os.environ["AIACC_TIMELINE"] = str(tmp_path / "t.json")
    hvd.init()
    file = tmp_path / ("t.rank1.json" if hvd.rank() else "t.json")
    late_is_reduced = threading.Event()

    def release(gradient):
        late_is_reduced.set()
        return gradient

    def wait_for_late(gradient):
        assert late_is_reduced.wait(DEADLOCK_S), "the all-reduce of the last layer has not started"
        return gradient

    @tf.custom_gradient
    def held_back(x):
        def gradient(upstream):
            return tf.numpy_function(wait_for_late, [upstream], tf.float32, stateful=False)

        return tf.identity(x), gradient

    early, late = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(held_back(early * 1.0) * late)
        of_early, of_late = tape.gradient(loss, [early, late])
        return of_early, tf.numpy_function(release, [of_late], tf.float32, stateful=False)

    of_early, of_late = step()
    assert of_early.numpy().tolist() == [3.0, 4.0]
    assert of_late.numpy().tolist() == [1.0, 2.0]
    hvd.shutdown()
    events = [event for event in json.loads(file.read_text()) if event.get("cat") == "ALLREDUCE"]
    first, second = sorted(events, key=lambda event: event["ts"])
    assert first["ts"] + first["dur"] <= second["ts"]


# --- ranks and sizes that are asked when a graph runs


@on_ranks(RANKS, env=ONE_THREAD, starts=False)
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


@on_ranks(RANKS, env=ONE_THREAD, starts=False)
def test_ranks_averages_and_gradients_are_those_of_the_next_job(port):
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
        return hvd.rank_op(), mean, local.gradient(x, x), *grads

    def expect(size, rank):
        hvd.init()
        assert hvd.size() == size
        assert [value.numpy().tolist() for value in look(tf.ones([2]))] == [
            rank,
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
