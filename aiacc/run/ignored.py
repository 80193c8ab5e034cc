"""Options of `horovodrun` that have no meaning here: accepted, and named in one message."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

_NO_CYCLE = "there is no cycle"
_NO_FUSION = "units of work are no fusion buffer; see AIACC_UNIT_BYTES"
_NO_CHOICE = "the engine decides"
_NOT_YET = "not available yet"
_LANES_ONLY = "what is tuned is the number of lanes, in a fixed number of steps"
_NO_ELASTIC = "elastic jobs are not available yet"
_NOTHING_CACHED = "nothing is cached between starts"
_MPIRUN = "give it to mpirun, by --mpi-args"
_SYSTEM = "the system places the threads"
_DEFAULT = "it is the default"
_TIMED = "the log always has the time"

#: Option strings, number of values, and why it is ignored.
IGNORED: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--disable-cache",), 0, _NOTHING_CACHED),
    (("--config-file",), 1, "give its settings as options"),
    (("-p", "--ssh-port"), 1, _MPIRUN),
    (("-i", "--ssh-identity-file"), 1, _MPIRUN),
    (("--fusion-threshold-mb",), 1, _NO_FUSION),
    (("--cycle-time-ms",), 1, _NO_CYCLE),
    (("--hierarchical-allreduce", "--no-hierarchical-allreduce"), 0, _NO_CHOICE),
    (("--hierarchical-allgather", "--no-hierarchical-allgather"), 0, _NO_CHOICE),
    (("--torus-allreduce", "--no-torus-allreduce"), 0, _NO_CHOICE),
    (("--no-autotune",), 0, _DEFAULT),
    (("--autotune-log-file",), 1, _LANES_ONLY),
    (("--autotune-warmup-samples",), 1, _LANES_ONLY),
    (("--autotune-steps-per-sample",), 1, _LANES_ONLY),
    (("--autotune-bayes-opt-max-samples",), 1, _LANES_ONLY),
    (("--autotune-gaussian-process-noise",), 1, _LANES_ONLY),
    (("--min-np", "--min-num-proc"), 1, _NO_ELASTIC),
    (("--max-np", "--max-num-proc"), 1, _NO_ELASTIC),
    (("--slots-per-host",), 1, _NO_ELASTIC),
    (("--elastic-timeout",), 1, _NO_ELASTIC),
    (("--reset-limit",), 1, _NO_ELASTIC),
    (("--blacklist-cooldown-range",), 2, _NO_ELASTIC),
    (("--host-discovery-script",), 1, _NO_ELASTIC),
    (("--mpi-threads-disable", "--no-mpi-threads-disable"), 0, "lanes need threads"),
    (("--tcp",), 0, "use --engine tcp"),
    (("--binding-args",), 1, _MPIRUN),
    (("--thread-affinity",), 1, _SYSTEM),
    (("--log-with-timestamp", "--log-without-timestamp"), 0, _TIMED),
    (("--log-hide-timestamp", "--no-log-hide-timestamp"), 0, _TIMED),
    (("--jsrun",), 0, "start the script by jsrun itself"),
    (("-prefix-timestamp", "--prefix-output-with-timestamp"), 0, _NOT_YET),
    (("--stall-check",), 0, _DEFAULT),
    (("--no-timeline-mark-cycles",), 0, _DEFAULT),
)


def add_ignored(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` accept the options; they gather in ``ignored`` of the namespace."""
    parser.set_defaults(ignored=[])
    for options, count, reason in IGNORED:
        parser.add_argument(
            *options, nargs=count, action=_Ignore, const=reason, help=argparse.SUPPRESS
        )


def message_about(ignored: Sequence[tuple[str, str]]) -> str:
    """What to tell the user about options that were given."""
    return "ignored: " + "; ".join(f"{option} ({reason})" for option, reason in ignored)


class _Ignore(argparse.Action):
    """Notes that an option was given; ``const`` is the reason for ignoring it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Called by argparse."""
        del parser, values
        # A new list: the default belongs to the parser.
        namespace.ignored = [*namespace.ignored, (option_string, self.const)]
