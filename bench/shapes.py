"""Parameter shapes of published networks, computed from their architecture."""

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


def vgg16() -> list[tuple[str, Shape]]:
    """Name and shape of VGG-16's 32 parameters, in the order of the forward pass.

    Simonyan and Zisserman 2015, configuration D: 138,357,544 parameters.
    """
    found: list[tuple[str, Shape]] = []
    channels, layer = 3, 0
    for block, (width, convolutions) in enumerate(VGG16_BLOCKS, start=1):
        for _ in range(convolutions):
            layer += 1
            at = f"block{block}.conv{layer}"
            found += [(f"{at}.weight", (width, channels, 3, 3)), (f"{at}.bias", (width,))]
            channels = width
    for number, (out, inner) in enumerate(((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096))):
        found += [(f"fc{number}.weight", (out, inner)), (f"fc{number}.bias", (out,))]
    return found


#: Channels and convolutions of VGG-16's blocks.
VGG16_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def bert_base() -> list[tuple[str, Shape]]:
    """Name and shape of BERT-base's 199 parameters, in the order of the forward pass.

    Devlin et al. 2019, encoder and pooler, vocabulary of 30,522: 109,482,240 parameters.
    """
    hidden = 768
    found: list[tuple[str, Shape]] = [
        ("embeddings.word", (30522, hidden)),
        ("embeddings.position", (512, hidden)),
        ("embeddings.type", (2, hidden)),
        *_norm("embeddings.norm", hidden),
    ]
    for layer in range(12):
        at = f"layer{layer}"
        for part in ("query", "key", "value", "output"):
            found += _linear(f"{at}.{part}", hidden, hidden)
        found += _norm(f"{at}.norm1", hidden)
        found += _linear(f"{at}.up", hidden, 4 * hidden)
        found += _linear(f"{at}.down", 4 * hidden, hidden)
        found += _norm(f"{at}.norm2", hidden)
    return [*found, *_linear("pooler", hidden, hidden)]


def _linear(name: str, inner: int, out: int) -> list[tuple[str, Shape]]:
    return [(f"{name}.weight", (out, inner)), (f"{name}.bias", (out,))]


def _norm(name: str, width: int) -> list[tuple[str, Shape]]:
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


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
