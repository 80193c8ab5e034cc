"""Moved to `bench.collectives.tensors`."""

from bench.collectives.tensors import BFLOAT16_EXACT as BFLOAT16_EXACT
