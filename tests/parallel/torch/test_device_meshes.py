"""What torch builds on groups of ranks: device meshes, FSDP2, HSDP and `replicate`, on a CPU."""

import torch
import torch.distributed as dist
from torch.distributed._composable import replicate_with_fsdp
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.process_group import assert_equal, in_group

STEPS = 4
BATCH = 12  # parts of equal size have the mean of the whole


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
    ).double()


def _train(model, rank, size):
    """The whole parameters after some steps, with batches that ``size`` ranks have parts of."""
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 6, generator=generator).double().chunk(size)[rank]
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [
        (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()
        for parameter in model.parameters()
    ]


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


#: Ways to build the model, by number of ranks.
BUILDS = {2: [_fsdp, _ddp, _ddp_composable, _replicate_of_fsdp], 3: [_fsdp, _ddp], 4: [_hsdp]}


@in_group(*BUILDS)
def test_trains_as_one_process():
    rank, size = dist.get_rank(), dist.get_world_size()
    expected = _train(_model(), 0, 1)
    for build in BUILDS[size]:
        for parameter, wanted in zip(_train(build(), rank, size), expected, strict=True):
            torch.testing.assert_close(parameter, wanted)
            everyones = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(everyones, parameter)
            assert_equal(everyones, [everyones[0]] * size)
