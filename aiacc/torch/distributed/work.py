"""Operations of a process group under way, as torch wants to see them."""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._C._distributed_c10d import Work

from aiacc import _core, basics
from aiacc.exceptions import CollectiveError, CollectiveTimeoutError
from aiacc.torch import streams
from aiacc.torch.adapter import device_of, wait

#: A handle, what is left to do with its result, and the tensors whose memory the core uses.
Step: TypeAlias = tuple[int, Callable[[int], object] | None, tuple[torch.Tensor, ...]]
#: With which torch means none, and with what is less.
_NO_TIMEOUT = timedelta(0)
#: Ranks that an error names at most.
_NAMED = 8
#: Of TorchScript, whose lists of tensors are those of C++; Python's are objects without a type.
_TYPED = """
def after(done: Future[List[Tensor]], outputs: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(done)
    return outputs

def typed(done: Future[List[Tensor]], outputs: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, done, outputs)
"""


def seconds_of(timeout: timedelta) -> float:
    """Of a limit; infinity if it is torch's word for none. Pure."""
    return timeout.total_seconds() if timeout > _NO_TIMEOUT else math.inf


class Limit(NamedTuple):
    """How long an operation may take."""

    seconds: float = math.inf
    #: What it is, for errors.
    operation: str = "operation"
    #: Ranks of the job of which it may wait for some.
    others: tuple[int, ...] = ()

    def error(self, after_s: float | None = None) -> CollectiveTimeoutError:
        """What is raised when the limit has passed, or only ``after_s`` of it. Pure."""
        numbers = ", ".join(map(str, self.others))
        whom = f"rank {numbers}" if len(self.others) == 1 else f"one of ranks {numbers}"
        if not 0 < len(self.others) <= _NAMED:
            whom = "another rank"
        return CollectiveTimeoutError(
            f"[torch] {self.operation}: {whom} did not come within its timeout of "
            f"{self.seconds if after_s is None else after_s:g} s (expected the same operations in "
            "the same order on every rank of the group); look at what that rank does instead, or "
            "pass a longer timeout="
        )


_NO_LIMIT = Limit()


@contextlib.contextmanager
def limited(limit: Limit) -> Iterator[None]:
    """A context in which the core is waited for; the job ends if that takes longer.

    Raises:
        CollectiveTimeoutError: It did.
    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        basics.end(f" has given up: {limit.error()}")

    timer = threading.Timer(min(limit.seconds, threading.TIMEOUT_MAX), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except CollectiveError as failure:
        if late.is_set():
            raise limit.error() from failure
        raise
    finally:
        timer.cancel()
        timer.join()


class CollectiveWork(Work):
    """One call of a process group, which may be several operations of the core.

    Threads: any. What `wait` raised once it raises again.

    Attributes:
        coded: Whether the step that was done last travelled coded.
        limit: How long it may take from now on.
    """

    def __init__(
        self,
        steps: list[Step],
        outputs: list[torch.Tensor],
        futures: Futures,
        limit: Limit = _NO_LIMIT,
    ) -> None:
        """Keep tensors alive until the steps are done; ``outputs`` is the result."""
        super().__init__()
        self.limit = limit
        self._deadline = time.monotonic() + limit.seconds
        self._lock = threading.Lock()
        self._steps = steps
        self._outputs = outputs
        self._futures = futures
        used = [tensor for _, _, tensors in steps for tensor in tensors]
        self._devices = sorted({device_of(tensor) for tensor in used} - {-1})
        #: By CUDA device, once the steps are done: where the results are on its streams.
        self._marks: dict[int, Any] = {}
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        #: Completes before it, with the outputs, whatever the outcome.
        self._done: Any = None
        self._error: Exception | None = None
        self.coded = False
        futures.keep(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the outputs may be used.

        On a CUDA device the current stream waits for them, and the host does not.

        Args:
            timeout: At most so long, after which the operation is still under way, and may be
                waited for again; 0 or None: as long as its limit allows, which ends the job.

        Raises:
            CollectiveTimeoutError: That has passed.
            CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
        """
        if timeout is not None and timeout > _NO_TIMEOUT:
            self._await_completion(timeout.total_seconds())
        with self._lock:
            while self._steps:
                handle, finish, used = self._steps[0]
                try:
                    self.coded = wait(handle, used)
                    if finish is not None:
                        with torch.no_grad():
                            finish(handle)
                except Exception as error:  # is raised below, and by every later call
                    self._error = self._error or error
                del self._steps[0]
            self._order()
        self._futures.forget(self)
        if self._error is not None:
            raise self._error
        return True

    def _await_completion(self, limit_s: float) -> None:
        """Return when `wait` would do so at once. The core is asked: its own wait has no limit."""
        deadline, pause_s = time.monotonic() + limit_s, 1e-5
        if not self.is_completed():
            _core.flush()
        while not self.is_completed():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self.limit.error(limit_s)
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.2 * pause_s, 1e-3)

    def is_late(self) -> bool:
        """Whether it is still under way though its limit has passed."""
        return self._error is None and time.monotonic() > self._deadline and not self.is_completed()

    def give_up(self) -> CollectiveTimeoutError:
        """Let `wait` raise what is returned, when the core lets go of the operation."""
        self._error = error = self.limit.error()
        return error

    def _order(self) -> None:
        """The first thread that waits says where the results are; the streams of others wait."""
        for device in self._devices:
            if device in self._marks:
                streams.wait_for_mark(self._marks[device], device)
            else:
                self._marks[device] = streams.mark(device)

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return all(_core.poll(handle) for handle, *_ in self._steps)
        except (CollectiveError, ValueError):  # the job has ended
            return True
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
        """A future of the outputs, which completes without anybody waiting.

        DistributedDataParallel takes it in C++, to which only the error of a callback is an error:
        what `set_exception` leaves is a value. Its hook FP16_COMPRESS takes a list of tensors of
        C++ alone, which there is in host memory only: TorchScript knows nothing of streams.
        """
        if self._future is None:
            self._done = streams.future_on(self._devices)
            self._future = self._done.then(self._outcome)
            dtypes = [tensor.dtype for tensor in self._outputs]
            if dtypes == [torch.float16] and not self._devices:
                self._future = _script().typed(self._future, self._outputs)
            self._futures.complete(self)
        assert self._future is not None
        return self._future

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which waiting touches no stream of the user's."""
        contexts = contextlib.ExitStack()
        for device in self._devices:
            contexts.enter_context(streams.aside(device))
        return contexts

    def complete_future(self) -> None:
        """Complete the future after `wait`, and run its callbacks. Called by `Futures` only."""
        self._done.set_result(self._outputs)

    def _outcome(self, done: Any) -> Any:
        if self._error is not None:
            raise self._error
        return done.value()


@functools.cache
def _script() -> Any:
    # In a forked process torch makes a pool of threads anew when somebody asks for it, and aborts
    # if two do at a time, as the threads that run scripts would.
    torch.set_num_threads(torch.get_num_threads())
    return torch.jit.CompilationUnit(_TYPED)


class Futures:
    """Completes the futures of a process group, in a thread that starts with the first.

    Callbacks of a future run there. Since one may wait for another future of the group, as the
    hook for PowerSGD does, a second thread goes on with the queue meanwhile if it has to. Another
    one looks whether operations are late, and ends the job if one is.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CollectiveWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        #: How many of the threads run no callbacks.
        self._free = 0
        #: Work that nobody has waited for: the core uses its memory.
        self._under_way: set[CollectiveWork] = set()
        #: Size of that set at which what is done has to leave it, for nobody may ever wait.
        self._too_many = 64
        #: Of all limits that there were.
        self._shortest_s = math.inf
        self._watch: threading.Thread | None = None
        #: Tells it that this is another one now, or that it has to end.
        self._news = threading.Event()
        self._closed = False

    def keep(self, work: CollectiveWork) -> None:
        """Keep ``work`` alive until it is done."""
        if len(self._under_way) >= self._too_many:
            for other in tuple(self._under_way):
                if other.is_completed():
                    # A later `wait` raises it again.
                    with contextlib.suppress(Exception), other.aside():
                        other.wait()
            self._too_many = 2 * len(self._under_way) + 64
        self._under_way.add(work)
        if work.limit.seconds < self._shortest_s:
            self._shortest_s = work.limit.seconds
            self._news.set()
            if self._watch is None:
                name = "aiacc limits"
                self._watch = threading.Thread(target=self._look_out, name=name, daemon=True)
                self._watch.start()

    def forget(self, work: CollectiveWork) -> None:
        """``work`` is done."""
        self._under_way.discard(work)

    def complete(self, work: CollectiveWork) -> None:
        """Complete the future of ``work`` as soon as it is done."""
        self._queue.put(work)
        self._see_to_the_queue()

    def close(self, join: bool) -> None:
        """End the threads when the work that they have is done; ``join`` waits for that."""
        with self._lock:
            threads, self._threads = self._threads, []
            self._free = 0
        for _ in threads:
            self._queue.put(None)
        self._closed = True
        self._news.set()
        if self._watch is not None:
            threads.append(self._watch)
        for thread in threads if join else ():
            thread.join()

    def _look_out(self) -> None:
        while not self._closed:
            # Who waits is told so much too late, at most.
            self._news.wait(min(max(self._shortest_s / 8, 0.01), threading.TIMEOUT_MAX))
            self._news.clear()
            errors = [work.give_up() for work in tuple(self._under_way) if work.is_late()]
            if errors:
                basics.end(f" has given up: {errors[0]}")

    def _see_to_the_queue(self) -> None:
        with self._lock:
            if self._free == 0 and not self._queue.empty():
                thread = threading.Thread(target=self._run, name="aiacc futures", daemon=True)
                self._threads.append(thread)
                self._free += 1
                thread.start()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            with work.aside():
                with contextlib.suppress(Exception):  # `complete_future` passes it on
                    work.wait()
                with self._lock:
                    self._free -= 1
                self._see_to_the_queue()
                work.complete_future()
            with self._lock:
                self._free += 1
