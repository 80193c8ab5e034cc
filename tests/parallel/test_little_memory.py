"""A rank that has no memory for what the others give it: an error that tells what it was."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from tests.support.jobs import on_ranks, over

#: Zeros that nobody has touched take no memory of the machine.
_BYTES = 1 << 30


def _limit_memory():
    """This process may take no more than a third of that, whatever the machine has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    taken = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + _BYTES // 3, resource.RLIM_INFINITY))


def _gather():
    rows = np.zeros(_BYTES if hvd.rank() == 1 else 1, np.uint8)
    hvd.allgather(rows, name="rows")


def _send_to_each():
    count = _BYTES if hvd.rank() == 1 else 1
    hvd.alltoall(np.zeros(count + 1, np.uint8), splits=[count, 1], name="rows")


def _reduce_with_zeros_of_one_that_has_joined():
    if hvd.rank() == 0:
        hvd.join()
    else:
        hvd.allreduce_(np.zeros(_BYTES, np.uint8), name="rows", op=hvd.Sum)


@pytest.mark.parametrize(
    ("operation", "extra", "called"),
    [
        (_gather, 1, "allgather 'allgather.rows'"),
        (_send_to_each, 1, "alltoall 'alltoall.rows'"),
        (_reduce_with_zeros_of_one_that_has_joined, 0, "allreduce 'allreduce.rows'"),
    ],
)
@on_ranks(2, ways=over("tcp", "hierarchical"))
def test_every_rank_hears_which_tensor_was_too_large(operation, extra, called):
    if hvd.rank() == 0:
        _limit_memory()
    text = f" {_BYTES + extra} bytes of {called}"
    with pytest.raises(aiacc.CollectiveError, match=text) as caught:
        operation()
    assert type(caught.value).__name__ == "EngineError"
    assert "bad_alloc" not in str(caught.value)
