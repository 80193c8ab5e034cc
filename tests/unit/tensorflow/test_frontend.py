"""What `aiacc.tensorflow` decides without other ranks."""

import keras
import pytest
import tensorflow as tf

from aiacc.collectives.reduce_ops import Adasum, Max, Min, Product, name_of_op
from aiacc.compression import compressor
from aiacc.compression.codecs import Quantised
from aiacc.compression.policy import Policy
from aiacc.tensorflow import node, op_library
from aiacc.tensorflow.compression import (
    Compression,
    FP16Compressor,
    compressor_of,
    restored,
    to_send,
)
from aiacc.tensorflow.gradients import GradientReduction
from aiacc.tensorflow.keras.choice import keras_3


@pytest.mark.parametrize("factor", [1.0, 1 / 3, -0.0, 5e-324, float("inf")])
def test_factors_keep_their_bits(factor):
    assert node.factor_from(node.bits_of(factor)).hex() == factor.hex()


@pytest.mark.parametrize(
    "value", [tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.sparse.from_dense([1.0, 0.0])]
)
def test_tensors_that_are_not_dense_are_refused(value):
    with pytest.raises(ValueError, match=rf"allreduce of 'x': a {type(value).__name__} .*dense"):
        node.tensor_of(value, "allreduce of 'x'")


def test_float32_is_narrowed_by_the_core_and_others_by_a_cast():
    narrow, wide = tf.constant([1.0]), tf.constant([1.0], tf.float64)
    sent, contexts, wire = to_send(Compression.fp16, [narrow], op=1)
    assert (sent[0] is narrow, contexts, wire) == (True, [None], 1)
    sent, contexts, wire = to_send(Compression.fp16, [narrow, wide], op=1)
    assert ([t.dtype for t in sent], wire) == ([tf.float16] * 2, 0)
    back = restored(Compression.fp16, sent, contexts, wire)
    assert [t.dtype for t in back] == [tf.float32, tf.float64]

    class Own(FP16Compressor):
        pass

    assert to_send(Own, [narrow], op=1)[2] == 0


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(2, [[0], [2, 3]]), (9, [[0], [2], [3]]), ([[1, 3]], [[0], [2], [3]])],
)
def test_gradients_without_value_are_in_no_group(groups, expected):
    variables = [tf.Variable(0.0) for _ in range(4)]
    if isinstance(groups, list):
        groups = [[variables[i] for i in group] for group in groups]
    reduction = GradientReduction(groups=groups)
    grouped = [list(group) for group in reduction._grouped([0, 2, 3], variables)]
    assert grouped == expected


def test_keras_on_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ImportError, match=r"Keras runs on torch \(expected tens.*use aiacc\.torch"):
        keras_3()


def test_a_broken_library_and_a_wrong_answer_are_refused_and_nothing_is_compiled(
    tmp_path, monkeypatch
):
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(ImportError, match=r"does not run .*broken\.so.*2\.16 to 2\.21"):
        op_library.load_file(tmp_path / "broken.so")
    monkeypatch.setattr(op_library, "_PROBE_ANSWER", 1)
    monkeypatch.setenv("AIACC_TENSORFLOW_OPS", "library")
    with pytest.raises(ImportError, match="its probe gave 1095319875, not 1"):
        op_library.checked.__wrapped__()
    monkeypatch.setattr(op_library, "LIBRARY", tmp_path / "none.so")
    for choice in ("library", "auto"):
        monkeypatch.setenv("AIACC_TENSORFLOW_OPS", choice)
        with pytest.raises(ImportError, match=r"none\.so is missing .*make build"):
            op_library._chosen.__wrapped__()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": 1, "gradient_predivide_factor": 2.0}, "expected"),
        ({"groups": 0}, "expected"),
        *(({"groups": [[one]]}, r"groups=\[\[.*lists of variables") for one in ("x", 1, [])),
        ({"groups": 2, "op": 2}, "expected"),
        ({"compression": "auto"}, r"compression='auto' .*no chooser.*Compression\.int8"),
        ({"compression": Policy(Quantised("int8"))}, r"=Policy\(int8\) .*schedules.*ession\.int8"),
        ({"compression": "auto:int8"}, r"compression='auto:int8' .*no chooser"),
        ({"compression": "int4"}, r"=int4 of grad.*or randomk:unbiased=true: .*no error feedback"),
        ({"compression": "topk"}, r"compression=topk of gradients .*no error feedback"),
        ({"compression": "randomk"}, r"compression=randomk of gradients .*no error feedback"),
        ({"compression": "powersgd"}, r"compression=powersgd of gradients .*no error feedback"),
        ({"compression": "int8:block=7"}, r"block 7 of int8"),
        *(
            ({"compression": name, "op": op}, rf"op={name_of_op(op)} with compression={name} .*Sum")
            for name in ("int8", "fp8", "randomk:unbiased=true")
            for op in (Min, Max, Product, Adasum)
        ),
    ],
)
def test_what_does_not_fit_together_or_only_torch_has_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        GradientReduction(**arguments)


class _OfTorch(compressor.CodedCompressor):
    front_end = "torch"


class _CastOfTorch:
    front_end = "torch"
    compress = decompress = lambda self, tensor: (tensor, None)


def test_a_compressor_of_torch_is_refused_when_it_is_given():
    for build in (
        lambda given: GradientReduction(compression=given),
        lambda given: to_send(compressor_of(given), [tf.constant([1.0])], op=1),
    ):
        for given, name in ((_OfTorch(Quantised("int8")), "int8"), (_CastOfTorch, "_CastOfTorch")):
            said = rf'compression={name} of aiacc\.torch .*aiacc\.tensorflow\'s .*give .*"bf16"'
            with pytest.raises(ValueError, match=said):
                build(given)
    ours = compressor_of("int8")
    assert compressor_of(ours) is ours


def test_codecs_of_operations_and_of_gradients_without_feedback_are_taken():
    for name in ("int8:stochastic=true", "fp8", "randomk:unbiased=true"):
        GradientReduction(compression=name)
    assert to_send(compressor_of("mstopk"), [tf.constant([1.0])], op=1)[2] > 256
    with pytest.raises(ValueError, match=r"powersgd of an operation .*torch's"):
        to_send(compressor_of("powersgd"), [tf.constant([1.0])], op=1)


def test_an_argument_of_keras_2_in_horovods_examples_is_accepted_with_a_word():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match="experimental_run_tf_function .* Keras 3") as told:
        model.compile("sgd", "mse", experimental_run_tf_function=False)
    assert told[0].filename == __file__
    model.compile_from_config(model.get_compile_config())  # which warns of a strange `compile`
    with pytest.raises(TypeError, match="experimental"):
        model.compile("sgd", "mse", experimental=False)
