"""The command `aiaccrun`."""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiacc
from aiacc import _core, mpi_library
from aiacc.bootstrap.processes import fill_standard_descriptors, learn_how_children_end
from aiacc.config import child_environment
from aiacc.run import merge_timelines, netcheck
from aiacc.run.command import (
    Launch,
    as_horovod,
    check_environment,
    default_threads,
    local_environment,
    mpi_interface,
    mpirun_command,
    torchrun_command,
)
from aiacc.run.hosts import Host, parse_hostfile, parse_hosts, take, word_on
from aiacc.run.ignored import message_about
from aiacc.run.local import run_local
from aiacc.run.options import check_output, check_profile, check_timeline, parser, settings_of
from aiacc.run.programs import choose_mpi_launcher, mpi_launchers, resolve_command

#: What `os.getcwd` means by an error that names no file.
_FOLDER_GONE = "the current folder was removed (expected one that is there); change to another"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `aiaccrun`; returns its exit code."""
    fill_standard_descriptors()
    learn_how_children_end()
    options = parser().parse_args(arguments)
    if options.version:
        print(aiacc.__version__)
        return 0
    try:
        if options.help_env:
            from aiacc.run.help_env import as_text

            print(as_text(_core.env_table()), end="")
            return 0
        if options.check_build:
            from aiacc.run.check_build import report

            print(report(), end="")
            return 0
        if options.merge_timelines:
            return _merge_timelines(options)
        return _run(options)
    except (ValueError, OSError) as error:
        is_gone = isinstance(error, FileNotFoundError) and error.filename is None
        _say(_FOLDER_GONE if is_gone else str(error))
        return 2
    except KeyboardInterrupt:  # later `run_local` gives signals to the ranks
        return 128 + signal.SIGINT


def _merge_timelines(options: argparse.Namespace) -> int:
    files = [Path(name) for name in options.command]
    events = merge_timelines.merge(files, Path(options.merge_timelines))
    print(f"{options.merge_timelines}: {events} events of {len(files)} timelines")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.netcheck:
        _become_netcheck(options)
    launch = _launch_of(options)
    if options.ignored:
        _say(message_about(options.ignored))
    # A wrong variable should be reported once, here, not by every rank.
    config = _core.config()
    timeline = str(config["timeline"])
    if launch.is_local():
        check_timeline(launch.settings.get("AIACC_TIMELINE", timeline))
        check_profile(launch.settings.get("AIACC_PROFILE", str(config["profile"])))
    if options.mpi:
        command = mpirun_command(
            launch,
            choose_mpi_launcher(mpi_launchers(), mpi_library.built()),
            child_environment({}),
            as_root=os.geteuid() == 0,
        )
        return _become(command, launch, options)
    if options.torchrun:
        command = torchrun_command(launch, sys.executable)
        if options.dry_run and launch.settings:  # mpirun is told them by options
            print(end=f"{_assignments(launch.settings)} ")
        return _become(command, launch, options)
    if not launch.is_local():
        raise ValueError(
            f"hosts {', '.join(host.name for host in launch.hosts if not host.is_local())} are not "
            "this machine; use --mpi to start ranks on other hosts"
        )
    if replaced := check_environment(launch, config):
        _say(f"ignored: {', '.join(replaced)} of the environment (aiaccrun sets its own)")
    base = child_environment({})
    cores = len(os.sched_getaffinity(0))
    threads = default_threads(base, launch.ranks, cores)
    if options.dry_run:
        for rank in range(launch.ranks):
            variables = {**threads, **local_environment(rank, launch, "127.0.0.1:PORT", "RANDOM")}
            print(f"rank {rank}: {_assignments(variables)} {shlex.join(launch.command)}")
        return 0
    base.update(threads)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if word := word_on(launch.ranks, cores, 0 if files == resource.RLIM_INFINITY else files):
        _say(word)
    if options.verbose:
        _say(f"{launch.ranks} x {shlex.join(launch.command)}")
    return run_local(
        launch.ranks,
        launch.command,
        lambda rank, address, token: {**base, **local_environment(rank, launch, address, token)},
        tag_output=options.tag_output,
        output_folder=Path(options.output_filename) if options.output_filename else None,
        grace_s=options.grace_s,
    )


def _launch_of(options: argparse.Namespace) -> Launch:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise ValueError("no command (expected one, as in `aiaccrun -np 2 python train.py`)")
    if options.mpi + options.torchrun + options.gloo > 1:
        raise ValueError("--mpi, --torchrun and --gloo exclude each other (expected at most one)")
    if options.output_filename and (options.mpi or options.torchrun):
        raise ValueError(
            "--output-filename without aiaccrun's own ranks; give mpirun's option for it by "
            "--mpi-args, or leave out --mpi and --torchrun"
        )
    check_output(options.output_filename or "")
    hosts = _hosts_of(options)
    ranks = options.num_proc
    if ranks is None:
        ranks = sum(host.slots for host in hosts)
    if ranks < 1:
        wrapper = (
            "; ranks of mpirun, srun or torchrun start `python -m aiacc.compat.horovod script.py`"
        )
        raise ValueError(
            "how many ranks? (expected -np N with N >= 1, or --hosts)"
            + (wrapper if options.as_horovod else "")
        )
    try:
        _core.config({"AIACC_SIZE": str(ranks)})
    except ValueError as error:
        raise ValueError(f"-np {ranks} is more than a job can have: {error}") from None
    if hosts:
        hosts = take(hosts, ranks)
    return Launch(
        ranks=ranks,
        command=tuple(resolve_command(command)),
        hosts=tuple(hosts),
        interface=mpi_interface(options.network_interface or ""),
        tag_output=options.tag_output,
        settings={
            **settings_of(options),
            **(netcheck.SETTINGS if options.netcheck else {}),
            **(as_horovod(child_environment({})) if options.as_horovod else {}),
        },
        as_horovod=options.as_horovod,
        extra_arguments=_mpi_arguments(options.mpi_args or "") if options.mpi else (),
    )


def _mpi_arguments(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(
            f"--mpi-args {text!r}: {error} (expected arguments as in a shell); close what is open"
        ) from error


def _become_netcheck(options: argparse.Namespace) -> None:
    """Let the options start the network check on the hosts that it names."""
    if options.command or options.hosts or options.hostfile:
        raise ValueError(
            "--netcheck with a command, --hosts or --hostfile (expected alone, as in "
            "`aiaccrun --netcheck host1,host2`)"
        )
    options.hosts = options.netcheck
    hosts = _hosts_of(options)
    if sum(host.slots for host in hosts) < 2:  # one host: between two ranks of it
        options.hosts = f"{hosts[0].name}:2"
    options.mpi = options.mpi or not all(host.is_local() for host in hosts)
    options.command = [sys.executable, "-m", netcheck.__name__]


def _hosts_of(options: argparse.Namespace) -> list[Host]:
    if options.hosts and options.hostfile:
        raise ValueError("--hosts and --hostfile are both given (expected one of them)")
    if options.hosts:
        return parse_hosts(options.hosts)
    if options.hostfile:
        try:  # Windows begins a file with a mark
            return parse_hostfile(Path(options.hostfile).read_text("utf-8-sig"))
        except OSError as error:
            raise ValueError(
                f"hostfile {options.hostfile}: {error.strerror} (expected a file that can be read, "
                "with lines of `host slots=N`)"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"hostfile {options.hostfile}: {error} (expected text in UTF-8); write names in it"
            ) from error
    return []


def _become(command: list[str], launch: Launch, options: argparse.Namespace) -> int:
    """Show the exact command and turn this process into it."""
    if not options.dry_run:
        _say(shlex.join(command))
        os.execve(command[0], command, child_environment(launch.settings))
    print(shlex.join(command))
    return 0


def _assignments(variables: Mapping[str, str]) -> str:
    """Variables as a shell takes them before a command."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def _say(text: str) -> None:
    if sys.stderr is not None:  # closed; `print` would take stdout
        print(f"aiaccrun: {text}", file=sys.stderr, flush=True)
