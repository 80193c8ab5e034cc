"""Every test leaves the process as it found it."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support import (
    programs,  # noqa: F401  reads its variable before they are cleared
    rank_forks,
)

# Settings of whoever runs the tests would change what is tested.
for _name in [name for name in os.environ if name.startswith(("AIACC_", "HOROVOD_"))]:
    del os.environ[_name]
# A shell in a script ignores SIGINT for what it starts by "&", and nohup SIGHUP: jobs would, too.
for _number, _handler in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: 0}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

#: What pytest and torch set themselves, whenever they please.
_NOT_OURS = ("PYTEST_", "TORCHINDUCTOR_")
#: The thread of progress bars, which torch's compiler starts where tqdm is installed.
_OF_TORCH = "tqdm_monitor"


_TESTS = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that lack a word, `alone` or `fast`, that -m wants in each of its tests."""
    if not collection_path.name.startswith("test_") or re.search(r"\bor\b", config.option.markexpr):
        return None
    wanted = set(re.findall(r"(?<!not )\b(alone|fast)\b", config.option.markexpr))
    if _TESTS / "unit" in collection_path.parents:
        wanted.discard("fast")  # it is the folder's
    text = collection_path.read_text()
    return True if any(mark not in text for mark in wanted) else None


def pytest_collection_finish() -> None:
    """Collectors of garbage need not look at what has been imported, nor copy it in children."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a folder says of its tests."""
    for item in items:
        if _TESTS / "parallel" in item.path.parents:
            item.add_marker("ranks")
        elif _TESTS / "unit" in item.path.parents and item.get_closest_marker("alone") is None:
            item.add_marker("fast")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}


def _sockets() -> set[str]:
    targets = set()
    kept = rank_forks.descriptors()
    for entry in Path("/proc/self/fd").iterdir():
        if int(entry.name) in kept:
            continue
        try:
            targets.add(str(entry.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return {target for target in targets if target.startswith("socket:")}


def _children() -> set[str]:
    ours = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return set(ours) - rank_forks.processes()


@pytest.fixture(autouse=True)
def _leave_nothing_behind():
    environment, threads, sockets = _environment(), set(threading.enumerate()), _sockets()
    children = _children()
    yield
    aiacc = sys.modules.get("aiacc")
    if aiacc is not None and aiacc.is_initialized():
        aiacc.shutdown()
        pytest.fail("the test left the runtime initialised; call shutdown()")
    assert _environment() == environment, "the test changed the environment; use monkeypatch"
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread not in threads and thread.name != _OF_TORCH
    ]
    assert not left, f"the test left threads: {left}"
    assert not _children() - children, "the test left processes"
    assert not _sockets() - sockets, "the test left sockets"
