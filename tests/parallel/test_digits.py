"""The main job: examples/digits.py, unchanged, under every launcher, as README.md starts it."""

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import aiacc.torch as hvd
from examples import digits
from tests.support.jobs import in_job, on_ranks
from tests.support.programs import ROOT, run_program
from tests.support.ranks import rank_environment, run_example, run_ranks

README = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
#: Its indented blocks: how to build, what that prints, how to install, how to start.
BUILD, PRINTED, INSTALL, START = map(
    textwrap.dedent, re.findall(r"(?:^    \S.*\n)+", README, re.MULTILINE)
)
LINES = {line.split()[0]: line.partition("#")[0].strip() for line in START.splitlines()}
SUMMARY = re.compile(r"test accuracy [\d.]+%  \d+ images/s on (\d) rank\(s\)  waited [\d.]+ s")


@pytest.fixture
def job_of_one():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        ("aiaccrun", 2),
        pytest.param("mpirun", 2, marks=pytest.mark.nightly),
        pytest.param("torchrun", 2, marks=pytest.mark.nightly),
        pytest.param("srun", 2, marks=pytest.mark.nightly),
        pytest.param("openmpi", 2, marks=pytest.mark.nightly),
        pytest.param("python", 1, marks=pytest.mark.nightly),
    ],
)
def test_under_every_launcher(launcher, size):
    # All of it once, the start elsewhere.
    options = [] if launcher == "aiaccrun" else ["--max-steps", "6"]
    if launcher in LINES:
        srun = 'srun() { python -m tests.support.fake_srun "$@"; }'
        line = ["sh", "-c", f"{srun}; {LINES[launcher]} {' '.join(options)}"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ended = run_program(line, env=rank_environment({"PATH": path}), check=True)
    else:
        ended = run_example(launcher, size, "digits.py", *options)
    (ranks,) = SUMMARY.findall(ended.stdout)
    assert int(ranks) == size
    if not options:
        number = r"(\d+\.\d+)"
        words = map(re.escape, re.split(number, PRINTED)[::2])
        pattern = number.join(words).replace(r"\.\.\.", ".*")
        found = re.search(pattern, ended.stdout, re.DOTALL)
        *losses, accuracy = map(float, found.groups())
        *said, accuracy_said = map(float, re.findall(number, PRINTED))
        # Another processor rounds otherwise; an image is 0.28 %.
        assert losses == pytest.approx(said, rel=0.05)
        assert accuracy == pytest.approx(accuracy_said, abs=0.3)
    assert "[####" not in ended.stdout  # though mpirun of Open MPI gives rank 0 a terminal


def test_the_readme_has_no_block_that_is_not_checked():
    assert {*LINES} == {"aiaccrun", "torchrun", "mpirun", "srun"}
    assert BUILD.endswith("&& cd aiacc\nmake demo\n")
    command = ["make", "--no-print-directory", "-n", "demo"]
    demo = run_program(command, check=True).stdout.splitlines()[-1]
    assert demo.endswith(f"/{LINES['aiaccrun']}")
    assert all(line.startswith("pip install") for line in INSTALL.splitlines())  # check_pages.py


@on_ranks(2)
def test_missing_checkpoint_is_named_by_every_rank():
    with pytest.raises(SystemExit, match=r"none\.pt: no such file"):
        digits.train(digits.parse(["--resume", "none.pt"]))


WRONG = {
    "--batch-size": (0, 2**31),
    "--epochs": (0,),
    "--max-steps": (-1,),
    "--seed": (2**64,),
    "--checkpoint": ("/nodir/c.pt", "/"),
    "--resume": ("/", "empty", "text", "other.pt", "keys.pt"),
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option in WRONG for value in WRONG[option]]
)
@pytest.mark.usefixtures("job_of_one")
def test_wrong_arguments_end_it_at_the_start_with_one_line(option, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("text").write_text("junk\n")
    torch.save({"model": {}}, "other.pt")
    torch.save({"model": {}, "optimizer": {}, "seed": 1, "global_batch": 64, "step": 1}, "keys.pt")
    with pytest.raises(SystemExit) as ended:
        digits.train(digits.parse([option, str(value)]))
    said = str(ended.value)
    assert said.startswith(f"{option} {value}")
    assert "expected" in said
    assert "\n" not in said


def _train(*options):
    result = digits.train(digits.parse(["--epochs", "3", *map(str, options)]))
    return torch.cat([parameter.detach().reshape(-1) for parameter in result.model.parameters()])


@pytest.mark.usefixtures("job_of_one")
@pytest.mark.parametrize("steps", [45, 3 * 44], ids=["in an epoch", "at the end"])
def test_a_resumed_run_may_be_longer_but_not_shorter(tmp_path, steps):
    path = tmp_path / "checkpoint.pt"
    _train("--max-steps", steps, "--checkpoint", path)
    longer = ["--epochs", "4", "--resume", path]
    once = _train(*longer, "--checkpoint", tmp_path / "longer.pt")
    again = torch.load(tmp_path / "longer.pt", weights_only=True)
    assert again["step"] == 4 * 44
    assert torch.equal(_train(*longer), once)
    with pytest.raises(SystemExit, match=r"--epochs 1 .*give more epochs"):
        _train("--epochs", "1", "--resume", path)


EPOCH = 1437 // 64  # steps of two ranks
BRIEFLY = ("--max-steps", EPOCH + 9)


@in_job
def _train_in_several_ways(folder):
    """Resumes what was interrupted after an epoch, and in one. Parameters of a brief training."""
    straight = _train()
    for steps in (EPOCH, EPOCH + 5):
        path = folder / str(steps) / "checkpoint.pt"
        interrupted = _train("--max-steps", steps, "--checkpoint", path)
        hvd.barrier()  # only rank 0 knows when the file is there
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        mine = path if hvd.rank() == 0 else path.with_name("not on this host")
        resumed = _train("--resume", mine)
        assert not torch.equal(interrupted, straight), steps
        assert torch.equal(resumed, straight), steps
    return _train(*BRIEFLY).numpy()


@in_job
def _resume_briefly(path):
    return _train(*BRIEFLY, "--resume", path).numpy()


def test_resumed_training_equals_uninterrupted_training_on_any_number_of_ranks(tmp_path):
    for steps in (EPOCH, EPOCH + 5):
        (tmp_path / str(steps)).mkdir()
    straight, _ = run_ranks(2, _train_in_several_ways, tmp_path)
    for ranks in (1, 3):
        for resumed in run_ranks(ranks, _resume_briefly, tmp_path / f"{EPOCH + 5}/checkpoint.pt"):
            # The sums of four steps are rounded in another order.
            torch.testing.assert_close(torch.from_numpy(resumed), torch.from_numpy(straight))


@pytest.mark.usefixtures("job_of_one")
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    lines = digits.Progress(10)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    bar = digits.Progress(10)
    # A terminal of mpirun, and one on which a bar would take two lines.
    for size in (os.terminal_size((0, 0)), os.terminal_size((79, 24))):
        monkeypatch.setattr(os, "get_terminal_size", lambda size=size: size)
        assert not digits.Progress(10).bar
    for progress in (lines, bar):
        progress.step(5, 0.25)
        progress.line("epoch", lasting=False)
        progress.line("end")
    expected = "epoch\nend\n" + f"\r[{'#' * 20}{'.' * 20}] step 5/10  loss 0.2500 \r\033[Kend\n"
    assert capsys.readouterr().out == expected
