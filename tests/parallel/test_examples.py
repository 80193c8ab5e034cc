"""The examples of plans, K-FAC, optimizers, cached data and compression, unchanged."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

import aiacc.torch as hvd
from aiacc.data.arena_file import PREFIX
from examples import cached_origin, compressed_text, parallel_muon, plan_digits
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.training import check_same_everywhere
from tests.support.ranks import run_example, run_ranks

_LOSSES = re.compile(
    r"^(K-FAC|Adam): test loss ([\d.]+) after 160 steps in [\d.]+ s on (\d) rank\(s\)$",
    re.MULTILINE,
)
#: Of the mean image: what a model has learned that stays at the first plateau.
PLATEAU = 26.8
_ACCURACY = re.compile(r"^test accuracy ([\d.]+)%  on (\d) rank\(s\)$", re.MULTILINE)
_LAST_EPOCH = re.compile(r"^epoch 3/3 .* (\d+) samples, (\d+) from memory", re.MULTILINE)

AT_NIGHT = pytest.mark.nightly
ONE, STARTED = (pytest.param(*way, marks=AT_NIGHT) for way in (("python", 1), ("aiaccrun", 2)))
by_launcher = pytest.mark.parametrize(("launcher", "size"), [ONE, STARTED, ("forked", 2)])
by_launcher_of_two = pytest.mark.parametrize(("launcher", "size"), [STARTED, ("forked", 2)])


@by_launcher
def test_second_order_steps_leave_the_plateau_first(run, launcher, size):
    said, _ = run(launcher, size, "kfac_digits.py", "--steps", "160")
    found = {name: (float(loss), int(ranks)) for name, loss, ranks in _LOSSES.findall(said)}
    assert found.keys() == {"K-FAC", "Adam"}
    assert {ranks for _, ranks in found.values()} == {size}
    assert found["K-FAC"][0] < PLATEAU - 3
    assert found["K-FAC"][0] < found["Adam"][0] < PLATEAU + 1
    # The report names the owners of the factors that have one.
    summary = f"K-FAC spd by cholesky on {size} rank(s): 160 steps, factors in 80, inverses in 16"
    assert summary in said
    assert re.search(rf"rank {size - 1} inverts \d+", said)


@AT_NIGHT  # each of its commands has tests of its own; together they take 40 CPU s
def test_plan_digits_ends_and_learns_the_same_in_all_ways():
    ended = run_example("python", 1, "plan_digits.py", "--epochs", "2")
    found = re.findall(
        r"^(?:no plan|the plan|plan='auto') *: accuracy ([\d.]+) %", ended.stdout, re.MULTILINE
    )
    assert len(found) == 3
    accuracies = [float(accuracy) for accuracy in found]
    assert max(accuracies) - min(accuracies) < 2  # percent: six of the 360 images
    assert "bucket 0: " in ended.stdout
    assert "Images/s do not compare" in ended.stdout


def test_what_fails_ends_plan_digits():
    with pytest.raises(SystemExit, match=r"^sh -c 'exit 2' ended with status 2$"):
        plan_digits.run("Why?", ["sh", "-c", "exit 2"])


@on_ranks(2)
def test_parallel_muon_has_the_same_bits_as_torchs():
    shapes = [(8, 8), (24, 8), (8, 24), (5, 7), (1, 3)]
    for divide in (True, None):
        for options in ({}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}):
            found = []
            for kind in (torch.optim.Muon, parallel_muon.ParallelMuon):
                generator = torch.Generator().manual_seed(1)
                params = [
                    torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes
                ]
                optimizer = kind(params, lr=0.1, **options)
                optimizer.divide = divide
                for _ in range(6):
                    for parameter in params[1:]:  # the first has none
                        parameter.grad = torch.randn(parameter.shape, generator=generator)
                    optimizer.step()
                found.append(params)
            assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
            if divide:
                assert set(optimizer.decision.owners) == set(range(hvd.size()))
    # All ranks have learnt the same.
    model = parallel_muon.train(16, 5, divide=True)
    check_same_everywhere(model)


@by_launcher_of_two
def test_parallel_muon_learns_and_says_what_it_decided(run, launcher, size):
    said, errors = run(launcher, size, "parallel_muon.py", "--width", "64")
    (known,) = re.findall(r"([\d.]+)% of the images .* 100 steps in [\d.]+ s on 2", said)
    assert float(known) > 90
    assert len(re.findall(r"aiacc: muon\.0: .* 2 ranks|aiacc: muon\.0: every", errors)) == 1


@by_launcher_of_two
def test_a_recipe_of_several_resolutions_learns(run, launcher, size):
    said, _ = run(launcher, size, "multi_resolution.py")
    (known,) = re.findall(r"test accuracy ([\d.]+)% after [\d.]+ s on 2 rank\(s\)", said)
    assert float(known) >= 96
    assert len(re.findall(r"epochs, +\d+ x \d+ +pixels", said)) == 4


@pytest.mark.alone
@by_launcher
def test_cached_origin_learns_and_asks_the_store_once(run, launcher, size):
    before = set(Path("/dev/shm").glob(f"{PREFIX}*"))
    said, _ = run(launcher, size, "cached_origin.py", "--epochs", "3", "--latency-ms", "1")
    ((accuracy, ranks),) = _ACCURACY.findall(said)
    assert int(ranks) == size
    assert float(accuracy) > 60
    ((samples, hits),) = _LAST_EPOCH.findall(said)
    assert samples == hits
    assert "from the origin" not in said.splitlines()[-2]
    assert set(Path("/dev/shm").glob(f"{PREFIX}*")) <= before


def test_cached_origin_learns_without_the_cache(run):
    options = ("--uncached", "--epochs", "2", "--latency-ms", "0")
    said, _ = run("forked", 1, "cached_origin.py", *options)
    assert len(_ACCURACY.findall(said)) == 1
    assert "from memory" not in said


@pytest.mark.parametrize(
    ("example", "option", "value", "said"),
    [
        (cached_origin, "--epochs", "0", "--epochs 0"),
        (cached_origin, "--latency-ms", "-1", "--latency-ms -1"),
        (compressed_text, "--steps", "-1", "--steps -1 (expected a number from 0 to"),
        (compressed_text, "--compression", "int7", "codec 'int7' (expected one of none,"),
    ],
)
def test_bad_options_are_named(example, option, value, said, capsys):
    with pytest.raises(SystemExit) as ended:
        example.parse([option, value])
    assert said in str(ended.value) + capsys.readouterr().err


# --- compressed_text.py

_SUMMARY = re.compile(
    r"^held-out loss ([\d.]+)  compression (\S+)  ([\d.]+) KiB on the wire and [\d.]+ ms per step "
    r"on (\d) rank\(s\)$",
    re.MULTILINE,
)
#: A model that has learned nothing has a loss of log 128 = 4.85.
_LEARNED = 4.0
#: KiB of 437,888 float32.
_DENSE_KIB = 437_888 * 4 / 1024


def _summary(said, size):
    ((loss, compression, kib, ranks),) = _SUMMARY.findall(said)
    assert int(ranks) == size
    return float(loss), compression, float(kib)


@AT_NIGHT  # reads 23 MB of Python
@pytest.mark.parametrize(
    ("launcher", "size", "codec"),
    [
        ("aiaccrun", 2, "mstopk:density=0.01"),
        ("python", 1, "none"),
        ("mpirun", 2, "none"),
        ("torchrun", 2, "none"),
    ],
)
def test_compressed_text_under_every_launcher(launcher, size, codec):
    options = ("--steps", "60", "--compression", codec)
    env = {"AIACC_ENGINE": "tcp"}
    ended = run_example(launcher, size, "compressed_text.py", *options, env=env)
    loss, compression, kib = _summary(ended.stdout, size)
    assert loss < _LEARNED
    assert compression == codec
    assert kib < _DENSE_KIB * (1.01 if codec == "none" else 0.05)


#: At most so much of what float32 takes, in so many steps. Tables of less than 16,384 elements, and
#: biases, stay float32: 3 % of all. Of the chooser's choice is only known that it ends.
_CODECS = {
    "bf16": (0.52, 20),
    "int8": (0.28, 20),
    "mstopk:density=0.01": (0.05, 40),
    "auto:bf16+int8": (2.0, 20),
}


@in_job
def _said_of_text():
    """By each codec."""
    text = torch.arange(10_000) % compressed_text.SYMBOLS
    compressed_text.load_text = lambda: compressed_text.Text(text, text)
    said = []
    for codec, (_, steps) in _CODECS.items():
        with contextlib.redirect_stdout(io.StringIO()) as written:
            options = ["--steps", str(steps), "--compression", codec]
            compressed_text.train(compressed_text.parse(options))
        said.append(written.getvalue())
    return said


def test_codecs_send_less_and_learn():
    said, _ = run_ranks(2, _said_of_text, env={"AIACC_ENGINE": "tcp"})
    for one, (codec, (share, _)) in zip(said, _CODECS.items(), strict=True):
        loss, compression, kib = _summary(one, 2)
        assert compression == codec
        assert loss < _LEARNED, codec
        assert kib < share * _DENSE_KIB, codec


@AT_NIGHT  # reads 23 MB of Python
def test_text_is_ascii_and_long():
    text = compressed_text.load_text()
    assert len(text.train) > 10 * len(text.held_out) > 100_000
    for part in (text.train, text.held_out):
        assert 0 <= part.min() <= part.max() < compressed_text.SYMBOLS


def test_the_model_does_not_look_ahead():
    torch.manual_seed(0)
    model = compressed_text.Net(width=16, heads=2, blocks=2)
    text = torch.randint(compressed_text.SYMBOLS, (2, compressed_text.CONTEXT))
    other = text.clone()
    other[:, 40:] = (other[:, 40:] + 1) % compressed_text.SYMBOLS
    with torch.no_grad():
        before, after = model(text), model(other)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


@in_job
def _parts_of_text():
    """What this rank draws, and the loss of a text of 7 pieces, and of 3, fewer than ranks."""
    text = torch.arange(1000) % compressed_text.SYMBOLS
    batches = compressed_text.batches(text, 4 // hvd.size(), seed=3, steps=2)
    drawn = [[pieces.tolist() for pieces in batch] for batch in batches]
    torch.manual_seed(0)
    model = compressed_text.Net(width=16, heads=2, blocks=1)
    return drawn, [compressed_text.held_out_loss(model, text, pieces) for pieces in (7, 3)]


def test_ranks_divide_what_one_has():
    ((whole, losses),) = run_ranks(1, _parts_of_text)
    for size in (2, 4):
        parts = run_ranks(size, _parts_of_text)
        for step, batch in enumerate(whole):
            for number, pieces in enumerate(batch):
                assert [piece for drawn, _ in parts for piece in drawn[step][number]] == pieces
        for _, shared in parts:
            assert shared == pytest.approx(losses, rel=1e-5)
