"""Every block of code in README.md and docs/migrating-from-horovod.md runs, on two ranks."""

import re
import shlex
import sys

import pytest
import torch  # noqa: F401  so ranks are forked from what has imported it

from tests.support.programs import ROOT, run_program
from tests.support.ranks import rank_environment, run_ranks, tool

PAGE = (ROOT / "docs" / "migrating-from-horovod.md").read_text()
RECIPES = re.findall(r"^## (\d+\. .*?)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(title, *block) for title, text in RECIPES for block in FENCE.findall(text)]
README = FENCE.findall((ROOT / "README.md").read_text())


def test_page_has_ten_recipes():
    assert [title.partition(".")[0] for title, _ in RECIPES] == [str(n + 1) for n in range(10)]
    assert {title for title, *_ in BLOCKS} == {title for title, _ in RECIPES}
    assert {language for _, language, _ in BLOCKS} == {"python", "sh"}
    assert [language for language, _ in README] == ["python"]


def _run(code, title):
    exec(compile(code, title, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("title", "code"),
    [
        pytest.param(title, code, id=title)
        for title, kind, code in [*BLOCKS, *(("README", *block) for block in README)]
        if kind == "python"
    ],
)
def test_recipe(title, code):
    run_ranks(2, _run, code, title)


#: In one write: the ranks share the standard output.
SAY_RANK = "import sys; sys.stdout.write(f'rank {hvd.rank()} of {hvd.size()}\\n')"


@pytest.mark.parametrize(
    "command", [code for _, kind, code in BLOCKS if kind == "sh"], ids=lambda command: command[:30]
)
def test_command(command, tmp_path):
    script = next(
        code for title, kind, code in BLOCKS if title.startswith("1.") and kind == "python"
    )
    ours = "import aiacc.torch as hvd  # was: import horovod.torch as hvd"
    assert ours in script
    script = script.replace(ours, "import horovod.torch as hvd")
    (tmp_path / "train.py").write_text(f"{script}\n{SAY_RANK}\n")
    program, *arguments = shlex.split(command)
    arguments = [sys.executable if word == "python" else word for word in arguments]
    command = [*tool(program), *arguments]
    done = run_program(command, cwd=tmp_path, env=rank_environment({}), check=True)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
