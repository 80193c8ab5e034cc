"""What an argument ``compression`` may be besides a front-end's own compressors. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from aiacc.compression.codecs import Codec, parse


class CodedCompressor:
    """Lets float32 tensors in host memory travel as a codec makes them.

    In sums and averages only: nothing else has a code. Other dtypes pass unchanged in those. A
    front-end derives from it.

    Attributes:
        codec: How they travel.
        front_end: For errors.
    """

    front_end: ClassVar[str]

    def __init__(self, codec: Codec) -> None:
        """Stand for ``codec``."""
        self.codec = codec

    def __str__(self) -> str:
        return str(self.codec)

    @staticmethod
    def is_floating(tensor: Any) -> bool:
        """Whether a tensor of the front-end has fractions."""
        raise NotImplementedError

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """``tensor`` itself, unless it is floating-point.

        Raises:
            ValueError: It is: no cast stands for a codec.
        """
        if self.is_floating(tensor):
            dtype = getattr(tensor.dtype, "name", tensor.dtype)
            raise ValueError(
                f"[{self.front_end}] compression={self.codec}: tensor of dtype {dtype} in an "
                "operation without codecs (expected an all-reduce, not Adasum); use "
                "Compression.bf16"
            )
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """``tensor`` itself."""
        del ctx
        return tensor


def compressor_of(
    compression: Any, casts: Mapping[str, Any], coded: Callable[[Codec], CodedCompressor]
) -> Any:
    """A compressor for what may stand for one: a codec, or its name. Others are returned as is.

    Args:
        compression: What a user gave.
        casts: The front-end's compressors of the codecs that are none or a cast, by their names.
        coded: Makes its compressor of another codec.

    Raises:
        ValueError: A name of none.
    """
    if isinstance(compression, str):
        compression = parse(compression)
    if isinstance(compression, Codec):
        return casts.get(compression.name) or coded(compression)
    return compression
