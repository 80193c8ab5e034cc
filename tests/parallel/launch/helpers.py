"""What several files here run in ranks, and under an mpirun."""

import contextlib
import ctypes
import os
from pathlib import Path

from aiacc import _core, mpi_library
from aiacc.bootstrap import select_provider
from aiacc.config import launcher_environment
from aiacc.exceptions import BootstrapError
from tests.support.programs import run_program
from tests.support.ranks import mpirun, rank_environment

PATIENT_S = 50.0
SHORT_S = 0.5


def run_under_mpirun(*command, flavour="mpich", options=("-np", "2"), env=None):
    """Exit status and output, errors included."""
    line = [*mpirun(flavour), *options, *map(str, command)]
    done = run_program(line, env=rank_environment(env or {}), merged=True)
    return done.returncode, done.stdout


def loaded_mpi(flavour):
    """Its library, as mpi4py loads it."""
    for path in mpi_library.candidates("", flavour):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    raise AssertionError(f"no library of {flavour}")


def exchange(generations, rounds, *, timeout_s=PATIENT_S):
    """Bootstrap ``generations`` times; name of the provider."""
    environment, config = launcher_environment(), _core.config()
    name = ""
    for generation in range(generations):
        provider = select_provider(environment, config)
        try:
            for n in range(rounds):
                mine = b"%d/%d/" % (generation, n) * (provider.rank * 40)
                got = provider.all_gather(mine, timeout_s=timeout_s)
                expected = [b"%d/%d/" % (generation, n) * (r * 40) for r in range(provider.size)]
                assert got == expected
        finally:
            provider.close()
        name = provider.name
    return name


def attempt(timeout_s):
    """Text of the error of one exchange, "" without one."""
    provider = select_provider(launcher_environment(), _core.config())
    try:
        assert provider.all_gather(b"x", timeout_s=timeout_s) == [b"x"] * provider.size
    except BootstrapError as error:
        return str(error)
    finally:
        provider.close()
    return ""


def pipes(folder, *names):
    """Named pipes in a folder, by which ranks wait for each other."""
    for name in names:
        os.mkfifo(folder / name)
    return str(folder)


def tell(path):
    """Let go on whoever waits at ``path``, a named pipe."""
    os.close(os.open(path, os.O_WRONLY))


def wait_for(path):
    """Wait until somebody tells, or has opened the pipe and ended."""
    Path(path).read_bytes()
