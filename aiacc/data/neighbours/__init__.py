"""Samples from the node that keeps them, instead of from the origin."""
