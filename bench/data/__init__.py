"""Datasets behind a slow origin: aiacc's cache against others."""
