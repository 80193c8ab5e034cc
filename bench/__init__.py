"""Benchmarks: ratios measured in one run, raw samples kept under ``bench/results``."""
