"""Jobs of `aiaccrun` whose ranks run a program of Python."""

import contextlib
import os
import select
import subprocess
import sys

from tests.support.programs import ROOT


def line_of(ranks, program, *options):
    """Command that runs a program on so many ranks."""
    launcher = [sys.executable, "-m", "aiacc.run", "-np", str(ranks), *options]
    return [*launcher, "--", sys.executable, "-c", program]


def aiaccrun(ranks, program, *options, **pipes):
    """The same as a process to talk to."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(line_of(ranks, program, *options), cwd=ROOT, **streams)


def wait_until_gone(*pids):
    """Wait for the end of processes that are no children of this one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                assert select.select([descriptor], [], [], 60)[0], f"process {pid} is still there"
            finally:
                os.close(descriptor)
