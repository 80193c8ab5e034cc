"""The pure parts of bench.negotiation: the model and the tables."""

import pytest

from bench import negotiation


def test_the_tensors_are_those_of_resnet50_in_the_order_of_the_backward_pass():
    names = [name for name, _ in negotiation.tensors()]
    assert len(set(names)) == 161
    assert names[0] == "allreduce.fc.bias"
    assert names[-1] == "allreduce.conv1.weight"


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (64, 35)])
def test_gather_of_names_follows_its_formula(ranks, rounds):
    names = sum(len(name) + 4 for name, _ in negotiation.tensors())
    got = negotiation.gather_of_names(ranks, rounds, frame_bytes=12, request_bytes=15016)
    assert got["messages"] == 2 * (ranks - 1) * rounds
    assert got["bytes"] == (ranks - 1) * (24 * rounds + 15016 + names)
    assert got["busiest_rank_bytes"] == got["bytes"]


def test_table_compares_the_busiest_ranks_and_leaves_the_first_step_out():
    count = {"messages": 70, "bytes": 3640, "busiest_rank_bytes": 2000}
    report = {
        "when": "today",
        "commit": "0123456789abcdef",
        "measured": [
            {"ranks": 2, "rounds": [9, 1, 3], "bytes": [[9999, 52, 156], [9999, 52, 156]]}
        ],
        "simulated": [
            {
                "ranks": 64,
                "rounds": 35,
                "step": count,
                "first_step": count | {"busiest_rank_bytes": 5_000_000},
                "gather_of_names": count | {"busiest_rank_bytes": 24_000},
            }
        ],
    }
    cost = {
        "busiest_rank_bytes": 16_080,
        "largest_message_bytes": 792,
        "peak_heap_bytes": 4_500_000,
    }
    times = {"contribute_s": 0.001, "combine_s": 0.002, "apply_s": 0.0005}
    job = {"commit": "fedcba9876543210", "gpus_per_host": 8, "cache_capacity": 4096}
    report["large"] = {
        "ranks": 1024,
        "tensors": 6200,
        "earlier": [],
        "jobs": [job | {"steps": [cost | times] * 4}],
    }
    text = negotiation.table(report)
    assert "| 2 | 2 (1 to 3) | 104 (156) | 52 |" in text
    assert "| 64 | 35 | 70 | 3.64 kB | 2 kB | 70 | 3.64 kB | 24 kB | 12x |" in text
    assert "5 MB through the busiest of 64 ranks" in text
    assert (
        "| fedcba987654 | 8 GPUs per host | 4096 | 4 | 16.1 kB | 792 B | 4.5 MB | 3.5 ms |" in text
    )
