"""Runs a function as the ranks of a job, on this machine or on the hosts of a bed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import ROOT

if TYPE_CHECKING:
    from bench.bed.bed import Bed

#: Who starts ranks on this machine, and the options that say how many.
LAUNCHERS = {
    "aiaccrun": ("-np", "{ranks}"),
    "torchrun": ("--standalone", "--nproc-per-node", "{ranks}", "--no-python"),
    "mpirun": ("-np", "{ranks}"),
}
_TAIL_LINES = 40
#: Settings of whoever measures, which must not reach who is measured.
_PREFIXES = (
    *("AIACC_", "HOROVOD_", "GLOO_", "TORCH_GLOO_", "MPIR_CVAR_", "OMP_", "MKL_", "NCCL_"),
    *("OMPI_", "UCX_", "UCC_", "CCL_", "I_MPI_", "FI_", "TF_"),
)
_KEPT = "AIACC_BENCH_"


class JobError(RuntimeError):
    """A rank failed, or the job took too long; the text holds the end of its output."""


def run(
    work: str,
    task: Mapping[str, Any],
    *,
    ranks: int = 2,
    launcher: str | Path = "aiaccrun",
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[Any]:
    """Run ``work`` in ``ranks`` processes of this machine, one thread each.

    Blocks until all have ended.

    Args:
        work: "module:function"; the function is called with ``task`` on every rank.
        task: What JSON can say.
        ranks: Number of processes.
        launcher: One of LAUNCHERS, beside the interpreter; or the path of an mpirun.
        options: More for the launcher.
        variables: Added to the environment, from which the settings of aiacc and its peers are
            taken out.
        timeout_s: The job is killed after this.

    Returns:
        What the function has returned, by rank.

    Raises:
        JobError: A rank failed, or the job took too long.
    """
    name = Path(launcher).name.partition(".")[0]  # such as mpirun.openmpi
    path = launcher if isinstance(launcher, Path) else Path(sys.executable).parent / launcher
    if name == "aiaccrun":  # also where aiacc is not installed
        program = [sys.executable, "-m", "aiacc.run"]
    elif path.exists():
        program = [str(path)]
    else:
        raise JobError(f"{path} does not exist; install it: pip install '.[torch,mpi]'")
    start = [*program, *(option.format(ranks=ranks) for option in LAUNCHERS[name])]
    start += options
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        command = [*start, *_worker(work, task, Path(folder))]
        log = Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                env=_environment() | dict(variables or {}),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that killing the group takes the ranks along
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise JobError(
                    f"{work}: not finished after {timeout_s:g} s\n{_tail(log)}"
                ) from None
            finally:
                _kill(process)
        if code != 0:
            raise JobError(f"{work}: {name} ended with {code}\n{_tail(log)}")
        return _results(Path(folder), ranks, work)


def run_on(
    bed: Bed,
    work: str,
    task: Mapping[str, Any],
    *,
    per_host: int = 1,
    launcher: str = "explicit",
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[Any]:
    """The same with ``per_host`` ranks on each host of a bed; main thread only."""
    from bench.bed import launch

    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        command = _worker(work, task, Path(folder))
        bed.reset()
        code = launch.run(
            bed,
            launcher,
            per_host,
            command,
            own=_environment(),
            variables=variables,
            timeout_s=timeout_s,
        )
        if code != 0:
            raise JobError(f"{work}: the job ended with code {code}")
        return _results(Path(folder), bed.spec.hosts * per_host, work)


def _worker(work: str, task: Mapping[str, Any], folder: Path) -> list[str]:
    (folder / "task.json").write_text(json.dumps(task))
    return [sys.executable, "-m", "bench.worker", work, str(folder)]


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_KEPT) or not name.startswith(_PREFIXES)
    }
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _results(folder: Path, ranks: int, work: str) -> list[Any]:
    files = [folder / f"rank{rank}.json" for rank in range(ranks)]
    missing = [file.stem for file in files if not file.exists()]
    if missing:
        raise JobError(f"{work}: no result from {', '.join(missing)}")
    return [json.loads(file.read_text()) for file in files]


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
