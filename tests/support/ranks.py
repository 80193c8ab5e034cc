"""Runs a function on several ranks, each a process of its own, and tells which one failed how.

    def add_up():
        hvd.init()
        return hvd.allreduce(numpy.ones(3), op=hvd.Sum).tolist()

    assert run_ranks(2, add_up) == [[2.0] * 3] * 2

The function has to be importable (a top-level function of the test module), its arguments and its
result picklable. Do not catch `Exception` in it: use `pytest.raises`, and let the rest out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from aiacc.run.programs import mpi_launchers
from tests.support.programs import LIMIT_S, ROOT, missing, run_program
from tests.support.rank_forks import ForkedRank, fork

#: Below those of the kernel (/proc/sys/net/ipv4/ip_local_port_range) and of torchrun (29400).
_PORTS_FROM = 16000
_port_numbers = itertools.count()

_FOREIGN = (
    *("AIACC_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "HYDRA_", "TORCHELASTIC_"),
    "SLURM_",
)
_FOREIGN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}


#: Of every rank: one thread, our own modules, and no advertisements of TensorFlow.
_OF_RANKS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}


class RankFailedError(AssertionError):
    """A rank raised, died or hung."""


class _Rank(NamedTuple):
    number: int
    pid: int
    connection: Connection


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    launcher: str = "explicit",
    missing: Collection[int] = (),
) -> list[Any]:
    """Run ``function(*args)`` on ``size`` ranks.

    It begins on all of them when the last process has started. Blocks: until all ranks are done,
    the first failed, or ``timeout`` seconds have passed since then. No process is left.

    Args:
        size: Number of ranks.
        function: Top-level function.
        *args: Its arguments, the same on every rank.
        timeout: Seconds after which the ranks still running are reported as hanging.
        env: Changes to the environment of every rank.
        launcher: "explicit" (AIACC_RANK and so on), "mpirun" (MPICH's), "openmpi" (its mpirun),
            "torchrun", "aiaccrun", "srun" (what stands for it), or "python" for one rank without
            launcher.
        missing: Ranks that die or freeze on purpose. Nothing is expected from them.

    Returns:
        The results in rank order, None for those in ``missing``.

    Raises:
        RankFailedError: A rank raised (with its traceback), died (with its exit code or signal) or
            hung (with the stacks of all ranks that did).
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        address = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(size)
            run = _Run(size, function, args, frozenset(missing), listener)
            try:
                run.start(launcher, address, rank_environment(env or {}))
                return run.results(timeout)
            finally:
                run.kill()


def rank_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Environment for ranks: this process's without what a launcher of ours or others left."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }
    return {**inherited, **_OF_RANKS, **changes}


def free_port() -> int:
    """A TCP port that nobody listens on now.

    Not one of those that the kernel gives to whoever asks for any: between this call and its use
    somebody would be given it. Test processes that run at a time choose from different ranges.
    """
    while not is_free(port := _PORTS_FROM + os.getpid() % 130 * 100 + next(_port_numbers) % 100):
        pass
    return port


def is_free(port: int) -> bool:
    """Whether nobody listens on a TCP port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def launch_command(launcher: str, size: int, program: list[str]) -> list[str]:
    """Command that starts ``program`` (what follows the interpreter) on ``size`` ranks."""
    python = [sys.executable, *program]
    if launcher == "python":
        assert size == 1
        return python
    if launcher == "torchrun":
        flags = [f"--nproc-per-node={size}", "--master-addr=127.0.0.1"]
        return [*tool("torchrun"), *flags, f"--master-port={free_port()}", *program]
    if launcher == "aiaccrun":
        return [*tool(launcher), "-np", str(size), *python]
    if launcher == "srun":
        return [sys.executable, "-m", "tests.support.fake_srun", "-n", str(size), *python]
    if launcher in ("mpirun", "openmpi"):
        return [*mpirun("mpich" if launcher == "mpirun" else launcher), "-np", str(size), *python]
    raise ValueError(
        f"launcher={launcher!r} (expected python, mpirun, openmpi, torchrun, aiaccrun or srun)"
    )


def run_example(
    launcher: str,
    size: int,
    example: str,
    *options: str,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a file of examples/, unchanged, with the aiacc that is installed; see `run_program`."""
    variables = rank_environment(env or {})
    variables.pop("PYTHONPATH")
    command = launch_command(launcher, size, [f"examples/{example}", *options])
    return run_program(command, env=variables, check=check)


def mpirun(flavour: str) -> list[str]:
    """Command of the mpirun of this MPI; `missing` where there is none."""
    launchers = [launcher for launcher in mpi_launchers() if launcher.flavour == flavour]
    if not launchers:
        missing(f"no mpirun of {flavour}; apt-get install openmpi-bin, or pip install mpich")
    # CI is the superuser and has few cores; Open MPI gives each rank one of its own.
    options = ["--allow-run-as-root", "--oversubscribe"] if flavour == "openmpi" else []
    return [launchers[0].program, *options]


def tool(name: str) -> list[str]:
    """Command of a tool of this Python environment; pip's scripts lie next to the interpreter."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if name == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run"]
    if name == "aiaccrun" and found is None:
        return [sys.executable, "-m", "aiacc.run"]
    assert found is not None, f"{name} not found; pip install mpich"
    return [found]


class _Run:
    """The processes of one call and what they have said so far."""

    def __init__(
        self,
        size: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        missing: frozenset[int],
        listener: socket.socket,
    ) -> None:
        self._size = size
        self._task = (function, args)
        self._missing = missing
        self._listener = listener
        self._ranks: dict[int, _Rank] = {}
        self._results: dict[int, Any] = {}
        self._begun: set[int] = set()
        self._met: set[int] = set()
        #: Direct children by file descriptor: ranks, or a launcher as number -1.
        self._children: dict[int, tuple[int, subprocess.Popen[bytes] | ForkedRank]] = {}
        self._selector = selectors.DefaultSelector()

    def start(self, launcher: str, address: str, env: dict[str, str]) -> None:
        program = ["-m", "tests.support.rank_process", address]
        self._selector.register(self._listener, selectors.EVENT_READ)
        if launcher not in ("explicit", "python"):
            self._watch(-1, _spawn(launch_command(launcher, self._size, program), env))
            return
        port = free_port()
        for number in range(self._size):
            place = {
                "AIACC_RANK": str(number),
                "AIACC_SIZE": str(self._size),
                "AIACC_ADDR": f"127.0.0.1:{port}",
            }
            environment = {**(place if launcher == "explicit" else {}), **env}
            forked = fork(self._task[0], number, environment, address)
            self._watch(number, forked or _spawn([sys.executable, *program], environment))

    def _let_go_on(self, numbers: set[int]) -> None:
        for number in numbers:
            with contextlib.suppress(OSError):  # it has died; its end tells how
                self._ranks[number].connection.send(None)

    def _watch(self, number: int, child: subprocess.Popen[bytes] | ForkedRank) -> None:
        descriptor = os.pidfd_open(child.pid)
        self._children[descriptor] = (number, child)
        self._selector.register(descriptor, selectors.EVENT_READ)

    def results(self, timeout: float) -> list[Any]:
        everybody = set(range(self._size))
        self._await(everybody, self._begun, LIMIT_S)
        self._let_go_on(everybody)
        self._await(everybody - self._missing, self._results, timeout)
        return [self._results.get(number) for number in range(self._size)]

    def _await(self, wanted: set[int], there: Collection[int], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while hanging := sorted(wanted.difference(there)):
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            # What a rank said before it ended counts, so connections come before ends.
            keys = sorted((key for key, _ in events), key=lambda key: key.fd in self._children)
            if not keys:
                raise RankFailedError(self._describe_hang(hanging, timeout))
            for key in keys:
                if key.data is not None:
                    self._receive(key.data)
                elif key.fd in self._children:
                    self._ended(key.fd)
                else:
                    self._accept()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        connection = Connection(accepted.detach())
        number, pid = connection.recv()
        self._ranks[number] = rank = _Rank(number, pid, connection)
        connection.send(self._task)
        self._selector.register(connection, selectors.EVENT_READ, rank)

    def _receive(self, rank: _Rank) -> None:
        try:
            kind, value = rank.connection.recv()
        except (EOFError, OSError):
            self._selector.unregister(rank.connection)
            if rank.number not in self._missing:
                raise RankFailedError(self._describe_death(rank.number)) from None
            return
        if kind == "begin":
            self._begun.add(rank.number)
            return
        if kind == "met":
            self._met.add(rank.number)
        else:
            self._selector.unregister(rank.connection)
            if kind == "error":
                raise RankFailedError(f"rank {rank.number} of {self._size} failed:\n{value}")
            self._results[rank.number] = value
        if self._met | self._results.keys() | self._missing >= set(range(self._size)):
            self._let_go_on(self._met)
            self._met.clear()

    def _ended(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        number, child = self._children[descriptor]
        while self._listener_has_work():  # it may have connected just before it ended
            self._accept()
        if number in self._ranks or number in self._missing:
            return  # its connection tells more
        if number >= 0:
            raise RankFailedError(self._describe_death(number))
        if child.wait() != 0 or not self._ranks:
            raise RankFailedError(f"the launcher ended with {_exit_text(child.wait())}")

    def _listener_has_work(self) -> bool:
        return bool(select.select([self._listener], [], [], 0)[0])

    def _describe_death(self, number: int) -> str:
        children = dict(self._children.values())
        how = f": {_exit_text(children[number].wait())}" if number in children else ""
        return f"rank {number} of {self._size} died{how or ' (its launcher knows how)'}"

    def _describe_hang(self, numbers: list[int], timeout: float) -> str:
        lines = [f"after {timeout:g} s still running: rank {', '.join(map(str, numbers))}"]
        for number in numbers:
            rank = self._ranks.get(number)
            stacks = "(it has not started)" if rank is None else _stacks(rank)
            lines.append(f"--- rank {number}:\n{stacks}")
        return "\n".join(lines)

    def kill(self) -> None:
        for _, child in self._children.values():
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # who forked it may have reaped it
                    os.killpg(child.pid, signal.SIGKILL)
        for rank in self._ranks.values():  # a launcher gives its ranks sessions of their own
            if not rank.connection.closed and _is_rank(rank.pid):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(rank.pid, signal.SIGKILL)
        for descriptor, (_, child) in self._children.items():
            child.wait()
            os.close(descriptor)
        for rank in self._ranks.values():
            rank.connection.close()
        self._selector.close()


def _spawn(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=env, cwd=ROOT, start_new_session=True)


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _is_rank(pid: int) -> bool:
    try:
        return b"rank_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _stacks(rank: _Rank) -> str:
    """What faulthandler writes to the connection; it ends when nothing follows for a while."""
    os.kill(rank.pid, signal.SIGUSR1)
    text = b""
    while select.select([rank.connection], [], [], 1.0)[0]:
        chunk = os.read(rank.connection.fileno(), 1 << 16)
        if not chunk:
            break
        text += chunk
    return text.decode(errors="replace") or "(no stacks: it is stopped)"
