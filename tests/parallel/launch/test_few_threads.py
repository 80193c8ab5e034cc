"""A rank that the system gives too few threads: all ranks hear of it, and nothing hangs."""

import ctypes
import os
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from tests.support.jobs import in_job
from tests.support.programs import needs, run_program
from tests.support.ranks import ROOT, run_ranks

pytestmark = pytest.mark.alone
_needed = needs("" if shutil.which("cc") else "no cc on PATH")

nightly = pytest.mark.nightly

_LANES = 2
#: What `init` reserves for itself: loop thread, heartbeats, lanes and express lane.
_RESERVED = _LANES + 3
#: The same for MPI: its own, one for progress, one for a call.
_OF_MPI = 3


@pytest.fixture(scope="module")
def few_threads():
    """The library that refuses threads, for LD_PRELOAD."""
    with tempfile.TemporaryDirectory(prefix="threads-") as folder:
        library = Path(folder) / "few_threads.so"
        source = ROOT / "tests" / "support" / "few_threads.c"
        flags = ["-shared", "-fPIC", "-Wall", "-Wextra"]
        run_program(["cc", *flags, "-o", library, source, "-ldl"], check=True)
        yield str(library)


def _limit(count, *, live):
    ctypes.CDLL(None).limit_threads(count, int(live))


def _rank_here():
    names = ("AIACC_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
    return int(next(os.environ[name] for name in names if name in os.environ))


def _work(poor_rank, count, live):
    """All that makes threads. The error that it ends with, or ""."""
    if _rank_here() == poor_rank:
        _limit(count, live=live)
    try:
        hvd.init()
        size = hvd.size()
        assert hvd.allreduce(np.ones(1000), name="x", op=hvd.Sum)[0] == size
        members = hvd.add_process_set(list(range(size)[:2]) if size > 2 else [0])
        if members.included():
            hvd.allreduce(np.ones(1000), name="y", process_set=members)
        for step in range(3):
            hvd.barrier()
            hvd.allreduce(np.ones(1000), name=f"z{step}")
        hvd.shutdown()
    except aiacc.CollectiveError as error:
        hvd.shutdown()
        return f"{type(error).__name__}: {error}"
    return ""


def _works(library, size, poor_rank, count, *, live, launcher="explicit", **env):
    """Whether a job whose poor rank gets so many threads works; if not, all must have the text."""
    env = {"LD_PRELOAD": library, "AIACC_LANES": str(_LANES), "AIACC_ENGINE": "tcp", **env}
    texts = run_ranks(size, _work, poor_rank, count, live, env=env, launcher=launcher)
    if not any(texts):
        return True
    for text in texts:
        assert text.startswith(("BootstrapError: ", "EngineError: ")), texts
        assert "cannot start a thread (aiacc " in text, (count, texts)
        assert "expected room for one more" in text
        assert "ulimit -u" in text
        assert "--pids-limit" in text
    if "AIACC_TIMELINE" in env:
        assert "(aiacc timeline)" in texts[poor_rank]
    return False


#: A limit that there is from the start, or one thread that fails after as many; of the job's own
#: threads each does so once, for the reserve takes some for good.
_LIMIT, _EACH_FAILS = range(_RESERVED + 3), range(_RESERVED, 2 * _RESERVED + 2)
#: Limits under mpirun. MPI's own thread is there; then fail those of a call, the job's, and the one
#: that makes sets. The others wait for the limit of time inside MPI.
_MPI_LIMIT = 0, _RESERVED, _RESERVED + _OF_MPI - 1
_MPI_FAILS = range(_RESERVED + _OF_MPI + 1, _RESERVED + _OF_MPI + 9, 3)


@pytest.mark.parametrize(
    ("launcher", "engine", "size", "poor_rank", "counts", "failing"),
    [
        ("explicit", "tcp", 2, 0, _LIMIT, _RESERVED),
        ("explicit", "tcp", 3, 1, _LIMIT, _RESERVED),
        pytest.param("explicit", "tcp", 2, 1, _LIMIT, _RESERVED, marks=nightly),
        ("explicit", "tcp", 3, 0, _EACH_FAILS, _RESERVED + 1),
        ("explicit", "hierarchical", 3, 1, _EACH_FAILS, _RESERVED + 1),
        pytest.param("explicit", "tcp", 3, 1, _EACH_FAILS, _RESERVED + 1, marks=nightly),
        pytest.param("explicit", "hierarchical", 3, 0, _EACH_FAILS, _RESERVED + 1, marks=nightly),
        pytest.param("mpirun", "mpi", 3, 0, _MPI_FAILS, 2, marks=pytest.mark.mpi),
        pytest.param("mpirun", "mpi", 3, 1, _MPI_FAILS, 2, marks=[pytest.mark.mpi, nightly]),
        pytest.param("mpirun", "mpi", 2, 1, _MPI_LIMIT, 3, marks=pytest.mark.mpi),
        pytest.param("openmpi", "mpi", 3, 0, _MPI_LIMIT, 3, marks=pytest.mark.mpi),
    ],
)
def test_too_few_threads_end_the_job_with_their_text_and_enough_do_not(
    few_threads, launcher, engine, size, poor_rank, counts, failing
):
    live = counts in (_LIMIT, _MPI_LIMIT)
    env = {"AIACC_ENGINE": engine}
    if counts == _MPI_FAILS:
        env["AIACC_CONNECT_TIMEOUT_S"] = "1"
    works = [
        _works(few_threads, size, poor_rank, count, live=live, launcher=launcher, **env)
        for count in counts
    ]
    assert not any(works[:failing])
    assert launcher != "explicit" or works[-1]


def _without_addresses(poor_rank):
    if _rank_here() == poor_rank:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), resource.RLIM_INFINITY))
    with pytest.raises(aiacc.BootstrapError) as raised:
        hvd.init()
    return str(raised.value)


def test_a_limit_of_addresses_is_told_from_one_of_threads():
    for text in run_ranks(2, _without_addresses, 1, env={"AIACC_LANES": "4"}):
        assert "rank 1" in text
        assert "cannot start a thread (aiacc reserve): " in text
        assert "MiB left, for the stacks of 7 threads); raise that limit (ulimit -v)" in text
        assert "ulimit -u" not in text


@pytest.mark.parametrize("poor_rank", [0, 1])
def test_the_thread_of_the_timeline(few_threads, tmp_path, poor_rank):
    timeline = str(tmp_path / "timeline.json")
    count = _RESERVED + 1  # heartbeats come before it
    assert not _works(few_threads, 2, poor_rank, count, live=False, AIACC_TIMELINE=timeline)


@in_job
def _start_timeline_later(path):
    if hvd.rank() == 1:
        _limit(0, live=False)
    hvd.start_timeline(path)
    assert np.all(hvd.allreduce(np.ones(1000), name="x", op=hvd.Sum) == 2)
    hvd.stop_timeline()


def test_a_timeline_that_one_rank_cannot_start_leaves_the_job_alone(few_threads, tmp_path, capfd):
    run_ranks(2, _start_timeline_later, str(tmp_path / "t.json"), env={"LD_PRELOAD": few_threads})
    said = capfd.readouterr().err
    assert said.count("cannot start a thread (aiacc timeline)") == 1, said
    assert "the job goes on without this timeline" in said
    assert '"ALLREDUCE"' in (tmp_path / "t.json").read_text()
