"""Runs docker/kubernetes/mpijob.yaml as Kubernetes' MPI operator would, without a cluster.

Each pod has the image's system, a name and a virtual host of `bench.bed`. As the operator does
it, the key is an ECDSA one that belongs to root and that all may read, and HYDRA_HOST_FILE names
the workers.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import chroot_root
from containers import INTERVAL_S, LAUNCH_LIMIT_S, RETRIES, System, demand

from bench.bed.bed import bed_for
from bench.bed.plan import Spec

HOST_FILE = "/etc/mpi/hostfile"


def check(image: System, manifest: Path) -> None:
    """Start the workers, wait until they let ssh in, and run the launcher.

    Raises:
        RuntimeError: A worker was not ready in time, or the launcher failed.
    """
    from ruamel.yaml import YAML

    job = YAML(typ="safe").load(manifest.read_text())
    name, spec = job["metadata"]["name"], job["spec"]
    replicas = spec["mpiReplicaSpecs"]
    workers = [f"{name}-worker-{number}" for number in range(replicas["Worker"]["replicas"])]
    pods = [f"{name}-launcher", *workers]
    bed = Spec("mpijob", len(pods), flow_mbit=0, nic_mbit=0)
    with ExitStack() as stack:
        stack.enter_context(bed_for(bed))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        make_keys(folder / "keys")
        entries = [f"{bed.addresses(number)[0]} {pod}" for number, pod in enumerate(pods)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *entries]) + "\n")
        slots = [f"{worker}:{spec['slotsPerWorker']}\n" for worker in workers]
        (folder / "hostfile").write_text("".join(slots))

        def line(pod: str, words: Sequence[str]) -> list[str]:
            print(f"[{pod}] {' '.join(words)}", flush=True)
            return chroot_root.command_line(
                image.root,
                words,
                user=image.user,
                workdir=image.workdir,
                environment={**image.environment, "HYDRA_HOST_FILE": HOST_FILE},
                binds=[
                    (folder / "keys", spec["sshAuthMountPath"]),
                    (folder / "hosts", "/etc/hosts"),
                    (folder / "hostfile", HOST_FILE),
                ],
                network=bed.namespace(pods.index(pod)),
                hostname=pod,
            )

        for worker in workers:
            process = subprocess.Popen(line(worker, command_of(replicas["Worker"])))
            stack.callback(process.wait)
            stack.callback(process.kill)  # the first of the two that is called
        for worker in workers:
            wait_until_ready(worker, line(pods[0], ["ssh", worker, "true"]))
        launch = line(pods[0], command_of(replicas["Launcher"]))
        demand(subprocess.run(launch, check=False, timeout=LAUNCH_LIMIT_S))


def make_keys(folder: Path) -> None:
    """A key and who may come in by it, with the owner and the modes of a Secret that is mounted."""
    folder.mkdir()
    key = folder / "id_rsa"
    command = [
        "ssh-keygen",
        "-q",
        "-t",
        "ecdsa",
        "-b",
        "521",
        "-m",
        "PEM",
        "-N",
        "",
        "-f",
        str(key),
    ]
    subprocess.run(command, check=True)
    (folder / "authorized_keys").write_bytes((folder / "id_rsa.pub").read_bytes())
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o1777)


def command_of(replica: dict) -> list[str]:
    """What the container of a pod runs."""
    (container,) = replica["template"]["spec"]["containers"]
    return container["command"]


def wait_until_ready(worker: str, probe: list[str]) -> None:
    """Raise RuntimeError unless a command succeeds within some tries."""
    for _ in range(RETRIES):
        if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
            return
        time.sleep(INTERVAL_S)
    raise RuntimeError(f"{worker} is not ready after {RETRIES} tries")
