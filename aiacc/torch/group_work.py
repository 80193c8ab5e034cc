"""Operations of a process group under way, as torch wants to see them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch._C._distributed_c10d import Work

from aiacc import _core
from aiacc.exceptions import CollectiveError

#: A handle, and what is left to do with its result.
Step: TypeAlias = tuple[int, Callable[[int], None] | None]


class GroupWork(Work):
    """One call of a process group, which may be several operations of the core.

    Threads: any. What `wait` raised once it raises again.
    """

    def __init__(
        self, steps: list[Step], kept: object, outputs: list[torch.Tensor], futures: Futures
    ) -> None:
        """Keep ``kept`` alive until the steps are done; ``outputs`` is the result."""
        super().__init__()
        self._lock = threading.Lock()
        self._steps = steps
        self._kept = kept
        self._outputs = outputs
        self._futures = futures
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._error: Exception | None = None
        futures.keep(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs may be used. ``timeout`` is ignored: a lost rank is an error.

        Raises:
            CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
        """
        del timeout
        with self._lock:
            while self._steps:
                handle, finish = self._steps[0]
                try:
                    _core.wait(handle)
                    if finish is not None:
                        with torch.no_grad():
                            finish(handle)
                except (CollectiveError, ValueError, RuntimeError) as error:
                    self._error = self._error or error
                del self._steps[0]
            self._kept = None
        self._futures.forget(self)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return all(_core.poll(handle) for handle, _ in self._steps)
        finally:
            self._lock.release()

    def is_success(self) -> bool:
        """Whether the operation is done and did not fail."""
        return not self._steps and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong, once `wait` has returned."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The outputs."""
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the outputs, which completes without anybody waiting."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._futures.complete(self)
        return self._future

    def complete_future(self) -> None:
        """Wait, then complete the future. Called by `Futures` only."""
        assert self._future is not None
        try:
            self.wait()
        except Exception as error:  # handed to whoever waits for the future
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._future.set_result(self._outputs)


class Futures:
    """Completes the futures of a process group, in a thread that starts with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[GroupWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Work that nobody has waited for: the core uses its memory.
        self._under_way: set[GroupWork] = set()

    def keep(self, work: GroupWork) -> None:
        """Keep ``work`` alive until it is done."""
        self._under_way.add(work)

    def forget(self, work: GroupWork) -> None:
        """``work`` is done."""
        self._under_way.discard(work)

    def complete(self, work: GroupWork) -> None:
        """Complete the future of ``work`` as soon as it is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aiacc futures", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def close(self, join: bool) -> None:
        """End the thread when the work that it has is done; ``join`` waits for that."""
        if self._thread is not None:
            self._queue.put(None)
            if join:
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            work: Any = self._queue.get()
            if work is None:
                return
            work.complete_future()
