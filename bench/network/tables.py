"""Tables of docs/network.md, from results. Pure."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.network.faults.plan import KINDS
from bench.network.training import LANES, contenders
from bench.network.workloads import workload

#: What users of torch should gain at a flow cap of 30 % of the interface.
OVER_DDP = 3.0
#: How much slower than one lane the tuned number may be where flows are not capped.
TUNED_LOSS = 1.03
#: How much faster half the bytes have to be.
NARROW_BAR = 1.9

Run = Mapping[str, Any]


def step_s(run: Run, name: str) -> float | None:
    """Median seconds per step of a contender over all its jobs, None if it did not run."""
    samples = [value for job in run["seconds"].get(name, ()) for value in job]
    return median(samples) if samples else None


def training_table(runs: list[Run]) -> str:
    """Markdown: a line per workload and bed, a column per contender, then the ratios."""
    everybody = contenders()
    head = ["workload", "flow / interface", *(contender.title for contender in everybody)]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for run in runs:
        cells = [workload(run["workload"]).title, caps_text(run)]
        for contender in everybody:
            value = step_s(run, contender.name)
            cells.append("" if value is None else f"{value:.2f} s{_chosen(run, contender.name)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_table(runs: list[Run]) -> str:
    """Markdown: what the gains are, and what they were to be."""
    lines = ["| workload | flow / interface | gain | factor | to reach | reached |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for run in runs:
        for what, value, limit, good in _ratios(run):
            case = f"{workload(run['workload']).title} | {caps_text(run)}"
            lines.append(f"| {case} | {what} | {value:.2f}x | {limit} | {_reached(good)} |")
    return "\n".join(lines)


def _ratios(run: Run) -> list[tuple[str, float, str, bool | None]]:
    """What is compared, the factor, the bar as text and whether it is reached."""
    times = {contender.name: step_s(run, contender.name) for contender in contenders()}
    ours = {lanes: times[f"lanes{lanes}"] for lanes in LANES}
    found = {lanes: value for lanes, value in ours.items() if value is not None}
    one, auto = ours[1], times["auto"]
    rows: list[tuple[str, float, str, bool | None]] = []
    if not found:
        return rows
    best = min(found, key=lambda lanes: found[lanes])
    if not run["bed"]["flow_mbit"]:
        if one is not None and auto is not None:
            value = auto / one
            rows.append(("time of the tuned number over that of one lane", value,
                         f"<= {TUNED_LOSS:g}x", value <= TUNED_LOSS))  # fmt: skip
        return rows
    if one is not None:
        rows.append((f"{best} lanes over 1 of our own", one / found[best], "", None))
    if times["bf16"] is not None and ours[LANES[-1]] is not None:
        value = ours[LANES[-1]] / times["bf16"]
        rows.append(("bfloat16 over float32", value, "", None))
    for peer, title, bar in (
        ("ddp", "DDP/gloo", OVER_DDP),
        ("ddp_multi", "DDP/gloo with the interface listed 4 times", 1.0),
    ):
        other = times[peer]
        if other is not None:
            value = other / found[best]
            rows.append((f"{best} lanes over {title}", value, f">= {bar:g}x", value >= bar))
    return rows


def compression_table(runs: list[Run]) -> str:
    """Markdown: a line per case that was measured in 32 bits and in fewer."""
    lines = ["| engine | hosts | form | float32 | in that form | faster | to reach | reached |",
             "| --- " * 8 + "|"]  # fmt: skip
    whole: dict[tuple[Any, ...], float] = {}
    for run in runs:
        for row in run["rows"]:
            case = row["engine"], row["hosts"], row["per_host"], row["lanes"], run["tensor_bytes"]
            seconds = median(row["seconds"])
            if row.get("compression", "none") == "none":
                whole[case] = seconds
            elif case in whole:
                ratio = whole[case] / seconds
                lines.append(
                    f"| {row['engine']} | {_hosts_text(row)} "
                    f"| {row['compression']} | {whole[case]:.3f} s | {seconds:.3f} s "
                    f"| {ratio:.2f}x | >= {NARROW_BAR:g}x | {_reached(ratio >= NARROW_BAR)} |"
                )
    return "\n".join(lines)


def allreduce_table(runs: list[Run]) -> str:
    """Markdown: a line per engine, number of hosts and bed, a column per number of lanes."""
    lines = ["| engine | hosts | flow / interface | " + " | ".join(map(_lanes_text, LANES))
             + " | to reach | reached |", "| --- " * (len(LANES) + 5) + "|"]  # fmt: skip
    for rows in lines_of(runs):
        first = rows[0]
        slow = first["bed"]["slow"]
        caps = caps_text(first) + (f", one flow at {slow:g} of it" if slow else "")
        form = first.get("compression", "none")
        cells = [
            first["engine"] + ("" if form == "none" else f", {form}"),
            _hosts_text(first),
            caps,
        ]
        for lanes in LANES:
            row = next((row for row in rows if row["lanes"] == lanes), None)
            cells.append("" if row is None else
                         f"{row['busbw_mbit']:.0f} Mbit/s, {row['share']:.3f}")  # fmt: skip
        bar = first["bar"]
        good = None if bar is None else all(row["share"] >= bar for row in rows)
        cells += ["" if bar is None else f">= {bar:g}", _reached(good)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def wan_table(runs: list[Run]) -> str:
    """Markdown: a line per loss, size and unit, a column per number of lanes."""
    lines = ["| delay | loss | tensor | AIACC_UNIT_BYTES | " + " | ".join(map(_lanes_text, LANES))
             + " | 8 lanes over 1 |", "| --- " * (len(LANES) + 5) + "|"]  # fmt: skip
    for rows in lines_of(runs):
        bed, rates = rows[0]["bed"], {row["lanes"]: row["busbw_mbit"] for row in rows}
        cells = [f"{bed['delay_ms']:g} ms", f"{bed['loss']:g}"]
        cells.append(f"{rows[0]['tensor_bytes'] >> 20} MiB")
        cells.append(rows[0]["variables"].get("AIACC_UNIT_BYTES", ""))
        cells += [f"{rates[lanes]:.0f} Mbit/s" if lanes in rates else "" for lanes in LANES]
        cells.append(f"{rates[8] / rates[1]:.1f}x" if {1, 8} <= set(rates) else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def faults_table(runs: list[Run]) -> str:
    """Markdown: a line per kind of fault, and what has come of it."""
    rows = [row for run in runs for row in run["rows"]]
    lines = ["| fault | runs | right numbers on all ranks | clear error on every survivor | wrong "
             "| seconds to the error, median (most) |", "| --- " * 6 + "|"]  # fmt: skip
    kinds = [*KINDS.items(), *([("", "all")] if rows else [])]
    for kind, what in kinds:
        those = [row for row in rows if row["kind"] == kind or not kind]
        outcomes = [row["outcome"] for row in those]
        counts = [outcomes.count(one) for one in ("survived", "clear error", "wrong")]
        cells = [what, str(len(those)), *map(str, counts), _to_error(those) if kind else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _to_error(rows: list[Run]) -> str:
    """From the fault to the exception, of ranks at work that were not frozen themselves."""
    seconds = [
        rank["late_s"]
        for row in rows
        for number, rank in enumerate(row["ranks"])
        if row["step"] >= 0
        and rank["outcome"] == "error"
        and not (row["kind"] == "freeze_long" and number == row["victim"])
    ]
    return f"{median(seconds):.2f} ({max(seconds):.2f})" if seconds else ""


def faults_text(runs: list[Run]) -> str:
    """Markdown: how much was checked."""
    rows = [row for run in runs for row in run["rows"]]
    short = sum(row["short_io"] for row in rows)
    cut = sum(rank["short_calls"] for row in rows for rank in row["ranks"])
    start = sum(row["step"] < 0 for row in rows)
    return (
        f"{len(rows)} runs, {sum(row['checked'] for row in rows):,} tensors checked element by "
        f"element; {short} of the runs had short socket calls ({cut:,}), whatever else happened; "
        f"in {start} the fault came while the ranks started."
    )


def lines_of(runs: list[Run]) -> list[list[Run]]:
    """Rows that differ in their lanes alone; where one was measured again, the last one counts."""
    lines: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        for row in run["rows"]:
            bed, variables = row["bed"], sorted(row.get("variables", {}).items())
            caps = (-bed["nic_mbit"], -bed["flow_mbit"], bed["slow"], bed["loss"])
            case = (row["engine"], row["hosts"], row.get("per_host", 1), *caps, run["tensor_bytes"],
                    row.get("compression", "none").replace("none", ""))  # fmt: skip
            line = lines.setdefault((*case, str(variables)), {})
            line[row["lanes"]] = {**row, "tensor_bytes": run["tensor_bytes"]}
    ordered = sorted(lines.items(), key=lambda line: line[0][1:])
    ordered.sort(key=lambda line: line[0][0], reverse=True)
    return [list(rows.values()) for _, rows in ordered]


def _hosts_text(row: Run) -> str:
    per_host = row.get("per_host", 1)
    return str(row["hosts"]) + (f" of {per_host} ranks" if per_host > 1 else "")


def _lanes_text(lanes: int) -> str:
    return f"{lanes} lane{'s' * (lanes > 1)}"


_LOCAL = " with local changes"


def provenance(runs: list[Run]) -> str:
    """Markdown: when, where and from what; what was added to a run later counts, too."""
    parts = [part for run in runs for part in (run, *run.get("added", ()))]
    commits = sorted({part["commit"][:12] + _LOCAL * part.get("dirty", False) for part in parts})
    first, last = min(part["when"] for part in parts), max(part["when"] for part in parts)
    machines = sorted({_machine_text(part["machine"]) for part in parts})
    return (
        f"Measured {first} to {last} at commit {', '.join(commits)} on {' and '.join(machines)}, "
        f"torch {runs[0]['versions']['torch']}."
    )


def _machine_text(machine: dict[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"


def _reached(good: bool | None) -> str:
    return "" if good is None else "yes" if good else "**no**"


def caps_text(run: Run) -> str:
    """The caps of a run's bed."""
    bed = run["bed"]
    flow = f"{bed['flow_mbit']:g}" if bed["flow_mbit"] else "no cap"
    return f"{flow} / {bed['nic_mbit']:g} Mbit/s" if bed["nic_mbit"] else f"{flow} / no cap"


def _chosen(run: Run, name: str) -> str:
    if name != "auto" or not run["lanes"].get(name):
        return ""
    return f" (found {', '.join(_lanes_text(lanes) for lanes in sorted(set(run['lanes'][name])))})"
