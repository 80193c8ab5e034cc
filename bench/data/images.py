"""What lies in the origin: generated JPEG images, and handwritten digits scaled up."""

import functools
import io
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from bench.data.origin import Throttle

KINDS = ("textures", "digits")
_SIDE = {"textures": 256, "digits": 128}


def make(kind: str, count: int, folder: Path) -> int:
    """Write ``count`` images as files of their own; returns the bytes of all."""
    folder.mkdir(parents=True)
    total = 0
    for index in range(count):
        buffer = io.BytesIO()
        _picture(kind, index).save(buffer, "JPEG", quality=90)
        (folder / f"{index}.jpg").write_bytes(buffer.getvalue())
        total += len(buffer.getvalue())
    return total


def label_of(kind: str, index: int) -> int:
    """The class of an image."""
    return index % 10 if kind == "textures" else int(_digits().target[index])


def decoded(data: bytes) -> torch.Tensor:
    """A file as a tensor of bytes, channels first."""
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


class Images:
    """The dataset that the contenders wrap: one object of the origin for each sample."""

    def __init__(
        self,
        kind: str,
        count: int,
        url: str | None = None,
        folder: Path | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.kind = kind
        self.count = count
        self.url = url
        self.folder = folder
        self.throttle = throttle
        self._open: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return decoded(self.read(index)), label_of(self.kind, index)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def read(self, index: int) -> bytes:
        """The bytes of a file."""
        if self.url is None:
            data = (self.folder / f"{index}.jpg").read_bytes()
            self.throttle.wait(len(data))
            return data
        return self.filesystem().cat_file(f"{self.url}/{index}.jpg")

    def filesystem(self) -> Any:
        """fsspec's, which is not for the children of the process that has opened it."""
        if os.getpid() not in self._open:
            self._open[os.getpid()] = fsspec.filesystem("http", skip_instance_cache=True)
        return self._open[os.getpid()]


def _picture(kind: str, index: int) -> Image.Image:
    side = _SIDE[kind]
    if kind == "digits":
        pixels = (_digits().images[index] * 15.9).astype(np.uint8)
        return Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
    chance = np.random.default_rng(index)
    coarse = chance.integers(0, 256, (32, 32, 3), np.uint8)
    scaled = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
    noise = chance.normal(0, 12, (side, side, 3))
    return Image.fromarray(np.clip(np.asarray(scaled) + noise, 0, 255).astype(np.uint8))


@functools.cache
def _digits() -> Any:
    return load_digits()
