"""Plans and profiles of Keras and TensorFlow: two ranks that follow a plan learn as one does."""

import atexit
import contextlib
import functools
import io
import os
import warnings
from functools import partial
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
from aiacc.autotune.profile import COUNTED, WARM_UP
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Trace
from aiacc.tensorflow import gradients
from tests.support.jobs import on_ranks
from tests.support.learning.keras_training import (
    BATCH,
    DENSE,
    ENV,
    KERAS_2,
    OF_KERAS_2,
    RANKS,
    OwnStep,
    Recipe,
    alone,
    check_learned,
    fitted,
    in_each_keras,
    in_tensorflow,
    keras,
    new,
)

_END = ":0" if OF_KERAS_2 else ""
_LAYERS = ("first", "words", "last")
NAMES = [f"{name}/{kind}{_END}" for name in _LAYERS for kind in ("kernel", "bias")]
PLAN = Plan("mine", ((NAMES[5], NAMES[4], NAMES[3]), (NAMES[2], NAMES[1])))


def _layers(_):
    dense = [keras.layers.Dense(2, activation="tanh", name=name) for name in _LAYERS]
    return [keras.Input((3,)), *dense]


NET = Recipe(_layers, DENSE.data)


def functional(layers, kind=keras.Model):
    """A model whose variables are called as its layers are."""
    inputs, *rest = layers
    return kind(inputs=inputs, outputs=functools.reduce(lambda x, layer: layer(x), rest, inputs))


class FunctionalOwnStep(keras.Model):
    train_step = OwnStep.train_step


own_step = functools.partial(functional, kind=FunctionalOwnStep)


def _distributed(plan, **options):
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), plan=plan, **options)


def _groups_of(call):
    """Shapes of the gradients that ``call`` lets travel as one, for each such, and its result."""
    with mock.patch.object(
        gradients, "grouped_allreduce", wraps=gradients.grouped_allreduce
    ) as calls:
        result = call()
    groups = [[tensor.shape.as_list() for tensor in c.args[0]] for c in calls.mock_calls]
    return [group for i, group in enumerate(groups) if group not in groups[:i]], result


@in_each_keras
def test_the_buckets_of_a_plan_give_the_same_training():
    expected = alone(NET, keras.optimizers.SGD(0.5))
    for kind, options in ((functional, {}), (own_step, {}), (functional, {"run_eagerly": True})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer = _distributed(PLAN)
            groups, model = _groups_of(functools.partial(fitted, NET, optimizer, kind, **options))
        check_learned(model, expected)
        if options:  # all are there when the backward pass is over
            assert {len(group) for group in groups} == {7}  # with the mark of their forms
        else:
            assert groups == [[[2], [2, 2], [2]], [[2, 2], [2]]]
            said = "plan leaves out 1 of 6 variables, 'first/kernel"
            assert any(said in str(one.message) for one in caught)
    # Sums of several passes travel by the plan, too.
    optimizer = _distributed(PLAN, backward_passes_per_step=2)
    groups, _ = _groups_of(lambda: fitted(NET, optimizer, functional))
    assert [len(group) for group in groups] == [3, 2]


@in_tensorflow
def test_every_rank_is_told_of_a_plan_that_one_cannot_follow():
    half, strange = Plan("half", PLAN.buckets[:1]), Plan("strange", (("first/bias", "head"),))
    different = "plan: the ranks were given different ones"
    unknown = "plan has 1 gradient that the optimizer lacks, 'head' for one"
    for plans, texts in (
        ([PLAN, half], [different] * 2),
        ([strange, strange], [unknown] * 2),
        ([PLAN, strange], [different, unknown]),
    ):
        with pytest.raises(ValueError, match=texts[hvd.rank()]):
            fitted(NET, _distributed(plans[hvd.rank()]), functional)
    # The same plan, for variables that one rank calls differently.
    variable = keras.Variable([1.0], name=["mine", "theirs"][hvd.rank()])
    optimizer = _distributed(Plan("x", (("mine",),)))
    text = ["of another rank has not", "the optimizer lacks, 'mine'"][hvd.rank()]
    with pytest.raises(ValueError, match=text):
        optimizer.apply([tf.constant([1.0])], [variable])
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == RANKS  # the job goes on


@in_tensorflow
def test_a_bucket_without_all_its_gradients_goes_one_by_one():
    variables = [keras.Variable([float(i)], name=f"v{i}") for i in range(4)]
    rows = keras.Variable([[1.0], [1.0]], name="rows")
    plan = Plan("mine", (("v0", "v1"), ("v2", "rows"), ("v3",)))

    def step(optimizer, grads):
        given = [*grads, tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([hvd.rank()]), [2, 1])]
        optimizer.apply(given, [*variables, rows])

    grads = [None, *(tf.constant([hvd.rank() + 1.0]) for _ in range(3))]
    optimizer = _distributed(plan)
    optimizer.build([*variables, rows])
    for number in range(2):
        compiled = tf.function(lambda: step(optimizer, grads))  # traced twice, told of once
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            groups, _ = _groups_of(compiled)
        assert groups == []  # a bucket of one is no group
        texts = [str(w.message) for w in caught if str(w.message).startswith("plan")]
        assert len(texts) == 1 - number, texts
        if texts:
            assert "no dense gradient came for 'v0'" in texts[0]
            assert "as in 2 of 3 buckets" in texts[0]
    assert [float(v[0]) for v in variables] == [0.0, 1 - 1.5, 2 - 1.5, 3 - 1.5]
    assert rows.numpy().tolist() == [[0.5], [0.5]]
    dense = _distributed(plan, sparse_as_dense=True)
    dense.build([*variables, rows])
    groups, _ = _groups_of(tf.function(lambda: step(dense, grads)))
    assert groups == [[[1], [2, 1]]]


# --- what AIACC_PROFILE writes

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


@_in_tensorflow(2)
def test_too_few_steps_write_nothing(tmp_path):
    path = _begin(tmp_path)
    _fit(STEPS - 1)
    rank, said = hvd.rank(), io.StringIO()
    with contextlib.redirect_stderr(said):
        hvd.shutdown()
        atexit._run_exitfuncs()  # as at the end of a script
    text = f"was not written: {STEPS - 1} steps (expected {STEPS})"
    assert said.getvalue().count(text) == (rank == 0)
    assert not path.exists()


@_in_tensorflow(1)
def test_eager_steps_write_nothing(tmp_path):
    path = _begin(tmp_path)
    with pytest.warns(UserWarning, match="AIACC_PROFILE: .* gradients outside of a tf.function"):
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
