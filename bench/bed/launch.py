"""Starts the ranks of a job inside the virtual hosts."""

import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aiacc.run.local import Job, forwarded_signals
from bench.bed.bed import Bed
from bench.bed.plan import Spec, host_name

LAUNCHERS = ("explicit", "mpirun", "torchrun", "none")
PORT = 29500  # each bed's hosts have all ports for themselves

_AGENT = Path(__file__).with_name("ssh_agent")
_GRACE_S = 5.0


@dataclass(frozen=True)
class Start:
    """One process to start.

    Attributes:
        host: Where.
        command: What, as it is seen inside the host.
        variables: Added to its environment.
    """

    host: int
    command: list[str]
    variables: dict[str, str]


def starts(spec: Spec, launcher: str, per_host: int, command: Sequence[str]) -> list[Start]:
    """The processes that make ``command`` run as ranks on the hosts of a bed.

    Args:
        spec: The bed.
        launcher: "explicit": one process per rank, ranks numbered host by host. "mpirun": one
            mpirun in host 0. "torchrun": one agent per host. "none": the command itself, once in
            host 0; an mpirun that it starts reaches the others.
        per_host: Ranks on each host.
        command: The program and its arguments.
    """
    hosts = spec.hosts
    size = hosts * per_host
    if launcher == "explicit":
        return explicit_starts(spec, [rank // per_host for rank in range(size)], command)
    into_hosts = {
        "AIACC_BED": spec.name,  # prefix of the network namespaces
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(_AGENT),
        "HYDRA_IFACE": "eth0",
    }
    if launcher == "none":
        return [Start(0, list(command), into_hosts)]
    if launcher == "mpirun":
        names = ",".join(f"{host_name(host)}:{per_host}" for host in range(hosts))
        line = [str(Path(sys.executable).with_name("mpirun")), "-hosts", names]
        line += ["-ppn", str(per_host), "-n", str(size), *command]
        return [Start(0, line, into_hosts)]
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts)]
    line += ["--nproc-per-node", str(per_host), "--master-addr", spec.meeting]
    line += ["--master-port", str(PORT)]
    return [
        Start(host, [*line, "--node-rank", str(host), "--no-python", *command], {})
        for host in range(hosts)
    ]


def explicit_starts(spec: Spec, hosts: Sequence[int], command: Sequence[str]) -> list[Start]:
    """One process per rank; ``hosts`` has the host of each."""
    meeting = f"[{spec.meeting}]" if ":" in spec.meeting else spec.meeting
    shared = {
        "AIACC_SIZE": str(len(hosts)),
        "AIACC_ADDR": f"{meeting}:{PORT}",
        "AIACC_TOKEN": secrets.token_hex(16),
    }
    return [
        Start(host, list(command), {**shared, "AIACC_RANK": str(rank)})
        for rank, host in enumerate(hosts)
    ]


def environment(bed: Bed, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``own`` for processes in the hosts of a bed, but for what `starts` adds."""
    return (
        _DEFAULTS
        | dict(own)
        | {
            "AIACC_BED_HOSTS": str(bed.hosts_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        }
    )


def run(
    bed: Bed,
    launcher: str,
    per_host: int,
    command: Sequence[str],
    *,
    own: Mapping[str, str] = os.environ,
    variables: Mapping[str, str] | None = None,
    timeout_s: float,
    output_folder: Path | None = None,
) -> int:
    """Run a command as ranks on all hosts of a bed.

    Blocks: until all have ended; the first that fails has the others ended. After ``timeout_s``
    they are ended too. Main thread only.

    Args:
        bed: Where.
        launcher: One of LAUNCHERS.
        per_host: Ranks on each host.
        command: The program and its arguments.
        own: Environment of this process, of which the ranks get a copy.
        variables: Added to it.
        timeout_s: Seconds.
        output_folder: Where the processes' output goes, as `aiacc.run.local.run_local` has it.

    Returns:
        0 if all succeeded, else the exit code of the first that failed, 128 + n for signal n.
    """
    shared = environment(bed, own)
    with ExitStack() as stack:
        job = Job(
            signals=stack.enter_context(forwarded_signals()),
            tag_output=True,
            output_folder=output_folder,
            grace_s=_GRACE_S,
        )
        stack.callback(job.close)
        for number, start in enumerate(starts(bed.spec, launcher, per_host, command)):
            inside = bed.enter(start.host, start.command)
            job.start(number, inside, {**shared, **start.variables, **(variables or {})})
        timer = threading.Timer(timeout_s, _too_long, [timeout_s])
        timer.start()
        stack.callback(timer.join)
        stack.callback(timer.cancel)
        job.wait()
        return job.result


#: Ranks share the machine's cores. Gloo takes the address of the host's name otherwise.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


def _too_long(seconds: float) -> None:
    print(f"[bench.bed] not finished after {seconds:g} s", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
