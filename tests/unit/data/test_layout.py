"""The arena's geometry, and where records go in it."""

import random

import pytest

from aiacc.data.layout import ALIGNMENT, ENTRY, PROBES, SEGMENT, SEGMENTS_AT, Entry, Layout, plan
from aiacc.data.sizes import parse_bytes


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


def test_the_heap_gets_most_of_it():
    found = plan(10**8, 1000, "never")
    assert found.segments[1][1] - found.segments[0][0] > 0.99 * 10**8
    assert found.segments[0][1] - found.segments[0][0] > 0.85 * 10**8


def test_others_layouts_are_refused():
    with pytest.raises(ValueError, match="another version"):
        Layout.unpack(b"x" * 4096)


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


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (5, 5),
        (1.5, 1),
        ("5", 5),
        ("8GB", 8 * 10**9),
        ("8 gib", 2**33),
        ("1.5k", 1500),
        ("2Mi", 2**21),
    ],
)
def test_sizes(size, expected):
    assert parse_bytes(size, "memory") == expected


@pytest.mark.parametrize("size", ["", "GB", "-1", "8XB", "8iB", True, None])
def test_what_is_no_size_is_named(size):
    with pytest.raises(ValueError, match=r"memory=.*expected bytes"):
        parse_bytes(size, "memory")
