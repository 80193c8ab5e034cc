"""Parameter shapes of ResNet-50, and what workers do with shapes.

Imports nothing of aiacc: workers also run with earlier ones (``--against``), which lack its models.
"""

from math import prod

Shape = tuple[int, ...]


def resnet50() -> list[tuple[str, Shape]]:
    """Name and shape of ResNet-50's 161 parameters, in the order of the forward pass.

    He et al. 2016, biases in the batch norms and in the classifier only: 25,557,032 parameters.
    """
    found = [*_conv_bn("conv1", "bn1", (64, 3, 7, 7))]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            out = 4 * width
            found += _conv_bn(f"{at}.conv1", f"{at}.bn1", (width, channels, 1, 1))
            found += _conv_bn(f"{at}.conv2", f"{at}.bn2", (width, width, 3, 3))
            found += _conv_bn(f"{at}.conv3", f"{at}.bn3", (out, width, 1, 1))
            if block == 0:
                down = f"{at}.downsample"
                found += _conv_bn(f"{down}.0", f"{down}.1", (out, channels, 1, 1))
            channels = out
    return [*found, ("fc.weight", (1000, channels)), ("fc.bias", (1000,))]


def elements(shapes: list[tuple[str, Shape]]) -> int:
    """Number of elements in all of ``shapes``."""
    return sum(prod(shape) for _, shape in shapes)


def _conv_bn(conv: str, norm: str, kernel: Shape) -> list[tuple[str, Shape]]:
    """A convolution without bias and the batch norm behind it."""
    out = kernel[0]
    return [
        (f"{conv}.weight", kernel),
        (f"{norm}.weight", (out,)),
        (f"{norm}.bias", (out,)),
    ]
