import numpy as np
import pytest

from aiacc.collectives.splits import checked_splits, scattered_rows


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 6, 7, 100])
def test_first_ranks_get_the_rest(rows, size):
    parts = [scattered_rows(rows, rank, size) for rank in range(size)]
    assert sum(parts) == rows
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


def test_splits_that_fit():
    assert checked_splits(None, 6, 3, "x") == (2, 2, 2)
    assert checked_splits(None, 0, 3, "x") == (0, 0, 0)
    assert checked_splits([1, 0, 5], 6, 3, "x") == (1, 0, 5)
    assert checked_splits([0, 0], 6, 2, "x") == (0, 0)
    for splits in (np.array([1, 2]), np.int32([1, 2]), [1.0, 4 / 2], (True, 2)):
        parts = checked_splits(splits, 6, 2, "x")
        assert parts == (1, 2)
        assert {type(part) for part in parts} == {int}


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (None, r"x: 7 rows for 2 ranks \(expected a multiple of 2\)"),
        ([7], r"x: 1 splits \(7,\) for 2 ranks"),
        ([8, -1], r"x: splits \(8, -1\) \(expected whole numbers >= 0\)"),
        ([1.5, 1], "expected whole numbers"),
        ([float("nan"), 1], "expected whole numbers"),
        (["one", 1], "expected whole numbers"),
        ([4, 4], r"add up to 8, but the tensor has 7 rows"),
    ],
)
def test_splits_that_do_not(splits, text):
    with pytest.raises(ValueError, match=text):
        checked_splits(splits, 7, 2, "x")
