"""The tables of docs/kfac_simulated.md, from what `bench.kfac` has simulated."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.machine import ROOT
from bench.report import between_markers

PAGE = ROOT / "docs" / "kfac_simulated.md"
#: Those of which totals were published.
METHODS = ("D-KFAC", "MPD-KFAC", "SPD-KFAC")


def with_tables(page: str, report: dict[str, Any]) -> str:
    """``page`` with the tables of a report."""
    for mark, table in (
        ("kfac:calibrated", _table(_calibrated_rows(report))),
        ("kfac:totals", _table(_total_rows(report))),
        ("kfac:factors", _table(_factor_rows(report))),
        ("kfac:stages", _table(_stage_rows(report))),
        ("kfac:ablation", _table(_ablation_rows(report))),
        ("kfac:ours", _table(_ours_rows(report))),
        ("kfac:sensitivity", _table(_sensitivity_rows(report))),
    ):
        page = between_markers(page, table, PAGE.name, mark)
    return page


def _calibrated_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    found = report["calibrated"]
    yield ("quantity", "value", "fitted to")
    polynomial = found["inversion"]
    yield (
        "seconds of an inversion, c0 + c2 d² + c3 d³",
        ", ".join(f"{name} = {value:.3g}" for name, value in polynomial.items()),
        "the four times in which one GPU inverts all factors of a model",
    )
    yield (
        "share of the computation that hides communication",
        f"{found['overlap']:g}",
        "the four exposed times of factors in buckets of 64 MiB",
    )


def _total_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("model", *METHODS, "ours", "ours / D-KFAC", "ours / SPD-KFAC", "not explained")
    for model in report["models"].values():
        best = model["ours_s"]["all"]
        yield (
            model["title"],
            *map(_beside, model["totals_s"], model["published_totals_s"]),
            f"{best:.3f}",
            *(f"{best / model['totals_s'][method]:.2f}" for method in (0, 2)),
            f"{model['unexplained_s']:.3f}",
        )


def _factor_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield (
        "model",
        "behind the passes",
        "one by one",
        "64 MiB (fitted)",
        "the paper's rule",
        "exact, with gradients",
    )
    for model in report["models"].values():
        known = model["published_exposed_factors_s"]
        found = model["exposed_factors_s"]
        yield (
            model["title"],
            *(_beside(found[field], known[field]) for field in known),
            f"{found['exact_s']:.3f}",
        )


def _stage_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    first = next(iter(report["models"].values()))
    yield ("model", *first["stages_s"], "bound of the last")
    for model in report["models"].values():
        cells = []
        for row in model["stages_s"].values():
            if "published_s" in row:
                cells.append(_beside(row["finish_s"], row["published_s"][1]))
            else:
                cells.append(f"{row['finish_s']:.3f} ({row['owned']} owned)")
        yield (model["title"], *cells, f"{row['bound_s']:.3f}")


def _ablation_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("model", "neither", "pipeline", "placement", "both")
    for model in report["models"].values():
        yield (
            model["title"],
            *map(_beside, model["ablation_s"], model["published_ablation_s"]),
        )


def _ours_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    first = next(iter(report["models"].values()))
    yield ("model", *first["ours_s"], "SPD-KFAC")
    for model in report["models"].values():
        yield (
            model["title"],
            *(f"{seconds:.3f}" for seconds in model["ours_s"].values()),
            f"{model['totals_s'][2]:.3f}",
        )


def _sensitivity_rows(report: dict[str, Any]) -> Iterator[Sequence[str]]:
    yield ("with", *METHODS)
    for title, errors in report["sensitivity"].items():
        yield (title, *(f"{errors[method]:+.1%}" for method in METHODS))


def _beside(simulated_s: float, published_s: float) -> str:
    if not published_s:
        return f"{simulated_s:.3f}"
    return f"{simulated_s:.3f} / {published_s:.3f} ({simulated_s / published_s - 1:+.1%})"


def _table(rows: Iterator[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest))
