"""Where gradients lie in buckets."""

from __future__ import annotations

import pytest

from aiacc.torch.reducer.bucket_layout import Bucket, Entry, is_dense, lay_out


def _floats(*sizes):
    return [Entry(size, 4, "float32") for size in sizes]


def test_a_bucket_holds_what_fits():
    assert lay_out(_floats(16, 16, 16), 128) == [
        Bucket([0, 1], [0, 16], 32),
        Bucket([2], [0], 16),
    ]


def test_offsets_are_aligned():
    assert lay_out(_floats(3, 17, 1), 1 << 20) == [Bucket([0, 1, 2], [0, 16, 48], 64)]


def test_a_larger_one_is_alone():
    layout = lay_out(_floats(1, 100, 1), 64)
    assert [bucket.members for bucket in layout] == [[0], [1], [2]]


def test_types_are_not_mixed_and_buckets_come_in_the_order_of_completion():
    entries = [Entry(16, 4, "float32"), Entry(16, 2, "bfloat16"), Entry(16, 4, "float32")]
    layout = lay_out(entries, 1 << 20)
    assert [bucket.members for bucket in layout] == [[1], [0, 2]]


def test_empty_gradients_have_a_place():
    assert lay_out(_floats(0, 0), 64) == [Bucket([0, 1], [0, 0], 0)]
    assert lay_out([], 64) == []


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3, 4, 5), (60, 1, 15, 3), True),
        ((2, 1, 3), (3, 77, 1), True),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((), (), True),
    ],
)
def test_density(shape, strides, dense):
    assert is_dense(shape, strides) is dense
