"""``aiacc-plan simulate --kfac``: steps of second-order training, published variants and ours."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiacc.kfac import published
from aiacc.kfac.costs import inversion_of
from aiacc.kfac.methods import D_KFAC, MPD_KFAC, SPD_KFAC, Found, Model, ours, run, sgd_s
from aiacc.kfac.step import Costs
from aiacc.kfac.timeline import timeline_of
from aiacc.planning import chart
from aiacc.planning.network import network_of

EPILOG = """\
Second-order training by K-FAC (simulate --kfac) is simulated for networks whose passes, factors and
inversions its authors published. Without --net on their 64 GPUs, beside what they measured:

  aiacc-plan simulate resnet50 --kfac
  aiacc-plan simulate resnet152 --kfac --plot kfac.svg
  aiacc-plan simulate resnet50 --kfac --net alpha=30e-6,gbit=10 --world 4..64
  aiacc-plan simulate resnet50 --kfac --net net.json --inversion inversions.json --overlap 0.5

D-KFAC lets everybody invert every factor, MPD-KFAC gives each factor an owner, SPD-KFAC sends
factors during the passes and gives an owner to the large ones. `ours` plans factors and gradients
together and exactly, reduces a factor to its owner alone, gathers several inverses at a time, and
chooses owners by when all inverses are there."""

METHODS = (D_KFAC, MPD_KFAC, SPD_KFAC)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Those of simulate that have to do with K-FAC."""
    command.add_argument(
        "--kfac",
        action="store_true",
        help=f"second-order steps, of {', '.join(published.MEASURED)}; without --net on the "
        "published cluster",
    )
    command.add_argument(
        "--overlap",
        metavar="SHARE",
        type=float,
        help="with --kfac: of the computation, that hides communication; default: 1, and on the "
        f"published cluster {published.OVERLAP}, which fits it",
    )
    command.add_argument(
        "--inversion",
        metavar="COST",
        help="with --kfac: seconds by dimension, as c0=1e-4,c2=1e-9,c3=1e-13 for c0 + c2 d^2 + c3 "
        "d^3, or a JSON file of pairs; default: what fits the published GPU",
    )
    command.add_argument(
        "--every",
        metavar="F,I",
        help="with --kfac: steps from factors to factors and from inverses to inverses, as 10,100, "
        "over which a mean step is taken; default: 1,1",
    )


def refuse_without_kfac(options: argparse.Namespace) -> None:
    """Raises ValueError for arguments that would be ignored."""
    for name in ("overlap", "inversion", "every"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} has no meaning without --kfac; leave it out or add --kfac")
    if options.net is None:
        raise ValueError("--net is missing (expected a network; see aiacc-plan --help)")


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Where the file of an option is written: raises ValueError, which names that, for OSError."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {option}: {error}; name another file") from error


def simulate_kfac(options: argparse.Namespace, worlds: Sequence[int]) -> Iterator[str]:
    """Lines for a terminal."""
    model = published.model(options.trace)
    if options.planner != "all":
        raise ValueError("--kfac has planners of its own; leave out --planner")
    every = _every(options.every)
    cluster = options.net is None
    if cluster and worlds:
        raise ValueError(
            f"--world without --net: the published cluster has {published.RANKS} ranks (expected a "
            "network by alpha and gbit)"
        )
    yield (
        f"{model.title}, {model.compute_s * 1e3:.1f} ms for both passes and "
        f"{model.factor_s * 1e3:.1f} ms for factors, as published; simulated"
        + (
            ""
            if every == (1, 1)
            else f"; factors every {every[0]} and inverses every {every[1]} steps"
        )
    )
    beside = cluster and every == (1, 1)
    yield (
        f"{'ranks':>6}  {'method':10}{'step ms':>9}{'exposed':>9}{'inverting':>11}{'sending':>9}"
        f"{'owned':>7}" + (f"{'published':>11}{'error':>8}" if beside else "")
    )
    shown: dict[str, tuple[float, ...]] = {}
    for costs in _clusters(options, worlds):
        extra_s = published.unexplained_s(options.trace, costs.overlap) if cluster else 0.0
        for found in _all(model, costs):
            parts = _parts(model, costs, found, extra_s, every)
            known = _published_s(options.trace, found) if beside else None
            yield _line(costs.ranks, model, found, parts, known)
            shown[found.title + ("" if cluster else f", {costs.ranks} ranks")] = parts
        if options.chrome:  # of ours, with the most ranks in the end
            with writing("--chrome"):
                options.chrome.write_text(timeline_of(found, model, costs).chrome_trace())
    if options.plot:
        rows = {name: dict(zip(PARTS, parts, strict=True)) for name, parts in shown.items()}
        totals = published.MEASURED[options.trace].totals_s if beside else ()
        marks = dict(zip([method.title for method in METHODS], totals, strict=False))
        title = f"{model.title}, K-FAC: factors every {every[0]}, inverses every {every[1]} steps"
        with writing("--plot"):
            chart.stacked(rows, options.plot, title, marks)


PARTS = ("passes and gradients", "building factors", "factors", "inverting", "sending inverses")


def _all(model: Model, costs: Costs) -> list[Found]:
    return [*(run(method, model, costs) for method in METHODS), ours(model, costs)]


def _clusters(options: argparse.Namespace, worlds: Sequence[int]) -> Iterator[Costs]:
    inversion = inversion_of(options.inversion) if options.inversion else published.inversion()
    if options.net is None:
        overlap = published.OVERLAP if options.overlap is None else options.overlap
        yield Costs(published.RANKS, inversion, published.FUSED, published.SINGLE, overlap)
        return
    network = network_of(options.net)
    several: Sequence[int | None] = worlds or [network.world]
    for ranks in several:
        if ranks is None:
            raise ValueError(
                f"--net {options.net} does not tell the number of ranks (expected --world, or "
                "world=16 among its fields)"
            )
        cost, overlap = network.cost(ranks), 1.0 if options.overlap is None else options.overlap
        # From fields on the command line it is a float.
        yield Costs(int(ranks), inversion, cost, cost, overlap)


def _parts(
    model: Model, costs: Costs, found: Found, extra_s: float, every: tuple[int, int]
) -> tuple[float, ...]:
    """Seconds of a mean step, by PARTS."""
    sgd, step = sgd_s(model, costs), found.step
    factors, inverses = every
    return (
        sgd + extra_s,
        model.factor_s / factors,
        (step.compute_s + step.exposed_s - sgd - model.factor_s) / factors,
        step.stage.compute_s / inverses,
        (step.stage.finish_s - step.stage.compute_s) / inverses,
    )


def _published_s(name: str, found: Found) -> float | None:
    titles = [method.title for method in METHODS]
    totals = published.MEASURED[name].totals_s
    return totals[titles.index(found.title)] if found.title in titles else None


def _line(
    ranks: int, model: Model, found: Found, parts: tuple[float, ...], known_s: float | None
) -> str:
    total_s = sum(parts)
    exposed_s = parts[0] - model.compute_s + parts[2]
    owned = sum(owner is not None for owner in found.owners)
    line = (
        f"{ranks:>6}  {found.title:10}{total_s * 1e3:>9.1f}{exposed_s * 1e3:>9.1f}"
        f"{parts[3] * 1e3:>11.1f}{parts[4] * 1e3:>9.1f}{owned:>7}"
    )
    if known_s is None:
        return line
    return line + f"{known_s * 1e3:>11.1f}{total_s / known_s - 1:>+8.1%}"


def _every(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    try:
        factors, inverses = map(int, text.split(","))
    except ValueError as error:
        raise ValueError(f"--every {text} (expected two numbers, as in 10,100)") from error
    if factors < 1 or inverses < factors or inverses % factors:
        raise ValueError(
            f"--every {text} (expected two numbers >= 1, the second a multiple of the first: "
            "inverses are of factors that are new)"
        )
    return factors, inverses
