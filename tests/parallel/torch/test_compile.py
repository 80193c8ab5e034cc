"""torch.compile: whole and by blocks, against a single process; and when gradients come."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Recipe,
    alone,
    check_same_everywhere,
    flat,
    squares,
    together,
    train,
)

BACKEND = "aot_eager"  # traces like inductor, and takes no time to compile


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return x + self.norm(self.inner(x).tanh())


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.blocks = nn.ModuleList(_Block() for _ in range(3))
        self.act = nn.ReLU()
        self.last = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))

    def forward(self, x):
        x = self.act(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def _net():
    torch.manual_seed(0)
    return _Net().double()


NET = Recipe(_net, partial(torch.optim.Adam, lr=0.05), squares(5, 3))


@pytest.mark.parametrize(
    ("backend", "ways"),
    [
        (BACKEND, [*itertools.product(("eager", "whole", "blocks", "compiled"), (False, True))]),
        pytest.param("inductor", [("whole", True)], marks=pytest.mark.nightly),
    ],
)
@on_ranks(3)
def test_same_parameters_as_a_single_process(backend, ways):
    expected = train(alone(NET), range(4)).model
    assert not torch.equal(flat(expected), flat(_net()))
    for way, as_views in ways:
        views = {"gradient_as_bucket_view": True, "bucket_bytes": 512} if as_views else {}
        make = _net
        if way == "compiled":  # before its optimizer is wrapped
            make = partial(hvd.compile_blocks, _net(), backend=BACKEND)
        training = together(NET._replace(make_model=make), **views)
        model = run = training.model
        if way == "whole":
            run = torch.compile(model, backend=backend)
        elif way == "blocks":
            assert hvd.compile_blocks(model, backend=backend) is model
        assert list(model.state_dict()) == list(_net().state_dict())
        training.loss = lambda _, rank, step, run=run: NET.loss(run, rank, step)
        train(training, range(4))
        torch.testing.assert_close(flat(model), flat(expected))
        check_same_everywhere(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own doing
def test_gradients_of_a_block_come_before_those_of_the_block_before_it_are_computed():
    model, events = hvd.compile_blocks(_net(), backend=BACKEND), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: events.append(f"gradient {name.split('.inner')[0]}")
        )

    def mark(number):
        def hook(module, inputs, output):
            output.register_hook(lambda gradient: events.append(f"enter {number}"))

        return hook

    for number, block in enumerate(model.blocks):
        block.register_forward_hook(mark(number))
    NET.loss(model, 0, 0).backward()
    assert events.index("gradient blocks.2") < events.index("enter 1")
    assert events.index("gradient blocks.1") < events.index("enter 0")


def test_choice_of_blocks():
    chosen = []

    class _Recorder(_Net):
        def __init__(self):
            super().__init__()
            for name, module in self.named_modules():
                module.compile = lambda name=name, **options: chosen.append((name, options))

    hvd.compile_blocks(_Recorder(), dynamic=False)
    blocks = ["blocks.0", "blocks.1", "blocks.2"]
    assert [name for name, _ in chosen] == ["first", *blocks, "last.0", "last.1"]
    assert chosen[0][1] == {"dynamic": False}
    chosen.clear()
    hvd.compile_blocks(_Recorder(), is_block=lambda module: isinstance(module, _Block))
    assert [name for name, _ in chosen] == blocks
    with pytest.raises(ValueError, match="Linear has no block with parameters"):
        hvd.compile_blocks(nn.Linear(2, 2))
