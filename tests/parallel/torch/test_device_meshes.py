"""What torch builds on groups of ranks: device meshes, FSDP2, HSDP and `replicate`, on a CPU."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.process_group import assert_equal, in_group, join, leave
from tests.support.ranks import free_port, run_ranks

STEPS = 4
BATCH = 8


@in_group(4)
def test_rows_and_columns_of_a_mesh():
    me = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name, members in (
        ("replicate", [me % 2, me % 2 + 2]),
        ("shard", [me - me % 2, me - me % 2 + 1]),
    ):
        group = mesh.get_group(name)
        assert dist.get_backend(group) == "aiacc"
        assert dist.get_process_group_ranks(group) == members
        total = torch.tensor([float(me)])
        dist.all_reduce(total, group=group)
        assert total.item() == sum(members)
    flat = mesh._flatten("all")
    total = torch.ones(3)
    dist.all_reduce(total, group=flat.get_group())
    assert_equal(total, torch.full((3,), 4.0))

    whole = torch.arange(24.0).reshape(4, 6)
    spread = distribute_tensor(whole, mesh, [Replicate(), Shard(1)])
    assert spread.to_local().shape == (4, 3)
    assert_equal(spread.full_tensor(), whole)
    rows = spread.redistribute(mesh, [Shard(0), Shard(0)])
    assert_equal(rows.to_local(), whole[me : me + 1])
    product = rows @ spread.T.redistribute(mesh, [Replicate(), Replicate()])
    assert_equal(product.full_tensor(), whole @ whole.T)


def _model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 10), torch.nn.Linear(10, 3)
    )


def _train(model, rank, size):
    """The whole parameters after some steps, with batches that ``size`` ranks have parts of."""
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 6, generator=generator).chunk(size)[rank]
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    parameters = [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for parameter in model.parameters()
    ]
    return [parameter.detach().numpy().copy() for parameter in parameters]


def _sharded(mesh):
    model = _model()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _fsdp():
    return _sharded(init_device_mesh("cpu", (dist.get_world_size(),)))


def _hsdp():
    return _sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def _ddp():
    """Which sends the parameters of rank 0."""
    model = _model(seed=dist.get_rank())
    return DistributedDataParallel(model, bucket_cap_mb=0.0001)


def _ddp_composable():
    return replicate(_model(), bucket_cap_mb=0.0001)


def _replicate_of_fsdp():
    model = _model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if list(layer.parameters()):
            replicate_with_fsdp.replicate(layer, mesh=mesh)
    return replicate_with_fsdp.replicate(model, mesh=mesh)


def _train_on_both(builds, ports):
    """The parameters by backend and way to build the model."""
    results = []
    for backend, port in zip(("aiacc", "gloo"), ports, strict=True):
        join(port, backend)
        rank, size = dist.get_rank(), dist.get_world_size()
        results.append([_train(build(), rank, size) for build in builds])
        leave()
    return results


@pytest.mark.parametrize(
    ("size", "builds"),
    [(2, [_fsdp, _ddp, _ddp_composable, _replicate_of_fsdp]), (3, [_fsdp, _ddp]), (4, [_hsdp])],
    ids=["FSDP2, DDP and replicate on 2", "FSDP2 and DDP on 3", "HSDP on 2 by 2"],
)
def test_trains_as_on_gloo(size, builds):
    results = run_ranks(size, _train_on_both, builds, [free_port(), free_port()])
    alone = _train(_model(), 0, 1)
    for ours, theirs in results:
        for number, parameters in enumerate(ours):
            for place, parameter in enumerate(parameters):
                assert_equal(parameter, results[0][0][number][place])
                torch.testing.assert_close(parameter, theirs[number][place], rtol=1e-5, atol=1e-6)
                if BATCH % size == 0:  # parts of equal size have the mean of the whole
                    torch.testing.assert_close(parameter, alone[place], rtol=1e-4, atol=1e-5)
