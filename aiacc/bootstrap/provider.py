"""How ranks find each other before there is a connection between them: the common part."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from aiacc.exceptions import BootstrapError

#: Most bytes that one rank may contribute to one exchange.
MAX_PAYLOAD_BYTES = 1 << 20

#: What others see of a command line: so many arguments, and letters of each.
_ARGUMENTS = 100
_ARGUMENT_LETTERS = 80

#: First number of every message and record; raised when their layout changes.
PROTOCOL_VERSION = 3


class Provider(Protocol):
    """A way for the ranks of one job to exchange a few bytes.

    Threads: one caller at a time. ``local_rank`` and ``local_size`` are None where the launcher
    does not tell them.
    """

    @property
    def name(self) -> str:
        """Short name for logs and errors, such as "torchrun"."""

    @property
    def rank(self) -> int:
        """Number of this process in the job."""

    @property
    def size(self) -> int:
        """Number of processes in the job."""

    @property
    def local_rank(self) -> int | None:
        """Number of this process on its host."""

    @property
    def local_size(self) -> int | None:
        """Number of processes on this host."""

    @property
    def meeting_host(self) -> str:
        """Name or address of the host where the ranks meet, "" if they do not meet at one."""

    @property
    def generation(self) -> int:
        """How many times this process has bootstrapped; equal on all ranks after `all_gather`."""

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Exchange one payload per rank.

        Collective: every rank, the same number of times.
        Blocks: until every rank has contributed, at most ``timeout_s`` seconds.

        Args:
            payload: At most `MAX_PAYLOAD_BYTES`, may be empty; lengths may differ between ranks.
            timeout_s: Seconds to wait for the slowest rank.

        Returns:
            The payloads of all ranks, in rank order.

        Raises:
            BootstrapError: A rank is missing, contradicts the others, or the way between them is
                broken. The provider is closed then.
        """

    def close(self) -> None:
        """Release sockets and descriptors. Not collective, idempotent, never raises."""


class Generations:
    """Numbers the bootstraps of this process, so that records of two of them are never mixed up.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current = -1

    def next(self) -> int:
        """Enter and return the next generation."""
        with self._lock:
            self._current += 1
            return self._current

    def catch_up(self, generation: int) -> None:
        """Continue from ``generation`` if this process is behind, as one that was restarted is."""
        with self._lock:
            self._current = max(self._current, generation)


#: The count of this process: a fork or a second job in one process does not exist here.
GENERATIONS = Generations()


class Deadline:
    """A moment by which something must have happened."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self._at - time.monotonic())

    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0.0


class Backoff:
    """Growing pauses for the few things that can only be tried again."""

    def __init__(self, first_s: float = 0.001, limit_s: float = 0.1) -> None:
        self._pauses = itertools.chain(
            itertools.takewhile(
                lambda pause: pause < limit_s, (first_s * 1.6**step for step in itertools.count())
            ),
            itertools.repeat(limit_s),
        )

    def pause(self, deadline: Deadline) -> None:
        """Sleep, but not beyond ``deadline``."""
        time.sleep(min(next(self._pauses), deadline.left_s()))


class AloneProvider:
    """The job is this one process.

    Args:
        generation: Of this bootstrap.
        told: Settings or a launcher say so; else nothing says anything.
    """

    name = "alone"
    meeting_host = ""
    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def __init__(self, generation: int, *, told: bool) -> None:
        self.generation = generation
        self.told = told

    def all_gather(self, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Return the payload itself; see `Provider.all_gather`."""
        del timeout_s
        return [bytes(payload)]

    def close(self) -> None:
        """Nothing is open."""


def process_label() -> str:
    """How errors name this process: host, process id and what it runs."""
    program = program_name()
    return f"{socket.gethostname()} pid {os.getpid()}" + (f", {program}" if program else "")


def program_name() -> str:
    """Name of the script that this process runs, "" if there is none."""
    return Path(sys.argv[0]).name if getattr(sys, "argv", None) else ""


def command_line() -> list[str]:
    """Name of the script that this process runs, and its arguments; long ones are cut."""
    arguments = sys.argv[1 : 1 + _ARGUMENTS] if getattr(sys, "argv", None) else []
    return [
        text[:_ARGUMENT_LETTERS].encode(errors="replace").decode()
        for text in (program_name(), *arguments)
    ]


def new_nonce() -> str:
    """A random name that nothing earlier can have used."""
    return secrets.token_hex(8)


def rank_list(ranks: Iterable[int]) -> str:
    """Name ranks in a text: "rank 3" or "ranks 1, 4 and 5"; long lists are cut."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 12:
        shown = ", ".join(map(str, numbers[:10]))
        return f"ranks {shown} and {len(numbers) - 10} more"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def check_payload(payload: bytes, name: str) -> None:
    """Raise BootstrapError if ``payload`` is larger than any provider carries."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BootstrapError(
            f"[bootstrap] {name}: payload of {len(payload)} bytes (expected at most "
            f"{MAX_PAYLOAD_BYTES}); this is a defect of the caller"
        )


def size_mismatch(rank_a: int, size_a: int, rank_b: int, size_b: int) -> str:
    """The text for two ranks that were told different numbers of ranks."""
    return (
        f"[bootstrap] ranks disagree about their number: rank {rank_a} was started with size "
        f"{size_a}, rank {rank_b} with size {size_b} (expected equal); start every rank with the "
        "same AIACC_SIZE"
    )
