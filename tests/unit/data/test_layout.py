"""How much memory there is, the arena's geometry, where records go in it and which are there."""

import os
import random
import shutil
from pathlib import Path

import pytest

from aiacc.data import sizes, store
from aiacc.data.admission import Place, admit, bottom, is_free, is_in_window
from aiacc.data.arena import Arena
from aiacc.data.layout import (
    ALIGNMENT,
    ENTRY,
    PROBES,
    SEGMENT,
    SEGMENTS_AT,
    Entry,
    Layout,
    Segment,
    plan,
)


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
            "5:cpu,cpuacct:/a\n4:memory:/docker/1\n1:name=systemd:/a\n",
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
    files = {"proc/meminfo": "MemFree:  1 kB\nMemTotal:  16000000 kB\n", "proc/self/cgroup": cgroup}
    files |= {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sizes.memory_there_is(tmp_path) == expected


@pytest.mark.parametrize(
    ("limit", "there_is", "memory", "kept", "said"),
    [
        ("memory_there_is", 2_000_000, 1_600_000, 1_500_000, " 2000000 .*disk="),
        ("room_there_is", (2_000_000, False), "8GB", 1_500_000, " has 2000000 .*--shm-size"),
        ("room_there_is", ((1 << 30) + 900_000, True), "8GB", 900_000, "DataLoader.*--shm-size"),
        ("room_there_is", (64 << 20, True), "8GB", 0, "has 67108864 .*--shm-size"),
    ],
)
def test_a_cache_does_not_take_all_there_is(
    opened, tmp_path, monkeypatch, limit, there_is, memory, kept, said
):
    monkeypatch.setattr(store, limit, lambda *_: there_is)
    with pytest.warns(UserWarning, match=f"memory=.* is cut to {kept} bytes: .*{said}"):
        cached = opened(list(range(9)), memory=memory)
    assert [path.stat().st_size for path in tmp_path.glob("shm/*")] == [
        max(kept, plan(0, 9, "never").size)
    ]
    assert [cached[index] for index in cached.sampler(ahead=4, shuffle=False)] == list(range(9))
    assert cached.statistics().ahead <= bool(kept) * 9 + 1  # nothing twice


def test_the_most_that_a_cache_takes_and_its_folder(tmp_path, monkeypatch):
    assert sizes.most_memory(0, 0, False) == sizes.most_memory(0, 0, True) == float("inf")
    for there_is in (8000, 0):
        assert sizes.most_memory(there_is, 4000, False) == 3000
    gib = 1 << 30
    of_shared = {0.1: 0, 1: 0, 1.5: 0.5, 4: 3, 8: 6}
    assert {n: sizes.most_memory(0, int(n * gib), True) / gib for n in of_shared} == of_shared
    assert sizes.room_there_is(tmp_path / "none") == (0, False)
    assert sizes.room_there_is(tmp_path)[0] >= shutil.disk_usage(tmp_path).free
    assert sizes.room_there_is(sizes.SHARED_MEMORY)[1]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sizes.folder_and_bytes(("~/cache", "1kB"), "disk") == (tmp_path / "cache", 1000)
    with pytest.raises(ValueError, match=r'disk="?.*a folder and a size'):
        sizes.folder_and_bytes("200GB", "disk")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((5, 5), (5.0, 5), ("5", 5), ("8GB", 8 * 10**9)),
        *(("8 gib", 2**33), ("1.5k", 1500), ("2Mi", 2**21)),
    ],
)
def test_sizes(size, expected):
    assert sizes.parse_bytes(size, "memory") == expected
    for none in ("", "GB", "-1", "8XB", "8iB", True, None):
        with pytest.raises(ValueError, match=r"memory=.*expected bytes"):
            sizes.parse_bytes(none, "memory")


@pytest.mark.parametrize(("blocks", "free"), [(8, 2), (4, 1), (2, 1)])
def test_what_others_need_of_the_file_system_in_memory_stays_free(
    tmp_path, monkeypatch, blocks, free
):
    gib = 1 << 30
    system = os.statvfs_result((gib, gib, blocks, 0, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(sizes.os, "fstatvfs", lambda descriptor: system)
    monkeypatch.setattr(sizes, "SHARED_MEMORY", tmp_path)
    with (tmp_path / "file").open("w") as file:
        assert sizes.leaves_room(file.fileno(), 0)
        assert not sizes.leaves_room(file.fileno(), 1)
        with pytest.raises(OSError, match="the index of a cache"):
            Arena(tmp_path, "large", plan(10**6, 100, "never"), "never")
        Arena(tmp_path, "counters", plan(0, 0, "never"), "never").close()
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


@pytest.mark.parametrize("evict", ["never", "lru"])
@pytest.mark.parametrize("size", [0, 1000, 10**5, 10**6, 8 * 10**9])
@pytest.mark.parametrize("samples", [0, 7, 10**6, None])
def test_everything_has_its_place(evict, size, samples):
    found = plan(size, samples, evict)
    assert found.size == max(size, found.heap_at)
    at = found.heap_at
    for number, (begin, end) in enumerate(found.segments):
        assert at <= begin <= end <= found.size
        assert begin % ALIGNMENT == end % ALIGNMENT == 0
        at = end if evict == "lru" else begin  # the window may have what nobody stays in
        assert evict == "lru" or number == 0 or end - found.segments[0][1] >= (end - begin) // 8
    assert found.index_at >= found.rows_at >= found.segment_at(len(found.segments))
    assert found.entries * ENTRY.size <= max(size // 8, PROBES * ENTRY.size)
    assert Layout.unpack(found.pack()) == found


def test_a_key_may_be_at_as_many_places_as_there_are():
    found = plan(10**6, 10_000, "lru")
    for number in range(200):
        key = random.Random(number).randbytes(16)
        places = {found.entry_at(place) for place in found.probes(key)}
        assert len(places) == PROBES
        assert all(found.index_at <= place < found.heap_at for place in places)


@pytest.mark.parametrize("evict", ["never", "lru"])
def test_a_damaged_header_is_refused(evict):
    layout = plan(100_000, 20, evict)
    data = layout.pack() + bytes(4096)
    assert Layout.unpack(data) == layout
    begins = [SEGMENTS_AT + SEGMENT.size * number for number in range(len(layout.segments))]
    for at in [*range(40), *(begin + byte for begin in begins for byte in range(16))]:
        for bit in range(8):
            changed = bytes([data[at] ^ 1 << bit])
            with pytest.raises(ValueError, match=r"another version|damaged"):
                Layout.unpack(data[:at] + changed + data[at + 1 :])
    for cut in (0, 40, 300):
        with pytest.raises(ValueError, match=r"an arena"):
            Layout.unpack(data[:cut])


def test_entries_come_back_or_not_at_all():
    entry = Entry(b"k" * 16, 640, 77, 123456, 3, 9)
    data = entry.pack()
    assert len(data) == ENTRY.size
    assert Entry.unpack(data) == entry
    assert Entry.unpack(bytes(ENTRY.size)) is None
    for at in range(len(data)):
        assert Entry.unpack(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None
        if at:
            assert Entry.unpack(data[:at] + bytes(ENTRY.size - at)) is None  # half written


#: Heap of 8 KiB, of which the last one is always the window's.
BEGIN, LEAST, END = 64, 64 + 7168, 64 + 8192


def table(stays=0, used=END - BEGIN, lap=3, last=0):
    return [
        Segment(BEGIN, LEAST, BEGIN + stays, 1, 0),
        Segment(BEGIN, END, BEGIN + used, lap, last),
    ]


def window(used, lap=3, last=LEAST):
    return Segment(BEGIN, END, used, lap, last)


def lru(*used, last):
    rows = zip(range(0, 640 * len(used), 640), used, last, strict=True)
    return [Segment(0, 0, 0, 1, 0)] + [
        Segment(begin, begin + 640, begin + one, 1, tick) for begin, one, tick in rows
    ]


LRU = {"evict": "lru"}
STAY = table(stays=7168 - 1280)
FULL, GOES = table(stays=7168, last=LEAST), {"evict": "never", "may_go": True}


@pytest.mark.parametrize(
    ("segments", "size", "how", "place"),
    [
        # Records stay until the room for that is full.
        (STAY, 1280, {}, Place(0, LEAST - 1280, Segment(BEGIN, LEAST, LEAST, 1, 0))),
        (STAY, 1281, {}, None),
        (STAY, 1280, GOES, Place(0, LEAST - 1280, Segment(BEGIN, LEAST, LEAST, 1, 0))),
        # The window is written to its end, and then over the oldest.
        (table(7168, 7168 + 64, 3, LEAST), 128, GOES, Place(1, LEAST + 64, window(LEAST + 192))),
        (table(7168, 8192 - 64, 3, LEAST), 128, GOES, Place(1, LEAST, window(LEAST + 128, 4))),
        (FULL, 1024, GOES, Place(1, LEAST, window(END, 4))),
        (FULL, 1025, GOES, None),
        # One that is overtaken goes on behind.
        (
            table(stays=4096, used=2048),
            128,
            GOES | {"may_stay": False},
            Place(1, BEGIN + 6144, window(BEGIN + 6272, 3, BEGIN + 4096)),
        ),
        # lru empties what was used least recently.
        (lru(640, 640, 640, last=[7, 5, 6]), 64, LRU, Place(2, 640, Segment(640, 1280, 704, 2, 5))),
        (lru(640, 64, 640, last=[7, 5, 6]), 64, LRU, Place(2, 704, Segment(640, 1280, 768, 1, 5))),
        (lru(640, 640, 640, last=[7, 5, 6]), 641, LRU, None),
    ],
)
def test_where_a_record_goes(segments, size, how, place):
    assert admit(segments, size, **{"evict": "never", **how}) == place


def test_the_window_borrows_what_is_free_and_half_of_it_while_records_come_to_stay():
    assert bottom(*table(stays=0)) == BEGIN + 4096
    assert bottom(*table(stays=4096)) == BEGIN + 6144
    assert bottom(*table(stays=7000 // 64 * 64)) == LEAST
    assert bottom(*table(stays=4096, last=BEGIN + 4096)) == BEGIN + 4096  # none came for a lap


@pytest.mark.parametrize("seed", range(20))
def test_no_two_records_that_are_there_overlap(seed):
    """Against a model: every byte has the record that was written there last."""
    chance = random.Random(seed)
    layout = plan(200_000, 100, "never")
    segments = layout.empty_segments()
    at = {}
    written, passed = [], 0
    for number in range(600):
        stays = chance.random() < (0.1, 0.5)[seed % 2]
        size = chance.randrange(1, 5000)
        place = admit(segments, size, "never", may_go=not stays, may_stay=stays)
        if place is None:
            assert stays
            continue
        segments[place.segment] = place.after
        entry = Entry(b"", place.begin, size, 0, place.segment, place.after.generation)
        written.append((number, entry))
        passed += not stays
        for block in range(place.begin, place.begin + size, 64):
            at[block] = number
        assert place.segment or entry.begin + size <= segments[0].used
        there = [
            (one, entry)
            for one, entry in written
            if entry.segment == 0 or is_in_window(entry.begin, entry.generation, *segments)
        ]
        assert (number, entry) in there
        for one, entry in there:
            blocks = range(entry.begin, entry.begin + entry.size, 64)
            assert {at[block] for block in blocks} == {one}
    assert passed > 250


def test_what_is_free_in_the_index():
    def is_there(data, lap=3, evict="lru"):
        return not is_free(data, table(stays=64, used=4096, lap=lap), evict)

    entry = Entry(b"k" * 16, BEGIN + 640, 100, 7, 1, 3).pack()
    assert is_there(entry)
    assert not is_there(bytes(len(entry)))  # never used
    assert not is_there(entry, lap=4)  # its segment was emptied
    assert not is_there(entry[:-8] + b"\xff" * 8)  # of another generation
    assert not is_there(b"l" + entry[1:])  # half written
    assert not is_there(b"\xff" * len(entry))  # forgotten
    assert not is_there(Entry(b"k" * 16, BEGIN, 100, 7, 2, 3).pack())  # of no segment
    assert is_there(entry, evict="never")
    assert not is_there(entry, lap=4, evict="never")  # written over
    later = Entry(b"k" * 16, BEGIN + 4096, 100, 7, 1, 3).pack()
    assert is_there(later, lap=4, evict="never")  # not yet
    assert not is_there(later, lap=5, evict="never")
    staying = Entry(b"k" * 16, BEGIN, 100, 7, 0, 1).pack()
    assert is_there(staying, evict="never")
