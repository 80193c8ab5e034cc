"""ResNet, VGG, DenseNet and Inception for images of ImageNet, from their papers' tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.planning.models.layers import Layers, Parameter


def resnet(blocks: Sequence[int]) -> list[Parameter]:
    """He et al., "Deep Residual Learning", CVPR 2016, table 1: bottlenecks, stride in the 3 x 3."""
    net = Layers()
    net.conv("conv1", 64, 7, 112)
    net.norm("bn1")
    size = 56
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), start=1):
        for block in range(count):
            at, before = f"layer{stage}.{block}", net.channels
            # The first block of a later stage reads what the stage before gives, at its resolution.
            inner, size = size, size // 2 if block == 0 and stage > 1 else size
            net.conv(f"{at}.conv1", width, 1, inner)
            net.norm(f"{at}.bn1")
            net.conv(f"{at}.conv2", width, 3, size)
            net.norm(f"{at}.bn2")
            net.conv(f"{at}.conv3", 4 * width, 1, size)
            net.norm(f"{at}.bn3")
            if block == 0:
                net.conv(f"{at}.downsample.0", 4 * width, 1, size, source=before)
                net.norm(f"{at}.downsample.1")
    net.linear("fc", net.channels, 1000)
    return net.parameters


#: Channels and convolutions of VGG-16's blocks.
VGG16_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16() -> list[Parameter]:
    """Simonyan and Zisserman, ICLR 2015, configuration D."""
    net, layer = Layers(), 0
    for block, (width, convolutions) in enumerate(VGG16_BLOCKS, start=1):
        for _ in range(convolutions):
            layer += 1
            net.conv(f"block{block}.conv{layer}", width, 3, 224 >> (block - 1), bias=True)
    for number, (out, inner) in enumerate(((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096))):
        net.linear(f"fc{number}", inner, out)
    return net.parameters


def densenet(blocks: Sequence[int], growth: int, first: int) -> list[Parameter]:
    """Huang et al., "Densely Connected Convolutional Networks", CVPR 2017, table 1."""
    net = Layers()
    net.conv("conv0", first, 7, 112)
    net.norm("norm0")
    channels, size = first, 56
    for block, count in enumerate(blocks, start=1):
        for layer in range(1, count + 1):
            at = f"block{block}.layer{layer}"
            net.norm(f"{at}.norm1", channels)
            net.conv(f"{at}.conv1", 4 * growth, 1, size, source=channels)
            net.norm(f"{at}.norm2")
            net.conv(f"{at}.conv2", growth, 3, size)
            channels += growth
        if block < len(blocks):
            net.norm(f"transition{block}.norm", channels)
            net.conv(f"transition{block}.conv", channels // 2, 1, size, source=channels)
            channels, size = channels // 2, size // 2
    net.norm("norm5", channels)
    net.linear("classifier", channels, 1000)
    return net.parameters


#: A branch of an inception block: convolutions after each other, with output channels and kernel; a
#: list in it forks.
_Branch = Sequence[tuple[int, int | tuple[int, int]] | list[tuple[int, int | tuple[int, int]]]]

_ROW, _COLUMN = (1, 7), (7, 1)
_SHORT_ROW, _SHORT_COLUMN = (1, 3), (3, 1)
_FORK: list[tuple[int, int | tuple[int, int]]] = [(256, _SHORT_ROW), (256, _SHORT_COLUMN)]
_INCEPTION_A: Sequence[_Branch] = (
    [(96, 1)],
    [(64, 1), (96, 3)],
    [(64, 1), (96, 3), (96, 3)],
    [(96, 1)],
)
_INCEPTION_B: Sequence[_Branch] = (
    [(384, 1)],
    [(192, 1), (224, _ROW), (256, _COLUMN)],
    [(192, 1), (192, _COLUMN), (224, _ROW), (224, _COLUMN), (256, _ROW)],
    [(128, 1)],
)
_INCEPTION_C: Sequence[_Branch] = (
    [(256, 1)],
    [(384, 1), _FORK],
    [(384, 1), (448, _SHORT_COLUMN), (512, _SHORT_ROW), _FORK],
    [(256, 1)],
)


def inception_v4() -> list[Parameter]:
    """Szegedy et al., "Inception-v4", AAAI 2017, figures 3 to 9; images of 299 x 299."""
    net = Layers(size=299)
    for number, (out, size) in enumerate(((32, 149), (32, 147), (64, 147))):
        _conv_bn(net, f"stem{number}", out, 3, size, net.channels)
    _branches(net, "stem3", 64, ([(96, 3)],), 73)
    _branches(net, "stem4", 160, ([(64, 1), (96, 3)],), 73, last=71)
    _branches(net, "stem5", 160, ([(64, 1), (64, _ROW), (64, _COLUMN), (96, 3)],), 73, last=71)
    _branches(net, "stem6", 192, ([(192, 3)],), 35)
    for block in range(4):
        _branches(net, f"a{block}", 384, _INCEPTION_A, 35)
    _branches(net, "reduction_a.0", 384, ([(384, 3)],), 17)
    _branches(net, "reduction_a.1", 384, ([(192, 1), (224, 3), (256, 3)],), 35, last=17)
    for block in range(7):
        _branches(net, f"b{block}", 1024, _INCEPTION_B, 17)
    _branches(net, "reduction_b.0", 1024, ([(192, 1), (192, 3)],), 17, last=8)
    _branches(
        net, "reduction_b.1", 1024, ([(256, 1), (256, _ROW), (320, _COLUMN), (320, 3)],), 17, last=8
    )
    for block in range(3):
        _branches(net, f"c{block}", 1536, _INCEPTION_C, 8)
    net.linear("last_linear", 1536, 1000)
    return net.parameters


def _branches(
    net: Layers,
    at: str,
    source: int,
    branches: Sequence[_Branch],
    size: int,
    *,
    last: int | None = None,
) -> None:
    """All branches, from ``source`` channels; the last layer of each may give another size."""
    for number, branch in enumerate(branches):
        channels = source
        for step, layer in enumerate(branch):
            pixels = last if last is not None and step == len(branch) - 1 else size
            forks = layer if isinstance(layer, list) else [layer]
            for fork, (out, kernel) in enumerate(forks):
                name = f"{at}.{number}.{step}" + (f".{fork}" if len(forks) > 1 else "")
                _conv_bn(net, name, out, kernel, pixels, channels)
            channels = forks[0][0]


def _conv_bn(
    net: Layers, name: str, out: int, kernel: int | tuple[int, int], size: int, source: int
) -> None:
    net.conv(f"{name}.conv", out, kernel, size, source=source)
    net.norm(f"{name}.bn")
