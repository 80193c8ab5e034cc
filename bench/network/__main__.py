"""Virtual hosts on this machine, whose TCP flows and interfaces are capped. Needs root.

python -m bench.network run --hosts 4 --launcher mpirun -- python train.py
python -m bench.network up --hosts 4; ... run -- ...; ... down
python -m bench.network run --workload resnet50 --flow-mbit 300
"""

import argparse
import sys
from pathlib import Path

from bench.network import launch, training
from bench.network.bed import Bed, BedError, bed_for, require_root, stand, standing, take_down
from bench.network.plan import Spec, host_name
from bench.network.report import TRAINING
from bench.network.workloads import names


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    try:
        if options.action == "up":
            _describe(stand(_spec(options)))
            return 0
        require_root()
        if options.action == "down":
            take_down(options.name)
            return 0
        return _run(options)
    except (BedError, ValueError) as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command and not options.workload:
        raise ValueError("no command (expected: run [options] -- program arguments)")
    bed = standing(options.name)
    asked = any(getattr(options, name) is not None for name in _SPEC)
    with bed_for(bed.spec if bed is not None and not asked else _spec(options)) as hosts:
        if options.workload:
            found = training.measure(
                hosts,
                options.workload,
                steps=options.steps,
                rounds=options.rounds,
                only=options.only.split(",") if options.only else (),
                timeout_s=options.timeout,
            )
            training.record(found, options.json)
            return 0
        return launch.run(
            hosts,
            options.launcher,
            options.per_host,
            command,
            timeout_s=options.timeout,
        )


def _describe(bed: Bed) -> None:
    spec = bed.spec
    flow = f"{spec.flow_mbit:g} Mbit/s per flow" if spec.flow_mbit else "flows not capped"
    nic = f"{spec.nic_mbit:g} Mbit/s per host" if spec.nic_mbit else "hosts not capped"
    print(f"{spec.hosts} hosts, {flow}, {nic}")
    for host in range(spec.hosts):
        print(f"  {host_name(host)}: network namespace {spec.namespace(host)}")


#: Options of a bed, which default to those of `Spec`.
_SPEC = (
    *("hosts", "flow_mbit", "nic_mbit", "slow", "congestion", "mtu"),
    *("delay_ms", "loss", "reorder", "relay"),
)


def _spec(options: argparse.Namespace) -> Spec:
    given = {name: getattr(options, name) for name in _SPEC}
    return Spec(options.name, **{name: value for name, value in given.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network",
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
        _add_spec(action)
    run.add_argument("--launcher", choices=launch.LAUNCHERS, default="explicit")
    run.add_argument("--per-host", type=int, default=1, metavar="N", help="ranks on each host")
    run.add_argument("--timeout", type=float, default=600, metavar="S", help="end the job after")
    run.add_argument("--workload", choices=names(), help="measure training steps, see docs")
    run.add_argument("--steps", type=int, default=3, metavar="N", help="of a workload, per job")
    run.add_argument("--rounds", type=int, default=2, metavar="N", help="jobs of each contender")
    run.add_argument("--only", default="", metavar="A,B", help="some contenders of a workload")
    run.add_argument("--json", type=Path, default=TRAINING, help="result file (%(default)s)")
    run.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    return parser


def _add_spec(parser: argparse.ArgumentParser) -> None:
    def add(name: str, kind: type, metavar: str, text: str) -> None:
        default = getattr(Spec, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar=metavar,
            help=f"{text} (default: {default or 'none'})",
        )

    add("hosts", int, "N", "number of hosts")
    add("flow_mbit", float, "MBIT", "rate of one TCP flow in each direction; 0: no cap")
    add("nic_mbit", float, "MBIT", "rate of a host's interface in each direction; 0: no cap")
    add("slow", float, "FRACTION", "one data flow of host 0 gets this fraction of the cap")
    add("congestion", str, "NAME", "TCP congestion control, none for the kernel's default")
    add("mtu", int, "BYTES", "largest IP packet")
    add("delay_ms", float, "MS", "delay of every packet")
    add("loss", float, "FRACTION", "probability that a packet is lost")
    add("reorder", float, "FRACTION", "probability that a packet is overtaken")
    parser.add_argument(
        "--relay", action="store_true", default=None, help="a relay even without delay or loss"
    )


if __name__ == "__main__":
    sys.exit(main())
