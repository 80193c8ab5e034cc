"""Virtual hosts on this machine, whose TCP flows and interfaces are capped. Needs root.

python -m bench.bed run --hosts 4 --launcher mpirun -- python train.py
"""

import argparse
import sys

from bench.bed import BedError, launch
from bench.bed.bed import bed_for
from bench.bed.plan import Spec

#: Options of a bed, which default to those of `Spec`, and what they are.
_SPEC = {
    "hosts": "number of hosts",
    "flow_mbit": "Mbit/s of one TCP flow in each direction; 0: no cap",
    "nic_mbit": "Mbit/s of a host's interface in each direction; 0: no cap",
    "slow": "one data flow of host 0 gets this fraction of the cap",
    "congestion": "TCP congestion control, none for the kernel's default",
    "delay_ms": "delay of every packet",
    "loss": "probability that a packet is lost",
    "reorder": "probability that a packet is overtaken",
    "relay": "a relay even without delay or loss",
}
_KINDS = {"hosts": int, "congestion": str}


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        if not command:
            raise ValueError("no command (expected: run [options] -- program arguments)")
        spec = Spec(options.name, **{name: getattr(options, name) for name in _SPEC})
        with bed_for(spec) as bed:
            return launch.run(
                bed, options.launcher, options.per_host, command, timeout_s=options.timeout
            )
    except (BedError, ValueError) as error:
        print(f"[bench.bed] {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True)
    run = actions.add_parser("run", help="run a command as ranks on the hosts of a bed of its own")
    run.add_argument("--name", default=Spec.name, help="of the bed (default: %(default)s)")
    for name, text in _SPEC.items():
        option, default = f"--{name.replace('_', '-')}", getattr(Spec, name)
        if isinstance(default, bool):
            run.add_argument(option, action="store_true", help=text)
        else:
            run.add_argument(
                option,
                type=_KINDS.get(name, float),
                default=default,
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
