"""examples/compressed_text.py, unchanged."""

import contextlib
import io
import re

import pytest
import torch

import aiacc.torch as hvd
from examples import compressed_text
from tests.support.jobs import in_job
from tests.support.ranks import run_example, run_ranks

SUMMARY = re.compile(
    r"^held-out loss ([\d.]+)  compression (\S+)  ([\d.]+) KiB on the wire and [\d.]+ ms per step "
    r"on (\d) rank\(s\)$",
    re.MULTILINE,
)
#: A model that has learned nothing has a loss of log 128 = 4.85.
LEARNED = 4.0
#: KiB of 437,888 float32.
DENSE_KIB = 437_888 * 4 / 1024


def _summary(said, size):
    ((loss, compression, kib, ranks),) = SUMMARY.findall(said)
    assert int(ranks) == size
    return float(loss), compression, float(kib)


@pytest.mark.nightly  # reads 23 MB of Python
@pytest.mark.parametrize(
    ("launcher", "size", "codec"),
    [
        ("aiaccrun", 2, "mstopk:density=0.01"),
        ("python", 1, "none"),
        ("mpirun", 2, "none"),
        ("torchrun", 2, "none"),
    ],
)
def test_under_every_launcher(launcher, size, codec):
    options = ("--steps", "60", "--compression", codec)
    env = {"AIACC_ENGINE": "tcp"}
    ended = run_example(launcher, size, "compressed_text.py", *options, env=env)
    loss, compression, kib = _summary(ended.stdout, size)
    assert loss < LEARNED
    assert compression == codec
    assert kib < DENSE_KIB * (1.01 if codec == "none" else 0.05)


@in_job
def _said(codec, steps):
    text = torch.arange(10_000) % compressed_text.SYMBOLS
    compressed_text.load_text = lambda: compressed_text.Text(text, text)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        compressed_text.train(compressed_text.parse(["--steps", steps, "--compression", codec]))
    return said.getvalue()


@pytest.mark.parametrize(
    ("codec", "share", "steps"),
    # Of codecs tables of less than 16,384 elements, and biases, stay float32: 3 % of all.
    # Of the chooser's choice is only known that it ends.
    [
        ("bf16", 0.52, "20"),
        ("int8", 0.28, "20"),
        ("mstopk:density=0.01", 0.05, "40"),
        ("auto:bf16+int8", 2.0, "20"),
    ],
)
def test_codecs_send_less_and_learn(codec, share, steps):
    said, _ = run_ranks(2, _said, codec, steps, env={"AIACC_ENGINE": "tcp"})
    loss, compression, kib = _summary(said, 2)
    assert loss < LEARNED
    assert compression == codec
    assert kib < share * DENSE_KIB


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--steps", "-1", "--steps -1 (expected a number from 0 to"),
        ("--compression", "int7", "codec 'int7' (expected one of none,"),
    ],
)
def test_bad_options_are_named(option, value, said, capsys):
    with pytest.raises(SystemExit) as ended:
        compressed_text.parse([option, value])
    assert said in str(ended.value) + capsys.readouterr().err


@pytest.mark.nightly  # reads 23 MB of Python
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
def _parts():
    """What this rank draws, and the loss of a text of 7 pieces, and of 3, fewer than ranks."""
    text = torch.arange(1000) % compressed_text.SYMBOLS
    batches = compressed_text.batches(text, 4 // hvd.size(), seed=3, steps=2)
    drawn = [[pieces.tolist() for pieces in batch] for batch in batches]
    torch.manual_seed(0)
    model = compressed_text.Net(width=16, heads=2, blocks=1)
    return drawn, [compressed_text.held_out_loss(model, text, pieces) for pieces in (7, 3)]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_divide_what_one_has(size):
    (whole, losses), *parts = run_ranks(1, _parts) + run_ranks(size, _parts)
    for step, batch in enumerate(whole):
        for number, pieces in enumerate(batch):
            assert [piece for drawn, _ in parts for piece in drawn[step][number]] == pieces
    for _, shared in parts:
        assert shared == pytest.approx(losses, rel=1e-5)
