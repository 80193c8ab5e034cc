"""The selection by a threshold, for users."""

import pytest
import torch

from aiacc.torch import topk_threshold


def _check(tensor, k, mode="exact"):
    """Exactly ``k``, at different places in order, with their values; how many are the largest."""
    values, indices = topk_threshold(tensor, k, mode)
    assert values.shape == indices.shape == (k,)
    assert indices.dtype == torch.int64
    assert torch.equal(indices, indices.unique())
    assert torch.equal(tensor.flatten()[indices], values)
    if k == 0:
        return 0
    return int((values.abs() >= tensor.abs().flatten().topk(k).values[-1]).sum())


#: Others have the tests of the kernel: tests/cpp/kernels/select_test.cc.
TENSORS = {
    "random": torch.randn(20, 5, generator=torch.Generator().manual_seed(1)),
    "pairs of equals": torch.arange(-50.0, 50.0),
}


@pytest.mark.parametrize("k", [0, 1, 5, 99, 100])
@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_always_exactly_k_whose_places_differ(tensor, k):
    assert _check(tensor, k) == k
    _check(tensor, k, "reference")


def test_views_nothing_and_a_number_in_a_tensor():
    values, indices = topk_threshold(torch.arange(12.0).reshape(3, 4).T, 2)
    assert (values.tolist(), indices.tolist()) == ([10.0, 11.0], [8, 11])
    assert _check(torch.zeros(0), 0) == 0
    values, indices = topk_threshold(torch.tensor([1.0, -3.0, 2.0]), torch.tensor(1))
    assert (values.item(), indices.item()) == (-3.0, 1)


_TYPES = r"topk_threshold of .* with k=.*expected a tensor"


@pytest.mark.parametrize(
    ("tensor", "k", "mode", "text"),
    [
        (torch.zeros(3, dtype=torch.float64), 1, "exact", "float64"),
        (torch.zeros(3), 4, "exact", "k=4"),
        (torch.ones(3).to_sparse(), 1, "exact", r"layout torch.sparse_coo .*use tensor\.to_dense"),
        (torch.tensor([1.0, float("nan")]), 1, "exact", "NaN or infinity"),
        (torch.tensor([1.0, float("-inf")]), 2, "reference", "NaN or infinity"),
        (torch.ones(3), torch.tensor(2.0), "exact", _TYPES),
        (torch.ones(3), torch.tensor([1, 2]), "exact", _TYPES),
    ],
)
def test_bad_input_is_named(tensor, k, mode, text):
    with pytest.raises(ValueError, match=text):
        topk_threshold(tensor, k, mode)
