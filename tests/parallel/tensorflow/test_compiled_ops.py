"""The ops as they are compiled for a TensorFlow that does not run the library, on two ranks."""

from pathlib import Path

import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.tensorflow import op_library
from tests.parallel.tensorflow import test_ops
from tests.support.ranks import run_ranks


def _loaded(name):
    """Files of this process whose names begin so."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = {Path(line.split()[-1]) for line in lines if "/" in line}
    return [file for file in files if file.name.startswith(name)]


def _collectives():
    hvd.init()
    for test in (test_ops.test_every_operation_and_dtype_at_once, test_ops.test_in_a_function):
        test.body.run({})
    variables = [tf.Variable([float(hvd.rank())] * i) for i in range(3)]
    hvd.broadcast_variables(variables, 1)
    assert [variable.numpy().tolist() for variable in variables] == [[], [1.0], [1.0, 1.0]]
    assert len(_loaded("ops-tensorflow-")) == 1
    assert len(_loaded("libaiacc_core")) == 1
    assert _loaded("libaiacc_tensorflow") == []
    test_ops.test_errors.body.run({})


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


def test_ranks_compile_once_and_run_what_they_compiled(tmp_path, capfd):
    cached = {"XDG_CACHE_HOME": str(tmp_path)}
    # Not by "explicit": the ops are chosen when aiacc.tensorflow is imported.
    first = {"launcher": "aiaccrun", "env": {**cached, "AIACC_TENSORFLOW_OPS": "build"}}
    for job, options, expected in ((_collectives, first, 1), (_refused, {"env": cached}, 0)):
        run_ranks(2, job, **options)
        assert capfd.readouterr().err.count("compiling the ops for TensorFlow") == expected
    folder = tmp_path / "aiacc"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".so"]
