"""Reduction of gradients while the backward pass computes others."""
