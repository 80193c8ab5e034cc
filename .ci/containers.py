"""Runs the services of docker/compose.yaml as docker compose would, without docker.

Each has the image's system, a name, the volumes and a virtual host of `bench.bed`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chroot_root

from bench.bed.bed import bed_for
from bench.bed.plan import Spec

#: How often and how long a health check is tried.
INTERVAL_S, RETRIES = 1.0, 30
LAUNCH_LIMIT_S = 300.0


@dataclass
class System:
    """What a stage of a Dockerfile leaves, and how its containers run."""

    root: Path
    user: str = "root"
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


def check(image: System, compose: Path) -> None:
    """Run `keys`, then `worker` until it is healthy, then `launcher`.

    Raises:
        RuntimeError: A service failed, or was not healthy in time.
    """
    from ruamel.yaml import YAML

    services = YAML(typ="safe").load(compose.read_text())["services"]
    hosts = ["worker", "launcher"]
    spec = Spec("compose", len(hosts), flow_mbit=0, nic_mbit=0)
    names = {host: spec.namespace(number) for number, host in enumerate(hosts)}
    with bed_for(spec), tempfile.TemporaryDirectory() as folder:
        keys, table = Path(folder) / "keys", Path(folder) / "hosts"
        keys.mkdir(mode=0o700)
        shutil.chown(keys, 1000, 1000)
        entries = [f"{spec.addresses(number)[0]} {host}" for number, host in enumerate(hosts)]
        table.write_text("\n".join(["127.0.0.1 localhost", *entries]) + "\n")
        binds = [(keys, "/home/mpiuser/.ssh"), (table, "/etc/hosts")]

        def line(service: str, words: list[str]) -> list[str]:
            print(f"[{service}] {' '.join(words)}", flush=True)
            return chroot_root.command_line(
                image.root,
                words,
                user=image.user,
                workdir=image.workdir,
                environment=image.environment,
                binds=binds,
                network=names.get(service, ""),
                hostname=service,
            )

        demand(subprocess.run(line("keys", words_of(services["keys"], image)), check=False))
        worker = subprocess.Popen(line("worker", words_of(services["worker"], image)))
        try:
            # As compose: the health check runs inside, here in the network of the worker.
            healthy = line("worker", services["worker"]["healthcheck"]["test"][1:])
            for _ in range(RETRIES):
                if subprocess.run(healthy, check=False).returncode == 0:
                    break
                time.sleep(INTERVAL_S)
            else:
                raise RuntimeError(f"worker is not healthy after {RETRIES} tries")
            launch = line("launcher", words_of(services["launcher"], image))
            demand(subprocess.run(launch, check=False, timeout=LAUNCH_LIMIT_S))
        finally:
            worker.kill()
            worker.wait()


def words_of(service: Mapping[str, Any], image: System) -> list[str]:
    """What a service's container runs: its entry point and command, or its image's. Pure."""
    entrypoint = service.get("entrypoint")
    # As docker: who replaces the entry point drops the image's command.
    command = service.get("command", image.command if entrypoint is None else [])
    return [*(image.entrypoint if entrypoint is None else entrypoint), *command]


def demand(done: subprocess.CompletedProcess[Any]) -> None:
    """Raise RuntimeError unless a command has succeeded."""
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}")
