"""The kernels against their twins on the host, plain and under compute-sanitizer; and in torch."""

import shutil
from pathlib import Path

import pytest
import torch

from aiacc.kfac.kernels import Entry
from aiacc.kfac.packing import average_packed, pack, packed_size, unpack
from aiacc.optim import LAMB, LARS
from tests.gpu import factor_bodies
from tests.gpu.optim_bodies import CASES, assert_close, fill_gradients, parameters, trained
from tests.support.programs import run_program
from tests.support.ranks import ROOT

PROGRAM = ROOT / "build/gpu/tests/gpu/gpu_check"
GROUPS = ["copies", "codes", "selections", "lars", "lamb", "factors"]
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"


@pytest.fixture(params=GROUPS)
def command(request):
    assert PROGRAM.exists(), f"{PROGRAM} is missing; make gpu-check builds it"
    return [str(PROGRAM), request.param]


def test_kernels_give_what_their_twins_give(command):
    assert "agree with their twins" in run_program(command, check=True).stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool, command):
    if not Path(SANITIZER).exists():
        pytest.skip("compute-sanitizer is not installed")
    checked = [SANITIZER, "--tool", tool, "--error-exitcode", "3", *command, "small"]
    done = run_program(checked, merged=True)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0, done.stdout
    assert "agree with their twins" in done.stdout


# --- packed factors: as torch on the CPU, captured, without waiting


DIMS = (64, 300, 1153)


@pytest.fixture
def factors():
    squares = [torch.randn(dim, dim, device="cuda") for dim in DIMS]
    return [square + square.mT for square in squares]


@pytest.fixture
def flat():
    return torch.zeros(sum(packed_size((dim, dim)) for dim in DIMS), device="cuda")


def test_every_bit_is_where_the_cpu_has_it():
    factor_bodies.packed_factors()


def test_they_run_on_the_current_stream_and_wait_for_nothing(factors, flat):
    found = [torch.zeros_like(factor) for factor in factors]
    pack(factors, flat)  # loads the kernels
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            for factor in factors:
                factor.mul_(2)
            pack(factors, flat)
            unpack(flat, found)
        assert not side.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    assert all(map(torch.equal, found, factors))


def test_a_graph_holds_them(factors, flat):
    means = [torch.zeros_like(factor) for factor in factors]
    sizes = [packed_size(factor.shape) for factor in factors]
    entries = [Entry(*pair, 1.0, 0.5) for pair in zip(means, flat.split(sizes), strict=True)]
    pack(factors, flat)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pack(factors, flat)
        average_packed(entries)
    for _ in range(2):
        graph.replay()
    for mean, factor in zip(means, factors, strict=True):
        torch.testing.assert_close(mean, 0.75 * factor)


# --- optimizers: captured, without waiting; optim_bodies has what their steps give


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_gradients_at_any_address(kind):
    found = []
    for shift in range(4):
        params = parameters()
        flat = torch.zeros(sum(parameter.numel() + 1 for parameter in params) + 4, device="cuda")
        at = shift
        for parameter in params:
            parameter.grad = flat[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel() + 1
        optimizer = kind(params, lr=0.5, weight_decay=0.1, fused=True)
        fill_gradients(params, 1)
        optimizer.step()
        found.append(params)
    for other in found[1:]:
        assert_close(other, found[0])


@pytest.mark.parametrize("capturable", [False, True])
def test_a_state_that_was_saved_goes_on(capturable):
    options = {"lr": 0.05, "capturable": capturable, "fused": True}
    params = parameters()
    optimizer = LAMB(params, **options)
    for step in range(4):
        if step == 2:
            state = optimizer.state_dict()
            optimizer = LAMB(params, **options)
            optimizer.load_state_dict(state)
        fill_gradients(params, step)
        optimizer.step()
    assert_close(params, trained(LAMB, options))


@pytest.mark.parametrize(("kind", "options"), [CASES[0], *CASES[5:7]], ids=str)
def test_a_graph_takes_learning_rates_that_change(kind, options):
    rates = (0.5, 0.25, 0.125)
    lr = torch.tensor(rates[0], device="cuda")
    params, plain = parameters(), parameters()
    captured = kind(params, **options | {"lr": lr, "fused": True})
    expected = kind(plain, **options | {"lr": rates[0]})
    for optimizer, some in ((captured, params), (expected, plain)):
        fill_gradients(some, 0)
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for step, rate in enumerate(rates):
        lr.fill_(rate)
        fill_gradients(params, 1 + step)
        graph.replay()
        for group in expected.param_groups:
            group["lr"] = rate
        fill_gradients(plain, 1 + step)
        expected.step()
        assert_close(params, plain)


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_steps_wait_for_nothing(kind, options):
    """torch itself raises where the host would wait for the GPU."""
    params = parameters()
    lr = torch.tensor(options["lr"], device="cuda")
    optimizer = kind(params, **options | {"lr": lr, "fused": True})
    fill_gradients(params, 0)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_the_kernels_do_not_take_is_said():
    weight = torch.nn.Parameter(torch.ones(2, 2, device="cuda", dtype=torch.float16))
    weight.grad = torch.ones_like(weight)
    for kind in (LARS, LAMB):
        with pytest.raises(ValueError, match=r"fused=True with torch\.float16 on cuda:0"):
            kind([weight], fused=True).step()
        kind([weight]).step()
