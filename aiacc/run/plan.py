"""``aiacc-plan``: which gradients to merge, and what a larger cluster would make of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from aiacc.compression.codecs import FLOAT32
from aiacc.compression.costs import cluster_of
from aiacc.compression.explain import explain as explain_compression
from aiacc.planning import chart, graphs, planners
from aiacc.planning.cost import counted
from aiacc.planning.explain import beside_bound, explain
from aiacc.planning.models import MODELS, trace_of
from aiacc.planning.network import PUBLISHED, Network, network_of
from aiacc.planning.plan import Plan, bucket_cap_mb_list
from aiacc.planning.trace import Trace, TraceError
from aiacc.run import plan_kfac
from aiacc.run.options import Parser
from aiacc.run.plan_kfac import writing

_EPILOG = f"""\
A trace says when each gradient of a step is ready; a network, what an all-reduce of so many bytes
costs. From both a planner decides which gradients travel together. TRACE is a file, or a published
network of layers whose trace is modelled (aiacc-plan models). NET is a file, a published network
(aiacc-plan networks), or fields: a=1e-3,b=8e-10 for one number of ranks, in seconds and seconds per
byte, or alpha=30e-6,gbit=10 for any, by the formula of a ring (algorithm=double_tree,
recursive_doubling or halving_doubling for others; capacity=4 where one flow fills a quarter of it).
No plan of a planner's kind takes less than "bound ms", as far as the planner proves: its own step
if it is exact, and the computation if it proves nothing.

  aiacc-plan simulate resnet50 --net alpha=30e-6,gbit=10 --world 4..2048 --planner all
  aiacc-plan explain resnet50 --net 10gbe-64
  aiacc-plan explain resnet50 --net 10gbe-64 --compression
  aiacc-plan plan resnet50 --net 10gbe-64 --output plan.json
  aiacc-plan ddp resnet50 --net 10gbe-64
  aiaccrun -np 4 aiacc-plan probe --output net.json
  aiacc-plan profile model.json -np 4 python train.py
  aiacc-plan explain model.json --net net.json

{plan_kfac.EPILOG}

All times but those of probe and profile are simulated."""

_MOST_RANKS = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["profile"] and given[1:] and _is_option(given[1]):
        sys.stderr.write(
            f"aiacc-plan: profile: {given[1]} comes before FILE (expected the trace first, as in "
            "`aiacc-plan profile model.json -np 4 python train.py`)\n"
        )
        return 2
    options = _parser().parse_args(given)
    if "launch" in options:
        return _profile(options)
    try:
        return _print(list(options.run(options)))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"aiacc-plan: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _print(lines: Iterable[str]) -> int:
    """The exit status, for a pipe may be closed, or a disk full."""
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # `| head` has seen enough
            sys.stderr.write(f"aiacc-plan: cannot print: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="aiacc-plan",
        description="Plans which gradients to merge, and simulates training steps.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, run, text in (
        ("simulate", _simulate, "step times of planners, by number of ranks"),
        ("plan", _plan, "write a plan"),
        ("explain", _explain, "why the buckets of a plan end where they do"),
        ("ddp", _ddp, "a plan as bucket_cap_mb_list of an unmodified DistributedDataParallel"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("trace", metavar="TRACE", help="a file, or one of `aiacc-plan models`")
        command.add_argument(
            "--net",
            metavar="NET",
            required=name != "simulate",  # --kfac has one of its own
            help="see aiacc-plan --help",
        )
        command.add_argument(
            "--world",
            metavar="RANKS",
            help="a number"
            + (", several with commas, or 4..2048, which doubles" if name == "simulate" else "")
            + "; default: the number that NET was measured with",
        )
        command.add_argument(
            "--planner",
            metavar="NAME",
            default="all" if name == "simulate" else planners.DEFAULT,
            help=f"one of {', '.join(planners.ALL)}"
            + ("; several with commas, or all" if name == "simulate" else ""),
        )
        if name == "simulate":
            command.add_argument("--plot", metavar="PNG", type=Path, help="scaling, or Gantt chart")
            command.add_argument(
                "--chrome", metavar="JSON", type=Path, help="the last planner, for Perfetto"
            )
            plan_kfac.add_arguments(command)
        if name == "explain":
            command.add_argument(
                "--compression",
                action="store_true",
                help="below which densities and bandwidths codecs pay instead",
            )
        if name == "plan":
            command.add_argument("--output", metavar="FILE", type=Path, help="default: print it")
    command = commands.add_parser(
        "profile",
        help="train, and write the trace of the first steps",
        description="Runs `aiaccrun --profile FILE` with what follows FILE: its options, and a "
        "training script of torch or TensorFlow that uses DistributedOptimizer. After 13 steps "
        "rank 0 writes FILE. Under another launcher set AIACC_PROFILE=FILE instead.",
    )
    command.add_argument("file", metavar="FILE", help="the trace")
    command.add_argument("launch", metavar="...", nargs=argparse.REMAINDER, help="-np 4 python ...")
    command = commands.add_parser(
        "probe",
        help="measure what operations cost here; to be started on every rank by a launcher",
        description="Measures all-reduces, reduce-scatters, all-gathers and broadcasts, one and "
        "several at a time, and writes a network: aiaccrun -np 4 aiacc-plan probe --output FILE",
    )
    command.set_defaults(run=_probe)
    command.add_argument("--output", metavar="FILE", type=Path, required=True, help="by rank 0")
    command.add_argument("--max-mib", metavar="MIB", type=float, default=32.0, help="default: 32")
    command.add_argument(
        "--lanes",
        metavar="K",
        type=int,
        default=2,
        help="operations at a time; default: 2",
    )
    for name, listed, text in (
        ("models", _models, "list the modelled traces"),
        ("networks", _networks, "list the published networks"),
    ):
        commands.add_parser(name, help=text, description=text).set_defaults(run=listed)
    return parser


def _models(_: argparse.Namespace) -> list[str]:
    lines = []
    for name, model in MODELS.items():
        trace = trace_of(name)
        lines.append(
            f"{name:12} {model.title}, batch of {model.batch}: {len(trace.tensors)} tensors, "
            f"{trace.bytes / 1e6:.0f} MB, {model.compute_s * 1e3:.0f} ms of computation (modelled)"
        )
    return lines


def _networks(_: argparse.Namespace) -> list[str]:
    return [
        f"{name:10} a = {a:.3g} s, b = {b:.3g} s/byte, {world} ranks"
        for name, (a, b, world) in PUBLISHED.items()
    ]


def _profile(options: argparse.Namespace) -> int:
    """Run the job; its exit status."""
    from aiacc.run.main import main as aiaccrun  # the other commands need no core

    file = Path(options.file)
    before = _written(file)
    status = aiaccrun(["--profile", options.file, *options.launch])
    if status == 0 and _written(file) == before:
        sys.stderr.write(
            f"aiacc-plan: {file} was not written on this host (expected 13 steps of a "
            "DistributedOptimizer or DistributedGradientTape on rank 0, which writes it on its "
            "own host); train for longer, or look there\n"
        )
        return 1
    return status


def _is_option(word: str) -> bool:
    """Whether it is one of aiaccrun's, and no name of a file."""
    return word.startswith("-") and word not in ("-h", "--help", "--")


def _written(file: Path) -> int | None:
    """When; None if there is no such file."""
    return file.stat().st_mtime_ns if file.exists() else None


def _probe(options: argparse.Namespace) -> list[str]:
    from aiacc.run.probe import MOST_LANES, probe  # the other commands need no core

    if not 1 / 64 <= options.max_mib < 1 << 20:
        raise ValueError(f"--max-mib {options.max_mib:g} (expected MiB, >= 1/64)")
    if not 1 <= options.lanes <= MOST_LANES:
        raise ValueError(f"--lanes {options.lanes} (expected 1 to {MOST_LANES})")
    return probe(options.output, int(options.max_mib * (1 << 20)), options.lanes)


def _plan(options: argparse.Namespace) -> list[str]:
    trace, _, plan = _made(options)
    if options.output is None:
        return [plan.encode()]
    with writing("--output"):
        options.output.write_text(plan.encode() + "\n")
    return [
        f"{options.output}: {counted(len(plan.buckets), 'bucket')}, step "
        f"{plan.predicted_s * 1e3:.1f} ms{beside_bound(trace, plan)}"
    ]


def _explain(options: argparse.Namespace) -> list[str]:
    trace, network, plan = _made(options)
    world = _one_world(options, network)
    cost = network.cost(world)
    if not options.compression:
        return list(explain(trace, cost, plan, network.sending(world)))
    if world is None:
        raise ValueError(
            f"--net {options.net} does not tell the number of ranks, which --compression needs "
            "(expected world=16 among its fields, or a network by alpha and gbit with --world)"
        )
    elements = {tensor.name: max(1, tensor.bytes // FLOAT32) for tensor in trace.tensors}
    buckets = [sum(elements[name] for name in bucket) for bucket in plan.buckets]
    return list(explain_compression(cluster_of(cost, int(world)), buckets))


def _ddp(options: argparse.Namespace) -> list[str]:
    trace, _, plan = _made(options)
    limits = ", ".join(f"{limit:.6f}" for limit in bucket_cap_mb_list(trace, plan))
    return [f"bucket_cap_mb_list=[{limits}]"]


def _simulate(options: argparse.Namespace) -> list[str]:
    if options.kfac:
        ranks = _worlds(options.world) if options.world else []
        return list(plan_kfac.simulate_kfac(options, ranks))
    plan_kfac.refuse_without_kfac(options)
    trace, network = _trace(options.trace), network_of(options.net)
    worlds: list[int | None] = [network.world]
    if options.world:
        worlds = [*_worlds(options.world)]
    asked = planners.ALL if options.planner == "all" else options.planner.split(",")
    names = list(dict.fromkeys(name.strip() for name in asked))
    lines = [
        f"{trace.model} ({trace.source}), {trace.compute_s * 1e3:.1f} ms of computation; simulated",
        f"{'ranks':>6}  {'planner':16}{'buckets':>8}{'step ms':>10}{'bound ms':>10}"
        f"{'exposed ms':>12}{'efficiency':>12}",
    ]
    efficiency: dict[str, list[float]] = {name: [] for name in names}
    timelines = {}
    for world in worlds:
        cost = network.cost(world)
        for name in names:
            plan = planners.plan(name, trace, cost)
            last = (world, name) == (worlds[-1], names[-1])
            if (options.plot and len(worlds) == 1) or (options.chrome and last):
                timelines[f"{name}, {world} ranks"] = graphs.simulated([trace], plan, cost)
            efficiency[name].append(trace.compute_s / plan.predicted_s if plan.predicted_s else 1.0)
            if name.startswith("lanes"):
                bounds = efficiency.setdefault(f"{name}, bound", [])
                bounds.append(trace.compute_s / plan.bound_s if plan.bound_s else 1.0)
            lines.append(
                f"{world or '?':>6}  {name:16}{len(plan.buckets):>8}{plan.predicted_s * 1e3:>10.1f}"
                f"{plan.bound_s * 1e3:>10.1f}{(plan.predicted_s - trace.compute_s) * 1e3:>12.1f}"
                f"{efficiency[name][-1]:>11.1%}"
            )
    title = f"{trace.model} ({trace.source}), {options.net}"
    with writing("--plot"):
        if options.plot and len(worlds) > 1:
            chart.scaling([world or 0 for world in worlds], efficiency, options.plot, title)
        elif options.plot:
            chart.gantt(timelines, options.plot, title)
    with writing("--chrome"):
        if options.chrome:
            options.chrome.write_text(list(timelines.values())[-1].chrome_trace())
    return lines


def _made(options: argparse.Namespace) -> tuple[Trace, Network, Plan]:
    if options.planner == "all" or "," in options.planner:
        raise ValueError(
            f"--planner {options.planner} (expected one here); name one, or use aiacc-plan simulate"
        )
    trace, network = _trace(options.trace), network_of(options.net)
    return (
        trace,
        network,
        planners.plan(options.planner, trace, network.cost(_one_world(options, network))),
    )


def _trace(text: str) -> Trace:
    if text in MODELS:
        return trace_of(text)
    path = Path(text)
    if not path.is_file():
        raise TraceError(f"trace {text!r} (expected a file, or one of {', '.join(MODELS)})")
    try:
        return Trace.decode(path.read_text())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {error}") from error


def _one_world(options: argparse.Namespace, network: Network) -> int | None:
    if options.world is None:
        return network.world
    worlds = _worlds(options.world)
    if len(worlds) != 1:
        raise ValueError(f"--world {options.world} (expected one number here)")
    return worlds[0]


def _worlds(text: str) -> list[int]:
    """64; 4,8; or 4..2048, which doubles; each number once."""
    try:
        first, dots, last = text.partition("..")
        if not dots:
            worlds = [int(part) for part in text.split(",")]
        else:
            worlds = [int(first)]
            while 0 < worlds[-1] * 2 <= int(last):
                worlds.append(worlds[-1] * 2)
        if min(worlds) < 1 or (dots and int(last) < worlds[0]):
            raise ValueError(text)
    except ValueError as error:
        raise ValueError(f"--world {text} (expected 64, 4,8,64 or 4..2048)") from error
    if max(worlds) > _MOST_RANKS:
        raise ValueError(f"--world {text} (expected {_MOST_RANKS} ranks at most)")
    return list(dict.fromkeys(worlds))


if __name__ == "__main__":
    sys.exit(main())
