"""How much memory there is: of the machine, a container or a job."""

import os
import shutil
from pathlib import Path

import pytest

from aiacc.data import CachedDataset, sizes, store
from aiacc.data.sizes import (
    folder_and_bytes,
    is_backed,
    leaves_room,
    memory_there_is,
    most_memory,
    room_there_is,
)


def system(root, **files):
    """A file system with such files; "__" in names stands for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemFree:  1 kB\nMemTotal:       16000000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc__meminfo": MEMINFO}, 16_384_000_000),
        (
            {
                "proc__meminfo": MEMINFO,
                "proc__self__cgroup": "0::/\n",
                "sys__fs__cgroup__memory.max": "2000000000\n",
            },
            2_000_000_000,
        ),
        (  # a job inside, whose step has no limit of its own
            {
                "proc__meminfo": MEMINFO,
                "proc__self__cgroup": "0::/slurm/job_1/step\n",
                "sys__fs__cgroup__slurm__job_1__memory.max": "3000000000\n",
                "sys__fs__cgroup__slurm__job_1__step__memory.max": "max\n",
            },
            3_000_000_000,
        ),
        (
            {
                "proc__self__cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/1\n1:name=systemd:/a\n",
                "sys__fs__cgroup__memory__docker__1__memory.limit_in_bytes": "4000000000\n",
                "sys__fs__cgroup__memory__a__memory.limit_in_bytes": "1\n",
            },
            4_000_000_000,
        ),
    ],
    ids=["unknown", "machine", "container", "job", "version 1"],
)
def test_the_least_limit_counts(tmp_path, files, expected):
    assert memory_there_is(system(tmp_path, **files)) == expected


def test_a_cache_does_not_take_all_there_is(tmp_path, monkeypatch):
    assert most_memory(0) == float("inf")
    monkeypatch.setattr(store, "memory_there_is", lambda: 2_000_000)
    with pytest.warns(UserWarning, match="memory=1600000 is cut to 1500000 bytes: .* 2000000"):
        cached = CachedDataset(list(range(9)), (tmp_path, 1_600_000))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [1_500_000]
    assert cached[3] == 3
    cached.close()


def test_a_tier_is_a_folder_and_a_size_and_a_tilde_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_and_bytes(("~/cache", "1kB"), "disk") == (tmp_path / "cache", 1000)
    with pytest.raises(ValueError, match=r'disk="?.*a folder and a size'):
        folder_and_bytes("200GB", "disk")


def test_a_cache_leaves_room_in_its_file_system(tmp_path, monkeypatch):
    assert most_memory(0, 0) == float("inf")
    assert most_memory(8000, 4000) == most_memory(0, 4000) == 3000
    assert room_there_is(tmp_path / "none") == 0
    assert room_there_is(tmp_path) >= shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(store, "room_there_is", lambda folder: 2_000_000)
    with pytest.warns(UserWarning, match="cut to 1500000 bytes: .* has 2000000 .*--shm-size"):
        cached = CachedDataset(list(range(9)), (tmp_path, "8GB"))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [1_500_000]
    cached.close()


def test_a_quarter_of_the_file_system_in_memory_stays_free(tmp_path, monkeypatch):
    system = os.statvfs_result((1000, 1000, 4000, 3000, 2000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(sizes.os, "fstatvfs", lambda descriptor: system)
    monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path)
    with (tmp_path / "file").open("w") as file:
        assert leaves_room(file.fileno(), 1_000_000)  # of 2,000,000 free and 4,000,000 in all
        assert not leaves_room(file.fileno(), 1_000_001)
        monkeypatch.setattr(sizes, "SHARED_MEMORY", Path("/proc"))  # another file system
        assert leaves_room(file.fileno(), 10**9)
        monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path / "none")
        assert leaves_room(file.fileno(), 10**9)


def test_what_has_its_memory_already():
    with (sizes.SHARED_MEMORY / f"aiacc-test-{os.getpid()}").open("w+b") as file:
        Path(file.name).unlink()
        file.truncate(1 << 16)
        os.pwrite(file.fileno(), bytes(100), 8192)
        assert is_backed(file.fileno(), 8192, 4096)
        assert not is_backed(file.fileno(), 8192, 4097)
        assert not is_backed(file.fileno(), 0, 100)
        assert not is_backed(file.fileno(), 1 << 17, 1)
