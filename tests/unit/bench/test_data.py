"""The slow origin, the images in it, and the table of bench.data; one small run."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from bench.data import __main__ as bench
from bench.data import images, origin, page


@pytest.fixture
def waits(monkeypatch):
    """Time stands still; what would be slept."""
    slept = []
    monkeypatch.setattr(origin.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(origin.time, "sleep", slept.append)
    return slept


def test_bytes_go_one_after_another_and_latencies_overlap(waits, tmp_path):
    for throttle in [origin.Throttle(tmp_path / "file", 1000, 0.5) for _ in range(2)]:
        throttle.wait(100)
        throttle.wait(0)
    assert waits == pytest.approx([0.6, 0.6, 0.7, 0.7])


def test_the_server_gives_files_and_paces_them(waits, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"12345")
    before = set(threading.enumerate())
    with origin.serve(tmp_path, origin.Throttle(tmp_path / "throttle", 10, 0)) as url:
        for _ in range(2):
            with urllib.request.urlopen(f"{url}/x.jpg") as answer:
                assert answer.read() == b"12345"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{url}/y.jpg")
        refused.value.close()
    assert waits == pytest.approx([0.5, 1.0])
    for thread in set(threading.enumerate()) - before:  # a connection's may still be ending
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", images.KINDS)
def test_images_are_what_they_are_said_to_be(waits, kind, tmp_path):
    total = images.make(kind, 3, tmp_path / kind)
    assert total == sum(path.stat().st_size for path in (tmp_path / kind).iterdir())
    throttle = origin.Throttle(tmp_path / "throttle", 1e6, 0.02)
    data = images.Images(kind, 3, folder=tmp_path / kind, throttle=throttle)
    found = [data[index] for index in range(3)]
    assert [label for _, label in found] == [0, 1, 2]
    assert len({tuple(pixels.shape) for pixels, _ in found}) == 1
    assert found[0][0].shape[0] == 3
    assert len(waits) == 3


def test_an_epoch_lasts_from_the_first_begin_to_the_last_end():
    ranks = [{"epochs": [[1.0, 3.0, 5, 7]]}, {"epochs": [[1.5, 4.0, 6, 8]], "statistics": "x"}]
    found = bench.epochs_of(ranks)
    assert found["seconds"] == [3.0]
    assert (found["images"], found["sums"]) == ([11], [15])


def test_the_table_has_medians_of_whole_runs():
    fields = {"kind": "textures", "origin": "http", "contender": "bare"}
    runs = [{**fields, "seconds": [s, s, s / 2], "images": [10] * 3} for s in (1.0, 2.0, 4.0)]
    runs.append({**fields, "seconds": [9.0] * 3, "images": [9] * 3})
    runs.append({**fields, "error": "it hung"})
    table = page.table({"count": 10, "runs": runs})
    assert table.splitlines()[2:] == [
        "| images, HTTP | DataLoader alone | 2.00 s, 5/s | 2.00 s, 5/s | 1.00 s, 10/s |"
    ]


def test_the_page_has_what_was_measured():
    text = page.PAGE.read_text()
    assert page.with_all_tables(text, bench.RESULT.parent) == text
    report = json.loads(bench.RESULT.read_text())
    sums = {(run["kind"], tuple(run["sums"])) for run in report["runs"]}
    assert len(sums) == len(images.KINDS)  # all have read the same pixels, in every epoch


def test_every_contender_has_a_title():
    assert set(bench.CONTENDERS) == set(page.TITLES)
    assert {row[:2] for row in bench.ROWS} == set(page._WHAT)


def test_a_small_run(tmp_path):
    images.make("digits", 24, tmp_path / "digits")
    slowness = 50e6, 0.02
    found = bench.run("aiacc_node", "digits", "folder", 24, tmp_path / "digits", slowness)
    assert found.get("images") == [24] * bench.EPOCHS, found
    assert len(set(found["sums"])) == 1
    assert "12 from the origin" in found["statistics"]
