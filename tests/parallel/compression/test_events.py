"""What happens between or within steps, and what becomes of what is kept with codecs.

Event -> expectation: it leaves no trace, or the next step is dense and takes all that is kept
along, or the ranks agree again.
"""

import copy
import pickle
from functools import partial
from itertools import product

import pytest
import torch

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy
from aiacc.exceptions import MismatchError
from tests.support.jobs import in_job
from tests.support.learning.coded import (
    OVER_TCP,
    Job,
    check_same,
    on_ranks_in_ddp,
    on_ranks_over_tcp,
    same,
    values_of,
)
from tests.support.ranks import run_ranks

_SHAPES = {"first": (64, 32), "second": (48, 64)}
_OPTIMIZERS = ("optimizer", "groups", "views")
_ALL_WAYS = (*_OPTIMIZERS, "hook")


def _policy(codec, feedback=None, **options):
    return Policy(parse(codec), feedback=feedback, least_elements=64, **options)


_TOPK = "topk:density=0.05"
_RESIDUALS = [
    _policy(_TOPK),
    _policy(_TOPK, Residual(beta=0.5)),
    _policy("int8", Residual()),
    _policy("int4"),
]
_EF21 = _policy(_TOPK, EF21())
_STAGES = _policy(_TOPK, stage_steps=2)
_LOW_RANK = [_policy("powersgd:rank=2"), _policy("powersgd:rank=2", Residual(beta=0.5))]
_BUT_EF21 = [*_RESIDUALS, _policy(_TOPK, Momentum(0.5)), *_LOW_RANK]
POLICIES = [*_BUT_EF21, _EF21]


def _gradients(job, step=9):
    """Of the rank; of a table of words two rows are used."""
    gradients = {
        name: values_of(100 * step + 10 * hvd.rank() + place, *parameter.shape)
        for place, (name, parameter) in enumerate(job.model.named_parameters())
    }
    if "words" in gradients:
        gradients["words"] = torch.sparse_coo_tensor([[1, 2]], torch.ones(2, 4), (10, 4))
    return gradients


def _spoilt(job, bad=torch.inf):
    """Gradients that are not finite in one element on one rank, or in all that are sparse."""
    gradients = _gradients(job)
    if "words" in gradients:
        gradients["words"] = gradients["words"] * bad
    elif hvd.rank() == 1:
        gradients["second"][3, 4] = bad
    return gradients


def _check_step(job, gradients):
    for name, total in job.step(gradients).items():
        check_same(total.to_dense(), name=name)


def _take(job, steps):
    for step in steps:
        _check_step(job, _gradients(job, step))


def _flushed(job, happens=True):
    job.feedback.flush()


def _loads_its_own(job, happens=True):
    job.feedback.load_state_dict(job.feedback.state_dict())


# --- events that leave no trace: what they do if they happen, else what is done in their place


def overflow(job, happens=True):
    """In three steps, each as a loss scaler looks for it."""
    for bad in (torch.inf, -torch.inf, torch.nan):
        if happens:
            _overflowing_step(job, bad)
        else:
            job.scaler.update(job.scaler.get_scale() / 2)


def _overflowing_step(job, bad):
    scale = job.scaler.get_scale()
    if job.state is not None or bad == torch.inf:
        job.step(_spoilt(job, bad))
    else:
        job.zero_grad()
        job.backward(_spoilt(job, bad))
        job.optimizer.synchronize()
        job.scaler.unscale_(job.optimizer)
        with job.optimizer.skip_synchronize():
            job.scaler.step(job.optimizer)
        job.scaler.update()
    assert job.scaler.get_scale() == scale / 2


def _copied(job, happens=True):
    if happens:
        job = copy.deepcopy(pickle.loads(pickle.dumps(job)))
        job.scaler.scale(torch.zeros(()))  # its scale is there only then
    return job


def _dropped(job, happens=True):
    """Gradients are under way when the optimizer is given another state."""
    for gradients in (_spoilt(job), _gradients(job)) if happens else ():
        job.zero_grad()
        job.backward(gradients)
        job.optimizer.load_state_dict(job.optimizer.state_dict())


def _failed(job, happens=True, *, frozen=False):
    """The ranks do not send the same: only one of them flushes."""
    if not happens:
        return
    if hvd.rank() == 1:
        job.feedback.flush()
    job.zero_grad()
    if frozen:
        job.model.requires_grad_(False)
    else:
        job.backward(_gradients(job))
    with pytest.raises(MismatchError):
        job.optimizer.step()
    job.model.requires_grad_(True)


def _others_had_joined(job, happens=True):
    """One rank went on alone for some steps; it sends nothing then, and so loses nothing."""
    if happens:
        for _ in range(3 * (hvd.rank() == 0)):
            job.step({name: torch.zeros(shape) for name, shape in _SHAPES.items()})
        hvd.join()


def _reloaded(job, happens=True):
    """Into a job that has been doing something else; and on in another scale."""
    if happens:
        fresh, saved = job.again(), job.saved()
        fresh.feedback.follow(fresh.scaler)
        _take(fresh, [7, 8])
        fresh.load(*saved)
        job = fresh
    if job.scaler is not None:
        job.scaler.update(64.0)
    return job


def _refused_states(job, happens=True):
    """What is no state changes nothing."""
    state = job.feedback.state_dict()
    kept = state["kept"]
    nan = {"first": torch.full(_SHAPES["first"], torch.nan)}
    wrong_states = (
        ({"kept": {}}, "'kept' of a state"),
        ({"kept": None}, "'kept' of a state: None"),
        ({"kept": {**kept, "strange": {}}}, "'kept' of a state"),
        ({"kept": {**kept, "residual": nan}}, "'residual' of 'first' of a state"),
        ({"kept": {**kept, "residual": {"first": [1.0]}}}, "'residual' of 'first' of a state"),
        (
            {"kept": {**kept, "residual": {"first": torch.ones(32, 64)}}},
            r"residual of 'first' of shape \(32, 64\) \(expected \(64, 32\)\)",
        ),
        ({"steps": None}, "'steps' of a state: None"),
        ({"factors": None}, "'factors' of a state: None"),
        ({"scale": 0}, "'scale' of a state: 0"),
        ({"scale": "x"}, "'scale' of a state: 'x'"),
        ({"flushing": None}, "'flushing' of a state: None"),
        ({"uneven": 1}, "'uneven' of a state: 1"),
        ({"rank_and_size": 5}, "'rank_and_size' of a state: 5"),
        ({"rank_and_size": (3, 5)}, r"of rank 3 of 5 \(expected rank \d of 2\).*flush\(\)"),
    )
    for wrong, what in wrong_states if happens else ():
        with pytest.raises(ValueError, match=what):
            job.feedback.load_state_dict({**state, **wrong})
    of_ef21 = isinstance(job.feedback.policy.keeps, EF21)
    other = Job(_policy(_TOPK, NoFeedback() if of_ef21 else EF21()), _SHAPES)
    with pytest.raises(ValueError, match=f"a state of {'ef21' if of_ef21 else 'residual or mom'}"):
        other.feedback.load_state_dict(state)


_WORDS = {**_SHAPES, "words": (10, 4)}
_ONE = {"second": (48, 64)}  # buckets of several change after the first step


def _case(*events, policies=POLICIES, ways=_OPTIMIZERS, shapes=_SHAPES, before=2, scale=1024.0):
    """Events; with which policies, ways and shapes, after how many steps, from which scale on."""
    return list(events), policies, ways, shapes, before, scale


NO_TRACE = {
    "overflow": _case(overflow, ways=_ALL_WAYS),
    "overflow in the first step": _case(overflow, ways=_ALL_WAYS, shapes=_ONE, before=0),
    "overflow of a flush": _case(_flushed, overflow, ways=_ALL_WAYS),
    "overflow, then a flush": _case(overflow, _flushed, ways=_ALL_WAYS),
    "overflow, then a state": _case(overflow, _loads_its_own, ways=_ALL_WAYS),
    "overflow in a copy": _case(_copied, overflow, shapes=_ONE),
    "overflow of sparse ones": _case(overflow, ways=_OPTIMIZERS[:1], shapes=_WORDS, scale=8.0),
    "dropped": _case(_dropped, scale=1.0),
    "failed": _case(_failed, policies=_BUT_EF21, before=3, scale=None),
    "failed while frozen": _case(
        partial(_failed, frozen=True), policies=_BUT_EF21, before=3, scale=None
    ),
    "others had joined": _case(_others_had_joined, policies=_RESIDUALS, scale=None),
    "reloaded": _case(_reloaded, policies=[*POLICIES, _STAGES], before=3, scale=None),
    "reloaded in another scale": _case(_reloaded),
    "refused states": _case(_refused_states, ways=_ALL_WAYS, scale=None),
}


def _outcome(events, happens, policy, way, shapes, before, scale):
    job = Job(policy, shapes, way, scale=scale)
    _take(job, range(before))
    kept = any(one.any() for one in job.kept().values())
    assert kept == (before > 0), (policy, way)
    for event in events:
        job = event(job, happens) or job
    _take(job, range(before, before + 2))
    return job.outcome()


def no_trace(events, policies, ways, *given):
    for policy, way in product(policies, ways):
        if way == "hook" and policy in _LOW_RANK:
            continue
        outcomes = [_outcome(events, one, policy, way, *given) for one in (True, False)]
        assert same(*outcomes), (policy, way)


@pytest.mark.parametrize("event", NO_TRACE)
@on_ranks_in_ddp(2)
def test_it_leaves_no_trace(event):
    no_trace(*NO_TRACE[event])


# --- events after which a step is dense, and takes all that is kept along


def _check_dense_step(job, policy, step):
    gradients, kept = _gradients(job, step), job.kept()
    totals = {}
    for name, gradient in gradients.items():
        mine = gradient.clone()
        if not isinstance(policy.keeps, EF21):
            mine += kept.get(f"residual.{name}", 0)
        if isinstance(policy.keeps, Momentum):
            mine += policy.keeps.momentum * kept.get(f"momentum.{name}", 0)
        totals[name] = hvd.allreduce(mine, op=hvd.Sum, name=f"total.{name}")
    for name, result in job.step(gradients).items():
        found = hvd.size() * result if job.averages else result
        # Numbers below 16, in up to four sums.
        torch.testing.assert_close(found, totals[name], rtol=0, atol=2**-19)
    assert not any(one.any() for one in job.feedback.residuals.values()), policy


def _flushed_with_a_newcomer(job):
    """After `init` anew there is another rank 1, which keeps nothing yet."""
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        job = job.again()
    job.feedback.flush()
    return job


def _gathered(job):
    """All go on with equal parts of what they keep together."""
    fresh, state = job.again(), job.feedback.gathered_state_dict()
    fresh.feedback.load_state_dict(state)
    everyones = job.kept()
    for name, mine in fresh.kept().items():
        if name.startswith("factors"):
            continue
        kind, _, parameter = name.partition(".")
        total = state["kept"][kind][parameter]
        if kind == "known":
            assert torch.equal(total, everyones[name])
            assert torch.equal(mine, total)
        else:
            assert torch.equal(total, hvd.allreduce(everyones[name], op=hvd.Sum))
            assert torch.equal(mine, total / 2)
    return fresh


def _loaded(job):
    fresh = job.again()
    fresh.load(*job.saved())
    return fresh


def _loaded_by_a_codec_that_keeps_nothing(job):
    fresh = Job(_policy("int8", NoFeedback()), _SHAPES)
    fresh.load(*job.saved())
    return fresh


def _nan(job):
    results = job.step(_spoilt(job, torch.nan))
    assert results["second"].isnan().any()


def _joined(job):
    """One rank has done fewer steps than the other when they go on together."""
    for step in range(2 * (hvd.rank() == 0)):
        job.step(_gradients(job, step))
    hvd.join()


_COUNTS_STEPS = [_policy(_TOPK, dense_steps=7), _STAGES, _EF21, _policy("int8", dense_steps=7)]
#: Events; with which policies and ways. Joined twice: without having learnt what step it is.
DENSE = {
    "flushed": ([_flushed], POLICIES, _ALL_WAYS),
    "flushed with a newcomer": ([_flushed_with_a_newcomer], POLICIES, ("optimizer", "views")),
    "gathered": ([_gathered], POLICIES, _ALL_WAYS),
    "loaded, to keep nothing": ([_loaded_by_a_codec_that_keeps_nothing], _RESIDUALS, ["optimizer"]),
    "failed": ([_failed], [_EF21], _OPTIMIZERS),
    "NaN without a scaler": ([_nan], [_EF21], ("optimizer", "views", "hook")),  # of one bucket
    "NaN, then loaded": ([_nan, _loaded], [_EF21], ["optimizer"]),
    "NaN, then gathered": ([_nan, _gathered], [_EF21], ["optimizer"]),
    "joined": ([_joined], _COUNTS_STEPS, _OPTIMIZERS),
    "joined twice": ([_joined, _joined], _COUNTS_STEPS, _OPTIMIZERS),
    "joined, then loaded": ([_joined, _loaded], _COUNTS_STEPS, _OPTIMIZERS),
}


def _check_state_for_another_rank(job, keeps):
    """After a flush; but EF21 would go on with the difference of two gradients for ever."""
    state = {**job.feedback.state_dict(), "rank_and_size": (3, 5)}
    if isinstance(keeps, EF21 | Momentum):
        with pytest.raises(ValueError, match=r"residuals or momentum of rank 3 .*not with EF21"):
            job.feedback.load_state_dict(state)
    else:
        job.feedback.load_state_dict(state)


def dense_step(events, policies, ways):
    for policy, way in product(policies, ways):
        if way == "hook" and policy in _LOW_RANK:
            continue
        job = Job(policy, _SHAPES, way)
        _take(job, range(3))
        for event in events:
            job = event(job) or job
        _check_dense_step(job, policy, 3)
        if events == [_flushed]:
            _check_state_for_another_rank(job, policy.keeps)
        _take(job, range(4, 12))


@pytest.mark.parametrize("event", DENSE)
@on_ranks_in_ddp(2)
def test_the_next_step_takes_all_along(event):
    dense_step(*DENSE[event])


@in_job
def _gather(folder):
    states = []
    for policy in POLICIES:
        job = Job(policy, _SHAPES)
        _take(job, range(3))
        states.append(job.feedback.gathered_state_dict())
    torch.save(states, f"{folder}/{hvd.rank()}.pt")


@in_job
def _go_on(folder):
    for policy, state in zip(POLICIES, torch.load(f"{folder}/0.pt"), strict=True):
        job = Job(policy, _SHAPES)
        job.feedback.load_state_dict(state)
        for name, mine in job.kept().items():
            kind, _, parameter = name.partition(".")
            if kind not in ("known", "factors"):
                total = hvd.allreduce(mine, op=hvd.Sum, name=name)
                torch.testing.assert_close(total, state["kept"][kind][parameter])
        _check_dense_step(job, policy, 3)


def test_other_numbers_of_ranks_go_on_with_what_all_have_kept(tmp_path):
    run_ranks(2, _gather, str(tmp_path), env=OVER_TCP)
    run_ranks(3, _go_on, str(tmp_path), env=OVER_TCP)


@on_ranks_over_tcp(2)
def test_ranks_that_come_anew_know_as_much_as_those_that_stay():
    """Rank 0 knows of a flush, and of steps, that the new rank 1 does not."""
    stages = _policy(_TOPK, dense_steps=2, stage_steps=1)
    for policy in (_EF21, stages, _policy(_TOPK), _policy("powersgd:rank=2")):
        job = Job(policy, _SHAPES)
        _take(job, range(3))
        job.feedback.flush()
        newcomer = hvd.rank() == 1
        hvd.shutdown()
        hvd.init()
        if newcomer:
            job = job.again()
        mine = job.feedback.state_dict()["kept"]["residual"]
        total = job.feedback.gathered_state_dict()["kept"]["residual"]
        for name, one in hvd.broadcast_object(mine).items():
            assert torch.equal(total[name], one)  # the newcomer keeps nothing yet
        _take(job, range(4))


@on_ranks_over_tcp(2)
def test_a_state_of_a_scaled_loss_asks_for_the_scale():
    """A state of one is not taken for one of a plain loss."""
    job = Job(_policy(_TOPK), _SHAPES, scale=1024.0)
    _take(job, range(2))
    kept = {name: one / 1024 for name, one in job.kept().items()}
    fresh = Job(_policy(_TOPK), _SHAPES)
    fresh.load(*job.saved())
    with pytest.raises(ValueError, match="the state that was loaded is of a loss times 1024"):
        fresh.step(_gradients(fresh, 2))
    fresh.feedback.follow(None)
    assert same(fresh.kept(), kept)
    _take(fresh, [2])
    with pytest.raises(TypeError, match=r"follow\(3\) \(expected a torch.amp.GradScaler"):
        fresh.feedback.follow(3)


# --- gradients that do not come: what is kept of them waits, and sends nothing


def _check_waits(job, steps):
    """What is kept of the first one, and the parameter, are as before."""
    kept, parameter = job.kept("first"), job.model.first.detach().clone()
    kept.pop("factors.first", None)
    assert any(one.any() for one in kept.values())
    for step in steps:
        _check_step(job, {"second": _gradients(job, step)["second"]})
    assert same({name: one for name, one in job.kept("first").items() if name in kept}, kept)
    assert torch.equal(job.model.first, parameter)


def _frozen(policy, way):
    job = Job(policy, _SHAPES, way)
    _take(job, range(3))
    first = job.model.first.requires_grad_(False)
    _check_waits(job, [3, 4])
    job.set_to_none = False
    _check_waits(job, [5, 6])
    job.feedback.flush()
    before = first.clone()
    job.step({"second": _gradients(job, 7)["second"]})
    assert torch.equal(first, before)
    assert not job.feedback.residuals["first"].any()
    first.requires_grad_(True)
    _take(job, [8, 9])
    assert not torch.equal(first, before)


def _frozen_on_one_rank(policy, way):
    job = Job(policy, _SHAPES, way)
    _take(job, range(2))
    first = job.model.first.requires_grad_(hvd.rank() == 1)
    before = first.detach().clone()
    for step in range(2, 5):
        gradients = _gradients(job, step)
        if hvd.rank() == 0:
            del gradients["first"]
        _check_step(job, gradients)
    assert not torch.equal(first, before)
    first.requires_grad_(True)
    _take(job, [5, 6])


def unused(policy):
    """DDP drops results of what no rank has used: nobody would get what is kept of it."""
    job = Job(policy, _SHAPES, "hook", find_unused_parameters=True)
    _take(job, range(3))
    _check_waits(job, [3, 4])
    # DDP does not have a gradient that is asked for by itself; what is loaded waits, too.
    torch.autograd.grad(job.model(_gradients(job, 0)), [job.model.first])
    job.feedback.load_state_dict(job.feedback.state_dict())
    _check_waits(job, [5])
    used = "second" if hvd.rank() == 0 else "first"
    _check_step(job, {used: _gradients(job, 6)[used]})


@on_ranks_in_ddp(2)
def test_what_is_kept_waits_while_its_gradient_does_not_come():
    randomly = _policy("randomk:density=0.05")
    for policy, way in product([*POLICIES, randomly], _OPTIMIZERS):
        _frozen(policy, way)
        _frozen_on_one_rank(policy, way)
    for policy in (_policy(_TOPK), _policy(_TOPK, Momentum())):
        unused(policy)
