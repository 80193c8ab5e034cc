"""How much memory there is: of the machine, a container or a job."""

import os
import shutil
from pathlib import Path

import pytest

from aiacc.data import sizes, store

MEMINFO = "MemFree:  1 kB\nMemTotal:       16000000 kB\n"
VERSION_1 = "5:cpu,cpuacct:/a\n4:memory:/docker/1\n1:name=systemd:/a\n"


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("", {}, 16_384_000_000),  # of the machine
        ("0::/\n", {"memory.max": "2000000000\n"}, 2_000_000_000),
        # A job inside, whose step has no limit of its own.
        (
            "0::/slurm/job_1/step\n",
            {"slurm/job_1/memory.max": "3000000000\n", "slurm/job_1/step/memory.max": "max\n"},
            3_000_000_000,
        ),
        (
            VERSION_1,
            {
                "memory/docker/1/memory.limit_in_bytes": "4000000000\n",
                "memory/a/memory.limit_in_bytes": "1\n",
            },
            4_000_000_000,
        ),
    ],
    ids=["machine", "container", "job", "version 1"],
)
def test_the_least_limit_counts(tmp_path, cgroup, limits, expected):
    assert sizes.memory_there_is(tmp_path) == 0, "unknown"
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup}
    files |= {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sizes.memory_there_is(tmp_path) == expected


@pytest.mark.parametrize(
    ("limit", "memory", "said"),
    [
        ("memory_there_is", 1_600_000, "memory=1600000 is cut to 1500000 bytes: .* 2000000"),
        ("room_there_is", "8GB", "cut to 1500000 bytes: .* has 2000000 .*--shm-size"),
    ],
)
def test_a_cache_does_not_take_all_there_is(opened, tmp_path, monkeypatch, limit, memory, said):
    monkeypatch.setattr(store, limit, lambda *_: 2_000_000)
    with pytest.warns(UserWarning, match=said):
        cached = opened(list(range(9)), memory=memory)
    assert [path.stat().st_size for path in tmp_path.glob("shm/*")] == [1_500_000]
    assert cached[3] == 3


def test_the_most_that_a_cache_takes_and_its_folder(tmp_path, monkeypatch):
    assert sizes.most_memory(0) == sizes.most_memory(0, 0) == float("inf")
    assert sizes.most_memory(8000, 4000) == sizes.most_memory(0, 4000) == 3000
    assert sizes.room_there_is(tmp_path / "none") == 0
    assert sizes.room_there_is(tmp_path) >= shutil.disk_usage(tmp_path).free
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sizes.folder_and_bytes(("~/cache", "1kB"), "disk") == (tmp_path / "cache", 1000)
    with pytest.raises(ValueError, match=r'disk="?.*a folder and a size'):
        sizes.folder_and_bytes("200GB", "disk")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((5, 5), (1.5, 1), ("5", 5), ("8GB", 8 * 10**9)),
        *(("8 gib", 2**33), ("1.5k", 1500), ("2Mi", 2**21)),
    ],
)
def test_sizes(size, expected):
    assert sizes.parse_bytes(size, "memory") == expected
    for none in ("", "GB", "-1", "8XB", "8iB", True, None):
        with pytest.raises(ValueError, match=r"memory=.*expected bytes"):
            sizes.parse_bytes(none, "memory")


def test_a_quarter_of_the_file_system_in_memory_stays_free(tmp_path, monkeypatch):
    system = os.statvfs_result((1000, 1000, 4000, 3000, 2000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(sizes.os, "fstatvfs", lambda descriptor: system)
    monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path)
    with (tmp_path / "file").open("w") as file:
        assert sizes.leaves_room(file.fileno(), 1_000_000)  # of 2,000,000 free and 4,000,000 in all
        assert not sizes.leaves_room(file.fileno(), 1_000_001)
        monkeypatch.setattr(sizes, "SHARED_MEMORY", Path("/proc"))  # another file system
        assert sizes.leaves_room(file.fileno(), 10**9)
        monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path / "none")
        assert sizes.leaves_room(file.fileno(), 10**9)


def test_what_has_its_memory_already():
    with (sizes.SHARED_MEMORY / f"aiacc-test-{os.getpid()}").open("w+b") as file:
        Path(file.name).unlink()
        file.truncate(1 << 16)
        os.pwrite(file.fileno(), bytes(100), 8192)
        assert sizes.is_backed(file.fileno(), 8192, 4096)
        assert not sizes.is_backed(file.fileno(), 8192, 4097)
        assert not sizes.is_backed(file.fileno(), 0, 100)
        assert not sizes.is_backed(file.fileno(), 1 << 17, 1)
