"""What the decoupled schedule refuses, what becomes of failures, and what comes between steps."""

import copy
import gc
import os
import signal
import threading
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.exceptions import CollectiveError
from aiacc.planning.plan import Plan
from aiacc.torch.decoupled import in_flight
from aiacc.torch.decoupled import part as part_module
from aiacc.torch.decoupled.bucket import Bucket
from tests.parallel.decoupled.decoupled_training import (
    DECOUPLED,
    NET,
    all_awaited,
    compare_late,
    copied,
    loss,
    net,
    sgd,
    start,
    wrap,
)
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Alone,
    Recipe,
    alone,
    check_learned,
    check_same_everywhere,
    compare,
    gathers_late,
    train,
)

_NAMES = tuple(name for name, _ in net().named_parameters())


@on_ranks(2)
def test_arguments_that_are_not_for_this_schedule():
    model = net()
    for arguments, text in (
        ({"model": None}, "model=None .expected the torch.nn.Module"),
        ({"model": model[0]}, "'2.weight' belongs to no module of model Linear"),
        ({"op": hvd.Adasum}, "op=Adasum .expected Average or Sum"),
        ({"op": hvd.Max}, "op=Max .expected Average or Sum"),
        ({"compression": hvd.Compression.fp16}, "compression=FP16Compressor .expected"),
        ({"groups": 2}, "'decoupled' with groups"),
        ({"gradient_as_bucket_view": True}, "gradient_as_bucket_view=True .expected False"),
        ({"bucket_bytes": 0}, "bucket_bytes=0 .expected a finite"),
        ({"plan": Plan("x", (_NAMES,))}, "plan with schedule 'all_reduce' .expected 'decoupled'"),
        ({"plan": Plan("x", (("head",),), "decoupled")}, "'head' for one"),
        ({"optimizer": torch.optim.LBFGS(model.parameters())}, "'decoupled' with LBFGS"),
        ({"optimizer": wrap(net())}, "is a DistributedOptimizer .SGD. already"),
    ):
        options = {"optimizer": sgd(model.parameters()), "model": model, **DECOUPLED, **arguments}
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(named_parameters=model.named_parameters(), **options)
    with pytest.raises(ValueError, match="with 6 parameters that are all frozen"):
        wrap(net().requires_grad_(False))
    optimizer = wrap(model)
    for call, text in (
        (lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
         "add_param_group of 1 parameters"),
        (lambda: optimizer.set_backward_passes_per_step(0), "backward_passes_per_step=0"),
        *((lambda order=order: optimizer.clip_grad_norm_(1.0, order),
           rf"norm_type={order} .expected another number")
          for order in (0, -float("inf"), float("nan"))),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match=r"cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    check_learned(model, net(), exactly=True)


@on_ranks(2, each={"what": ["buckets", "shapes"]})
def test_ranks_with_different_models_are_told(what):
    odd = hvd.rank() == 1

    def make():
        model = net()
        if odd and what == "shapes":
            model[4] = nn.Linear(40, 4)
        return model

    training = start(make, **({"bucket_bytes": 1 << 20} if odd and what == "buckets" else {}))
    text = r"the ranks have parameters of different names, shapes"
    training.refused(partial(train, batches=[0]), text)


@on_ranks(3)
def test_ranks_with_different_schedules_are_told():
    schedule = "decoupled" if hvd.rank() == 1 else "all_reduce"
    training = start(schedule=schedule)
    text = rf"'{schedule}' on rank {hvd.rank()}, and .* after shutdown\(\) and init\(\) if the job"
    training.refused(partial(train, batches=[0]), text)
    hvd.shutdown()
    hvd.init()
    for schedule in ("all_reduce", "decoupled"):  # with names of gradients that were under way
        compare(partial(train, batches=[0]), NET, schedule=schedule)


class _Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(50, 8, sparse=True)
        self.last = nn.Linear(8, 2)


def _sparse_loss(model, rank, batch):
    return model.last(model.rows(torch.tensor([batch, 7 + rank]))).pow(2).mean()


@on_ranks(2)
def test_sparse_gradients_are_made_dense_or_refused():
    training = start(_Sparse)
    training.loss = _sparse_loss
    text = r"gradient of 'rows.weight' is sparse .* sparse_as_dense"
    training.refused(partial(train, batches=[0]), text)
    recipe = Recipe(_Sparse, lambda parameters: torch.optim.SGD(parameters, 0.1), _sparse_loss)
    compare_late(partial(train, batches=range(3)), recipe, sparse_as_dense=True)


@on_ranks(2)
def test_misuse_is_told_and_changes_nothing():
    """What is told with every schedule is in test_optimizer_{situations,guarantees}.py."""

    def misuses(training):
        train(training, [0])
        clips = [True]

        def clip(*_):
            if clips:
                nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3)

        training.optimizer.register_step_pre_hook(clip)
        text = r"were written to after backward.*clip_grad_norm_"
        training.refused(partial(train, batches=[1]), text)
        clips.clear()
        train(training, range(1, 3))

    training = compare(misuses, NET, schedule="decoupled")
    training.model.double()
    with pytest.raises(ValueError, match=r"parameter '0.weight' is now of torch.float64, shape"):
        training.step()


@on_ranks(2)
def test_parameters_without_memory_of_their_own_are_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    text = r"'0.weight' and '1.weight' overlap in memory"
    with pytest.raises(ValueError, match=rf"{text} .*nn.Parameter"):
        wrap(model)
    model[1].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=text):
        wrap(model)
    model[1].weight = model[0].weight
    model.register_buffer("bias", model[1].bias.detach()[:1])
    with pytest.raises(ValueError, match=r"overlap in memory"):
        wrap(model)
    model.bias = torch.zeros(1)
    bare = nn.Linear(300, 300)
    bare.weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"parameter 'weight': Parameter .* no memory of its own"):
        wrap(bare)
    optimizer = wrap(model)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


@on_ranks(2)
def test_only_new_parameters_mend_a_failure():
    """Neither a new job does, nor what is written to a copy of the model."""
    training = start()
    model, optimizer = training.model, training.optimizer
    average = copy.deepcopy(model)
    train(training, range(2)).optimizer.flush()
    gone = r"the network has gone; .* load parameters"
    optimizer._aiacc_exchange._fail("the network has gone")
    average.load_state_dict(net().state_dict())
    hvd.broadcast_parameters(average.state_dict(), 0)
    hvd.broadcast_parameters(list(average.named_parameters()), 0)
    with pytest.raises(CollectiveError, match=gone):
        optimizer.flush()
    model.load_state_dict(average.state_dict())
    train(training, range(2, 4))
    optimizer.consolidate_state_dict(None)
    optimizer._aiacc_exchange._fail("the network has gone")
    hvd.shutdown()
    hvd.init()
    with pytest.raises(CollectiveError, match=gone):
        loss(model, hvd.rank(), 2)
    hvd.broadcast_parameters(list(model.named_parameters()), 0)
    train(training, range(4, 6)).optimizer.flush()
    check_same_everywhere(model)


def _lose_rank_2(folder):
    """It waits until the others are here, too."""
    if hvd.rank() == 2:
        for fifo in folder.iterdir():
            fifo.open().close()
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        (folder / str(hvd.rank())).open("w").close()


@pytest.fixture
def folder(tmp_path):
    """With a pipe of each survivor."""
    for survivor in ("0", "1"):
        os.mkfifo(tmp_path / survivor)
    return tmp_path


@pytest.mark.parametrize("when", ["scatter", "gather"])
@on_ranks(3, missing=(2,))
def test_a_rank_that_dies(when, folder):
    training = train(start(), range(2))
    model, optimizer = training.model, training.optimizer
    optimizer.flush()
    before = copied(model.parameters())
    exchange = optimizer._aiacc_exchange

    def gather():  # all shards have their gradients, the parameters are not sent
        del exchange._gather
        _lose_rank_2(folder)
        exchange._gather()

    if when == "gather":
        exchange._gather = gather
        if hvd.rank() == 2:
            train(training, range(2, 3))
    else:
        _lose_rank_2(folder)
        with pytest.raises(hvd.CollectiveError):
            train(training, range(2, 3))
        assert all(map(torch.equal, before, model.parameters()))
        return
    for call in (
        lambda: train(training, range(2, 4)),  # the forward pass of the second, at the latest
        model.state_dict,
        optimizer.step,
    ):
        with pytest.raises(hvd.CollectiveError, match="has updated this rank's part of the param"):
            call()
    saved = {name: torch.zeros_like(p) for name, p in net().named_parameters()}
    model.load_state_dict(saved)
    assert all(value.eq(0).all() for value in model.state_dict().values())


# --- several optimizers, and what ends or comes between while parameters are under way


def _made_anew(steps, training):
    """An optimizer of the same model; the first one is dropped later, as by `gc`."""
    train(training, range(steps))
    old = training.optimizer
    if isinstance(training, Alone):
        training.optimizer = sgd(training.model.parameters())
        train(training, range(5))
        return
    training.optimizer = wrap(training.model)
    for hook in old._aiacc_exchange._hooks:
        hook.remove()
    train(training, range(3))
    del old
    gc.collect()
    assert all_awaited(training.optimizer)
    train(training, range(3, 5))


def _dropped(training):
    """What is under way when an optimizer is dropped comes nevertheless."""
    train(training, range(3))
    training.optimizer = None
    gc.collect()
    assert all(type(parameter) is nn.Parameter for parameter in training.model.parameters())


def _passes_set_late(training):
    """Gradients that have left are waited for: the next pass adds to them in their memory."""
    train(training, range(3))
    training.zero_grad()
    training.backward(3)
    if not isinstance(training, Alone):
        assert in_flight.held
        training.optimizer.set_backward_passes_per_step(2)
        assert not in_flight.held
    for batch in (4, 5):
        training.backward(batch)
    training.step()


def _wait_interrupted(training):
    """A wait that is interrupted loses nothing: the next use waits again."""
    wait = part_module.wait

    def interrupt(handle, tensors):
        part_module.wait = wait
        raise KeyboardInterrupt

    train(training, range(3))
    if not isinstance(training, Alone):
        part_module.wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            loss(training.model, hvd.rank(), 3)
    train(training, range(3, 5))


_SITUATIONS = [
    *(partial(_made_anew, steps) for steps in (0, 1, 3)),
    *(_dropped, _passes_set_late, _wait_interrupted),
]


@on_ranks(2, each={"situation": _SITUATIONS, "compares": [compare, compare_late]})
def test_what_one_process_learns(situation, compares):
    compares(situation, NET, **DECOUPLED)


@on_ranks(2)
def test_gradients_that_have_left_stay_in_memory_until_another_ranks_have_come():
    """Though the model and the optimizer are dropped."""
    training = train(start(), range(3))
    training.optimizer.flush()
    training.zero_grad()
    if hvd.rank() == 1:
        hvd.barrier()
    training.backward(3)
    if hvd.rank() == 0:
        memory = [
            tensor.untyped_storage().data_ptr()
            for bucket in training.optimizer._aiacc_exchange.buckets
            for tensor in (bucket._gradients, bucket.gradient)
        ]
        del training
        gc.collect()
        used = [tensor for tensors in in_flight.held.values() for tensor in tensors]
        assert {tensor.untyped_storage().data_ptr() for tensor in used}.issuperset(memory)
        hvd.barrier()
    else:
        training.optimizer._aiacc_exchange.reduce()
    hvd.barrier()


@on_ranks(2, each={"where": ["hide", "gather"]})
def test_a_step_that_is_interrupted(where):
    """While `step` hides parameters; uses raise until there are new values."""
    training = train(start(), range(3))
    model, optimizer = training.model, training.optimizer
    optimizer.flush()
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    bucket = optimizer._aiacc_exchange.buckets[1]
    if where == "hide":

        class _Interrupts(list):
            def __getitem__(self, position):
                bucket._covers = covers  # once
                raise KeyboardInterrupt

            def __iter__(self):
                return iter([self[0]])

        covers = bucket._covers
        bucket._covers = _Interrupts()
    else:
        (part,) = bucket._parts
        begin, part._gather = part._gather, None  # any error
    with pytest.raises(KeyboardInterrupt if where == "hide" else AssertionError):
        train(training, [3])
    if where == "gather":
        part._gather = begin
    for parameter in model.parameters():
        with pytest.raises(hvd.CollectiveError, match=r"has updated this rank's part of the param"):
            parameter.sum()
    model.load_state_dict(saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name])
    train(training, range(4, 6))
    check_same_everywhere(model)


@on_ranks(2)
def test_children_of_a_fork_have_current_values():
    """As workers of a DataLoader; and they end."""
    expected, training = alone(NET), start()
    with gathers_late():
        for one in (expected, training):
            train(one, range(3))
        child = os.fork()
        if child == 0:
            equal = all(map(torch.equal, training.model.parameters(), expected.model.parameters()))
            del training
            gc.collect()
            os._exit(0 if equal else 1)
        assert os.waitpid(child, 0)[1] == 0
        for one in (expected, training):
            train(one, range(3, 5))
        check_learned(training.model, expected.model, exactly=True)


@on_ranks(2)
def test_a_thread_that_reads_during_a_step_waits():
    """It uses a parameter before its gather has started."""
    expected, training = train(alone(NET), range(3)), train(start(), range(2))
    begin, found = Bucket.gather, []
    last = list(training.model.parameters())[-1]
    reader = threading.Thread(target=lambda: found.append(last.clone()))

    def gather(bucket):
        if bucket is training.optimizer._aiacc_exchange.buckets[0]:
            reader.start()
            reader.join(0.3)  # it would have the values of before by then
        begin(bucket)

    Bucket.gather = gather
    train(training, [2])
    Bucket.gather = begin
    reader.join()
    assert torch.equal(found[0], list(expected.model.parameters())[-1])
    check_learned(training.model, expected.model, exactly=True)


@on_ranks(2)
def test_the_end_of_a_rank_waits_for_the_parameters():
    """Rank 1 ends at once after the last step; rank 0 reads parameters later."""
    expected, training = train(alone(NET), range(2)), start()
    with gathers_late():
        train(training, range(2))
        if hvd.rank() == 1:
            hvd.shutdown()
        else:
            training.optimizer.flush()
        assert not training.optimizer.awaited
        assert all(map(torch.equal, training.model.parameters(), expected.model.parameters()))
