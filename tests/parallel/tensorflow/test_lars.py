"""LARS of Keras: saved and loaded, and two ranks learn as one does."""

import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as hvd_keras
from aiacc.keras.lars import LARS
from tests.support.learning.keras_training import (
    WORDS,
    alone,
    check_equal,
    check_learned,
    fitted,
    in_tensorflow,
)


@in_tensorflow
def test_lars(tmp_path):
    def make():
        return LARS(20.0, weight_decay=0.01, nesterov=True, exclude=("*embed*",))

    model = fitted(WORDS, hvd.DistributedOptimizer(make()))
    check_learned(model, alone(WORDS, make()), rtol=1e-4, atol=1e-5)
    path = f"{tmp_path}/{hvd.rank()}.keras"
    model.save(path)
    loaded = hvd_keras.load_model(path, custom_optimizers=[LARS]).optimizer
    assert isinstance(loaded, LARS)
    assert {**loaded.get_config(), "name": ""} == {**model.optimizer.get_config(), "name": ""}
    check_equal(loaded.variables, model.optimizer.variables)
