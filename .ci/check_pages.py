"""Checks that pages say what the code and result files say, and that nothing installs strangers.

The former needs the core, which `make build` makes; without it there is nothing to compare with,
which only CI (AIACC_CI=1) takes for a failure.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

#: A command that installs by a name what PyPI has from somebody else, or nobody has put there yet.
STRANGER = re.compile(r"pip3? install\b[^\n#`;)]*?[\s'\"]aiacc(?!_distributed-)")
#: What a program writes between two marks; what stands between these two, somebody does.
BLOCK = re.compile(r"^(<!-- (?!footprint)(\S+) -->\n).*?(?=^<!-- /\2 -->$)", re.M | re.S)


def main() -> int:
    """Check all pages; 1 if one of them says something else."""
    found = list(strangers(sources()))
    try:
        importlib.import_module("aiacc")
    except ImportError as error:
        sys.stderr.write(f"pages are not compared with the code: {error}\n")
        if os.environ.get("AIACC_CI") == "1":
            return 1
    else:
        found += problems({str(path.relative_to(ROOT)): path.read_text() for path in pages()})
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


def pages() -> list[Path]:
    """The pages that are checked."""
    more = ("README.md", "bench/README.md", "tests/README.md")
    return [*(ROOT / path for path in more), *sorted((ROOT / "docs").glob("*.md"))]


def sources() -> dict[str, str]:
    """All texts that may tell a user what to type, by path; tests may hold what is wrong."""
    listing = ["git", "ls-files", "--", ":!tests", ":!bench/results"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for name in names.stdout.splitlines() if (path := ROOT / name).is_file()]
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in paths}


def strangers(texts: dict[str, str]) -> Iterator[str]:
    """Where ``texts``, by path, install aiacc by its name."""
    for path, text in texts.items():
        for found in STRANGER.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            yield (
                f"{path}:{number}: {found[0]!r} installs what others have put on PyPI (expected a "
                "path, such as '.[torch]', or the file of a wheel); or name the package that is "
                "missing"
            )


def problems(texts: dict[str, str]) -> Iterator[str]:
    """What is wrong in ``texts``, the pages by their paths."""
    from aiacc import _core
    from aiacc.run.help_env import as_markdown

    expected = {path: BLOCK.sub(r"\1what nobody writes\n", text) for path, text in texts.items()}
    for page, write in writers():
        path = str(page.relative_to(ROOT))
        expected[path] = write(expected[path])
    expected["docs/environment.md"] = as_markdown(_core.env_table())
    for path, text in texts.items():
        lines = itertools.zip_longest(text.splitlines(), expected[path].splitlines(), fillvalue="")
        for number, (line, other) in enumerate(lines, 1):
            if line != other:
                remedy = "write it by make docs, or by the program of bench/ whose table it is"
                yield f"{path}:{number}: expected {other[:70]!r} here; {remedy}"
                break
    yield from _footprint(texts["docs/network.md"])
    yield from _command(texts["docs/compression.md"])
    for path in ("README.md", "docs/launching.md"):
        yield from _extras(path, texts[path])
    yield from _quick_start(texts["README.md"])
    yield from _tests(texts)


def _tests(texts: dict[str, str]) -> Iterator[str]:
    """Tests that a page names, and that are not there."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            names = {name for name in re.findall(r"::(test_\w+)", line) if name not in there}
            paths = re.findall(r"\btests/[\w/]+\.(?:py|cc|h|c)\b", line)
            for name in sorted({*names, *(one for one in paths if not (ROOT / one).exists())}):
                yield f"{path}:{number}: {name} is not in tests/; name the test that is"


# Tables of result files --------------------------------------------------------------------------


def writers() -> Iterator[tuple[Path, Callable[[str], str]]]:
    """Pages, and what puts current tables into one."""
    from bench import overview, record
    from bench.row import ROWS
    from bench.tables import section

    for row in ROWS:
        text = section(row.load(), record.read(row.result))
        yield ROOT / row.page, _between(row.mark, text)
    for name, mark, text in overview.pages():
        yield ROOT / name, _between(mark, text)


def _between(mark: str, table: str) -> Callable[[str], str]:
    from bench.tables import between_marks

    return lambda text: between_marks(text, mark, table, mark)


# What the code says ------------------------------------------------------------------------------


def _footprint(text: str) -> Iterator[str]:
    """Rows of the table of sockets, threads and memory that the formula does not have."""
    from tests.support import footprint

    pattern = re.compile(r"\| (\d[\d,]*) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) MiB")
    rows = 0
    for number, line in enumerate(text.splitlines(), 1):
        if (row := pattern.match(line)) is not None:
            rows += 1
            size, lanes, *counts = (int(cell.replace(",", "")) for cell in row.groups()[:5])
            found = [*counts, float(row[6]) * 1024]
            expected = [
                footprint.sockets(0, size, lanes, exchanged=False),
                footprint.sockets(0, size, lanes, exchanged=True),
                footprint.threads(lanes, sets=False),
                footprint.memory_kib(lanes, sets=0),
            ]
            if found != expected:
                remedy = "tests/support/footprint.py has the formula"
                yield f"docs/network.md:{number}: {found} (expected {expected}); {remedy}"
    if rows < 6:
        yield f"docs/network.md:1: {rows} rows of the footprint (expected 6 or more); mend it"


def _command(text: str) -> Iterator[str]:
    """Lines below a command of `aiacc-plan` that it does not print."""
    from aiacc.run.plan import main as plan

    block = re.search(r"^    \$ aiacc-plan (.*)\n((?:    .*\n|\n(?=    ))+)", text, re.M)
    if block is None:
        yield "docs/compression.md:1: no output of aiacc-plan; show a command and what it prints"
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plan(shlex.split(block[1]))
    if [line[4:] for line in block[2].splitlines()] != printed.getvalue().splitlines():
        line = text.count("\n", 0, block.start()) + 1
        yield f"docs/compression.md:{line}: aiacc-plan prints something else; copy what it prints"


def _packages(extra: str) -> list[str]:
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    listed = re.search(rf"^{extra} = \[(.*)\]", extras, re.M)
    return [] if listed is None else re.findall(r'"([^"]+)"', listed[1])


def _extras(path: str, text: str) -> Iterator[str]:
    """What a page says of installing, and pyproject.toml does not have."""
    line = re.search(r"pip install '\.\[([a-z,]+)\]'.*", text)
    if line is None:
        yield f"{path}:1: no command that installs; say pip install '.[...]'"
        return
    number = text.count("\n", 0, line.start()) + 1
    packages = [package for extra in line[1].split(",") for package in _packages(extra)]
    missing = {"torch", "mpich", "scikit-learn"} - {re.split("[<>=]", one)[0] for one in packages}
    if missing:
        yield f"{path}:{number}: its extras bring no {', '.join(sorted(missing))}; name others"
    for words in (
        *(one.replace(">=", " >= ") for one in _packages("torch")),
        "GPU lanes: torch >= 2.7",
    ):
        if words not in line[0]:
            yield f"{path}:{number}: {words!r} is not said; pyproject.toml has what is needed"


def _quick_start(text: str) -> Iterator[str]:
    """Commands of the quick start that do not do what it says."""
    from aiacc.run.options import parser

    cpu = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    if text.find(cpu) == -1 or text.find("pip install '.[") < text.find(cpu):
        yield f"README.md:1: torch without CUDA is not installed first; say {cpu}"
    command = re.search(r"^    aiaccrun (-np .*?)\s+#", text, re.M)
    parsed = parser().parse_args(command[1].split()) if command is not None else None
    if parsed is None or parsed.num_proc != 2 or not (ROOT / parsed.command[-1]).exists():
        yield "README.md:1: no example on two ranks; show aiaccrun -np 2 python examples/..."
    elif "sklearn" not in (ROOT / parsed.command[-1]).read_text() or not any(
        package.startswith("scikit-learn") for package in _packages("examples")
    ):
        yield f"README.md:1: {parsed.command[-1]} and the extra examples are apart; mend one"


if __name__ == "__main__":
    sys.exit(main())
