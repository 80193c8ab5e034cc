"""Builds the commands of other launchers from what the user asked for. Pure: nothing is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiacc.config import UNKNOWN, MpiFlavour
from aiacc.run.hosts import Host

#: Variables of these names go along to other hosts.
FORWARDED_PREFIXES = (
    "AIACC_",
    "HOROVOD_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "MPIR_CVAR_",
    "UCX_",
    "FI_",
    "PYTHON",
)
FORWARDED_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")

#: Holds the `sitecustomize` that makes aiacc stand in for Horovod.
SITE = Path(__file__).resolve().parents[1] / "compat" / "site"

#: What only concerns one process, set by whoever starts it.
_NUMBERS = ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK", "CROSS_SIZE", "CROSS_RANK")
_PER_RANK = frozenset(f"{prefix}_{name}" for prefix in ("AIACC", "HOROVOD") for name in _NUMBERS)


@dataclass(frozen=True)
class Launch:
    """What the user wants to run."""

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    interface: str = ""
    tag_output: bool = False
    #: Settings as variables, "AIACC_ENGINE" and so on.
    settings: Mapping[str, str] = field(default_factory=dict)
    extra_arguments: tuple[str, ...] = ()
    #: Scripts find aiacc under Horovod's name, and their ranks where Horovod tells them.
    as_horovod: bool = False

    def is_local(self) -> bool:
        """Whether every rank runs on this machine."""
        return all(host.is_local() for host in self.hosts)


@dataclass(frozen=True)
class MpiLauncher:
    """A program `mpirun` and what it is."""

    program: str
    flavour: MpiFlavour
    version: str

    @property
    def major(self) -> int:
        """First number of the version, 0 if it is unknown."""
        first = self.version.partition(".")[0]
        return int(first) if first.isdecimal() else 0


def mpirun_command(
    launch: Launch, launcher: MpiLauncher, environment: Mapping[str, str], *, as_root: bool = False
) -> list[str]:
    """The exact mpirun command.

    Args:
        launch: What to run.
        launcher: The program to run it with.
        environment: Variables of this process; from them is chosen what other hosts need.
        as_root: This is the superuser, whom Open MPI refuses unless told.

    Raises:
        ValueError: A host is an IPv6 address, which no mpirun takes.
    """
    for host in launch.hosts:
        if host.is_ipv6 and not host.is_local():
            raise ValueError(
                f"host {host.name}: mpirun takes no IPv6 addresses (expected a name, or an IPv4 "
                "address); name it in /etc/hosts or the DNS, or start the ranks by torchrun"
            )
    build = _open_mpi if launcher.flavour == "openmpi" else _mpich
    return [
        *build(launch, launcher, environment, as_root),
        *launch.extra_arguments,
        *launch.command,
    ]


def torchrun_command(launch: Launch, python: str) -> list[str]:
    """The torchrun command for this machine.

    Raises:
        ValueError: Other hosts are named: torchrun has to be started on each of them.
    """
    if not launch.is_local():
        raise ValueError(
            "--torchrun starts ranks on this machine only; start torchrun on every host yourself "
            "(see `torchrun --help`, --nnodes), or use --mpi"
        )
    return [
        *(python, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(launch.ranks)),
        *launch.extra_arguments,
        "--no-python",
        *launch.command,
    ]


def local_environment(rank: int, launch: Launch, address: str, token: str) -> dict[str, str]:
    """Variables that make a process rank ``rank`` of a job on this machine."""
    variables = {
        "RANK": str(rank),
        "SIZE": str(launch.ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_SIZE": str(launch.ranks),
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
    }
    prefixes = ("AIACC_", "HOROVOD_") if launch.as_horovod else ("AIACC_",)
    return {
        **launch.settings,
        **{prefix + name: value for prefix in prefixes for name, value in variables.items()},
        "AIACC_ADDR": address,
        "AIACC_TOKEN": token,
        "AIACC_RENDEZVOUS_FILE": "",
    }


def check_environment(launch: Launch, config: Mapping[str, str | int | float | bool]) -> list[str]:
    """Compare what this process was told with what the ranks of a job here are told.

    Args:
        launch: What to run.
        config: Settings of this process, from its variables.

    Returns:
        Variables that are replaced, and so are without effect.

    Raises:
        ValueError: A number contradicts the launch.
    """
    ranks = [local_environment(rank, launch, "", "") for rank in range(launch.ranks)]
    for name in _NUMBERS:
        given = str(config[name.lower()])
        told = [variables[f"AIACC_{name}"] for variables in ranks]
        if given != str(UNKNOWN) and set(told) != {given}:
            expected = told[0] if len(set(told)) == 1 else f"{told[0]}..{told[-1]}, one for each"
            raise ValueError(
                f"AIACC_{name}={given}, but -np {launch.ranks} makes it {expected} (expected "
                f"equal); unset AIACC_{name} (or HOROVOD_{name}), or start as many ranks as it says"
            )
    return [
        f"AIACC_{name}" for name in ("ADDR", "TOKEN", "RENDEZVOUS_FILE") if config[name.lower()]
    ]


def mpi_interface(wanted: str) -> str:
    """What mpirun is told of AIACC_IFACE: the first of a list, nothing of an exclusion."""
    return "" if wanted.startswith("^") else wanted.partition(",")[0]


def as_horovod(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that make `import horovod` find aiacc in a Python program and its children."""
    paths = [str(SITE), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def default_threads(environment: Mapping[str, str], ranks: int, cores: int) -> dict[str, str]:
    """OMP_NUM_THREADS such that the ranks share the cores, unless the user has set it."""
    if environment.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores // ranks))}


def _open_mpi(
    launch: Launch, launcher: MpiLauncher, environment: Mapping[str, str], as_root: bool
) -> list[str]:
    # Without a host list Open MPI refuses more ranks than cores.
    hosts = launch.hosts or (Host("localhost", launch.ranks),)
    command = [launcher.program]
    if as_root:
        command.append("--allow-run-as-root")
    if launch.tag_output:
        command += ["--output", "tag"] if launcher.major >= 5 else ["--tag-output"]
    command += ["-np", str(launch.ranks), "-H", _host_list(hosts)]
    # Binding a rank to one core would put its communication threads onto that core too.
    command += ["--bind-to", "none", "--map-by", "slot", "--mca", "pml", "ob1"]
    if launcher.major < 5:
        command += ["--mca", "btl", "^openib"]
    if launch.interface:
        command += ["--mca", "btl_tcp_if_include", launch.interface]
        runtime = "prte_if_include" if launcher.major >= 5 else "oob_tcp_if_include"
        flag = "--prtemca" if launcher.major >= 5 else "--mca"
        command += [flag, runtime, launch.interface]
    for name in _forwarded(launch, environment):
        value = launch.settings.get(name)
        command += ["-x", name if value is None else f"{name}={value}"]
    return command


def _mpich(
    launch: Launch, launcher: MpiLauncher, environment: Mapping[str, str], as_root: bool
) -> list[str]:
    del environment, as_root  # hydra forwards everything, and lets the superuser be
    command = [launcher.program, "-np", str(launch.ranks)]
    if launch.hosts:
        command += ["-hosts", _host_list(launch.hosts)]
    command += ["-bind-to", "none"]
    if launch.tag_output:
        command.append("-prepend-rank")
    if launch.interface:
        command += ["-iface", launch.interface]
    for name, value in sorted(launch.settings.items()):
        command += ["-genv", name, value]
    return command


def _host_list(hosts: Sequence[Host]) -> str:
    # Neither mpirun reads ::1.
    names = ("localhost" if host.is_ipv6 else host.name for host in hosts)
    return ",".join(f"{name}:{host.slots}" for name, host in zip(names, hosts, strict=True))


def _forwarded(launch: Launch, environment: Mapping[str, str]) -> list[str]:
    names = set(launch.settings)
    if not launch.is_local():
        names |= {
            name
            for name in environment
            if name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES)
        }
    return sorted(names - _PER_RANK)
