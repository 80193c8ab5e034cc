"""Workloads of the network benchmarks, and the tables made of their results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from bench.network.ablation import Setting, ablation_table, settings
from bench.network.tables import (
    allreduce_table,
    compression_table,
    ratio_table,
    step_s,
    training_table,
    wan_table,
)
from bench.network.training import contenders, record
from bench.network.workloads import names, workload
from bench.shapes import elements, resnet50


@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "giga_multiply_adds"),
    [
        ("resnet50", 161, 25_557_032, 4.09),
        ("vgg16", 32, 138_357_544, 15.47),
        ("bert-base", 199, 109_482_240, 10.87),
    ],
)
def test_workload_is_the_published_network(name, tensors, parameters, giga_multiply_adds):
    work = workload(name)
    assert len(work.shapes) == len(work.multiply_adds) == tensors
    assert len({name for name, _ in work.shapes}) == tensors
    assert elements(work.shapes) == parameters
    assert sum(work.multiply_adds) / 1e9 == pytest.approx(giga_multiply_adds, abs=0.01)


@pytest.mark.parametrize("name", names())
def test_gradients_come_last_layer_first(name):
    work = workload(name)
    times = work.backward_s
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(2 * work.forward_s)


def test_unknown_workload():
    with pytest.raises(ValueError, match=r"'alexnet' \(expected one of resnet50, vgg16, bert-base"):
        workload("alexnet")


def _run(name="resnet50", flow=300.0, **seconds):
    return {
        "workload": name,
        "bed": {"flow_mbit": flow, "nic_mbit": 1000.0},
        "seconds": {key: [values] for key, values in seconds.items()},
        "lanes": {"auto": [4, 4]} if "auto" in seconds else {},
    }


def test_tables():
    capped = _run(lanes1=[4.0, 5.0, 4.4], lanes4=[1.5], lanes8=[1.4], auto=[1.4], ddp=[4.0])
    free = _run(flow=0, lanes1=[1.0], auto=[1.04])
    assert step_s(capped, "lanes1") == 4.4
    assert step_s(capped, "ddp_multi") is None
    table = training_table([capped, free])
    assert "| ResNet-50, batch of 64 | 300 / 1000 Mbit/s | 4.40 s |  | 1.50 s | 1.40 s |" in table
    assert "1.40 s (found 4 lanes)" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
    ratios = ratio_table([capped, free])
    assert "| 8 lanes over 1 | 3.14x | >= 1.69x | yes |" in ratios
    assert "| 8 lanes over DDP/gloo | 2.86x | >= 3x | **no** |" in ratios
    assert "| 1.04x | <= 1.03x | **no** |" in ratios


def _row(lanes, busbw, bar=0.93, slow=0.0):
    limit = min(250.0 * lanes, 1000.0)
    return {
        "engine": "tcp",
        "hosts": 4,
        "lanes": lanes,
        "bed": {"flow_mbit": 250.0, "nic_mbit": 1000.0, "slow": slow, "loss": 0.0},
        "busbw_mbit": busbw,
        "share": busbw / limit,
        "bar": bar,
    }


def test_table_of_bandwidths():
    whole = {"tensor_bytes": 64 << 20, "rows": [_row(1, 240.0), _row(4, 950.0)]}
    runs = [whole, {"tensor_bytes": 64 << 20, "rows": [_row(4, 241.0, None, 0.25)]}]
    head, _, whole, slow = allreduce_table(runs).splitlines()
    assert "| 1 lane | 2 lanes | 4 lanes | 8 lanes |" in head
    assert "| 240 Mbit/s, 0.960 |  | 950 Mbit/s, 0.950 |  | >= 0.93 | yes |" in whole
    assert slow.endswith("one flow at 0.25 of it |  |  | 241 Mbit/s, 0.241 |  |  |  |")
    runs[0]["rows"][0]["share"] = 0.9
    assert allreduce_table(runs).splitlines()[2].endswith("| **no** |")
    runs[1]["rows"].append({**_row(4, 900.0), "per_host": 2})
    assert "| tcp | 4 of 2 ranks | 250 / 1000 Mbit/s |" in allreduce_table(runs)


def test_table_of_sixteen_bits():
    rows = [
        {**_row(4, 240.0), "per_host": 2, "compression": form, "seconds": seconds}
        for form, seconds in (("none", [2.0, 2.2, 9.0]), ("bf16", [1.1, 1.0, 1.3]))
    ]
    runs = [{"tensor_bytes": 64 << 20, "rows": rows}]
    line = compression_table(runs).splitlines()[2]
    assert line == ("| tcp | 4 of 2 ranks | bf16 | 2.200 s | 1.100 s | 2.00x | >= 1.9x | yes |")
    rows[1]["seconds"] = [1.3]
    assert compression_table(runs).endswith("| 1.69x | >= 1.9x | **no** |")
    assert [line.split(" |")[0] for line in allreduce_table(runs).splitlines()[2:]] == [
        "| tcp",
        "| tcp, bf16",
    ]


def _far(lanes, busbw, loss, unit):
    bed = {"slow": 0.0, "delay_ms": 10.0, "loss": loss, "flow_mbit": 0.0, "nic_mbit": 1000.0}
    variables = {"AIACC_UNIT_BYTES": unit}
    row = {"engine": "tcp", "hosts": 2, "lanes": lanes, "bed": bed, "busbw_mbit": busbw}
    return {**row, "variables": variables}


def test_table_of_far_networks_has_a_line_for_every_loss_and_unit():
    rows = [_far(1, 50.0, 1e-4, "1MiB"), _far(1, 60.0, 1e-4, "8MiB"), _far(1, 300.0, 0.0, "1MiB")]
    rows += [_far(8, 390.0, 1e-4, "1MiB"), _far(8, 400.0, 1e-4, "1MiB")]
    other = {"tensor_bytes": 256 << 20, "rows": rows[:1]}
    runs = [{"tensor_bytes": 64 << 20, "rows": rows[:3]}, other]
    lines = wan_table([*runs, {"tensor_bytes": 64 << 20, "rows": rows[3:]}]).splitlines()[2:]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["0", "64 MiB", "1MiB"],
        ["0.0001", "64 MiB", "1MiB"],
        ["0.0001", "64 MiB", "8MiB"],
        ["0.0001", "256 MiB", "1MiB"],
    ]
    assert lines[1].endswith("| 50 Mbit/s |  |  | 400 Mbit/s | 8.0x |")
    assert lines[2].endswith("| 60 Mbit/s |  |  |  |  |")


def test_the_ablation_varies_every_factor_around_the_default():
    found = settings()
    assert len(set(found)) == len({one.name for one in found}) == len(found)
    assert Setting() in found
    for factor in ("lanes", "unit", "engine", "negotiation"):
        alone = [one for one in found if replace(one, **{factor: ""}) == _without(factor)]
        assert len(alone) > 1, factor
    assert Setting(negotiation="names").contender().variables["AIACC_CACHE_CAPACITY"] == "0"
    assert "AIACC_CACHE_CAPACITY" not in Setting().contender().variables
    assert Setting(negotiation="once").contender().groups == 1


def _without(factor):
    return replace(Setting(), **{factor: ""})


def test_table_of_the_ablation_compares_with_the_default():
    def row(setting, *seconds):
        counts = {"rounds_per_step": 3.2, "control_bytes_per_step": 1234.0}
        return {**asdict(setting), **counts, "seconds": seconds}

    slow = Setting(lanes=1)
    runs = [{"rows": [row(Setting(), 9.0), row(slow, 18.0, 22.0)]}, {"rows": [row(Setting(), 8.0)]}]
    lines = ablation_table(runs).splitlines()[2:]
    assert lines == [
        "| tcp | 1 | 1MiB | bits | 20.00 s | 2.50x | 3, 1,234 |",
        "| tcp | 4 | 1MiB | bits | 8.00 s | 1.00x | 3, 1,234 |",
    ]


def test_a_run_replaces_its_predecessor_only(tmp_path):
    path = tmp_path / "runs.json"
    for run in (_run(lanes1=[1.0]), _run("vgg16", lanes1=[2.0]), _run(lanes1=[3.0])):
        record(run, path)
    runs = json.loads(path.read_text())["runs"]
    assert [(run["workload"], step_s(run, "lanes1")) for run in runs] == [
        ("resnet50", 3.0),
        ("vgg16", 2.0),
    ]


def test_contenders_have_names_of_their_own():
    assert len({one.name for one in contenders()}) == len(contenders())


def test_resnet50_is_the_same_everywhere():
    assert workload("resnet50").shapes == resnet50()
