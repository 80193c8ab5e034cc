"""The main job: examples/digits.py, unchanged, under every launcher."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import aiacc.torch as hvd
from examples import digits
from tests.support.ranks import ROOT, launch_command, rank_environment, run_ranks

SUMMARY = re.compile(r"test accuracy ([\d.]+)%  \d+ images/s on (\d) rank\(s\)  waited [\d.]+ s")


def _run(launcher, size, *options):
    command = launch_command(launcher, size, ["examples/digits.py", *options])
    env = rank_environment({})
    env.pop("PYTHONPATH")  # aiacc is installed
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.parametrize(
    ("launcher", "size"),
    [("python", 1), ("aiaccrun", 2), ("mpirun", 2), ("openmpi", 2), ("torchrun", 2)],
)
def test_under_every_launcher(launcher, size):
    # All of it once, the start elsewhere.
    options = [] if launcher == "aiaccrun" else ["--max-steps", "6"]
    ended = _run(launcher, size, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summaries = SUMMARY.findall(ended.stdout)
    assert [int(ranks) for _, ranks in summaries] == [size], ended.stdout + ended.stderr
    if not options:
        assert float(summaries[0][0]) >= 98


def test_missing_checkpoint_is_named_by_every_rank(tmp_path):
    ended = _run("aiaccrun", 2, "--resume", str(tmp_path / "none.pt"))
    assert ended.returncode == 1
    assert "none.pt: no such file" in ended.stderr
    assert "Traceback" not in ended.stderr


def _train(*options):
    result = digits.train(digits.parse(["--epochs", "3", *map(str, options)]))
    return torch.cat([parameter.detach().reshape(-1) for parameter in result.model.parameters()])


EPOCH = 1437 // 64  # steps of two ranks


def _interrupt_and_resume(path, steps):
    hvd.init()
    straight = _train()
    interrupted = _train("--max-steps", steps, "--checkpoint", path)
    hvd.barrier()  # only rank 0 knows when the file is there
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    mine = path if hvd.rank() == 0 else path.with_name("not on this host")
    resumed = _train("--resume", mine)
    hvd.shutdown()
    assert not torch.equal(interrupted, straight)
    assert torch.equal(resumed, straight)


@pytest.mark.parametrize("steps", [EPOCH, EPOCH + 5], ids=["after an epoch", "in an epoch"])
def test_resumed_training_equals_uninterrupted_training(tmp_path, steps):
    run_ranks(2, _interrupt_and_resume, tmp_path / "checkpoint.pt", steps)


def _train_briefly(*options):
    hvd.init()
    parameters = _train("--max-steps", EPOCH + 9, *options).numpy()
    hvd.shutdown()
    return parameters


def _interrupt(path):
    hvd.init()
    _train("--max-steps", EPOCH + 5, "--checkpoint", path)
    hvd.shutdown()


@pytest.mark.parametrize("ranks", [1, 3])
def test_training_resumes_on_another_number_of_ranks(tmp_path, ranks):
    path = tmp_path / "checkpoint.pt"
    straight, _ = run_ranks(2, _train_briefly)
    run_ranks(2, _interrupt, path)
    for resumed in run_ranks(ranks, _train_briefly, "--resume", path):
        # The sums of four steps are rounded in another order.
        torch.testing.assert_close(torch.from_numpy(resumed), torch.from_numpy(straight))


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    hvd.init()
    try:
        lines = digits.Progress(10)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        bar = digits.Progress(10)
        for progress in (lines, bar):
            progress.step(5, 0.25)
            progress.line("epoch", lasting=False)
            progress.line("end")
    finally:
        hvd.shutdown()
    expected = "epoch\nend\n" + f"\r[{'#' * 20}{'.' * 20}] step 5/10  loss 0.2500 \r\033[Kend\n"
    assert capsys.readouterr().out == expected


def test_data_is_split_alike_for_every_digit():
    train, test = digits.load_data()
    assert train.images.shape == (1437, 1, 8, 8)
    assert test.images.shape == (360, 1, 8, 8)
    shares = torch.bincount(test.labels) / torch.bincount(torch.cat([train.labels, test.labels]))
    assert shares.min() > 0.19
    assert shares.max() < 0.21
