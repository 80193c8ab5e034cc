"""examples/parallel_muon.py: the same bits as torch's Muon, whoever computes what."""

from __future__ import annotations

import re

import torch

import aiacc.torch as hvd
from examples import parallel_muon
from tests.support.jobs import on_ranks
from tests.support.ranks import run_example


@on_ranks(2)
def test_the_same_bits_as_torch():
    shapes = [(8, 8), (24, 8), (8, 24), (5, 7), (1, 3)]
    for divide in (True, None):
        for options in ({}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}):
            found = []
            for kind in (torch.optim.Muon, parallel_muon.ParallelMuon):
                generator = torch.Generator().manual_seed(1)
                params = [
                    torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes
                ]
                optimizer = kind(params, lr=0.1, **options)
                optimizer.divide = divide
                for _ in range(6):
                    for parameter in params[1:]:  # the first has none
                        parameter.grad = torch.randn(parameter.shape, generator=generator)
                    optimizer.step()
                found.append(params)
            assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
            if divide:
                assert set(optimizer.decision.owners) == set(range(hvd.size()))
    # All ranks have learnt the same.
    model = parallel_muon.train(16, 5, divide=True)
    everyones = hvd.allgather_object([p.tolist() for p in model.parameters()])
    assert all(one == everyones[0] for one in everyones)


def test_it_learns_and_says_what_it_decided():
    ended = run_example("aiaccrun", 2, "parallel_muon.py", "--width", "64")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (known,) = re.findall(r"([\d.]+)% of the images .* 100 steps in [\d.]+ s on 2", ended.stdout)
    assert float(known) > 90
    assert len(re.findall(r"aiacc: muon\.0: .* 2 ranks|aiacc: muon\.0: every", ended.stderr)) == 1
