"""Runs one job on virtual hosts and does to it what a `Fault` says."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bed import launch, native
from bench.bed.bed import Bed, bed_for
from bench.bed.plan import Spec
from bench.machine import ROOT
from bench.network.faults.plan import STEPS, Event, Fault, Report, events

#: Seconds between looks at the ranks.
_LOOK_S = 0.01
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
    """

    reports: dict[int, Report] = field(default_factory=dict)
    struck: bool = False
    seconds: float = 0
    absent_s: float = 0
    left: list[str] = field(default_factory=list)

    @property
    def disturbed(self) -> bool:
        """Whether the bench was held up, so that faults lasted longer than they should."""
        return self.absent_s > _ABSENT_S


def run(fault: Fault, name: str, folder: Path) -> Outcome:
    """Run the job on a bed of its own.

    Blocks: until all ranks have ended; those that have not after `Fault.limit_s` are killed.

    Args:
        fault: What job, and what happens to it.
        name: Of the bed.
        folder: For the ranks' reports and output.

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
    """The ranks of a run."""

    def __init__(self, fault: Fault, bed: Bed, folder: Path) -> None:
        self._fault, self._bed, self._folder = fault, bed, folder
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._due = events(fault)
        self._begins_at: float | None = None
        self._began_at: float | None = None
        self._outcome = Outcome()

    def start(self) -> None:
        task = {"seed": self._fault.seed, "steps": STEPS}
        (self._folder / "task.json").write_text(json.dumps(task))
        work = "bench.network.faults.worker:work"
        command = [sys.executable, "-m", "bench.worker", work, str(self._folder)]
        shared = {**launch.environment(self._bed), **self._fault.variables()}
        if self._fault.short_io:
            shared["LD_PRELOAD"] = str(native.short_io())
            shared["SHORT_IO_SEED"] = str(self._fault.seed)
        starts = launch.explicit_starts(self._bed.spec, self._fault.hosts, command)
        for number, start in enumerate(starts):
            with (self._folder / f"rank{number}.output").open("wb") as output:
                rank = subprocess.Popen(
                    self._bed.enter(start.host, start.command),
                    cwd=ROOT,
                    env={**shared, **start.variables},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._ranks.append(rank)

    def finish(self) -> Outcome:
        """Wait for the ranks, and let the fault happen."""
        outcome, start = self._outcome, time.monotonic()
        while self._running() and time.monotonic() < start + self._fault.limit_s:
            now = time.monotonic()
            time.sleep(_LOOK_S)
            outcome.absent_s = max(outcome.absent_s, time.monotonic() - now - _LOOK_S)
            self._do_what_is_due()
        codes = [rank.poll() for rank in self._ranks]
        self._end_those_that_hang()
        outcome.seconds = time.monotonic() - start
        outcome.left = [
            f"process {process} in host {host}"
            for host in range(self._bed.spec.hosts)
            for process in self._bed.processes(host)
        ]
        outcome.reports = {number: self._report(number, code) for number, code in enumerate(codes)}
        return outcome

    def close(self) -> None:
        """Kill what is left."""
        for rank in self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()

    def _running(self) -> "list[subprocess.Popen[bytes]]":
        return [rank for rank in self._ranks if rank.poll() is None]

    def _do_what_is_due(self) -> None:
        step, now = self._fault.step, time.monotonic()
        if self._begins_at is None and (step < 0 or (self._folder / f"step{step}").exists()):
            self._begins_at = now + self._fault.delay_s
        while self._due and self._begins_at is not None:
            if now < self._begins_at + self._due[0].after_s:
                return
            if self._began_at is None:
                past = any(self._folder.glob("*.past"))
                self._outcome.struck = not past and len(self._running()) == len(self._ranks)
                self._began_at = time.monotonic()
            self._do(self._due.pop(0))

    def _do(self, event: Event) -> None:
        if not event.signal:
            self._bed.set_path(event.host, event.target, loss=event.loss, reorder=event.reorder)
        for number in event.ranks:
            self._ranks[number].send_signal(signal.Signals[event.signal])

    def _end_those_that_hang(self) -> None:
        """They write their stacks first."""
        hanging = self._running()
        for number in (signal.SIGCONT, signal.SIGUSR1):
            for rank in hanging:
                rank.send_signal(number)
        time.sleep(_STACKS_S * bool(hanging))
        for rank in hanging:
            rank.kill()
            rank.wait()

    def _report(self, number: int, code: int | None) -> Report:
        try:
            path = self._folder / f"rank{number}.json"
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            found = {}
        at = found.pop("at", None)
        late_s = at - self._began_at if at is not None and self._began_at is not None else 0.0
        return Report(**found, late_s=round(late_s, 3), code=code)
