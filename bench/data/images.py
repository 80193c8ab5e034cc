"""What lies in the origin: generated JPEG images."""

import io
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import torch
from PIL import Image

from bench.data.origin import Throttle

#: Images in a shard, for those who read shards.
_SHARD = 32
SIDE = 256


def make(count: int, folder: Path) -> int:
    """Write ``count`` images as files, and as shards; returns the bytes of the files."""
    (folder / "wds").mkdir(parents=True)
    total = 0
    for begin in range(0, count, _SHARD):
        with tarfile.open(folder / "wds" / f"{begin}.tar", "w") as tar:
            for index in range(begin, min(begin + _SHARD, count)):
                file = folder / f"{index}.jpg"
                _picture(index).save(file, "JPEG", quality=90)
                total += file.stat().st_size
                tar.add(file, file.name)
                label = str(label_of(index)).encode()
                entry = tarfile.TarInfo(f"{index}.cls")
                entry.size = len(label)
                tar.addfile(entry, io.BytesIO(label))
    return total


def label_of(index: int) -> int:
    """The class of an image."""
    return index % 10


def decoded(data: bytes) -> torch.Tensor:
    """A file as a tensor of bytes, channels first."""
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


@dataclass
class Images:
    """The dataset that the contenders wrap: one object of the origin for each sample."""

    count: int
    #: In place of the folder.
    url: str | None
    folder: Path
    throttle: Throttle
    _open: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return decoded(self.read(index)), label_of(index)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}

    def read(self, index: int) -> bytes:
        """The bytes of a file."""
        if self.url is None:
            data = (self.folder / f"{index}.jpg").read_bytes()
            self.throttle.wait(len(data))
            return data
        return bytes(self.filesystem().cat_file(f"{self.url}/{index}.jpg"))

    def filesystem(self) -> Any:
        """fsspec's, which is not for the children of the process that has opened it."""
        if os.getpid() not in self._open:
            self._open[os.getpid()] = fsspec.filesystem("http", skip_instance_cache=True)
        return self._open[os.getpid()]


def _picture(index: int) -> Image.Image:
    chance = np.random.default_rng(index)
    coarse = chance.integers(0, 256, (32, 32, 3), np.uint8)
    scaled = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    noise = chance.normal(0, 12, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(np.asarray(scaled) + noise, 0, 255).astype(np.uint8))
