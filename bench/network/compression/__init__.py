"""Gradients that travel compressed, between capped virtual hosts."""
