"""Where records go in the arena, and which ones its window still has."""

import random

import pytest

from aiacc.data.admission import Place, admit, bottom, is_free, is_in_window
from aiacc.data.layout import Entry, Segment, plan

#: Heap of 8 KiB, of which the last one is always the window's.
BEGIN, LEAST, END = 64, 64 + 7168, 64 + 8192


def table(stays=0, used=END - BEGIN, lap=3, last=0):
    return [
        Segment(BEGIN, LEAST, BEGIN + stays, 1, 0),
        Segment(BEGIN, END, BEGIN + used, lap, last),
    ]


def test_records_stay_until_the_room_for_that_is_full():
    stay, window = table(stays=7168 - 1280)
    assert admit([stay, window], 1280, "never") == Place(
        0, LEAST - 1280, Segment(BEGIN, LEAST, LEAST, 1, 0)
    )
    assert admit([stay, window], 1281, "never") is None
    assert admit([stay, window], 1280, "never", may_go=True).segment == 0
    assert admit([stay, window], 64, "never", may_go=True, may_stay=False).segment == 1


def test_the_window_is_written_to_its_end_and_then_over_the_oldest():
    found = admit(table(stays=7168, used=7168 + 64, last=LEAST), 128, "never", may_go=True)
    assert found == Place(1, LEAST + 64, Segment(BEGIN, END, LEAST + 192, 3, LEAST))
    found = admit(table(stays=7168, used=8192 - 64, last=LEAST), 128, "never", may_go=True)
    assert found == Place(1, LEAST, Segment(BEGIN, END, LEAST + 128, 4, LEAST))
    assert admit(table(stays=7168, last=LEAST), 1024, "never", may_go=True) is not None
    assert admit(table(stays=7168, last=LEAST), 1025, "never", may_go=True) is None


def test_the_window_borrows_what_is_free_and_half_of_it_while_records_come_to_stay():
    assert bottom(*table(stays=0)) == BEGIN + 4096
    assert bottom(*table(stays=4096)) == BEGIN + 6144
    assert bottom(*table(stays=7000 // 64 * 64)) == LEAST
    assert bottom(*table(stays=4096, last=BEGIN + 4096)) == BEGIN + 4096  # none came for a lap


def test_a_window_that_is_overtaken_goes_on_behind():
    found = admit(table(stays=4096, used=2048), 128, "never", True, may_stay=False)
    assert found == Place(1, BEGIN + 6144, Segment(BEGIN, END, BEGIN + 6272, 3, BEGIN + 4096))


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
            assert all(
                at[block] == one for block in range(entry.begin, entry.begin + entry.size, 64)
            )
    assert passed > 250


def lru(*used, last=None):
    last = last or [0] * len(used)
    rows = zip(range(0, 640 * len(used), 640), used, last, strict=True)
    return [Segment(0, 0, 0, 1, 0)] + [
        Segment(begin, begin + 640, begin + one, 1, tick) for begin, one, tick in rows
    ]


def test_lru_empties_what_was_used_least_recently():
    found = admit(lru(640, 640, 640, last=[7, 5, 6]), 64, "lru")
    assert found == Place(2, 640, Segment(640, 1280, 704, 2, 5))
    found = admit(lru(640, 64, 640, last=[7, 5, 6]), 64, "lru")
    assert found == Place(2, 704, Segment(640, 1280, 768, 1, 5))
    assert admit(lru(640, 640, 640), 641, "lru") is None


def test_what_lru_admits_always_fits():
    chance = random.Random(0)
    for _ in range(500):
        segments = lru(*(chance.randrange(11) * 64 for _ in range(4)))
        size = chance.randrange(1, 900)
        found = admit(segments, size, "lru")
        assert (found is None) == (size > 640)
        if found is not None:
            assert found.begin + size <= found.after.used <= found.after.end


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
