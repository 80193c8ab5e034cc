"""Shorter forms of gradients while they travel."""

from aiacc.torch.compression.compressors import Compression

__all__ = ["Compression"]
