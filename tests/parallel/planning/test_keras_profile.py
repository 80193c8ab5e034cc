"""What AIACC_PROFILE writes for gradients of TensorFlow."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.autotune.profile import COUNTED, WARM_UP
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Trace
from tests.parallel.planning.test_keras_plan import NAMES, NET, functional, own_step
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import BATCH, ENV, KERAS_2, RANKS, keras, new
from tests.support.ranks import run_ranks

STEPS = WARM_UP + COUNTED
_in_tensorflow = partial(on_ranks, env=ENV, starts=False)


def _begin(folder):
    """Join a job that writes into ``folder``; the first file."""
    os.environ["AIACC_PROFILE"] = str(folder / "net.json")
    hvd.init()
    return folder / "net.json"


def _sizes(path):
    """Bytes of the gradients in a profile, by name."""
    hvd.barrier()
    return {tensor.name: tensor.bytes for tensor in Trace.decode(path.read_text()).tensors}


def _fit(steps, kind=functional, distribute=hvd.DistributedOptimizer, **options):
    """A model after some steps; the last batch is smaller, so that the step is traced again."""
    random = np.random.default_rng(hvd.rank())
    x, y = (random.normal(size=(steps * BATCH - 1, n)).astype(np.float32) for n in (3, 2))
    model = new(NET, kind)
    model.compile(distribute(keras.optimizers.SGD(0.1)), "mse", **options)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return model


@pytest.mark.parametrize("kind", [functional, own_step], ids=["fit", "train_step"])
@on_ranks(RANKS, ways={"keras": {"env": ENV}, **KERAS_2}, starts=False)
def test_fit_writes_its_steps(kind, tmp_path):
    path = _begin(tmp_path)
    model = _fit(STEPS, kind)
    sizes = [4 * variable.numpy().size for variable in model.trainable_variables]
    assert _sizes(path) == dict(zip(NAMES, sizes, strict=True))
    trace = Trace.decode(path.read_text())
    assert (trace.source, trace.model) == ("measured", "net")
    assert {tensor.need_s for tensor in trace.tensors} == {0.0}
    assert 0 <= trace.forward_s <= trace.tensors[0].ready_s  # other ones may be first on each rank
    assert trace.backward_s > 0
    # The names of the profile are those that a plan has.
    plan = Plan("single", (tuple(tensor.name for tensor in trace.tensors),))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), plan=plan), "mse")
    model.fit(np.ones((BATCH, 3)), np.ones((BATCH, 2)), batch_size=BATCH, verbose=0)


@_in_tensorflow(2)
def test_a_job_that_starts_anew_writes_its_steps_anew(tmp_path):
    """The second rank is a worker that has come anew, with a model that has done nothing."""
    path = _begin(tmp_path)
    model = _fit(STEPS + 2)
    hvd.shutdown()
    path.unlink(missing_ok=True)
    hvd.init()
    x, y = (np.ones(((STEPS + 2) * BATCH, n), np.float32) for n in (3, 2))
    if hvd.rank() == 0:
        model.fit(x, y, batch_size=BATCH, verbose=0)
    else:
        _fit(STEPS + 2)
    assert len(_sizes(path)) == 6


def _too_few(folder):
    _begin(folder)
    _fit(STEPS - 1)
    hvd.shutdown()


def test_too_few_steps_write_nothing(tmp_path, capfd):
    run_ranks(2, _too_few, tmp_path, env=ENV)
    assert not list(tmp_path.iterdir())
    assert f"was not written: {STEPS - 1} steps (expected {STEPS})" in capfd.readouterr().err


@_in_tensorflow(1)
def test_eager_steps_write_nothing(tmp_path):
    path = _begin(tmp_path)
    with pytest.warns(UserWarning, match="AIACC_PROFILE: gradients outside of a tf.function"):
        _fit(STEPS, run_eagerly=True)
    assert not path.exists()


def _tape_step(variables):
    """One that computes a gradient of each by a tape that is made anew in each trace."""

    @tf.function
    def step(x):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(v) * tf.reduce_sum(x) for v in variables])
        return tape.gradient(loss, variables)

    return step


@_in_tensorflow(2)
def test_tapes_have_a_file_for_the_variables_of_each(tmp_path):
    path = _begin(tmp_path)
    first, second = ([tf.Variable(tf.ones(n)) for n in sizes] for sizes in ((2, 3), (4,)))
    steps = [_tape_step(variables) for variables in (first, second)]
    for number in range(STEPS):
        for step in steps:
            rows = 1 + number % 2 if hvd.rank() else 1  # one rank traces twice
            step(tf.ones([rows]))
    assert _sizes(path) == {"Variable:0": 8, "Variable:0#2": 12}
    assert _sizes(tmp_path / "net.2.json") == {"Variable:0": 16}


@_in_tensorflow(2)
def test_what_no_plan_can_have_is_left_out(tmp_path):
    """Sums of two passes; one variable is local, one has no gradient, one has rows."""
    path = _begin(tmp_path)
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
    assert _sizes(path) == {"v3": 8}


@_in_tensorflow(2)
def test_ranks_outside_the_process_set_have_no_part_in_it(tmp_path):
    path = _begin(tmp_path)
    process_set = hvd.add_process_set([1])
    if process_set.included():
        _fit(STEPS, distribute=partial(hvd.DistributedOptimizer, process_set=process_set))
    assert len(_sizes(path)) == len(NAMES)
