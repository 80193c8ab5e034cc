"""Starts ranks that share the GPU and collects what they wrote."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiacc.run.local import free_port
from bench.machine import ROOT

TIMEOUT_S = 120.0

#: NCCL over sockets between ranks that it takes for ranks of different hosts: it refuses to let
#: those of one host share a GPU. One socket for each channel, so that lanes are what adds flows.
SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
    "NCCL_MAX_CTAS": "2",
}


class JobError(RuntimeError):
    """A rank failed or took too long; the text holds the end of what it said."""


def run(size: int, arguments: Sequence[str], variables: Mapping[str, str]) -> list[Any]:
    """Run ``python -m bench.gpu.worker`` on ``size`` ranks; what each of them wrote.

    Blocks: until all are done. No process is left.

    Raises:
        JobError: A rank failed, or took longer than `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="aiacc-gpu-") as folder:
        files = [Path(folder) / f"rank{rank}.json" for rank in range(size)]
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(size)]
        ports = _free_ports()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(size):
                command = [sys.executable, "-m", "bench.gpu.worker", *arguments]
                environment = _environment(rank, size, ports) | dict(variables)
                with logs[rank].open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [*command, "--output", str(files[rank])],
                            env=environment,
                            cwd=ROOT,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
            _wait(processes, logs)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads(file.read_text()) for file in files]


def _environment(rank: int, size: int, ports: Sequence[int]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIACC_", "HOROVOD_", "NCCL_"))
    }
    return kept | {
        "OMP_NUM_THREADS": "1",
        # torch's communicators and aiacc's are in one process: see docs/gpu.md.
        "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
        "PYTHONPATH": str(ROOT),
        "AIACC_RANK": str(rank),
        "AIACC_SIZE": str(size),
        "AIACC_ADDR": f"127.0.0.1:{ports[0]}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[1]),
        **(SOCKETS | {"NCCL_HOSTID": f"host{rank}"} if size > 1 else {}),
    }


def _free_ports() -> tuple[int, int]:
    first, second = free_port(), free_port()
    return (first, second) if first != second else _free_ports()


def _wait(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    for rank, process in enumerate(processes):
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            how = f"took longer than {TIMEOUT_S:g} s" if code is None else f"ended with {code}"
            tail = "\n".join(logs[rank].read_text(errors="replace").splitlines()[-30:])
            raise JobError(f"rank {rank} of {len(processes)} {how}:\n{tail}")
