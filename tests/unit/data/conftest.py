"""What multiprocessing leaves for a moment is gone when a test has ended."""

import threading
from multiprocessing import resource_tracker

import pytest


@pytest.fixture(autouse=True)
def _nothing_of_multiprocessing(_leave_nothing_behind):
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of a DataLoader's queue that has been closed
            thread.join(30)
    resource_tracker._resource_tracker._stop()
