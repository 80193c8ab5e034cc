"""SyncBatchNorm against torch's batch normalisation of the whole batch in one process."""

import copy
import itertools

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.jobs import ONE_TO_THREE, TWO_AND_THREE, on_ranks


def _batches(shape, even, dtype):
    """The batch of every rank; uneven ones have 1, 3, 5 ... rows."""
    generator = torch.Generator().manual_seed(len(shape))
    first = 1 if hvd.size() > 1 else 2  # torch refuses a single row in all
    rows = [3 if even else 2 * rank + first for rank in range(hvd.size())]
    return [(torch.randn(n, *shape, generator=generator) * 3 + 1).to(dtype) for n in rows]


def _randomize(layer):
    if layer.affine:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.num_features, generator=generator))
            layer.bias.copy_(torch.randn(layer.num_features, generator=generator))


def _compare(plain_class, shape, even, dtype, **options):
    sync = hvd.SyncBatchNorm(shape[0], **options).to(dtype)
    plain = plain_class(shape[0], **options).to(dtype)
    _randomize(sync)
    _randomize(plain)
    for _ in range(2):
        batches = _batches(shape, even, dtype)
        own = batches[hvd.rank()].clone().requires_grad_()
        whole = torch.cat(batches).requires_grad_()
        out, expected = sync(own), plain(whole)
        begin = sum(len(batch) for batch in batches[: hvd.rank()])
        rows = slice(begin, begin + len(own))
        torch.testing.assert_close(out, expected[rows])
        weights = torch.linspace(-1, 1, whole.numel(), dtype=dtype).reshape(whole.shape)
        (out.tanh() * weights[rows]).sum().backward()
        (expected.tanh() * weights).sum().backward()
        torch.testing.assert_close(own.grad, whole.grad[rows])
    if options.get("track_running_stats", True):
        torch.testing.assert_close(sync.running_mean, plain.running_mean)
        torch.testing.assert_close(sync.running_var, plain.running_var)
        assert int(sync.num_batches_tracked) == 2
    if options.get("affine", True):
        for name in ("weight", "bias"):
            total = hvd.allreduce(getattr(sync, name).grad, op=hvd.Sum, name=name)
            torch.testing.assert_close(
                total,
                getattr(plain, name).grad,
                rtol=1e-5,
                atol=1e-4 if dtype is torch.float32 else 1e-10,
            )
    sync.eval()
    plain.eval()
    some = torch.cat(batches)[:2]  # torch refuses a single one without running statistics
    torch.testing.assert_close(sync(some), plain(some))
    assert sync.state_dict().keys() == plain.state_dict().keys()


@on_ranks(*ONE_TO_THREE)
def test_equal_to_one_process_with_the_whole_batch():
    for even, affine, track in itertools.product((True, False), repeat=3):
        for momentum in (0.3, None):
            options = {"affine": affine, "track_running_stats": track, "momentum": momentum}
            _compare(nn.BatchNorm1d, (4,), even, torch.float64, **options)
            _compare(nn.BatchNorm2d, (3, 2, 5), even, torch.float32, **options)
    _compare(nn.BatchNorm1d, (4, 7), False, torch.float32)
    _compare(nn.BatchNorm3d, (2, 2, 3, 2), False, torch.float32, eps=0.1)


@on_ranks(*TWO_AND_THREE)
def test_special_batches():
    # A rank without rows takes part.
    layer = hvd.SyncBatchNorm(2)
    rows = 0 if hvd.rank() == 0 else 4
    batch = torch.arange(2.0 * rows).reshape(rows, 2).requires_grad_()
    layer(batch).pow(3).sum().backward()
    assert batch.grad.shape == (rows, 2)
    torch.testing.assert_close(layer.running_mean, torch.tensor([0.3, 0.4]))
    # A single value in all is refused on every rank.
    with pytest.raises(ValueError, match="1 values per channel"):
        layer(torch.ones(int(hvd.rank() == 0), 2))
    with pytest.raises(ValueError, match="two dimensions"):
        layer(torch.ones(2))
    with pytest.raises(ValueError, match=r"3 channels.*num_features=2"):
        layer(torch.ones(2, 3))
    # Sixteen bits: statistics and sums are taken in fp32.
    layer = hvd.SyncBatchNorm(2).bfloat16()
    wide = torch.randn(8, 2).bfloat16().requires_grad_()
    out = layer(wide)
    assert out.dtype is torch.bfloat16
    out.sum().backward()
    assert wide.grad.dtype is torch.bfloat16


@on_ranks(2)
def test_layers_of_one_rank_alone_leave_others_paired():
    """Layers, also copies, are told apart, whatever else a rank has made, in later jobs, too."""
    first = hvd.SyncBatchNorm(2)
    if hvd.rank() == 0:
        copy.deepcopy(first)
        hvd.SyncBatchNorm(5)
    model = nn.Sequential(first, nn.Linear(2, 3), hvd.SyncBatchNorm(3), nn.Linear(3, 2))
    model.append(copy.deepcopy(first))
    for _ in range(2):
        torch.manual_seed(hvd.rank())
        model(torch.randn(4, 2, requires_grad=True)).pow(2).sum().backward()
        mean = hvd.allgather(model[-1].running_mean.reshape(1, -1))
        assert torch.equal(mean, mean[:1].expand_as(mean))
        hvd.shutdown()
        hvd.init()
        if hvd.rank() == 0:
            model = copy.deepcopy(model)
