"""Distributed K-FAC for models of torch."""
