"""The arena's geometry, and where records go in it."""

import random

import pytest

from aiacc.data.layout import (
    ALIGNMENT,
    ENTRY,
    PROBES,
    Entry,
    Layout,
    Place,
    Segment,
    admit,
    is_free,
    plan,
)
from aiacc.data.sizes import folder_and_bytes, parse_bytes


@pytest.mark.parametrize("evict", ["never", "lru"])
@pytest.mark.parametrize("size", [0, 1000, 10**5, 10**6, 8 * 10**9])
@pytest.mark.parametrize("samples", [0, 7, 10**6, None])
def test_everything_has_its_place(evict, size, samples):
    found = plan(size, samples, evict)
    assert found.size == max(size, found.heap_at)
    at = found.heap_at
    for begin, end in found.segments:
        assert at <= begin <= end <= found.size
        assert begin % ALIGNMENT == 0
        at = end
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


def test_the_heap_gets_most_of_it():
    found = plan(10**8, 1000, "never")
    assert sum(end - begin for begin, end in found.segments) > 0.99 * 10**8
    assert found.segments[0][1] - found.segments[0][0] > 0.85 * 10**8


def test_others_layouts_are_refused():
    with pytest.raises(ValueError, match="another version"):
        Layout.unpack(b"x" * 4096)


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


def segments(*used, size=640, stays=0, last=None):
    begins = [stays + number * size for number in range(len(used))]
    last = last or [0] * len(used)
    rows = zip(begins, used, last, strict=True)
    return [Segment(0, stays, 0, 1, 0)] + [
        Segment(begin, begin + size, begin + one, 1, tick) for begin, one, tick in rows
    ]


def test_records_stay_until_the_room_for_that_is_full():
    table = segments(0, 0, stays=1280)
    assert admit(table, 1280, False, "never") == Place(0, False)
    assert admit(table, 1281, False, "never") is None
    assert admit(table, 640, False, "never") == Place(0, False)


def test_what_is_fetched_ahead_goes_to_the_window():
    assert admit(segments(64, 0), 500, True, "never") == Place(1, False)
    assert admit(segments(640, 576), 30, True, "never") == Place(2, False)
    assert admit(segments(640, 640, last=[5, 3]), 30, True, "never") == Place(2, True)
    assert admit(segments(640, 640), 641, True, "never") is None
    assert admit(segments(640, 640), 30, False, "never") is None


def test_lru_empties_what_was_used_least_recently():
    assert admit(segments(640, 640, 640, last=[7, 5, 6]), 64, False, "lru") == Place(2, True)
    assert admit(segments(640, 64, 640, last=[7, 5, 6]), 64, False, "lru") == Place(2, False)
    assert admit(segments(640, 640, 640), 6400, False, "lru") is None


def test_what_is_admitted_always_fits():
    chance = random.Random(0)
    for _ in range(500):
        evict = chance.choice(["never", "lru"])
        table = segments(*(chance.randrange(641) for _ in range(4)), stays=chance.choice([0, 640]))
        size, may_go = chance.randrange(1, 900), chance.random() < 0.5
        place = admit(table, size, may_go, evict)
        if place is not None:
            one = table[place.segment]
            assert size <= (one.end - one.begin if place.empties else one.room)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5, 5), ("5", 5), ("8GB", 8 * 10**9), ("8 gib", 2**33), ("1.5k", 1500), ("2Mi", 2**21)],
)
def test_sizes(size, expected):
    assert parse_bytes(size, "memory") == expected


@pytest.mark.parametrize("size", ["", "GB", "-1", "8XB", "8iB", True, 1.5, None])
def test_what_is_no_size_is_named(size):
    if size == 1.5:
        assert parse_bytes(size, "memory") == 1
        return
    with pytest.raises(ValueError, match=r"memory=.*expected bytes"):
        parse_bytes(size, "memory")


def test_tiers():
    assert str(folder_and_bytes(("/x", "1kB"), "disk")[0]) == "/x"
    with pytest.raises(ValueError, match=r'disk="?.*a folder and a size'):
        folder_and_bytes("200GB", "disk")


def test_what_is_free_in_the_index():
    entry = Entry(b"k" * 16, 4096, 100, 7, 1, 3).pack()
    assert not is_free(entry, [1, 3])
    assert is_free(bytes(len(entry)), [1, 3])  # never used
    assert is_free(entry, [1, 4])  # its segment was emptied
    assert is_free(entry, [3])  # of no segment
    assert is_free(b"l" + entry[1:], [1, 3])  # half written
    assert is_free(b"\xff" * len(entry), [1, 3])  # forgotten
