"""Beds: virtual hosts on this machine, for tests and for measuring what only a network shows."""


class BedError(RuntimeError):
    """The bed cannot be put up or used; the text says why and what to do."""
