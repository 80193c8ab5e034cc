"""Datasets behind a slow origin: aiacc's cache against others. See __main__."""
