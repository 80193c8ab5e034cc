"""An array that passes for one of a library like CuPy; its memory is NumPy's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class DeviceArray:
    """Has the CUDA array interface, version 3, and says like DLPack where it is."""

    def __init__(self, host: np.ndarray, device: int = 0, stream: int | None = None) -> None:
        self.host = host
        self.device = device
        self.stream = stream
        self.strides = None if host.flags.c_contiguous else host.strides
        self.read_only = False
        self.made_on = device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "strides": self.strides,
            "data": (self.host.__array_interface__["data"][0], self.read_only),
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device) if self.device >= 0 else (1, 0)

    def __array_namespace__(self) -> Any:
        def empty(shape: tuple[int, ...], dtype: Any) -> DeviceArray:
            return DeviceArray(np.empty(shape, dtype), self.made_on, self.stream)

        return SimpleNamespace(empty=empty)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def dtype(self) -> Any:
        return self.host.dtype
