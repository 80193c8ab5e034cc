"""The selection by a threshold, for users."""

import pytest
import torch

from aiacc.torch import topk_threshold


@pytest.mark.parametrize("k", [0, 1, 37, 6000])
def test_it_finds_what_a_sort_finds(k):
    tensor = torch.randn(60, 100, generator=torch.Generator().manual_seed(k))
    values, indices = topk_threshold(tensor, k)
    assert values.shape == indices.shape == (k,)
    assert indices.dtype == torch.int64
    assert torch.equal(tensor.flatten()[indices], values)
    assert torch.equal(indices, indices.unique())
    expected = tensor.abs().flatten().topk(k).values
    assert torch.equal(values.abs().sort(descending=True).values, expected)


@pytest.mark.parametrize("draw", ["normal_", "uniform_", "exponential_", "cauchy_"])
@pytest.mark.parametrize(("count", "k"), [(100_000, 1000), (1_000_000, 1000)])
def test_the_published_search_finds_the_largest(draw, count, k):
    """At least 99.98 % of them by 30 samplings, so all of a thousand; or others as large."""
    tensor = getattr(torch.empty(count), draw)(generator=torch.Generator().manual_seed(0))
    values, indices = topk_threshold(tensor, k, mode="reference")
    assert indices.unique().numel() == k
    assert torch.equal(tensor[indices], values)
    least = tensor.abs().topk(k).values[-1]
    assert (values.abs() >= least).double().mean() >= 0.9998


def test_views_that_are_not_contiguous():
    tensor = torch.arange(12.0).reshape(3, 4).T
    values, indices = topk_threshold(tensor, 2)
    assert values.tolist() == [10.0, 11.0]
    assert indices.tolist() == [8, 11]


@pytest.mark.parametrize(
    ("tensor", "k", "mode", "text"),
    [
        (torch.zeros(3, dtype=torch.float64), 1, "exact", "float64"),
        (torch.zeros(3), 4, "exact", "k=4"),
        (torch.zeros(3), -1, "exact", "k=-1"),
        (torch.zeros(3), 1, "sorted", "mode='sorted'"),
        (torch.tensor([1.0, float("nan")]), 1, "exact", "NaN or infinity"),
        (torch.tensor([1.0, float("-inf")]), 2, "reference", "NaN or infinity"),
    ],
)
def test_bad_input(tensor, k, mode, text):
    with pytest.raises(ValueError, match=text):
        topk_threshold(tensor, k, mode)


@pytest.mark.parametrize("mode", ["exact", "reference"])
@pytest.mark.parametrize("k", [0, 1, 5, 99, 100])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((100,), -2.5),
        torch.zeros(100),
        torch.cat([torch.tensor([3.0, -4.0, 1.0]), torch.zeros(97)]),
        torch.arange(-50.0, 50.0),
        torch.cat([torch.full((99,), 1e-38), torch.tensor([3e38])]),
    ],
    ids=["one magnitude", "zeros", "three that are not zero", "pairs of equals", "far apart"],
)
def test_always_exactly_k_whose_places_differ(tensor, k, mode):
    values, indices = topk_threshold(tensor, k, mode)
    assert indices.unique().numel() == values.numel() == k
    assert torch.equal(tensor[indices], values)
    left_out = tensor.abs().clone()
    left_out[indices] = 0
    if mode == "exact" and 0 < k < 100:
        assert left_out.max() <= values.abs().min()


def test_of_nothing():
    values, indices = topk_threshold(torch.zeros(0), 0)
    assert values.numel() == indices.numel() == 0


@pytest.mark.parametrize(
    ("tensor", "k"),
    [
        ([1.0, 2.0], 1),
        (torch.ones(3), 1.5),
        (torch.ones(3), torch.tensor(2.0)),
        (torch.ones(3), torch.tensor([1, 2])),
        (torch.ones(3), True),
    ],
)
def test_other_types_are_named(tensor, k):
    with pytest.raises(ValueError, match=r"topk_threshold of .* with k=.*expected a tensor"):
        topk_threshold(tensor, k)


def test_a_whole_number_in_a_tensor_is_taken():
    values, indices = topk_threshold(torch.tensor([1.0, -3.0, 2.0]), torch.tensor(1))
    assert (values.item(), indices.item()) == (-3.0, 1)


def test_other_layouts_and_modes_are_named():
    with pytest.raises(ValueError, match=r"layout torch.sparse_coo .*use tensor\.to_dense"):
        topk_threshold(torch.ones(3).to_sparse(), 1)
    with pytest.raises(ValueError, match=r"mode=\['exact'\] \(expected one of exact, reference"):
        topk_threshold(torch.ones(3), 1, ["exact"])
