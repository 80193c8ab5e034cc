"""tf_keras (Keras 2): two ranks learn what one process learns from the data of both."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from tests.parallel.tensorflow.test_ops import ENV, SIZE
from tests.support.jobs import on_ranks

STEPS = 4
in_tf_keras = on_ranks(SIZE, env={**ENV, "TF_USE_LEGACY_KERAS": "1"})
LEGACY = tf_keras.optimizers.legacy
LSO = tf_keras.mixed_precision.LossScaleOptimizer


def _model(kind=tf_keras.Model):
    """Normalised over the batches of all ranks."""
    tf_keras.utils.set_random_seed(1)
    dense = tf_keras.layers.Dense(5, activation="tanh")
    normalise = hvd.SyncBatchNormalization()
    last = tf_keras.layers.Dense(2, dtype="float32")
    inputs = tf_keras.Input((3,))
    return kind(inputs=inputs, outputs=last(normalise(dense(inputs))))


def _data(rank):
    """Every batch of a rank: inputs of shape (STEPS, 4, 3), targets of (STEPS, 4, 2)."""
    random = np.random.default_rng(rank)
    return tuple(random.normal(size=(STEPS, 4, n)).astype(np.float32) for n in (3, 2))


def _flat(rank):
    inputs, targets = _data(rank)
    return inputs.reshape(-1, 3), targets.reshape(-1, 2)


def _alone(optimizer, passes=1):
    """Weights after the steps of one process on the data of all ranks; its layer is tf_keras's."""
    tf_keras.utils.set_random_seed(1)
    layers = tf_keras.layers
    model = tf_keras.Sequential([tf_keras.Input((3,)), layers.Dense(5, activation="tanh")])
    model.add(layers.BatchNormalization())
    model.add(layers.Dense(2))
    parts = [_data(rank) for rank in range(SIZE)]
    x, y = (np.concatenate(values, 1) for values in zip(*parts, strict=True))
    for step in range(0, STEPS, passes):
        grads = []
        for n in range(step, step + passes):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x[n], training=True) - y[n]) ** 2)
            grads.append(tape.gradient(loss, model.trainable_variables))
        sums = [tf.add_n(values) for values in zip(*grads, strict=True)]
        optimizer.apply_gradients(zip(sums, model.trainable_variables, strict=True))
    return [variable.numpy() for variable in model.variables]


def _check(model, expected):
    for variable, value in zip(model.variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-5)
        _check_alike(variable)


def _check_alike(variable, alike=True):
    everyones = hvd.allgather(variable.numpy()[None])
    assert np.array_equal(everyones[0], everyones[1]) == alike


def _fit(optimizer, **options):
    model = _model()
    for variable in model.variables:
        variable.assign(variable + hvd.rank())  # until they are broadcast
    hvd.broadcast_variables(model.variables, root_rank=0)
    model.compile(optimizer, "mse", **options)
    model.fit(*_flat(hvd.rank()), batch_size=4, shuffle=False, verbose=0)
    return model


class _OwnStep(tf_keras.Model):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss}


@in_tf_keras
def test_optimizers_under_fit():
    for make in (
        lambda: tf_keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.1),
        lambda: LEGACY.SGD(0.05, momentum=0.9, clipnorm=0.1),
    ):
        expected = _alone(make())
        _check(_fit(hvd.DistributedOptimizer(make())), expected)
        _check(_fit(hvd_keras.DistributedOptimizer(make(), groups=2), run_eagerly=True), expected)
        model = _model(_OwnStep)
        model.compile(hvd.DistributedOptimizer(make()))
        model.fit(*_flat(hvd.rank()), batch_size=4, shuffle=False, verbose=0)
        _check(model, expected)
        expected = _alone(make(), passes=2)
        two = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)
        model = _fit(two)
        assert int(two.iterations) == STEPS // 2
        _check(model, expected)

        # A loop without fit, of an optimizer that has done steps before it was wrapped.
        plain, expected = make(), [tf.Variable([1.0])]
        theirs, ours = make(), tf.Variable([1.0])
        for optimizer, variable in ((theirs, expected[0]), (plain, ours)):
            optimizer.apply_gradients([(tf.constant([0.5]), variable)])
        theirs.apply_gradients([(tf.constant([0.05]), expected[0])])
        optimizer = hvd.DistributedOptimizer(plain)

        _step_of(optimizer, [ours], compiled=True)(tf.constant([0.1 * hvd.rank()]))
        np.testing.assert_allclose(ours.numpy(), expected[0].numpy(), rtol=1e-6)
        assert int(optimizer.iterations) == 2
        own = tf.constant([0.1 * hvd.rank()])
        optimizer.apply_gradients([(own, ours)], experimental_aggregate_gradients=False)
        _check_alike(ours, alike=False)

        # Variables of one rank.
        inputs, targets = _flat(hvd.rank())
        model = _model()
        local = {"local_layers": model.layers[1], "scale_local_gradients": False}
        model.compile(hvd_keras.PartialDistributedOptimizer(make(), **local), "mse")
        model.fit(inputs, targets, batch_size=4, shuffle=False, verbose=0)
        for number, variable in enumerate(model.trainable_variables):
            _check_alike(variable, alike=number >= 2)


@in_tf_keras
def test_xla_compiles_the_update_but_not_the_reduction():
    # tf_keras compiles the update of a variable by itself; gradients are reduced before.
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.Adam(0.05, epsilon=1e-3))
    optimizer.jit_compile = True
    _check(_fit(optimizer), _alone(tf_keras.optimizers.Adam(0.05, epsilon=1e-3)))
    model = _model()
    before = [variable.numpy() for variable in model.variables]
    model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD()), "mse", jit_compile=True)
    with pytest.raises(NotImplementedError, match="pass jit_compile=False"):
        model.fit(*_flat(hvd.rank()), batch_size=4, verbose=0)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@in_tf_keras
def test_models_are_saved_and_loaded(tmp_path):
    data = _flat(hvd.rank())
    for number, (make, suffix) in enumerate(
        [
            (lambda: tf_keras.optimizers.Adam(0.05), ".keras"),
            (lambda: tf_keras.optimizers.Adam(0.05), ""),  # a tmp_path, the SavedModel format
            (lambda: LEGACY.Adam(0.05), ".h5"),
            (lambda: LSO(tf_keras.optimizers.SGD(0.05, momentum=0.9)), ".keras"),
        ]
    ):
        model = _fit(hvd.DistributedOptimizer(make()))
        path = f"{tmp_path}/{hvd.rank()}-{number}{suffix}"
        model.save(path)
        objects = {"SyncBatchNormalization": hvd.SyncBatchNormalization}
        plain = tf_keras.models.load_model(path, objects)
        assert type(plain.optimizer) is type(make())
        again = hvd_keras.load_model(path, custom_objects=objects)
        assert type(again.optimizer) is not type(make())
        assert isinstance(again.layers[2], hvd.SyncBatchNormalization)
        for ours, theirs in zip(again.variables, model.variables, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        if not suffix:  # tf_keras leaves the state of optimizers out
            continue
        assert int(again.optimizer.iterations) == STEPS
        state = zip(again.optimizer.variables(), model.optimizer.variables(), strict=True)
        for new, old in state:
            np.testing.assert_array_equal(new.numpy(), old.numpy())
        for each in (again, model):
            each.fit(*data, batch_size=4, shuffle=False, verbose=0)
        _check(again, [variable.numpy() for variable in model.variables])


#: Of each step that of rank 0 and that of rank 1: the second and the fourth are to be skipped.
GRADIENTS = [(1.0, 5.0), (2.0, np.inf), (4.0, 8.0), (np.nan, 1.0), (1.0, 1.0), (3.0, 1.0)]


def _around(optimizer):
    return LSO(hvd.DistributedOptimizer(optimizer), initial_scale=16.0)


def _inside(optimizer):
    return hvd.DistributedOptimizer(LSO(optimizer, initial_scale=16.0))


def _step_of(optimizer, variables, compiled):
    def apply(*grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    return tf.function(apply) if compiled else apply


@in_tf_keras
def test_both_orders_of_loss_scaling_skip_a_step_on_all_ranks():
    rank = hvd.rank()
    for make in (lambda: tf_keras.optimizers.SGD(0.1), lambda: LEGACY.SGD(0.1)):
        for order in (_around, _inside):
            for compiled in (False, True):
                optimizer, shared, local = order(make()), tf.Variable([1.0]), tf.Variable([1.0])
                optimizer.register_local_var(local)
                step = _step_of(optimizer, [shared, local], compiled)
                found = []
                for grads in GRADIENTS:
                    step(tf.constant([grads[rank]]), tf.constant([1.0]))
                    found.append(shared.numpy().item())
                np.testing.assert_allclose(found, [0.7, 0.7, 0.1, 0.1, 0.0, -0.2], atol=1e-6)
                np.testing.assert_allclose(local.numpy(), [0.8], atol=1e-6)  # four halves
                assert float(optimizer.loss_scale) == 4.0
                step(tf.constant([1.0]), tf.constant([np.inf if rank else 1.0]))
                assert float(optimizer.loss_scale) == 2.0  # on both ranks
                np.testing.assert_allclose(shared.numpy(), [-0.2], atol=1e-6)
                own = tf.constant([1.0 + rank])
                optimizer.apply_gradients([(own, shared)], experimental_aggregate_gradients=False)
                np.testing.assert_allclose(shared.numpy(), [-0.3 - 0.1 * rank], atol=1e-6)
                optimizer.learning_rate = 0.5
                assert float(optimizer.inner_optimizer.learning_rate) == 0.5

    # tf_keras puts a LossScaleOptimizer around an optimizer itself.
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    for make in (lambda: tf_keras.optimizers.Adam(0.05), lambda: LEGACY.Adam(0.05)):
        models = [_fit(hvd.DistributedOptimizer(wrap(make()))) for wrap in (lambda o: o, LSO)]
        assert isinstance(models[0].optimizer, LSO)
        _check(models[0], [variable.numpy() for variable in models[1].variables])


class _Rates(tf_keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(round(float(np.asarray(self.model.optimizer.learning_rate)), 6))


@in_tf_keras
def test_callbacks(tmp_path):
    callbacks = hvd_keras.callbacks
    for make in (tf_keras.optimizers.SGD, LEGACY.SGD):
        model = _model()
        for variable in model.variables:
            variable.assign(variable + hvd.rank())
        kept = model.variables[0]
        model.compile(hvd.DistributedOptimizer(make(0.04, momentum=0.5), op=hvd.Sum), "mse")
        rates = _Rates()
        chosen = [
            callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kept]),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=2, verbose=1),
            callbacks.LearningRateScheduleCallback(0.04, 0.1, start_epoch=2),
            rates,
        ]
        if hvd.rank() == 0:
            chosen.append(callbacks.BestModelCheckpoint(monitor="loss"))
            chosen[-1].filepath = f"{tmp_path}/best.keras"
        history = model.fit(
            *_flat(hvd.rank()), batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=chosen
        ).history
        assert rates.rates == [0.025, 0.03, 0.035, 0.04, 0.004, 0.004]
        assert history["lr"] == pytest.approx([0.03, 0.04, 0.004])
        losses = hvd.allgather([history["loss"]]).numpy()
        assert np.isfinite(losses).all()
        np.testing.assert_array_equal(losses[0], losses[1])
        _check_alike(kept, alike=False)
        for variable in [*model.variables[1:], *model.optimizer.variables()]:
            _check_alike(variable)
        if hvd.rank() == 0:
            best = tf_keras.models.load_model(f"{tmp_path}/best.keras")
            assert type(best.optimizer) is make
