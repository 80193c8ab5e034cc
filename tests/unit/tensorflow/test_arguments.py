"""Wrong arguments of TensorFlow's and Keras's functions are refused in the words of all others."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import aiacc.keras as of_keras
import aiacc.tensorflow as hvd
import aiacc.tensorflow.keras as of_tf_keras
from aiacc.collectives import names
from aiacc.keras.lars import LARS
from aiacc.tensorflow.keras import callbacks
from tests.support.wrong_arguments import parameters_of, public, unexplained

pytestmark = pytest.mark.usefixtures("job_of_one")

ROWS = tf.ones((4, 2))
GIVEN = {
    **{"tensor": ROWS, "tensors": [ROWS], "value": ROWS, "variables": [], "root_rank": 0},
    **{"obj": 1, "filepath": "none.keras", "initial_lr": 1.0, "multiplier": 1.0},
    "gradtape": tf.GradientTape(),
}
OTHERS = SimpleNamespace(LARS=LARS, **vars(callbacks))
OTHERS.__all__ = ["LARS", *(name for name in vars(callbacks) if name.endswith("Callback"))]
SPECIAL = {
    "LARS": {"weight_decay": "None 5 1.5 inf", "exclude": "x"},
    "broadcast_": {"variables": "bytes"},
    "broadcast_variables": {"variables": "bytes"},
    "SyncBatchNormalization": {"fused": "any"},
}
SKIPPED = ("check_extension", *names.__all__)


@pytest.mark.parametrize("front", [hvd, of_tf_keras, of_keras, OTHERS])
def test_each_wrong_argument_is_refused(front):
    found = []
    for _, name in public(front, SKIPPED):
        function = getattr(front, name)
        plain, of_v1 = keras.optimizers.SGD, tf.compat.v1.train.AdamOptimizer
        given = {**GIVEN, "optimizer": of_v1() if front is hvd else plain()}
        right = dict.fromkeys(("tensor", "value"), "5 [0] -1 1.5 True nan inf bytes") | SPECIAL.get(
            name, {}
        )
        if "op" in parameters_of(function):
            right["op"] = "None 5" if "average" in parameters_of(function) else "5 -1"
        found += unexplained(function, given, right)
    assert found == []


def test_a_number_out_of_range_is_a_value_error():
    with pytest.raises(ValueError, match=r"verbose=3 \(expected 0, 1 or 2\)"):
        callbacks.LearningRateWarmupCallback(1.0, verbose=3)
    with pytest.raises(ValueError, match="initial_lr=nan"):
        callbacks.LearningRateWarmupCallback(np.nan)
    with pytest.raises(TypeError, match=r"multiplier\(2\)='2' \(expected a finite number"):
        callbacks.LearningRateScheduleCallback(1.0, str).on_epoch_begin(2)


def test_what_horovod_takes_is_taken():
    assert hvd.broadcast(ROWS, tf.constant(0)).shape == ROWS.shape


def test_a_tensor_is_no_rank_and_no_list():
    with pytest.raises(TypeError, match=r"^root_rank=.* \(expected the number of a rank"):
        hvd.broadcast(ROWS, tf.constant(1.5))
    with pytest.raises(
        TypeError, match=r"(?s)^variables=.* \(expected a list of variables\); wrap"
    ):
        hvd.broadcast_variables(tf.Variable(ROWS), 0)
