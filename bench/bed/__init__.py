"""Beds: virtual hosts on this machine, for tests and for measuring what only a network shows."""
