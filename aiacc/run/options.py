"""The options of `aiaccrun`. Names are Horovod's where it has the same option."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from aiacc import _core
from aiacc.planning.trace import Trace
from aiacc.run.ignored import add_ignored
from aiacc.unknown_variables import guess

#: Option to variable, and what stands for its value in the help: these only set what the user
#: could set in the environment.
_SETTINGS = {
    ("--engine",): ("AIACC_ENGINE", "NAME"),
    ("--network-interface", "--network-interfaces"): ("AIACC_IFACE", "IF"),
    ("--num-nccl-streams", "--lanes"): ("AIACC_LANES", "N"),
    ("--cache-capacity",): ("AIACC_CACHE_CAPACITY", "N"),
    ("--start-timeout", "--gloo-timeout-seconds"): ("AIACC_CONNECT_TIMEOUT_S", "S"),
    ("--log-level",): ("AIACC_LOG_LEVEL", "LEVEL"),
    ("--timeline-filename",): ("AIACC_TIMELINE", "FILE"),
    ("--profile",): ("AIACC_PROFILE", "FILE"),
    ("--stall-check-warning-time-seconds",): ("AIACC_STALL_WARN_S", "S"),
    ("--stall-check-shutdown-time-seconds",): ("AIACC_STALL_FAIL_S", "S"),
}

_MOST_SECONDS = 86400


class Parser(argparse.ArgumentParser):
    """Says which option or command one that it does not know may stand for."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and end with 2."""
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        words = unknown[1].split() if unknown else re.findall(r"invalid choice: '(.*?)'", message)
        known = self._known()
        super().error(message + "".join(guess(word.partition("=")[0], known) for word in words))

    def _known(self) -> list[str]:
        commands = [
            (name, command)
            for action in self._actions
            for name, command in (
                action.choices.items() if isinstance(action.choices, dict) else ()
            )
        ]
        own = [option for action in self._actions for option in action.option_strings]
        return own + [word for name, command in commands for word in (name, *command._known())]


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = Parser(
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
        help="measure what one and several TCP flows carry between hosts, and suggest lanes; on "
        "one host only measure",
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
        type=_seconds,
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
        variable: value
        for names, (variable, _) in _SETTINGS.items()
        if (value := getattr(options, names[0].strip("-").replace("-", "_"))) is not None
    }
    if options.profile:  # written later, when the script may be in another folder
        settings["AIACC_PROFILE"] = str(Path(options.profile).absolute())
    if options.autotune:
        settings["AIACC_AUTOTUNE"] = "1"
    if options.timeline_mark_cycles:
        settings["AIACC_TIMELINE_MARK_CYCLES"] = "1"
    if options.no_stall_check:
        settings["AIACC_STALL_WARN_S"] = "0"
    return settings


def check_profile(file: str) -> None:
    """Raise ValueError unless a rank of this host can write the profile, and spoils no file."""
    folder = Path(file).parent
    if file and Path(file).is_dir():
        raise ValueError(
            f"profile {file}: a folder (expected a file); name one in it, as in --profile "
            f"{Path(file) / 'model.json'}"
        )
    if file and not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"profile {file} (expected a file in a folder that can be written); create {folder}, "
            "or give another --profile or AIACC_PROFILE"
        )
    if file and Path(file).is_file() and not _may_replace(Path(file)):
        raise ValueError(
            f"profile {file}: the file holds no trace, and would be overwritten (expected a new "
            "file, or an older trace); name another, as in `aiacc-plan profile model.json -np 4 "
            "python train.py`"
        )


def _may_replace(path: Path) -> bool:
    """Whether a file is empty or a trace, and not a script that was named by mistake."""
    try:
        text = path.read_text()
        if text:
            Trace.decode(text)
    except (ValueError, OSError):
        return False
    return True


def check_output(folder: str) -> None:
    """Raise ValueError unless folders of ranks can be made in ``folder``, or in what it will be."""
    path = Path(folder)
    while not path.exists() and path != path.parent:
        path = path.parent
    if folder and not path.is_dir():
        raise ValueError(
            f"output folder {folder}: {path} is no folder (expected one, or a name for a new one); "
            "give another --output-filename"
        )
    if folder and not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(
            f"output folder {folder}: {path} (expected a folder that can be written); give another "
            "--output-filename"
        )


def check_timeline(file: str) -> None:
    """Raise ValueError unless ranks of this host will be able to write their timelines."""
    folder = Path(file).parent
    if file and Path(file).exists() and not (Path(file).is_file() or Path(file).is_fifo()):
        raise ValueError(
            f"timeline {file}: a folder or device (expected a file, new or not); name one, as in "
            "--timeline-filename timeline.json"
        )
    if file and "{rank}" not in str(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"timeline {file}: {folder} (expected a folder that can be written); create it, or "
            "give another --timeline-filename or AIACC_TIMELINE"
        )


def _add_settings(result: argparse.ArgumentParser) -> None:
    group = result.add_argument_group("settings", "each sets one variable, see --help-env")
    add = group.add_argument
    for names, (variable, value) in _SETTINGS.items():
        add(*names, type=_value_of(variable), metavar=value, help=variable)
    add("--autotune", action="store_true", help="AIACC_AUTOTUNE")
    add("--timeline-mark-cycles", action="store_true", help="AIACC_TIMELINE_MARK_CYCLES")
    add("--no-stall-check", action="store_true", help="AIACC_STALL_WARN_S=0")


def _value_of(variable: str) -> Callable[[str], str]:
    """A check that the core will take a value for ``variable``, for argparse."""

    def checked(value: str) -> str:
        try:
            _core.config({variable: value})
        except ValueError:
            (kind,) = [kind for name, _, kind, *_ in _core.env_table() if name == variable]
            raise argparse.ArgumentTypeError(f"{value!r} (expected {kind})") from None
        return value

    return checked


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{value!r} (expected a number, 0 .. {_MOST_SECONDS})")
    return seconds
