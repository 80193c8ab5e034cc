"""Coded all-reduces of tensors on a GPU, against those of the same job with tensors on the CPU.

Both have the same bits if they code in the same exchange: AIACC_ENGINE=tcp, which knows no hosts.
What is left to chance is that of a name and of how often it came, so each is a job of its own.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21, Momentum, Residual
from aiacc.compression.policy import Policy
from tests.gpu.bodies import begin

#: Of both jobs. Large tensors take several units, the same in both.
ENVIRONMENT = {
    "AIACC_ENGINE": "tcp",
    "AIACC_UNIT_BYTES": "65536",
    "AIACC_GPU_UNIT_BYTES": "65536",
    "AIACC_LANES": "2",
    "AIACC_GPU_LANES": "2",
}
CODECS = (
    "int8",
    "int8:stochastic=true",
    "int4:block=128",
    "fp8:block=1024",
    "mstopk:density=0.01",
    "mstopk:density=0.1,mode=exact",
)
POLICIES = (
    Policy(parse("int8"), least_elements=1),
    Policy(parse("int8"), least_elements=1, feedback=Residual()),
    Policy(parse("int4"), least_elements=1, feedback=EF21()),
    Policy(parse("fp8:block=128"), least_elements=1, feedback=Residual(0.5)),
    Policy(parse("mstopk:density=0.02"), least_elements=1),
    Policy(parse("mstopk:density=0.05,mode=exact"), least_elements=1, feedback=Momentum(0.9)),
)
#: With these no step waits for the GPU.
WITHOUT_WAITING = tuple(
    Policy(parse(codec), least_elements=1, feedback=Residual())
    for codec in ("int8", "int4", "mstopk:density=0.01")
)


def operations(on_gpu: bool) -> dict[str, str]:
    """All-reduces in every form; digests of the results, those of some ranks under "own"."""
    return _digests(_operations, on_gpu)


def steps(on_gpu: bool) -> dict[str, str]:
    """Steps of optimizers, which code in groups and in flat buckets; what they keep as "own"."""
    return _digests(_all_steps, on_gpu)


def check(on_gpu: list[dict[str, str]], on_cpu: list[dict[str, str]]) -> None:
    """Assert that the ranks have the same, and what those with tensors on the CPU have."""
    assert on_gpu == on_cpu
    shared = [
        {what: digest for what, digest in rank.items() if not what.startswith("own")}
        for rank in on_gpu
    ]
    assert shared == shared[:1] * len(shared)


def _digests(body: Any, on_gpu: bool) -> dict[str, str]:
    if on_gpu:
        begin()
    else:
        hvd.init()
    results = body(hvd.rank(), hvd.size(), on_gpu)
    digests = {}
    for what, result in results.items():
        assert result.is_cuda == on_gpu
        digests[what] = hashlib.sha256(result.cpu().numpy().tobytes()).hexdigest()
    hvd.barrier()
    hvd.shutdown()
    return digests


def _normal(seed: int, shape: tuple[int, ...], on_gpu: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu")
    return values.cuda() if on_gpu else values


def _operations(rank: int, size: int, on_gpu: bool) -> dict[str, torch.Tensor]:
    results = {}
    ends = hvd.add_process_set([0, size - 1]) if size > 2 else hvd.global_process_set
    for codec in CODECS:
        options = {"op": hvd.Sum, "compression": codec}
        for count in (5, 700, 100_001, 1_200_000):
            if count > 1_000_000 and codec not in ("int8", "mstopk:density=0.01"):
                continue
            tensor = _normal(100 * rank + count, (count,), on_gpu)
            for step in range(2):
                name = f"{codec}.{count}"
                results[f"{name}.{step}"] = hvd.allreduce(tensor, name=name, **options)
            same_as_before = _normal(100 * rank + count, (count,), on_gpu)
            assert torch.equal(tensor, same_as_before), "inputs are only read"
        scaled = hvd.allreduce(tensor[:9999], None, f"{codec}.scaled", codec, hvd.Average, 0.3, 1.7)
        results[f"{codec}.scaled"] = scaled
        group = [_normal(10 * rank + i, shape, on_gpu) for i, shape in enumerate([(7,), (30, 40)])]
        assert hvd.grouped_allreduce_(group, name=f"{codec}.group", **options)[0] is group[0]
        results |= {f"{codec}.group.{i}": tensor for i, tensor in enumerate(group)}
        if ends.included():
            of_some = hvd.allreduce(group[1], name=f"{codec}.ends", process_set=ends, **options)
            results[f"own.{codec}.ends"] = of_some  # which the others do not know
    return results


def _all_steps(rank: int, size: int, on_gpu: bool) -> dict[str, torch.Tensor]:
    return {
        f"{what}.{number}.{as_views}": result
        for number, policy in enumerate(POLICIES)
        for as_views in (False, True)
        for what, result in _steps(rank, policy, as_views, on_gpu).items()
    }


def _steps(rank: int, policy: Policy, as_views: bool, on_gpu: bool) -> dict[str, torch.Tensor]:
    """Gradients of six steps, and what is left then; on the way a state is saved and loaded."""
    shapes = ((60, 50), (300, 2), (20, 30, 5))
    model = nn.ParameterList([nn.Parameter(_normal(0, shape, on_gpu)) for shape in shapes])
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.0),
        model.named_parameters(),
        compression=policy,
        op=hvd.Sum,
        gradient_as_bucket_view=as_views,
    )
    results = {}
    for step in range(6):
        optimizer.zero_grad(set_to_none=not as_views)  # else views do not pay on the CPU
        given = [_normal(1000 * step + 10 * rank + i, s, on_gpu) for i, s in enumerate(shapes)]
        # The gradient of a product with a number is that number.
        products = [(p * value).sum() for p, value in zip(model, given, strict=True)]
        torch.stack(products).sum().backward()
        optimizer.step()
        for i, parameter in enumerate(model):
            results[f"{step}.{i}"] = parameter.grad.clone()
        if step == 3:
            _save_and_load(optimizer.feedback)
    for kind, tensors in optimizer.feedback.kept.tensors.items():
        for name, tensor in tensors.items():
            results[f"own.{kind}.{name}"] = tensor.clone()
    return results


def _save_and_load(feedback: Any) -> None:
    saved = io.BytesIO()
    torch.save(feedback.state_dict(), saved)
    feedback.kept.multiply(float("nan"))
    saved.seek(0)
    feedback.load_state_dict(torch.load(saved, map_location="cpu"))
