"""The ops as they are compiled for a TensorFlow that does not run the library, on two ranks."""

from pathlib import Path

import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.tensorflow import op_library
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


def _loaded(name):
    """Files of this process whose names begin so."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = {Path(line.split()[-1]) for line in lines if "/" in line}
    return [file for file in files if file.name.startswith(name)]


def _loads_them():
    hvd.init()
    assert hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum).numpy()[1] == 2.0 * hvd.size()
    assert len(_loaded("ops-tensorflow-")) == 1
    assert len(_loaded("libaiacc_core")) == 1
    assert _loaded("libaiacc_tensorflow") == []


def _collectives():
    _loads_them()
    rank = hvd.rank()

    @tf.function
    def step(x):
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += hvd.allreduce(tf.reduce_sum(x), op=hvd.Sum)
        many = [hvd.allreduce(x * i, op=hvd.Sum, name=f"n{i}") for i in range(100)]
        return total, tf.stack(many)

    total, many = step(tf.constant([1.0, rank]))
    assert total.numpy() == 9.0
    assert many.numpy().tolist() == [[2.0 * i, 1.0 * i] for i in range(100)]
    assert hvd.allgather(tf.fill([rank + 1], rank)).numpy().tolist() == [0, 1, 1]
    received, rows = hvd.alltoall(tf.constant([rank] * 3), splits=[1, 2])
    assert received.numpy().tolist() == ([0, 1] if rank == 0 else [0, 0, 1, 1])
    assert rows.numpy().tolist() == [rank + 1] * 2
    part = hvd.reducescatter(tf.constant([1, 2, 3], tf.bfloat16), op=hvd.Sum)
    assert tf.cast(part, tf.int32).numpy().tolist() == ([2, 4] if rank == 0 else [6])
    assert hvd.broadcast(rank, 1).numpy() == 1
    variables = [tf.Variable([float(rank)] * i) for i in range(3)]
    hvd.broadcast_variables(variables, 1)
    assert [variable.numpy().tolist() for variable in variables] == [[], [1.0], [1.0, 1.0]]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"\[2\].*\[3\]"):
        hvd.allreduce(tf.ones([2 + rank]), name="shapes")
    with pytest.raises(tf.errors.InvalidArgumentError, match="without dimensions"):
        hvd.allgather(1.0)
    assert hvd.join().numpy() in (0, 1)
    hvd.shutdown()


def test_ranks_compile_once_and_run_what_they_compiled(caches, capfd):
    environment = {"XDG_CACHE_HOME": str(caches), "AIACC_TENSORFLOW_OPS": "build"}
    # Not by "explicit": the ops are chosen when aiacc.tensorflow is imported.
    for size, job, expected in ((2, _collectives, 1), (1, _loads_them, 0)):
        run_ranks(size, job, env=environment, launcher="aiaccrun")
        assert capfd.readouterr().err.count("compiling the ops for TensorFlow") == expected
    folder = caches / "aiacc"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".so"]


def _refused():
    """TensorFlow has loaded the library already when it turns out that it does not run it."""
    really = op_library._problem_of
    problems = ["it is refused by a test"]
    op_library._problem_of = lambda ops: problems.pop() if problems else really(ops)
    hvd.init()
    assert hvd.allreduce(hvd.rank(), op=hvd.Sum).numpy() == 1
    assert len(_loaded("libaiacc_tensorflow")) == len(_loaded("ops-tensorflow-")) == 1
    total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.constant(1.5))
    assert total.numpy() == 3.0
    hvd.shutdown()


def test_what_is_refused_is_replaced(caches):
    run_ranks(2, _refused, env={"XDG_CACHE_HOME": str(caches)})
