"""The options of `aiaccrun`. Names are Horovod's where it has the same option."""

from __future__ import annotations

import argparse

from aiacc.run.ignored import add_ignored

#: Option to variable: these only set what the user could set in the environment.
_SETTINGS = {
    "engine": "AIACC_ENGINE",
    "num_nccl_streams": "AIACC_LANES",
    "cache_capacity": "AIACC_CACHE_CAPACITY",
    "start_timeout": "AIACC_CONNECT_TIMEOUT_S",
    "log_level": "AIACC_LOG_LEVEL",
    "timeline_filename": "AIACC_TIMELINE",
    "stall_check_warning_time_seconds": "AIACC_STALL_WARN_S",
    "stall_check_shutdown_time_seconds": "AIACC_STALL_FAIL_S",
}


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = argparse.ArgumentParser(
        prog="aiaccrun",
        usage="aiaccrun -np N [options] command [arguments]",
        description="Starts N ranks of a training program, on this machine or through mpirun.",
        allow_abbrev=False,
    )
    add = result.add_argument
    add("-v", "--version", action="store_true", help="print the version and exit")
    add("-cb", "--check-build", action="store_true", help="print what this installation can do")
    add("--help-env", action="store_true", help="print the environment variables")
    add(
        "--netcheck",
        nargs="?",
        const="localhost",
        metavar="h1,h2",
        help="measure what one and several TCP flows carry between hosts, or between two ranks of "
        "one host, and suggest lanes",
    )
    add("-np", "--np", "--num-proc", dest="num_proc", type=int, metavar="N",
        help="number of ranks")  # fmt: skip
    add(
        "--merge-timelines",
        metavar="OUT",
        help="write the timelines of several ranks, whose files follow, to OUT as one trace",
    )
    add("-H", "--hosts", metavar="h1:2,h2:2", help="hosts and the ranks they take (with --mpi)")
    add("-hostfile", "--hostfile", metavar="FILE", help="the same, lines of `host slots=N`")
    add("--mpi", action="store_true", help="start the ranks by mpirun; prints the command")
    add("--mpi-args", metavar="ARGS", help="further arguments of mpirun, in one string")
    add("--torchrun", action="store_true", help="start the ranks by torchrun; prints the command")
    add("--dry-run", action="store_true", help="print ranks, variables and command, start nothing")
    add("--gloo", action="store_true", help="start them without mpirun, as is the default")
    add(
        "--as-horovod",
        action="store_true",
        help="let `import horovod` find aiacc in the ranks; see docs/migrating-from-horovod.md",
    )
    add("--tag-output", action="store_true", help="mark every line with the rank that printed it")
    add(
        "--output-filename",
        metavar="DIR",
        help="write what rank N prints to DIR/rank.N/stdout and stderr",
    )
    add(
        "--grace-s",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds that ranks get to end after another one failed (default 5)",
    )
    add("--verbose", action="store_true", help="print what is started")
    _add_settings(result)
    add_ignored(result)
    add("command", nargs=argparse.REMAINDER, help="program and arguments, the same on every rank")
    return result


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The variables that the options set."""
    settings = {
        variable: str(getattr(options, option))
        for option, variable in _SETTINGS.items()
        if getattr(options, option) is not None
    }
    if options.network_interface:
        settings["AIACC_IFACE"] = options.network_interface
    if options.autotune:
        settings["AIACC_AUTOTUNE"] = "1"
    if options.timeline_mark_cycles:
        settings["AIACC_TIMELINE_MARK_CYCLES"] = "1"
    if options.no_stall_check:
        settings["AIACC_STALL_WARN_S"] = "0"
    return settings


def _add_settings(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group("settings", "each sets one variable, see --help-env")
    add = group.add_argument
    add("--engine", metavar="NAME", help="AIACC_ENGINE")
    add("--network-interface", "--network-interfaces", metavar="IF", help="AIACC_IFACE")
    add("--num-nccl-streams", "--lanes", type=int, metavar="N", help="AIACC_LANES")
    add("--autotune", action="store_true", help="AIACC_AUTOTUNE")
    add("--cache-capacity", type=int, metavar="N", help="AIACC_CACHE_CAPACITY")
    add("--start-timeout", "--gloo-timeout-seconds", type=float, metavar="S",
        help="AIACC_CONNECT_TIMEOUT_S")  # fmt: skip
    add("--log-level", metavar="LEVEL", help="AIACC_LOG_LEVEL")
    add("--timeline-filename", metavar="FILE", help="AIACC_TIMELINE")
    add("--timeline-mark-cycles", action="store_true", help="AIACC_TIMELINE_MARK_CYCLES")
    add("--no-stall-check", action="store_true", help="AIACC_STALL_WARN_S=0")
    add("--stall-check-warning-time-seconds", type=float, metavar="S", help="AIACC_STALL_WARN_S")
    add("--stall-check-shutdown-time-seconds", type=float, metavar="S", help="AIACC_STALL_FAIL_S")
