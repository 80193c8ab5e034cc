"""Virtual hosts on this machine, whose TCP flows and interfaces are capped. Needs root.

python -m bench.bed run --hosts 4 --launcher mpirun -- python train.py
python -m bench.bed up --hosts 4; ... run -- ...; ... down
"""

import argparse
import sys

from bench.bed import launch
from bench.bed.bed import BedError, bed_for, require_root, stand, standing, take_down
from bench.bed.plan import Spec, host_name

#: Options of a bed, which default to those of `Spec`, and what they are.
_SPEC = {
    "hosts": "number of hosts",
    "flow_mbit": "Mbit/s of one TCP flow in each direction; 0: no cap",
    "nic_mbit": "Mbit/s of a host's interface in each direction; 0: no cap",
    "slow": "one data flow of host 0 gets this fraction of the cap",
    "congestion": "TCP congestion control, none for the kernel's default",
    "mtu": "bytes of the largest IP packet",
    "delay_ms": "delay of every packet",
    "loss": "probability that a packet is lost",
    "reorder": "probability that a packet is overtaken",
    "relay": "a relay even without delay or loss",
}
_KINDS = {"hosts": int, "congestion": str, "mtu": int}


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    try:
        if options.action == "up":
            _describe(stand(_spec(options)).spec)
            return 0
        require_root()
        if options.action == "down":
            take_down(options.name)
            return 0
        return _run(options)
    except (BedError, ValueError) as error:
        print(f"[bench.bed] {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise ValueError("no command (expected: run [options] -- program arguments)")
    bed = standing(options.name)
    asked = any(getattr(options, name) is not None for name in _SPEC)
    with bed_for(bed.spec if bed is not None and not asked else _spec(options)) as hosts:
        return launch.run(
            hosts, options.launcher, options.per_host, command, timeout_s=options.timeout
        )


def _describe(spec: Spec) -> None:
    print(f"{spec.hosts} hosts, flow / interface {spec.caps}")
    for host in range(spec.hosts):
        print(f"  {host_name(host)}: network namespace {spec.namespace(host)}")


def _spec(options: argparse.Namespace) -> Spec:
    given = {name: getattr(options, name) for name in _SPEC}
    return Spec(options.name, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="put up a bed that stays")
    down = actions.add_parser("down", help="remove a bed, and what killed runs have left of it")
    run = actions.add_parser(
        "run", help="run a command as ranks on the hosts of the standing bed, or of one of its own"
    )
    for action in (up, down, run):
        action.add_argument("--name", default=Spec.name, help="of the bed (default: %(default)s)")
    for action in (up, run):
        for name, text in _SPEC.items():
            option, default = f"--{name.replace('_', '-')}", getattr(Spec, name)
            if isinstance(default, bool):
                action.add_argument(option, action="store_true", default=None, help=text)
            else:
                action.add_argument(
                    option,
                    type=_KINDS.get(name, float),
                    metavar="VALUE",
                    help=f"{text} (default: {default or 'none'})",
                )
    run.add_argument("--launcher", choices=launch.LAUNCHERS, default="explicit")
    run.add_argument("--per-host", type=int, default=1, metavar="N", help="ranks on each host")
    run.add_argument("--timeout", type=float, default=600, metavar="S", help="end the job after")
    run.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
