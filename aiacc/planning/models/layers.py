"""Parameters of a network in the order of its forward pass, with the work behind each. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """One parameter, and the layer that it belongs to."""

    name: str
    shape: Shape
    #: Of the forward pass of one sample.
    multiply_adds: int = 0

    @property
    def elements(self) -> int:
        """Of the gradient."""
        return prod(self.shape)


@dataclass
class Layers:
    """Collects parameters; `channels` and `size` are of the image after the last convolution."""

    channels: int = 3
    size: int = 224
    parameters: list[Parameter] = field(default_factory=list)

    def conv(
        self,
        name: str,
        out: int,
        kernel: int | tuple[int, int],
        size: int,
        *,
        source: int | None = None,
        bias: bool = False,
    ) -> None:
        """A convolution to ``out`` channels of ``size`` x ``size`` pixels.

        From ``source`` channels: those of the image unless given.
        """
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        shape = (out, self.channels if source is None else source, height, width)
        self.parameters.append(Parameter(f"{name}.weight", shape, prod(shape) * size**2))
        if bias:
            self.parameters.append(Parameter(f"{name}.bias", (out,)))
        self.channels, self.size = out, size

    def norm(self, name: str, width: int | None = None) -> None:
        """Scale and shift of a normalisation: of the image's channels unless ``width`` is given."""
        for part in ("weight", "bias"):
            self.parameters.append(Parameter(f"{name}.{part}", (width or self.channels,)))

    def linear(self, name: str, inner: int, out: int, *, tokens: int = 1) -> None:
        """A layer from ``inner`` to ``out`` features, for so many tokens of a sample."""
        self.parameters.append(Parameter(f"{name}.weight", (out, inner), inner * out * tokens))
        self.parameters.append(Parameter(f"{name}.bias", (out,)))

    def table(self, name: str, rows: int, width: int) -> None:
        """An embedding, which is looked up."""
        self.parameters.append(Parameter(name, (rows, width)))
