"""Runs one job on virtual hosts and does to it what a `Fault` says."""

import heapq
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bed import launch, native
from bench.bed.bed import Bed, bed_for
from bench.bed.plan import Spec
from bench.machine import ROOT
from bench.network.faults.plan import STEPS, Event, Fault, Report, events

#: Seconds between looks at the clock.
_LOOK_S = 0.25
#: A bench that did not get to run for so long was late with its events.
_ABSENT_S = 1.0
#: For the stacks of ranks that hang.
_STACKS_S = 1.0


@dataclass
class Outcome:
    """What a run has brought.

    Attributes:
        reports: By rank.
        struck: Whether the fault began while all ranks were at work: before any came to its last
            collective, after which nobody needs the others.
        seconds: From the start of the first rank to the end of the last.
        absent_s: The longest time that the bench itself did not get to run.
        left: Processes that were still in the hosts when all ranks had ended.
        packets: What the relay carried, and what it lost of it.
    """

    reports: dict[int, Report] = field(default_factory=dict)
    struck: bool = False
    seconds: float = 0
    absent_s: float = 0
    left: list[str] = field(default_factory=list)
    packets: tuple[int, int] = (0, 0)

    @property
    def disturbed(self) -> bool:
        """Whether the bench was held up, so that faults lasted longer than they should."""
        return self.absent_s > _ABSENT_S


@dataclass
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    descriptor: int
    unread: bytes = b""
    code: int | None = None


def run(fault: Fault, name: str, folder: Path) -> Outcome:
    """Run the job on a bed of its own.

    Blocks: until all ranks have ended; those that have not after `Fault.limit_s` are killed.

    Args:
        fault: What job, and what happens to it.
        name: Of the bed.
        folder: For the ranks' reports and error output.

    Raises:
        BedError: The bed cannot be put up.
    """
    spec = Spec(name, hosts=len(fault.ranks_of), flow_mbit=0, nic_mbit=fault.nic_mbit, relay=True)
    with bed_for(spec) as bed:
        job = _Job(fault, bed, folder)
        try:
            job.start()
            return job.finish()
        finally:
            job.close()


class _Job:
    """The ranks of a run. Nothing polls but a look at the clock: one selector waits for all."""

    def __init__(self, fault: Fault, bed: Bed, folder: Path) -> None:
        self._fault, self._bed, self._folder = fault, bed, folder
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self._due: list[tuple[float, int, Event]] = []
        self._began_at: float | None = None
        self._triggered = False
        self._outcome = Outcome()

    def start(self) -> None:
        task = {"seed": self._fault.seed, "steps": STEPS, "folder": str(self._folder)}
        (self._folder / "task.json").write_text(json.dumps(task))
        work = "bench.network.faults.worker:work"
        command = [sys.executable, "-m", "bench.worker", work, str(self._folder)]
        shared = {**launch.environment(self._bed), **self._fault.variables()}
        if self._fault.short_io:
            shared["LD_PRELOAD"] = str(native.short_io())
            shared["SHORT_IO_SEED"] = str(self._fault.seed)
        token = secrets.token_hex(16)
        for number, start in enumerate(launch.explicit_starts(self._fault.hosts, command, token)):
            inside = self._bed.enter(start.host, start.command)
            self._ranks.append(self._started(number, inside, {**shared, **start.variables}))
        if self._fault.step < 0:
            self._trigger()

    def _started(self, number: int, command: list[str], environment: Mapping[str, str]) -> _Rank:
        with (self._folder / f"rank{number}.stderr").open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        rank = _Rank(number, process, os.pidfd_open(process.pid))
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, (rank, True))
        self._selector.register(rank.descriptor, selectors.EVENT_READ, (rank, False))
        return rank

    def finish(self) -> Outcome:
        """Wait for the ranks, and let the fault happen."""
        start = time.monotonic()
        deadline = start + self._fault.limit_s
        while any(rank.code is None for rank in self._ranks):
            now = time.monotonic()
            if now >= deadline:
                self._end_those_that_hang()
                break
            wait = min(_LOOK_S, deadline - now, *(at - now for at, _, _ in self._due[:1]))
            for key, _ in self._selector.select(max(0.0, wait)):
                rank, is_output = key.data
                if is_output:
                    self._read(rank)
                else:
                    self._reap(rank)
            self._outcome.absent_s = max(self._outcome.absent_s, time.monotonic() - now - wait)
            self._do_what_is_due()
        outcome = self._outcome
        outcome.seconds = time.monotonic() - start
        count = self._bed.set_path()
        outcome.packets = (count.carried, count.lost)
        outcome.left = [
            f"process {process} in host {host}"
            for host in range(self._bed.spec.hosts)
            for process in self._bed.processes(host)
        ]
        outcome.reports = {rank.number: self._report(rank) for rank in self._ranks}
        return outcome

    def close(self) -> None:
        """Kill what is left."""
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()
            os.close(rank.descriptor)
            assert rank.process.stdout is not None
            rank.process.stdout.close()
        self._selector.close()

    def _read(self, rank: _Rank) -> None:
        assert rank.process.stdout is not None
        chunk = os.read(rank.process.stdout.fileno(), 1 << 16)
        if not chunk:
            self._selector.unregister(rank.process.stdout)
            return
        *lines, rank.unread = (rank.unread + chunk).split(b"\n")
        for line in lines:
            word, step, _ = line.split()
            if word == b"step" and int(step) >= self._fault.step:
                self._trigger()

    def _reap(self, rank: _Rank) -> None:
        rank.code = rank.process.wait()
        self._selector.unregister(rank.descriptor)

    def _trigger(self) -> None:
        if self._triggered:
            return
        self._triggered = True
        begin = time.monotonic() + self._fault.delay_s
        for order, event in enumerate(events(self._fault)):
            heapq.heappush(self._due, (begin + event.after_s, order, event))

    def _do_what_is_due(self) -> None:
        while self._due and time.monotonic() >= self._due[0][0]:
            _, _, event = heapq.heappop(self._due)
            if self._began_at is None:
                self._outcome.struck = all(
                    rank.code is None and not self._past(rank).exists() for rank in self._ranks
                )
                self._began_at = time.monotonic()
            self._do(event)

    def _do(self, event: Event) -> None:
        if event.what == "signal":
            for number in event.ranks:
                rank = self._ranks[number]
                if rank.code is None:
                    os.kill(rank.process.pid, signal.Signals[event.signal])
        elif event.what == "link":
            assert event.host is not None
            self._bed.set_link(event.host, event.up)
        else:
            self._bed.set_path(event.host, event.target, loss=event.loss, reorder=event.reorder)

    def _end_those_that_hang(self) -> None:
        """They write their stacks first."""
        hanging = [rank for rank in self._ranks if rank.code is None]
        for number in (signal.SIGCONT, signal.SIGUSR1):
            for rank in hanging:
                os.kill(rank.process.pid, number)
        time.sleep(_STACKS_S)
        for rank in hanging:
            rank.process.kill()
            rank.process.wait()

    def _path(self, rank: _Rank) -> Path:
        return self._folder / f"rank{rank.number}.json"

    def _past(self, rank: _Rank) -> Path:
        """What a rank makes before its last collective."""
        return self._folder / f"rank{rank.number}.past"

    def _report(self, rank: _Rank) -> Report:
        try:
            found: dict[str, Any] = json.loads(self._path(rank).read_text())
        except FileNotFoundError:
            found = {}
        at = found.pop("at", None)
        late_s = at - self._began_at if at is not None and self._began_at is not None else 0.0
        return Report(**found, late_s=round(late_s, 3), code=rank.code)
