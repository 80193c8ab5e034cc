"""Trainings that are compared."""
