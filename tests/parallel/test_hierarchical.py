"""The `hierarchical` engine: ranks of one machine that a launcher has divided into hosts."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aiacc.array as hvd
from aiacc import _core
from tests.parallel.test_array_ops import check_operations
from tests.support.jobs import join_as, on_ranks, until_it_fails
from tests.support.programs import LIMIT_S, ROOT, missing
from tests.support.ranks import free_port, rank_environment, run_ranks

#: Number of elements: of the express lane, of one unit, and of several units on all lanes.
COUNTS = (3, 50_001, 2_000_003)
AT_NIGHT = [pytest.param(hosts, marks=pytest.mark.nightly) for hosts in ("aabb", "aaab")]


@pytest.mark.parametrize("hosts", ["aabc", "abba", *AT_NIGHT])
@on_ranks(4, starts=False, env={"AIACC_ENGINE": "hierarchical", "AIACC_UNIT_BYTES": "65536"})
def test_operations(hosts):
    """Those of all engines, whose largest tensors are several units on all lanes."""
    join_as(hosts)
    rank, size = hvd.rank(), hvd.size()
    assert _core.engine() == "hierarchical"
    assert hvd.local_size() == hosts.count(hosts[rank])
    check_operations()
    for count in COUNTS:
        assert np.all(hvd.allreduce(np.full(count, rank + 1.0), op=hvd.Sum) == 10)
    others = hvd.add_process_set(list(range(1, size)))
    if rank > 0:
        mine = np.full(60_000, rank)
        assert np.all(hvd.allreduce(mine, op=hvd.Sum, process_set=others) == 6)
    hvd.barrier()


@on_ranks(4, starts=False, missing=[2], env={"AIACC_ENGINE": "hierarchical"})
def test_a_lost_rank_is_named_on_every_host():
    join_as("aabb")
    if hvd.rank() == 2:
        os._exit(7)
    with pytest.raises(hvd.CollectiveError, match="rank 2"):
        until_it_fails(lambda: hvd.allreduce(np.ones(500_000, np.float32), name="x"))


def _shares_memory():
    return "memfd:aiacc" in Path("/proc/self/maps").read_text()


def _one_may_write_no_file():
    os.environ["AIACC_LOCAL_RANK"] = os.environ["AIACC_RANK"]
    if os.environ["AIACC_RANK"] == "0":
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))
    hvd.init()
    assert _core.engine() == "tcp"
    assert not _shares_memory()
    for count in COUNTS:
        assert np.all(hvd.allreduce(np.full(count, hvd.rank() + 1.0), op=hvd.Sum) == 3)
    hvd.shutdown()


def test_where_memory_cannot_be_shared_sockets_take_over_and_it_is_said(capfd):
    run_ranks(2, _one_may_write_no_file, env={"AIACC_LOCAL_SIZE": "2"})
    said = capfd.readouterr().err
    assert said.count("[hierarchical] all tensors of these ranks travel by tcp") == 1
    assert "ulimit -f" in said


IN_A_CONTAINER = """
import numpy as np
import aiacc.array as hvd
from tests.parallel.test_hierarchical import COUNTS, _shares_memory
hvd.init()
assert _shares_memory()
for count in COUNTS:
    assert np.all(hvd.allreduce(np.full(count, hvd.rank() + 1.0), op=hvd.Sum) == 3)
hvd.shutdown()
"""


def test_ranks_in_containers_of_one_network_share_memory():
    """Processes and /dev/shm of their own: what a pod with the host's network gives its ranks."""
    container = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--mount-proc", "sh", "-c"]
    inside = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    probe = subprocess.run([*container, inside, "sh", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        missing(f"no namespaces here, which the superuser may make: {probe.stderr!r}")
    place = {"AIACC_ADDR": f"127.0.0.1:{free_port()}", "AIACC_SIZE": "2", "AIACC_LOCAL_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [*container, inside, "sh", sys.executable, "-c", IN_A_CONTAINER],
            env=rank_environment({**place, "AIACC_RANK": str(rank), "AIACC_LOCAL_RANK": str(rank)}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
