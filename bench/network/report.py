"""What reports of rows use that are not of `bench.row` yet."""

from bench.plots import pyplot as figures

__all__ = ["figures"]
