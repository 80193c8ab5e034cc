"""Caches in memory, and what multiprocessing leaves for a moment is gone when a test has ended."""

import threading
from multiprocessing import resource_tracker

import pytest

from aiacc.data import CachedDataset


@pytest.fixture(autouse=True)
def _nothing_of_multiprocessing(_leave_nothing_behind):
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of a DataLoader's queue that has been closed
            thread.join(30)
    resource_tracker._resource_tracker._stop()


@pytest.fixture
def opened(tmp_path):
    """Opens caches in memory, in the folder shm; they leave nothing there."""
    folder, made = tmp_path / "shm", []
    folder.mkdir()

    def opened(source, *name, memory="1MB", kind=CachedDataset, **options):
        made.append(kind(source, *name, memory=(folder, memory), **options))
        return made[-1]

    yield opened
    for cached in made:
        cached.close()
    assert list(folder.iterdir()) == []
