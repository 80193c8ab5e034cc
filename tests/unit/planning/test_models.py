"""Tables of layers of published networks; bench/test_figures.py has steps of theirs."""

import pytest

from aiacc.planning import models
from aiacc.planning.models.kronecker import Layer, layers_of


@pytest.mark.parametrize(
    ("name", "tensors", "elements", "giga"),
    [
        ("resnet50", 161, 25_557_032, 4.09),
        ("resnet152", 467, 60_192_808, 11.5),
        ("vgg16", 32, 138_357_544, 15.5),
        ("densenet201", 604, 20_013_928, 4.29),
        ("inception_v4", 449, 42_679_816, 12.3),
        # With the head for masked words, but for the part that names the next sentence (1,538).
        ("bert_base", 204, 110_104_890, 13.9),
        ("bert_large", 396, 336_224_058, 42.8),
    ],
)
def test_networks_have_the_published_sizes(name, tensors, elements, giga):
    parameters = models.MODELS[name].parameters()
    assert len(parameters) == tensors == len({parameter.name for parameter in parameters})
    assert sum(parameter.elements for parameter in parameters) == elements
    work = sum(parameter.multiply_adds for parameter in parameters)
    assert work / 1e9 == pytest.approx(giga, rel=0.01)


@pytest.mark.parametrize(
    ("name", "layers", "a_elements", "g_elements", "largest"),
    [
        ("resnet50", 54, 62_348_671, 14_618_356, 4608),
        ("resnet152", 156, 161_955_199, 32_927_476, 4608),
        ("densenet201", 201, 130_961_295, 1_806_420, 1921),
        ("inception_v4", 150, 116_414_683, 4_695_748, 3456),
    ],
)
def test_layers_have_factors_of_the_published_sizes(name, layers, a_elements, g_elements, largest):
    """Upper triangles; those of ResNets and DenseNet were counted independently."""
    parameters = models.MODELS[name].parameters()
    found = layers_of(parameters)
    assert len(found) == layers
    assert sum(layer.a_dim * (layer.a_dim + 1) // 2 for layer in found) == a_elements
    assert sum(layer.g_dim * (layer.g_dim + 1) // 2 for layer in found) == g_elements
    assert max(layer.a_dim for layer in found) == largest
    sizes = {parameter.name: parameter.elements for parameter in parameters}
    for layer in found:
        assert sum(sizes[name] for name in layer.parameters) == layer.a_dim * layer.g_dim


def test_layers_of_convolutions_with_biases_and_of_embeddings():
    first, *_, last = layers_of(models.MODELS["resnet50"].parameters())
    assert first == Layer("conv1", 3 * 7 * 7, 64, 112 * 112, ("conv1.weight",))
    assert last == Layer("fc", 2049, 1000, 1, ("fc.weight", "fc.bias"))
    assert (first.a_work, first.g_work) == (112 * 112 * 147**2, 112 * 112 * 64**2)
    found = layers_of(models.MODELS["vgg16"].parameters())
    inputs = [3, *[64] * 2, *[128] * 2, *[256] * 3, *[512] * 5]
    expected = [9 * channels + 1 for channels in inputs] + [512 * 7 * 7 + 1, 4097, 4097]
    assert [layer.a_dim for layer in found] == expected
    found = layers_of(models.MODELS["bert_base"].parameters())
    assert len(found) == 12 * 6 + 2
    assert found[0] == Layer(
        "layer0.query", 769, 768, 128, ("layer0.query.weight", "layer0.query.bias")
    )


def test_a_modelled_trace_says_so():
    trace = models.trace_of("vgg16", compute_s=3.0)
    assert trace.source == "modelled"
    assert (trace.forward_s, trace.backward_s) == pytest.approx((1.0, 2.0))
    assert trace.tensors[0].name == "fc2.bias"
    assert trace.tensors[-1].name == "block1.conv1.weight"
    assert trace.tensors[-1].ready_s == pytest.approx(3.0)
    assert trace.tensors[-1].need_s == 0.0
    with pytest.raises(ValueError, match=r"model 'alexnet' .expected one of resnet50"):
        models.trace_of("alexnet")
