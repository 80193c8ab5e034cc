"""Objects and sparse tensors over all ranks."""

from __future__ import annotations

import pytest
import torch

import aiacc
import aiacc.torch as hvd
from aiacc.collectives import objects, submission
from aiacc.collectives.objects import gather_objects
from tests.support import operations
from tests.support.jobs import on_ranks
from tests.support.sizes import ONE_TO_THREE


@on_ranks(*ONE_TO_THREE)
def test_objects():
    operations.check_objects(hvd)
    mine, root = "x" * (100 * hvd.rank()), hvd.size() - 1
    everyones = hvd.allgather_object(mine)
    for name in (None, "object"):
        gathered = gather_objects(mine, name, hvd.global_process_set, to=root)
        assert gathered == (everyones if hvd.rank() == root else [])
    assert hvd.broadcast_object(None) is None


@on_ranks(3)
def test_objects_for_one_rank_connect_no_others():
    """Piece by piece, over the connections that there are."""
    objects._AT_A_TIME = 100
    submission.alltoall = None
    mine = "x" * (1000 if hvd.rank() == 1 else 10)
    for to in range(hvd.size()):
        got = gather_objects(mine, "some", hvd.global_process_set, to)
        assert list(map(len, got)) == ([10, 1000, 10] if hvd.rank() == to else [])


@on_ranks(2)
def test_default_device_is_left_to_the_caller():
    """Only tensors that the caller makes go where torch.set_default_device says."""
    weight = torch.ones(3, requires_grad=True)
    batch = torch.ones(2, 4)
    parts = torch.ones(hvd.size())
    norm = hvd.SyncBatchNorm(4)
    with torch.device("meta"):
        assert hvd.broadcast_object({"epoch": 3}, root_rank=0) == {"epoch": 3}
        assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
        gathered = hvd.allgather(weight)
        received, splits = hvd.alltoall(parts, splits=[1] * hvd.size())
        normalised = norm(batch)
    gathered.sum().backward()
    for tensor in (gathered, weight.grad, received, splits, normalised):
        assert tensor.device.type == "cpu"


def _random(rank, shape, dtype, density):
    generator = torch.Generator().manual_seed(rank)
    dense = torch.rand(shape, generator=generator, dtype=torch.float64) * 8 + 1
    dense[torch.rand(shape, generator=generator) > density] = 0
    return dense.to(dtype)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@on_ranks(*ONE_TO_THREE)
def test_sparse_tensors():
    running = []
    for shape in ((7,), (5, 4), (3, 4, 2)):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            for op in (hvd.Sum, hvd.Average):
                for density in (0.0, 0.3, 1.0):
                    parts = [_random(rank, shape, dtype, density) for rank in range(hvd.size())]
                    expected = sum(parts)
                    if op == hvd.Average:
                        by = hvd.size()
                        whole = dtype is torch.int64
                        expected = expected.div(by, rounding_mode="trunc" if whole else None)
                    for sparse_dim in range(1, len(shape) + 1):
                        mine = parts[hvd.rank()].to_sparse(sparse_dim)
                        call = hvd.sparse_allreduce_async(mine, f"{len(running)}", op)
                        running.append((call, expected))
    for call, expected in reversed(running):
        result = call()
        assert result.is_sparse
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.to_dense(), expected)
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,))
    total = hvd.sparse_allreduce_async(twice, name="twice", op=hvd.Sum)()
    assert total.to_dense().tolist() == [0, 3 * hvd.size(), 0]


@on_ranks(2)
def test_mistakes_with_sparse_tensors():
    tensor = torch.ones(2, 2).to_sparse()
    with pytest.raises(ValueError, match=r"'a'.*strided.*to_sparse\(\)"):
        hvd.sparse_allreduce_async(torch.ones(2), "a", hvd.Sum)
    with pytest.raises(ValueError, match=r"op=Min.*Average or Sum.*to_dense"):
        hvd.sparse_allreduce_async(tensor, "a", hvd.Min)
    call = hvd.sparse_allreduce_async(
        tensor.double() if hvd.rank() else tensor, name="b", op=hvd.Sum
    )
    with pytest.raises(aiacc.MismatchError, match="b"):
        call()
