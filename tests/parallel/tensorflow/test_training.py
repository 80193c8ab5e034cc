"""Two ranks learn with Keras what one process learns from the data of both; and tapes do."""

import contextlib
import copy
import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc.keras.lars import LARS
from tests.support.learning.keras_training import (
    DENSE,
    FAMILIES,
    LSO,
    NORMED,
    OF_KERAS_2,
    STEPS,
    TELLS,
    WORDS,
    OwnStep,
    alone,
    check_equal,
    check_learned,
    fit,
    fitted,
    in_each_keras,
    in_tensorflow,
    in_tf_keras,
    is_same,
    keras,
    new,
    state_of,
    step_of,
)

SGD = keras.optimizers.SGD


def _by_tape(compiled, **options):
    model, optimizer = new(DENSE), SGD(0.1)
    if options.get("groups") == "layers":
        options["groups"] = [layer.trainable_variables for layer in model.layers]
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape, **options)
        assert isinstance(tape, tf.GradientTape)
        grads = tape.gradient(loss, model.trainable_variables)
        step_of(optimizer, model.trainable_variables)(*grads)

    step = tf.function(step) if compiled else step
    for x, y in zip(*DENSE.data(hvd.rank()), strict=True):
        step(tf.constant(x), tf.constant(y))
    return model


@in_tensorflow
def test_gradients_of_tapes_are_those_of_all_ranks():
    expected = alone(DENSE, SGD(0.1))
    for compiled in (False, True):
        for options in (
            {},
            {"groups": 2},
            {"groups": "layers"},
            {"num_groups": 1, "gradient_predivide_factor": 2.0},
        ):
            check_learned(_by_tape(compiled, **options), expected)
    check_learned(_by_tape(True, op=hvd.Sum), alone(DENSE, SGD(0.2)))

    variables = [tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable(5.0)]
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        rows = tf.gather(variables[0], [hvd.rank()])
        loss = tf.reduce_sum(rows) + (hvd.rank() + 1.0) * variables[1]
    tape.register_local_source(variables[1])
    sparse, local, nothing = tape.gradient(loss, variables)
    assert tf.convert_to_tensor(sparse).numpy().tolist() == [0.5, 0.5]
    assert local.numpy() == (hvd.rank() + 1) / 2
    assert nothing is None

    model = new(DENSE)
    inputs, targets = DENSE.data(hvd.rank())
    inner = tf.GradientTape()
    partial = hvd.PartialDistributedGradientTape(
        inner, local_layers=model.layers[0], sparse_as_dense=True, scale_local_gradients=False
    )
    with partial as tape:
        loss = tf.reduce_mean((model(inputs[0]) - targets[0]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    assert [is_same(grad) for grad in grads] == [False, False, True, True]
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(inner, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="wrap each tape once"):
        hvd.DistributedGradientTape(partial)


#: Which of four variables each rank uses; of the first it looks rows up.
PATTERNS = [("0", "1"), ("02", "12"), ("1", "0"), ("", "01"), ("12", "")]


@in_tensorflow
def test_outside_of_graphs_a_gradient_that_a_rank_lacks_is_zero():
    values = [tf.Variable(tf.ones((2, 2), tf.float32 if i < 2 else tf.float64)) for i in range(4)]
    dense = {"sparse_as_dense": True}
    for options in ({}, dense, {"groups": 2}, {"compression": "int8"}, {**dense, "op": hvd.Adasum}):
        for pattern in PATTERNS:
            with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                used = [tf.gather(v, [1]) if v is values[0] else v * 1.0 for v in values]
                parts = [tf.cast(used[int(i)], tf.float32) for i in pattern[hvd.rank()]]
                loss = tf.add_n([tf.constant(0.0), *map(tf.reduce_sum, parts)])
            share = 1.0 if "op" in options else 0.5
            for i, grad in enumerate(tape.gradient(loss, values)):
                expected = sum(str(i) in used for used in pattern) * share
                if "op" in options:  # of equal gradients Adasum is the average
                    expected = min(expected, 1.0)
                what = f"{options}, {pattern}, {i}"
                assert (grad is None) == (expected == 0), what
                if grad is not None:
                    rows = [[0.0 if i == 0 else expected] * 2, [expected] * 2]
                    assert tf.convert_to_tensor(grad).numpy().tolist() == rows, what

    for sources, said in (
        (values, r"Variable.* is dense on 1 .*IndexedSlices.* on 1 .*sparse_as_dense=True"),
        (values[1 : 2 + hvd.rank()], r"grouped_allreduce(?s:.*)rank"),
    ):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            rows = values[0] * 1.0 if hvd.rank() == 0 else tf.gather(values[0], [1])
            loss = tf.reduce_sum(rows)
        with pytest.raises(tf.errors.FailedPreconditionError, match=said):
            tape.gradient(loss, sources)


def _decaying(of):
    """Of Keras 2's older optimizers none has a decay."""
    decay = {} if OF_KERAS_2 and of is not keras.optimizers else {"weight_decay": 0.1}
    return of.Adam(0.05, clipnorm=0.1, **decay)


def _sgd(of):
    return of.SGD(0.5)


def _clipped(of):
    return of.Adam(0.05, global_clipnorm=0.1)


#: What is trained and by which optimizer, options of the distributed one, and how Keras runs it.
#: Squares and norms of sparse gradients count a row that is there twice as two, so what is made
#: dense is as in one process with an optimizer that has neither.
WAYS = {
    "fit": (DENSE, _decaying, {}, {}),
    "normalised": (NORMED, lambda of: of.SGD(0.05, momentum=0.9, clipnorm=0.1), {}, {}),
    "a group, eagerly": (DENSE, _decaying, {"groups": 1}, {"run_eagerly": True}),
    "normalised, two groups": (NORMED, _decaying, {"groups": 2}, {"kind": OwnStep}),
    "two passes": (DENSE, _sgd, {"backward_passes_per_step": 2}, {}),
    "sparse": (WORDS, _clipped, {}, {}),
    "a step of one's own": (WORDS, _clipped, {}, {"kind": OwnStep}),
    "a group in a step of one's own": (WORDS, _clipped, {"groups": 1}, {"kind": OwnStep}),
    "sparse as dense": (WORDS, _sgd, {"sparse_as_dense": True}, {}),
}
#: Keras 2's older optimizers share what is between the ways, but not how they apply gradients.
WAYS_OF_OLDER = ("fit", "two passes", "a group in a step of one's own")


@in_each_keras
def test_optimizers_learn_what_those_of_one_process_do():
    for of in FAMILIES:
        for name in WAYS if of is keras.optimizers else WAYS_OF_OLDER:
            recipe, make, options, how = WAYS[name]
            passes = options.get("backward_passes_per_step", 1)
            plain, given = make(of), make(of)
            optimizer = hvd.DistributedOptimizer(given, **options)
            assert isinstance(optimizer, type(plain)), name
            assert type(optimizer).__name__ == type(plain).__name__
            assert OF_KERAS_2 or optimizer.name == given.name
            model = fitted(recipe, optimizer, **how)
            tolerance = {} if recipe is DENSE else {"rtol": 1e-4, "atol": 1e-5}
            check_learned(model, alone(recipe, plain, passes), **tolerance)
            assert int(optimizer.iterations.numpy()) == STEPS // passes
        averaged = hvd.DistributedOptimizer(
            of.SGD(0.2), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        check_learned(
            fitted(DENSE, averaged, run_eagerly=True), alone(DENSE, of.SGD(0.1), passes=2)
        )


class _Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, first):
        self.first = first

    def get_config(self):
        return {"first": self.first}

    def __call__(self, step):
        return self.first * 0.5 ** tf.cast(step, tf.float32)


class Several(SGD):
    """Takes steps of several times the rate; its configuration says nothing of that."""

    times = 1.0

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(self.times * grad, variable) for grad, variable in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


class Silent(SGD):
    """Has no configuration, and cannot be made of one."""

    def __init__(self, rates):
        super().__init__(sum(rates))

    def get_config(self):
        raise NotImplementedError


def _after(call, optimizer):
    call(optimizer)
    return optimizer


#: Optimizers with what no configuration of theirs has.
UNCONFIGURED = {
    "excluded": lambda: _after(
        lambda one: one.exclude_from_weight_decay(var_names=["bias"]),
        keras.optimizers.AdamW(0.1, weight_decay=0.5),
    ),
    "steps before": lambda: _after(lambda one: one.iterations.assign(2), SGD(_Halving(0.5))),
    "own": lambda: _after(lambda one: setattr(one, "times", 3.0), Several(0.1)),
    "a function as rate": lambda: SGD(lambda: 0.25),
}
if OF_KERAS_2:
    negated = lambda pairs: [(-grad, variable) for grad, variable in pairs]  # noqa: E731
    older = lambda: keras.optimizers.legacy.SGD(0.1, gradient_transformers=[negated])  # noqa: E731
    UNCONFIGURED["transformed"] = older


@in_each_keras
def test_what_is_in_no_configuration_stays():
    for make in UNCONFIGURED.values():
        for copied in (False,) if OF_KERAS_2 else (False, True):
            optimizer = hvd.DistributedOptimizer(make())
            model = fitted(DENSE, copy.deepcopy(optimizer) if copied else optimizer)
            check_learned(model, alone(DENSE, make()), rtol=1e-4, atol=1e-5)
    optimizer = hvd.DistributedOptimizer(Silent([0.1, 0.2]))
    check_learned(fitted(DENSE, optimizer), alone(DENSE, SGD(0.3)))
    schedule = _Halving(0.5)
    optimizer = hvd.DistributedOptimizer(SGD(schedule))
    schedule.first = 0.25  # later
    check_learned(fitted(DENSE, optimizer), alone(DENSE, SGD(_Halving(0.25))))


@in_tf_keras
def test_xla_compiles_the_update_but_not_the_reduction():
    # tf_keras compiles the update of a variable by itself; gradients are reduced before.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05, epsilon=1e-3))
    optimizer.jit_compile = True
    expected = alone(NORMED, keras.optimizers.Adam(0.05, epsilon=1e-3))
    check_learned(fitted(NORMED, optimizer), expected, rtol=1e-4, atol=1e-5)
    model = new(DENSE)
    before = model.get_weights()
    model.compile(hvd.DistributedOptimizer(SGD()), "mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="pass jit_compile=False"):
        fit(model)
    check_equal(model.get_weights(), before)


def _from_config(optimizer):
    return type(optimizer).from_config(optimizer.get_config())


@in_each_keras
def test_copies_and_optimizers_from_a_configuration_reduce_gradients():
    def applied(optimizer, gradient, variable):
        variable.assign([0.0])
        step_of(optimizer, [variable])(tf.constant([gradient]))
        return variable.numpy().tolist()

    mine, make_variable = hvd.rank() + 1.0, (tf if OF_KERAS_2 else keras).Variable
    for of in FAMILIES:
        for scale, plain in ((1.0, of.SGD(0.5)), (8.0, LSO(of.SGD(0.5), initial_scale=8.0))):
            gradient = mine if OF_KERAS_2 else mine * scale
            variable, local = make_variable([0.0]), make_variable([0.0])
            wrapped = hvd.DistributedOptimizer(plain, op=hvd.Sum)
            wrapped.register_local_var(local)
            again = _from_config(wrapped)
            for optimizer in (again, _from_config(again)):
                assert applied(optimizer, gradient, variable) == [-1.5]
            assert applied(_from_config(wrapped), gradient, local) == [-mine / 4]
        if OF_KERAS_2 and of is keras.optimizers:  # they cannot be copied
            continue
        variable = make_variable([0.0])
        wrapped = hvd.DistributedOptimizer(of.SGD(0.5, momentum=0.5), op=hvd.Sum)
        assert applied(wrapped, mine, variable) == [-1.5]
        copied = copy.deepcopy(wrapped)
        if OF_KERAS_2:
            assert applied(copied, mine, make_variable([0.0])) == [-1.5]
        else:
            assert applied(copied, mine, variable) == [-2.25]  # it has the momentum, too
        assert int(copied.iterations.numpy()) == 2
        assert int(wrapped.iterations.numpy()) == 1


#: A plain optimizer, one that is distributed, and how the file of a model ends.
SAVED = [
    (lambda: keras.optimizers.Adam(0.05, clipnorm=0.1), hvd.DistributedOptimizer, ".keras"),
    (lambda: LSO(SGD(0.05, momentum=0.9)), hvd.DistributedOptimizer, ".keras"),
    (lambda: SGD(_Halving(0.05)), hvd.DistributedOptimizer, ".keras"),
]
if OF_KERAS_2:
    SAVED += [
        (lambda: keras.optimizers.Adam(0.05), hvd.DistributedOptimizer, ""),  # a folder
        (lambda: keras.optimizers.legacy.Adam(0.05), hvd.DistributedOptimizer, ".h5"),
    ]
elif TELLS:
    scaled = lambda plain: LSO(hvd.DistributedOptimizer(plain.inner_optimizer))  # noqa: E731
    SAVED.append((lambda: LSO(keras.optimizers.Adam(0.05)), scaled, ".keras"))


@in_each_keras
def test_a_saved_model_has_the_plain_optimizer_and_may_be_wrapped_again(tmp_path):
    objects = {one.__name__: one for one in (hvd.SyncBatchNormalization, _Halving)}
    for number, (make, wrap, suffix) in enumerate(SAVED):
        model = fitted(NORMED, wrap(make()))
        path = Path(tmp_path) / f"{hvd.rank()}.{number}" / f"model{suffix}"
        path.parent.mkdir()  # Keras 3.4 writes files of fixed names beside it
        model.save(path)
        plain = keras.models.load_model(path, objects)
        assert type(plain.optimizer) is type(make())
        if isinstance(plain.optimizer, LSO):
            assert type(plain.optimizer.inner_optimizer) is type(make().inner_optimizer)
        again = hvd_keras.load_model(path, custom_objects=objects)
        assert type(again.optimizer) is not type(plain.optimizer)
        assert isinstance(again.layers[1], hvd.SyncBatchNormalization)
        check_equal(again.get_weights(), model.get_weights())
        if not suffix:  # Keras 2 leaves the state of optimizers out
            continue
        counted = getattr(again.optimizer, "inner_optimizer", again.optimizer)  # as Keras 3.8 does
        assert int(counted.iterations.numpy()) == STEPS
        check_equal(state_of(again.optimizer), state_of(model.optimizer))
        for each in (again, model):
            fit(each)
        check_learned(again, model.get_weights(), rtol=0, atol=0)


@in_tensorflow
def test_lars(tmp_path):
    def make():
        return LARS(20.0, weight_decay=0.01, nesterov=True, exclude=("*embed*",))

    model = fitted(WORDS, hvd.DistributedOptimizer(make()))
    check_learned(model, alone(WORDS, make()), rtol=1e-4, atol=1e-5)
    folder = Path(tmp_path) / str(hvd.rank())
    folder.mkdir()  # Keras 3.4 writes files of fixed names beside it
    model.save(folder / "model.keras")
    loaded = hvd_keras.load_model(folder / "model.keras", custom_optimizers=[LARS]).optimizer
    assert isinstance(loaded, LARS)
    assert {**loaded.get_config(), "name": ""} == {**model.optimizer.get_config(), "name": ""}
    check_equal(loaded.variables, model.optimizer.variables)


@pytest.mark.fast
@in_each_keras
def test_variables_and_layers_of_each_rank_are_not_shared():
    for of in FAMILIES:
        model, one = new(NORMED), new(NORMED)
        local = hvd.DistributedOptimizer(of.SGD(0.1))
        local.register_local_var(one.trainable_variables[0])
        options = {"local_layers": model.layers[0], "scale_local_gradients": False}
        partial = hvd_keras.PartialDistributedOptimizer(of.SGD(0.1), **options)
        for trained, optimizer, shared in ((one, local, 5), (model, partial, 4)):
            trained.compile(optimizer=optimizer, loss="mse")
            fit(trained)
            found = [is_same(variable) for variable in trained.trainable_variables]
            assert found == [False] * (6 - shared) + [True] * shared


class _Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(round(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)), 6))


@in_each_keras
def test_callbacks(tmp_path):
    callbacks = hvd_keras.callbacks
    for of in FAMILIES:
        model = new(NORMED)
        kept = model.trainable_variables[-1]
        for variable in model.weights:
            variable.assign(variable + hvd.rank())
        model.compile(hvd.DistributedOptimizer(of.SGD(0.04, momentum=0.5), op=hvd.Sum), "mse")
        chosen = [
            callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kept]),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2, verbose=1),
            callbacks.LearningRateScheduleCallback(0.04, 0.1, start_epoch=2, end_epoch=3),
            callbacks.LearningRateScheduleCallback(0.04, lambda e: 0.5**e, start_epoch=3),
            _Rates(),
        ]
        if hvd.rank() == 0:
            best = callbacks.BestModelCheckpoint(monitor="loss")
            best.filepath = f"{tmp_path}/best.keras"
            chosen.append(best)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            history = fit(model, batch_size=8, epochs=4, callbacks=chosen).history
        assert ("Epoch 2: finished gradual" in said.getvalue()) == (hvd.rank() == 0)
        assert chosen[5].rates == [0.025, 0.03, 0.035, 0.04, 0.004, 0.004, 0.005, 0.005]
        assert history["lr"] == pytest.approx([0.03, 0.04, 0.004, 0.005])
        assert np.isfinite(history["loss"]).all()
        assert is_same(history["loss"])
        for variable in [*model.weights, *state_of(model.optimizer)]:
            assert is_same(variable) == (variable is not kept)
        everyones = hvd.allgather(kept.numpy()[None])
        np.testing.assert_allclose(everyones[1] - everyones[0], 1.0, rtol=1e-6)
        if hvd.rank() == 0:
            loaded = keras.models.load_model(
                best.filepath, {"SyncBatchNormalization": hvd.SyncBatchNormalization}
            )
            assert type(loaded.optimizer) is of.SGD


@in_each_keras
def test_callbacks_know_the_optimizers_of_the_model():
    callbacks = hvd_keras.callbacks
    model = new(DENSE)
    own = [hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), LSO(keras.optimizers.Adam(0.1))]
    model.own = {"all": own}
    states = [model.weights]
    for optimizer in own:
        optimizer.build(model.trainable_variables)
        scale = [optimizer._loss_scale.current_loss_scale] if OF_KERAS_2 and states[1:] else []
        states.append([*state_of(optimizer), *scale])
    if hvd.rank() == 0:  # as if it had been restored
        for variable in [one for state in states for one in state]:
            variable.assign(variable + tf.cast(3, variable.dtype))
    callback = callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.on_train_batch_end(0)
    assert [int(one.iterations.numpy()) for one in own] == [3, 3]
    assert all(is_same(variable) for state in states for variable in state)

    model.layers[0].own = (keras.optimizers.Adam(0.1),)
    if hvd.rank() == 0:
        model.layers[0].own[0].build(model.trainable_variables)
    callback = callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    with pytest.raises(ValueError, match=r"2 \(Adam\) of rank 1 has . variables .*build"):
        callback.on_train_batch_end(0)
    if not OF_KERAS_2:
        callback = callbacks.LearningRateWarmupCallback(0.1)
        callback.set_model(model)
        with pytest.raises(ValueError, match=r"optimizer is None .*whose rate LearningRateWarmup"):
            callback.on_train_begin()
