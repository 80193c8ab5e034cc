"""Measurements on one GPU: ``python -m bench.gpu``."""
