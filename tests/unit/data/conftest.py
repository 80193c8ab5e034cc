"""Processes that are spawned here leave no helper of multiprocessing behind."""

from multiprocessing import resource_tracker

import pytest


@pytest.fixture(autouse=True)
def _no_resource_tracker(_leave_nothing_behind):
    yield
    resource_tracker._resource_tracker._stop()
