"""What AIACC_PROFILE writes for gradients of TensorFlow."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.autotune.profile import COUNTED, WARM_UP
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Trace
from tests.parallel.planning.test_keras_plan import NAMES, keras_here, make_model
from tests.parallel.tensorflow.test_ops import ENV, SIZE
from tests.support.ranks import run_ranks

BATCH = 4
STEPS = WARM_UP + COUNTED


def _run(function, path, *args, legacy=False, size=SIZE):
    env = {**ENV, "AIACC_PROFILE": str(path), **({"TF_USE_LEGACY_KERAS": "1"} if legacy else {})}
    run_ranks(size, function, *args, env=env)


def _trace(path):
    return Trace.decode(path.read_text())


def _fit(steps, own_step=False, distribute=hvd.DistributedOptimizer, **options):
    """A model after some steps; the last batch is smaller, so that the step is traced again."""
    random = np.random.default_rng(hvd.rank())
    x, y = (random.normal(size=(steps * BATCH - 1, n)).astype(np.float32) for n in (3, 2))
    model = make_model(own_step)
    optimizer = distribute(keras_here().optimizers.SGD(0.1))
    model.compile(optimizer, "mse", **options)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return model


def _profiled(own_step):
    hvd.init()
    model = _fit(STEPS, own_step)
    # The names of the profile are those that a plan has.
    if hvd.rank() == 0:
        trace = _trace(Path(os.environ["AIACC_PROFILE"]))
        names = [tensor.name for tensor in trace.tensors]
    else:
        names = []
    plan = Plan("single", (tuple(hvd.broadcast_object(names, 0)),))
    optimizer = hvd.DistributedOptimizer(keras_here().optimizers.SGD(0.1), plan=plan)
    model.compile(optimizer, "mse")
    model.fit(np.ones((BATCH, 3)), np.ones((BATCH, 2)), batch_size=BATCH, verbose=0)
    hvd.shutdown()


@pytest.mark.filterwarnings("error:plan")
@pytest.mark.parametrize("own_step", [False, True], ids=["fit", "train_step"])
@pytest.mark.parametrize("legacy", [False, True], ids=["keras 3", "tf_keras"])
def test_fit_writes_its_steps(tmp_path, legacy, own_step):
    _run(_profiled, tmp_path / "net.json", own_step, legacy=legacy)
    trace = _trace(tmp_path / "net.json")
    assert (trace.source, trace.model) == ("measured", "net")
    end = ":0" if legacy else ""
    sizes = {tensor.name: tensor.bytes for tensor in trace.tensors}
    shapes = [(3, 2), (2,), (2, 2), (2,), (2, 2), (2,)]
    assert sizes == {
        name + end: 4 * int(np.prod(shape)) for name, shape in zip(NAMES, shapes, strict=True)
    }
    assert {tensor.need_s for tensor in trace.tensors} == {0.0}
    assert 0 <= trace.forward_s <= trace.tensors[0].ready_s  # other ones may be first on each rank
    assert trace.backward_s > 0


def _starts_anew(path):
    """The second rank is a worker that has come anew, with a model that has done nothing."""
    hvd.init()
    model = _fit(STEPS + 2)
    hvd.shutdown()
    path.unlink(missing_ok=True)
    hvd.init()
    x, y = (np.ones(((STEPS + 2) * BATCH, n), np.float32) for n in (3, 2))
    if hvd.rank() == 0:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    else:
        _fit(STEPS + 2)
    hvd.shutdown()


def test_a_job_that_starts_anew_writes_its_steps_anew(tmp_path):
    _run(_starts_anew, tmp_path / "net.json", tmp_path / "net.json")
    assert len(_trace(tmp_path / "net.json").tensors) == 6


def _too_few():
    hvd.init()
    _fit(STEPS - 1)
    hvd.shutdown()


def test_too_few_steps_write_nothing(tmp_path, capfd):
    _run(_too_few, tmp_path / "net.json")
    assert not (tmp_path / "net.json").exists()
    assert f"was not written: {STEPS - 1} steps (expected {STEPS})" in capfd.readouterr().err


def _eager():
    hvd.init()
    with pytest.warns(UserWarning, match="AIACC_PROFILE: gradients outside of a tf.function"):
        _fit(STEPS, run_eagerly=True)
    hvd.shutdown()


def test_eager_steps_write_nothing(tmp_path):
    _run(_eager, tmp_path / "net.json", size=1)
    assert not (tmp_path / "net.json").exists()


def _tape_step(variables):
    """One that computes a gradient of each by a tape that is made anew in each trace."""

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(v) * tf.reduce_sum(x) for v in variables])
        return tape.gradient(loss, variables)

    return step


def _tapes():
    hvd.init()
    first, second = ([tf.Variable(tf.ones(n)) for n in sizes] for sizes in ((2, 3), (4,)))
    steps = [_tape_step(variables) for variables in (first, second)]
    for number in range(STEPS):
        for step in steps:
            rows = 1 + number % 2 if hvd.rank() else 1  # one rank traces twice
            step(tf.ones([rows]))
    hvd.shutdown()


def test_tapes_have_a_file_for_the_variables_of_each(tmp_path):
    _run(_tapes, tmp_path / "net.json")
    found = [
        {tensor.name: tensor.bytes for tensor in _trace(tmp_path / name).tensors}
        for name in ("net.json", "net.2.json")
    ]
    assert found == [{"Variable:0": 8, "Variable:0#2": 12}, {"Variable:0": 16}]


def _without_some():
    """Sums of two passes; one variable is local, one has no gradient, one has rows."""
    hvd.init()
    keras = keras_here()
    variables = [keras.Variable(tf.ones([2, 1]), name=f"v{i}") for i in range(4)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    optimizer.build(variables)
    optimizer.register_local_var(variables[0])

    @tf.function
    def step(grad):
        rows = tf.IndexedSlices(grad[:1], tf.constant([0]), [2, 1])
        optimizer.apply([grad, None, rows, grad * 2], variables)

    for _ in range(STEPS):
        step(tf.ones([2, 1]))
    hvd.shutdown()


def test_what_no_plan_can_have_is_left_out(tmp_path):
    _run(_without_some, tmp_path / "net.json")
    assert [tensor.name for tensor in _trace(tmp_path / "net.json").tensors] == ["v3"]


def _set_of_one():
    hvd.init()
    process_set = hvd.add_process_set([1])
    if process_set.included():
        _fit(STEPS, distribute=partial(hvd.DistributedOptimizer, process_set=process_set))
    hvd.barrier()
    hvd.shutdown()


def test_ranks_outside_the_process_set_have_no_part_in_it(tmp_path):
    _run(_set_of_one, tmp_path / "net.json")
    assert len(_trace(tmp_path / "net.json").tensors) == len(NAMES)
