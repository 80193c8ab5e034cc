"""Tables of docs/planning.md from what was measured on the bed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.network.planning.contenders import CONTENDERS, LANES, THRESHOLD, Contender
from bench.network.workloads import workload

#: How far the exposed communication may be from its prediction.
NEAR = 0.15
#: Of whom an expectation holds: never slower than buckets of 25 MiB.
NEVER_SLOWER = ("optimal", "auto")
#: Ours, and those of DistributedDataParallel.
BUCKETS_OF_25 = {THRESHOLD: f"`{THRESHOLD}`", "ddp": "DDP/gloo with 25 MB"}

#: Whose steps do not communicate.
ALONE = "none"

Run = Mapping[str, Any]


def medians(run: Run, name: str, which: str = "seconds") -> list[float]:
    """Seconds of a contender's step in each round that it has finished.

    ``which`` may be ``unsent_s``, for those in which nothing is sent, here and below.
    """
    return [median(seconds) for seconds in _samples(run, name, which)]


def step_s(run: Run, name: str, which: str = "seconds") -> float | None:
    """Median seconds of all its steps, None if there are none."""
    samples = [value for seconds in _samples(run, name, which) for value in seconds]
    return median(samples) if samples else None


def spread_s(run: Run, *names: str, which: str = "seconds") -> float:
    """Noise: the widest range of the rounds' medians, of any of these contenders."""
    rounds = [found for name in names if (found := medians(run, name, which))]
    return max((max(found) - min(found) for found in rounds), default=0.0)


def exposed_s(run: Run, name: str) -> float | None:
    """Seconds by which a step is longer than one of the same optimizer in which nothing is sent.

    Where that was not measured, a step without an optimizer of ours stands for it, or what is
    computed.
    """
    value, alone = step_s(run, name), unsent_s(run, name)
    return None if value is None else value - (run["compute_s"] if alone is None else alone)


def unsent_s(run: Run, name: str) -> float | None:
    """Median seconds of all steps that a contender's ``exposed_s`` begins from."""
    alone = step_s(run, name, "unsent_s")
    return step_s(run, ALONE) if alone is None else alone


def noise_s(run: Run, name: str) -> float:
    """Noise of ``exposed_s``: the widest range of the rounds' medians, sent and not."""
    if not _samples(run, name, "unsent_s"):
        return spread_s(run, name, ALONE)
    return max(spread_s(run, name), spread_s(run, name, which="unsent_s"))


def _samples(run: Run, name: str, which: str) -> list[list[float]]:
    return [job[name][which] for job in run["jobs"] if which in job.get(name, {})]


def predicted_s(run: Run, contender: Contender) -> float | None:
    """The same as the core sends the plan; None for DDP, whose operations cost otherwise."""
    value = run["as_sent_s"].get(contender.name)
    return None if value is None else value - run["compute_s"]


def planner_s(run: Run, contender: Contender) -> float | None:
    """The same as the planner sees it, with one bucket at a time; None without a planner."""
    plan = run["plans"].get(contender.planner) if contender.kind == "aiacc" else None
    return None if plan is None else plan["predicted_s"] - run["compute_s"]


def steps_table(runs: Sequence[Run]) -> str:
    """Markdown: a line per cell, a column per contender: milliseconds of a step."""
    shown = [one for one in CONTENDERS if any(medians(run, one.name) for run in runs)]
    rows = []
    for run in runs:
        cells = [*_case(run), f"{run['compute_s'] * 1e3:.0f}"]
        for one in shown:
            value = step_s(run, one.name)
            spread = spread_s(run, one.name)
            noise = f" ± {spread * 1e3 / 2:.0f}" if len(medians(run, one.name)) > 1 else ""
            cells.append("" if value is None else f"{value * 1e3:.0f}{noise}")
        rows.append(cells)
    return _table([*_CASE, "computation", *(one.title for one in shown)], rows)


def exposed_table(runs: Sequence[Run]) -> str:
    """Markdown: a line per cell, a column per plan: exposed, predicted, and by the planner."""
    planned = [one for one in CONTENDERS if any(predicted_s(run, one) is not None for run in runs)]
    shown = [one for one in planned if any(medians(run, one.name) for run in runs)]
    rows = []
    for run in runs:
        cells = _case(run)
        for one in shown:
            measured, predicted = exposed_s(run, one.name), predicted_s(run, one)
            if measured is None or predicted is None:
                cells.append("")
                continue
            text = f"{measured * 1e3:.0f} / {predicted * 1e3:.0f}"
            near = is_near(measured, predicted, noise_s(run, one.name))
            cells.append((text if near else f"**{text}**") + _by_planner(run, one))
        rows.append(cells)
    return _table([*_CASE, *(one.title for one in shown)], rows)


def _by_planner(run: Run, contender: Contender) -> str:
    planner = planner_s(run, contender)
    if planner is None:
        return ""
    if not contender.planner.startswith("lanes"):
        return f" ({planner * 1e3:.0f})"
    bound = run["plans"][contender.planner]["bound_s"] - run["compute_s"]
    return f" ({planner * 1e3:.0f}, ≥ {bound * 1e3:.0f})"


def unsent_lines(runs: Sequence[Run]) -> str:
    """Markdown: what the optimizers cost while nothing is sent; "" if that was not measured."""
    lines = []
    for run in runs:
        all_of_them = {one.name: step_s(run, one.name, "unsent_s") for one in CONTENDERS}
        found = {name: value * 1e3 for name, value in all_of_them.items() if value is not None}
        if found:
            low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
            lines.append(
                f"* {run['cell']['name']}: the slowest rank's steps in which nothing is sent take "
                f"{found[low]:.0f} (`{low}`) to {found[high]:.0f} ms (`{high}`)"
            )
    return "\n".join(lines)


def buckets_table(runs: Sequence[Run]) -> str:
    """Markdown: a line per cell, a column per planner: how many buckets its plan has."""
    names = list(dict.fromkeys(name for run in runs for name in run["plans"]))
    rows = [
        [*_case(run), *(str(run["plans"][name]["buckets"]) for name in names), _ddp_buckets(run)]
        for run in runs
    ]
    return _table([*_CASE, *(f"`{name}`" for name in names), "DDP/gloo, 25 MB; our list"], rows)


def verdicts_table(runs: Sequence[Run]) -> str:
    """Markdown: what was expected of each cell, and whether it has come."""
    rows = [
        [*_case(run), what, value, "yes" if good else "**no**"]
        for run in runs
        for what, value, good in verdicts(run)
    ]
    return _table([*_CASE, "expected", "measured", "reached"], rows)


def verdicts(run: Run) -> list[tuple[str, str, bool]]:
    """What is expected, what was measured, whether that is as expected."""
    found = []
    for name, other in itertools.product(NEVER_SLOWER, BUCKETS_OF_25):
        value, base = step_s(run, name), step_s(run, other)
        if value is not None and base is not None:
            noise = spread_s(run, name, other)
            found.append((
                f"`{name}` not slower than {BUCKETS_OF_25[other]} beyond noise",
                f"{_ms(value - base)}, {_noise_text(run, noise, name, other)}",
                value <= base + noise,
            ))  # fmt: skip
    near, all_of_them = 0, 0
    for one in CONTENDERS:
        measured, predicted = exposed_s(run, one.name), predicted_s(run, one)
        if measured is not None and predicted is not None:
            good = is_near(measured, predicted, noise_s(run, one.name))
            near, all_of_them = near + good, all_of_them + 1
    if all_of_them:
        what = f"exposed communication within {NEAR:.0%} of the prediction, or within noise"
        found.append((what, f"{near} of {all_of_them} plans", near == all_of_them))
    first, other = step_s(run, "decoupled_1"), step_s(run, "optimal")
    if first is not None and other is not None:
        noise = spread_s(run, "decoupled_1", "optimal")
        found.append((
            "`decoupled`, 1 lane, not slower than `optimal` beyond noise",
            f"{_ms(first - other)}, {_noise_text(run, noise, 'decoupled_1', 'optimal')}",
            first <= other + noise,
        ))  # fmt: skip
    return found


def is_near(measured: float, predicted: float, noise: float) -> bool:
    """Whether a measured time is within NEAR of its prediction, or no farther off than noise is."""
    return abs(measured - predicted) <= max(NEAR * abs(predicted), noise)


def left_out(runs: Sequence[Run]) -> str:
    """Markdown: contenders that were skipped or have failed, and why; "" if there are none."""
    lines = {
        f"* {run['cell']['name']}, {name}: {found.get('skipped') or found.get('failed')}"
        for run in runs
        for job in run["jobs"]
        for name, found in job.items()
        if "seconds" not in found
    }
    return "\n".join(sorted(lines))


_CASE = ["model", "Mbit/s", "delay", "unit", "device"]


def _case(run: Run) -> list[str]:
    cell = run["cell"]
    device = "as published" if cell["ratio"] is None else f"{cell['ratio']:g} of the wire"
    title = workload(cell["workload"]).title.partition(",")[0]
    return [title, f"{cell['mbit']:g}", f"{cell['delay_ms']:g} ms", cell["unit"], device]


def _ddp_buckets(run: Run) -> str:
    counts = []
    for name in ("ddp", "ddp_list"):
        jobs = [job[name] for job in run["jobs"] if "buckets" in job.get(name, {})]
        counts.append(str(jobs[-1]["buckets"]) if jobs else "?")
    return "; ".join(counts)


def _noise_text(run: Run, noise: float, *names: str) -> str:
    known = any(len(medians(run, name)) > 1 for name in names)
    return f"noise {noise * 1e3:.0f} ms" if known else "noise not known: one round"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:+.0f} ms"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


#: Under the tables: what the numbers are.
LEGEND = (
    f"Medians over all rounds; ± is half of the range of the rounds' medians. Lanes: {LANES} where "
    "nothing else is said."
)
