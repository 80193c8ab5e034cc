"""Measurements on one GPU."""
