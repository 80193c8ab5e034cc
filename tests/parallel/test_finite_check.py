"""AIACC_CHECK_FINITE: NaN and infinity are named where they come from, not where they are seen."""

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from tests.support.jobs import in_job
from tests.support.ranks import run_ranks
from tests.support.sizes import TWO_AND_THREE

VALUES = {"NaN": np.nan, "infinity": -np.inf}


@in_job
def _give(value, raises):
    """Rank 1 gives ``value`` under the name "b"; the text of the error, if there shall be one."""
    tensors = {name: np.ones(7, np.float32) for name in "abc"}
    if hvd.rank() == 1:
        tensors["b"][6] = value

    def step():
        handles = [hvd.allreduce_async(x, name=name, op=hvd.Sum) for name, x in tensors.items()]
        return [hvd.synchronize(handle) for handle in handles]

    if raises:
        with pytest.raises(aiacc.CollectiveError) as caught:
            step()
        with pytest.raises(aiacc.CollectiveError) as later:
            hvd.barrier()
        assert str(later.value) == str(caught.value)
        return str(caught.value)
    for _ in range(3):
        a, b, c = step()
        assert (a == hvd.size()).all()
        assert (c == hvd.size()).all()
        assert not np.isfinite(b[6])
        part = hvd.reducescatter(tensors["b"], name="b", op=hvd.Sum)
        assert np.isfinite(part).all() == (hvd.rank() < hvd.size() - 1)
    return ""


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_warn_names_a_tensor_once_on_the_rank_that_gave_it(what, size, capfd):
    run_ranks(size, _give, VALUES[what], False, env={"AIACC_CHECK_FINITE": "warn"})
    lines = [line for line in capfd.readouterr().err.splitlines() if "[finite]" in line]
    assert len(lines) == 2
    for line, kind in zip(lines, ("allreduce", "reducescatter"), strict=True):
        assert f"rank 1 warning] [finite] {kind} '{kind}.b': rank 1 gave {what} (float32" in line


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("size", TWO_AND_THREE)
def test_raise_is_an_error_on_every_rank(what, size):
    texts = run_ranks(size, _give, VALUES[what], True, env={"AIACC_CHECK_FINITE": "raise"})
    assert len(set(texts)) == 1
    assert f"allreduce 'allreduce.b': rank 1 gave {what} (float32" in texts[0]


def test_off_by_default(capfd):
    run_ranks(2, _give, np.nan, False)
    assert "[finite]" not in capfd.readouterr().err
