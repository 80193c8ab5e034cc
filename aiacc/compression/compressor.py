"""What an argument ``compression`` may be besides a front-end's own compressors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiacc.compression.codecs import BF16, KNOWN, NONE, Codec, PowerSGD, Quantised, parse
from aiacc.compression.policy import Policy

#: For what finds a codec by itself by time alone, and what it chooses from besides `none` if nobody
#: says: codecs with which trainings end where they end with float32 (docs/compression.md).
AUTO = "auto"
ALLOWED: tuple[Codec, ...] = (BF16, Quantised("int8"))


class CodedCompressor:
    """Lets float32 tensors travel as a codec makes them.

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.codec})"

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


def allowed_of(compression: Any) -> tuple[Codec, ...] | None:
    """What a user lets `AUTO` choose from besides `none`; None: nobody is to choose.

    Args:
        compression: ``auto``; or with codecs, as in ``auto:bf16+int8``.

    Raises:
        ValueError: The name of no codec, of one that is not chosen, or one that comes twice.
    """
    name, colon, codecs = (compression if isinstance(compression, str) else "").partition(":")
    if name.strip() != AUTO:
        return None
    if not colon:
        return ALLOWED
    at = f"compression={compression!r}"
    try:
        allowed = [parse(codec) for codec in codecs.split("+")]
    except ValueError as error:
        raise ValueError(f"{at}: {error}; name codecs as in 'auto:bf16+int8'") from error
    if any(isinstance(codec, PowerSGD) for codec in allowed):
        raise ValueError(
            f"{at} (expected codecs that the core has: of powersgd there is no prediction for a "
            "bucket); leave it out, or name it alone"
        )
    if len({codec.name for codec in allowed}) < len(allowed):
        raise ValueError(f"{at} (expected each codec once); leave out one of those that come twice")
    allowed = [codec for codec in allowed if codec != NONE]
    if not allowed:
        raise ValueError(f"{at} (expected a codec besides none); add one, or leave auto out")
    return tuple(allowed)


def compressor_of(compression: Any, casts: Mapping[str, Any], coded: type[CodedCompressor]) -> Any:
    """A compressor for what may stand for one: a codec, or its name. Others are returned as is.

    Args:
        compression: What a user gave.
        casts: The front-end's compressors of the codecs that are none or a cast, by their names.
        coded: Its compressor of another codec.

    Raises:
        ValueError: A name of none, what is no compressor, or one of another front-end.
    """
    if isinstance(compression, str):
        if allowed_of(compression) is not None:
            raise ValueError(
                f"compression={compression!r} (expected a codec, its name or one of Compression: "
                "only DistributedOptimizer of torch finds one by itself); use Compression.bf16"
            )
        compression = parse(compression)
    if isinstance(compression, Codec):
        return casts.get(compression.name) or coded(compression)
    name = getattr(compression, "__qualname__", None) or str(compression)
    compresses = hasattr(compression, "compress") and hasattr(compression, "decompress")
    if not (compresses or isinstance(compression, Policy)):
        raise ValueError(
            f"compression={name:.100} (expected one of Compression, such as Compression.bf16, a "
            'codec or its name, such as "int8" or "mstopk:density=0.01"); '
            + _remedy(compression, name)
        )
    front_end = getattr(compression, "front_end", coded.front_end)
    if front_end != coded.front_end:
        raise ValueError(
            f"compression={name} of aiacc.{front_end} (expected one of aiacc.{coded.front_end}'s "
            'Compression, a codec or its name); give a name, such as "bf16" or "int8", which both '
            "take"
        )
    return compression


def _remedy(compression: Any, name: str) -> str:
    """What to give in place of what is no compressor."""
    if isinstance(compression, type) and issubclass(compression, Codec):
        names = [name for name, codec in KNOWN.items() if type(codec) is compression]
        return f'give a codec of that class, such as "{names[0]}"' if names else "give a codec"
    if hasattr(compression, "bf16"):
        return f"give one of its members, such as {name}.bf16"
    if isinstance(compression, type) or not callable(compression):
        return "leave it out to send all bits"
    return f"call it: {name}()"
