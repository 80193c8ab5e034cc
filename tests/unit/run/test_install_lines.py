"""What README.md and docs/launching.md say of installing is what pyproject.toml has."""

import re
from pathlib import Path

import pytest

from aiacc.run.options import parser

ROOT = Path(__file__).parents[3]
EXTRAS = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]


def _packages(extra):
    listed = re.search(rf"^{extra} = \[(.*)\]$", EXTRAS, re.M)
    assert listed is not None, f"no extra {extra!r}"
    return re.findall(r'"([^"]+)"', listed[1])


@pytest.mark.parametrize("page", ["README.md", "docs/launching.md"])
def test_the_extras_that_are_named_bring_what_is_needed(page):
    line = re.search(r"pip install '\.\[([a-z,]+)\]'.*", (ROOT / page).read_text())
    assert line is not None
    needed = [package for extra in line[1].split(",") for package in _packages(extra)]
    names = {re.split("[<>=]", package)[0] for package in needed}
    assert {"torch", "mpich", "scikit-learn"} <= names
    (torch,) = _packages("torch")
    assert torch.replace(">=", " >= ") in line[0]
    assert "GPU lanes: torch >= 2.8" in line[0]


def test_a_machine_without_a_gpu_gets_torch_without_cuda_first():
    text = (ROOT / "README.md").read_text()
    cpu = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    assert text.index(cpu) < text.index("pip install '.[")


def test_the_command_starts_the_example_whose_package_the_extra_brings():
    words = re.search(r"^    aiaccrun (-np .*?)\s+#", (ROOT / "README.md").read_text(), re.M)
    assert words is not None
    parsed = parser().parse_args(words[1].split())
    assert parsed.num_proc == 2
    assert "sklearn" in (ROOT / parsed.command[1]).read_text()
    assert any(package.startswith("scikit-learn") for package in _packages("examples"))
