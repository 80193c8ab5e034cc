"""Starts the ranks of one job and collects what they wrote."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import ROOT

_TAIL_LINES = 40
_GRACE_S = 5.0
_PREFIXES = ("AIACC_", "HOROVOD_", "GLOO_", "TORCH_GLOO_", "MPIR_CVAR_", "OMP_", "MKL_")


#: Who starts the ranks of a job, and the options that say how many.
LAUNCHERS = {
    "aiaccrun": ("-np", "{ranks}"),
    "torchrun": ("--standalone", "--nproc-per-node", "{ranks}", "--no-python"),
    "mpirun": ("-np", "{ranks}"),
}
#: Kind of a job without aiacc.
PEERS_ALONE = "none"


@dataclass(frozen=True)
class Job:
    """Ranks that run together.

    Attributes:
        kind: A launcher, or ``launcher:engine``, or "none" for the peers alone.
        rows: Keys of the rows to measure.
        ranks: Number of processes, all on this machine.
        iterations: Rounds of each row.
        idle_seconds: Length of the idle row.
        timeout_s: The job is killed after this.
        variables: Added to the environment of the ranks, for experiments.
        checkout: Whose aiacc is measured, in its virtual environment.
    """

    kind: str
    rows: Sequence[str]
    ranks: int
    iterations: int
    idle_seconds: float
    timeout_s: float
    variables: dict[str, str]
    checkout: Path = ROOT

    @property
    def python(self) -> Path:
        """The interpreter of its ranks."""
        here = self.checkout == ROOT
        return Path(sys.executable) if here else self.checkout / ".venv" / "bin" / "python"


def engine_of(kind: str) -> str:
    """``AIACC_ENGINE`` of a job of this kind: "auto", unless the kind names one."""
    return kind.partition(":")[2] or "auto"


class JobError(RuntimeError):
    """A rank failed, or the job took too long; the text holds the end of its output."""


def run(job: Job) -> list[dict[str, Any]]:
    """Run the job and return what its ranks wrote, by rank. Blocks until all have ended.

    Raises:
        JobError: Also when a result that a rank received was wrong.
    """
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        out = Path(folder)
        # The ranks run in this folder: the benchmark is this one, aiacc the one of the checkout.
        (out / "bench").symlink_to(ROOT / "bench")
        log = out / "log"
        processes = []
        with log.open("wb") as stream:
            try:
                for command, environment in commands(job, out):
                    processes.append(_start(command, environment, out, stream))
                _wait(processes, job, log)
            finally:
                _end(processes)
        files = [out / f"rank{rank}.json" for rank in range(job.ranks)]
        missing = [file.stem for file in files if not file.exists()]
        if missing:
            raise JobError(f"{job.kind}: no result from {', '.join(missing)}\n{_tail(log)}")
        return [json.loads(file.read_text()) for file in files]


def commands(job: Job, out: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Command line and environment of each process to start: one launcher, or the ranks.

    Raises:
        JobError: If the launcher is not installed beside the interpreter.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)
    }
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **job.variables}
    worker = [str(job.python), "-m", "bench.collectives.worker"]
    worker += ["--rows", ",".join(job.rows), "--size", str(job.ranks)]
    worker += ["--iterations", str(job.iterations), "--idle-seconds", str(job.idle_seconds)]
    worker += ["--timeout", str(job.timeout_s), "--out", str(out)]
    if job.kind == PEERS_ALONE:
        return [([*worker, "--rank", str(rank)], environment) for rank in range(job.ranks)]
    name = job.kind.partition(":")[0]
    launcher = job.python.parent / name
    if not launcher.exists():
        raise JobError(f"{launcher} does not exist; install it: pip install '.[torch,mpi]'")
    options = [option.format(ranks=job.ranks) for option in LAUNCHERS[name]]
    environment["AIACC_ENGINE"] = engine_of(job.kind)
    return [([str(launcher), *options, *worker], environment)]


def _start(
    command: list[str], environment: dict[str, str], folder: Path, stream: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that killing the group takes the launcher's children along
    )


def _wait(processes: list[subprocess.Popen[bytes]], job: Job, log: Path) -> None:
    """Until all have ended well, the first fails, or the time is over."""
    end = time.monotonic() + job.timeout_s
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for index, process in enumerate(processes):
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ, index)
        while selector.get_map():
            ended = selector.select(max(0.0, end - time.monotonic()))
            if not ended:
                text = f"{job.kind}: not finished after {job.timeout_s:g} s"
                raise JobError(f"{text}\n{_tail(log)}")
            for key, _ in ended:
                selector.unregister(key.fileobj)
                status = processes[key.data].wait()
                if status != 0:
                    text = f"{job.kind}: process {key.data} ended with {status}"
                    raise JobError(f"{text}\n{_tail(log)}")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop what still runs; a launcher gets the time to stop its ranks."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        os.killpg(process.pid, signal.SIGTERM)
    for process in running:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
