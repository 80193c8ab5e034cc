"""What codecs lose of gradients, and which bucket has it."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch

import aiacc.torch as hvd
from aiacc.compression.codecs import BF16, MSTopK, Quantised, RandomK, parse
from aiacc.compression.feedback import EF21, NoFeedback, Residual
from aiacc.compression.policy import Policy
from aiacc.compression.wire import wire_of
from aiacc.torch.compression.compressors import Compression
from aiacc.torch.reducer.feedback import Feedback, feedback_of
from aiacc.torch.reducer.storage import flat_buckets

SHAPE = (128, 128)
TOPK = Policy(MSTopK())


def _named(**shapes):
    return [(name, torch.zeros(shape, requires_grad=True)) for name, shape in shapes.items()]


def _fill(feedback, named, flat=None):
    """Residuals as after a step: the number of the element in its parameter."""
    sent = [flat.memory] if flat else [torch.zeros_like(p) for _, p in named]
    encoded = feedback.codec(hvd.Sum, named, flat)(sent)
    for name, parameter in named:
        feedback.residuals[name].copy_(torch.arange(parameter.numel()).view(parameter.shape))
    return encoded


def _numbered(parameter):
    return torch.arange(parameter.numel()).view(parameter.shape)


@pytest.fixture(autouse=True)
def _job_of_one():
    hvd.init()
    with torch.no_grad():  # as hooks run
        yield
    hvd.shutdown()


# --- whose gradients are coded


def test_a_bucket_is_coded_if_most_of_it_is_the_policys():
    feedback = Feedback(Policy(Quantised("int4"), dense=BF16))
    for named, codec in (
        (_named(weight=SHAPE), Quantised("int4")),
        (_named(weight=SHAPE, bias=(128,)), Quantised("int4")),
        (_named(bias=(128,)), BF16),
        (_named(small=(16, 16)), BF16),
        (_named(weight=SHAPE, vector=(20000,)), BF16),
    ):
        encoded = feedback.codec(hvd.Average, named)([p for _, p in named])
        assert encoded.wire == wire_of(codec), named[0][0]
        assert len(encoded.residuals) == (len(named) if codec != BF16 else 0)


def test_other_dtypes_travel_as_they_are():
    named = [("single", torch.zeros(SHAPE)), ("double", torch.zeros(2, dtype=torch.float64))]
    encoded = Feedback(TOPK).codec(hvd.Average, named)([p for _, p in named])
    assert encoded.wire == 0
    assert not encoded.residuals


def test_what_stands_for_a_policy():
    assert feedback_of(Compression.none) is None
    assert feedback_of(Compression.bf16) is None
    assert feedback_of(Compression.int8).policy == Policy(Quantised("int8"))
    assert feedback_of(Compression.int8).policy.keeps == NoFeedback()
    assert feedback_of(Compression.mstopk()).policy.keeps == Residual()
    assert feedback_of(TOPK).policy is TOPK


def test_what_an_unbiased_codec_loses_is_not_kept():
    assert Policy(RandomK(unbiased=True)).keeps == NoFeedback()
    assert Policy(RandomK()).keeps == Residual()
    with pytest.raises(ValueError, match=r"residual with randomk:unbiased=true \(expected"):
        Policy(RandomK(unbiased=True), feedback=Residual())


def test_patterns_that_match_no_parameter_are_said():
    policy = Policy(MSTopK(), exclude=("0.weight", "*.embeding.*"))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    said = r"pattern '\*\.embeding\.\*' matches no parameter .*2 names, .*'0\.weight'.*; fix it, or"
    with pytest.warns(UserWarning, match=said):
        hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=policy)
    with pytest.warns(UserWarning, match=said):
        hvd.HookState(compression=policy, named_parameters=model.named_parameters())
    with pytest.warns(UserWarning, match=r"'0\.weight', '\*\.embeding\.\*' .*'parameter\.0'"):
        hvd.HookState(compression=policy)
    hvd.HookState(compression=Policy(MSTopK(), exclude=("parameter.7",)))  # there may be one


# --- residuals


def test_residuals_are_float32_whatever_the_default_is():
    torch.set_default_dtype(torch.float64)
    try:
        feedback = Feedback(TOPK)
        named = [("weight", torch.zeros(SHAPE, dtype=torch.float32))]
        (residual,) = _fill(feedback, named).residuals
        flat = flat_buckets([named[0][1]])
        (flat_residual,) = _fill(feedback, named, flat).residuals
    finally:
        torch.set_default_dtype(torch.float32)
    assert residual.dtype == flat_residual.dtype == torch.float32


def test_they_are_the_memory_that_the_core_uses():
    feedback = Feedback(TOPK)
    named = _named(a=SHAPE, b=(200, 100))
    encode = feedback.codec(hvd.Sum, named)
    tensors = [p for _, p in named]
    first, second = encode(tensors).residuals, encode(tensors).residuals
    assert [one.data_ptr() for one in first] == [one.data_ptr() for one in second]
    assert [one.data_ptr() for one in first] == [
        feedback.residuals[name].data_ptr() for name in "ab"
    ]


def test_buckets_that_are_formed_anew_keep_residuals():
    """Alone, then flat, then fused in memory of their own: each element keeps its own."""
    weight = torch.zeros(64, 32, 3, 3).to(memory_format=torch.channels_last)
    named = [("conv", weight.requires_grad_()), *_named(linear=(130, 129))]
    feedback = Feedback(Policy(Quantised("int4")))
    for one in named:
        _fill(feedback, [one])
    flat = flat_buckets([p for _, p in named])
    (memory,) = feedback.codec(hvd.Sum, named, flat)([flat.memory]).residuals
    assert memory.shape == flat.memory.shape
    for (name, parameter), view in zip(named, flat.views, strict=True):
        place = memory.as_strided(view.shape, view.stride(), view.storage_offset())
        assert place.equal(_numbered(parameter)), "where the gradient is in the flat memory"
        assert feedback.residuals[name].data_ptr() == place.data_ptr()
    kept = feedback.codec(hvd.Sum, named)([p for _, p in named]).residuals
    for residual, (_, parameter) in zip(kept, named, strict=True):
        assert residual.is_contiguous()
        assert residual.equal(_numbered(parameter).view(-1))


def test_steps_are_those_of_gradients_not_of_buckets():
    policy = Policy(Quantised("int8"), dense_steps=3)
    feedback = Feedback(policy)
    a, b = _named(a=SHAPE, b=SHAPE)

    def step(named):
        return feedback.codec(hvd.Sum, named)([p for _, p in named]).wire

    assert [step([a, b]), step([b, a]), step([a, b])] == [0, 0, 0]
    assert step([b]) == step([a]) == step([b, a]) == wire_of(policy.codec)


def test_a_parameter_of_another_shape_has_a_residual_of_that():
    feedback = Feedback(TOPK)
    named = _named(weight=SHAPE)
    encode = feedback.codec(hvd.Sum, named)
    encode([torch.zeros(SHAPE)])
    (residual,) = encode([torch.zeros(200, 200)]).residuals
    assert residual.numel() == 200 * 200
    assert not residual.any()


def test_what_is_not_contiguous_is_sent_and_kept_in_the_order_of_its_elements():
    named = [("weight", torch.zeros(128, 256).t())]
    gradient = torch.arange(128 * 256.0).view(128, 256).t()
    encoded = Feedback(TOPK).codec(hvd.Sum, named)([gradient])
    (sent,), (residual,) = encoded.tensors, encoded.residuals
    assert sent.is_contiguous()
    assert residual.is_contiguous()
    assert sent.shape == gradient.shape
    assert residual.numel() == gradient.numel()
    sent.mul_(2)
    encoded.decode(0, True)
    assert gradient[1, 2] == 2 * (2 * 256 + 1)


def test_beta_lets_go_of_a_part():
    feedback = Feedback(Policy(MSTopK(), feedback=Residual(beta=0.5)))
    named = _named(weight=SHAPE)
    _fill(feedback, named)
    (residual,) = feedback.codec(hvd.Sum, named)([torch.zeros(SHAPE)]).residuals
    assert residual.equal(_numbered(residual) / 2)


def test_flush_sends_what_is_left_once_and_densely():
    for prescale in (1.0, 0.25):
        feedback = Feedback(TOPK, prescale)
        named = _named(weight=SHAPE)
        _fill(feedback, named)
        feedback.flush()
        gradient = torch.ones(SHAPE)
        encoded = feedback.codec(hvd.Sum, named)([gradient])
        assert encoded.wire == 0
        assert not encoded.residuals
        # What is submitted is multiplied by the factor; residuals are of what that gives.
        assert (prescale * gradient).equal(prescale + _numbered(gradient))
        assert feedback.residuals["weight"].any(), "they may not arrive"
        encoded.decode(0, False)
        assert not feedback.residuals["weight"].any()
        assert feedback.codec(hvd.Sum, named)([gradient]).wire == wire_of(TOPK.codec)


def test_the_gradient_before_of_another_rank_is_refused_even_without_residuals():
    """EF21 would go on with the difference between the two for ever."""
    feedback, named = Feedback(Policy(MSTopK(), feedback=EF21())), _named(weight=SHAPE)
    encode = feedback.codec(hvd.Sum, named)
    encode([torch.ones(SHAPE)])
    feedback.flush()
    encode([torch.ones(SHAPE)])
    state = {**feedback.state_dict(), "rank_and_size": (1, 2)}
    with pytest.raises(ValueError, match=r"rank 1 of 2 .*rank 0 of 1.*not with EF21"):
        feedback.load_state_dict(state)


def test_a_copy_begins_with_a_dense_step_after_a_join_too():
    first, named = Feedback(Policy(Quantised("int8"), dense_steps=1)), _named(weight=SHAPE)
    coding = first.codec(hvd.Sum, named)([torch.ones(SHAPE)]).wire
    second = copy.deepcopy(first)
    hvd.join()
    for feedback in (first, second):
        encode = feedback.codec(hvd.Sum, named)
        dense, coded = encode([torch.ones(SHAPE)]).wire, encode([torch.ones(SHAPE)]).wire
        assert (coding, dense, coded) == (0, 0, wire_of(Quantised("int8")))
        assert not feedback.kept.names()  # int8 keeps nothing, and needs no memory for it


def test_copies_of_optimizers_have_the_feedback_of_their_codecs():
    model = torch.nn.Linear(128, 128)
    first = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression="topk"
    )
    for second in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert second.feedback is not first.feedback
        assert second.feedback is second._reducer.options.codec.__self__


# --- the scale of the loss


class _Scaler:
    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


def test_residuals_follow_the_scale_of_the_loss_whatever_buckets_there_are():
    feedback, scaler = Feedback(TOPK), _Scaler(8.0)
    feedback.follow(scaler)
    a, b = _named(a=SHAPE, b=SHAPE)
    for one in (a, b):
        _fill(feedback, [one])
    scaler.scale = 4.0
    for named in ([a], [b], [a, b]):
        for residual in feedback.codec(hvd.Sum, named)([p for _, p in named]).residuals:
            assert residual.equal(_numbered(residual) / 2)


def test_the_scaler_that_steps_is_noticed_and_another_that_takes_its_place():
    feedback, named = Feedback(TOPK), _named(a=SHAPE)
    encode = feedback.codec(hvd.Sum, named)
    _fill(feedback, named)
    feedback.settle()
    scaler = _Scaler(8.0)
    feedback.notice(scaler)
    assert feedback.state_dict()["scale"] == 8.0
    assert feedback.residuals["a"].equal(_numbered(named[0][1]).to(torch.float32)), "in that scale"
    feedback.notice(scaler)
    scaler.scale = 4.0
    (residual,) = encode([torch.zeros(SHAPE)]).residuals
    assert residual.equal(_numbered(residual) / 2)
    other = _Scaler(4.0)
    feedback.notice(other)
    scaler.scale, other.scale = 16.0, 8.0
    (residual,) = encode([torch.zeros(SHAPE)]).residuals
    assert residual.equal(_numbered(residual))
    copied = copy.deepcopy(feedback)
    assert copied.follows, "its own may skip its first step"
    copied.settle()
    assert not copied.follows, "a copy notices its own"


def test_only_a_scaler_is_noticed():
    model = torch.nn.Linear(128, 128)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression="topk"
    )
    optimizer.feedback.settle()
    assert not optimizer._step_supports_amp_scaling
    assert not optimizer.feedback.follows
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with torch.enable_grad():
        scaler.scale(model(torch.ones(1, 128)).sum()).backward()
    scaler.step(optimizer)
    assert optimizer.feedback.follows
    assert optimizer.feedback.state_dict()["scale"] == 16.0


def test_a_state_has_the_scale_that_its_residuals_are_in():
    scaler, named = _Scaler(8.0), _named(weight=SHAPE)
    first = Feedback(TOPK)
    first.follow(scaler)
    _fill(first, named)
    state = first.state_dict()
    second = Feedback(TOPK)
    second.codec(hvd.Sum, named)
    second.follow(scaler)
    second.load_state_dict(state)
    (residual,) = second.codec(hvd.Sum, named)([torch.zeros(SHAPE)]).residuals
    assert residual.equal(_numbered(residual))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_step_that_a_scaler_skips_is_undone_in_all_buckets(bad):
    feedback, scaler = Feedback(TOPK), _Scaler(8.0)
    feedback.follow(scaler)
    named = _named(a=SHAPE, b=SHAPE)
    codecs = [feedback.codec(hvd.Sum, [one]) for one in named]
    for one in named:
        _fill(feedback, [one])
    feedback.settle()
    for spoilt in (True, False):
        results = [torch.zeros(SHAPE), torch.zeros(SHAPE)]
        for encode, result in zip(codecs, results, strict=True):
            encoded = encode([result])
            for residual in encoded.residuals:
                residual.fill_(7.0)  # as the core does
            if spoilt and result is results[0]:
                result[3, 4] = bad
            encoded.decode(0, True)
        feedback.settle()
        for name, parameter in named:
            expected = _numbered(parameter) if spoilt else torch.full(SHAPE, 7)
            assert feedback.residuals[name].equal(expected.to(torch.float32)), name


def test_a_skipped_step_is_undone_with_one_that_was_dropped_before_its_end():
    feedback, named = Feedback(TOPK), _named(a=SHAPE)
    feedback.follow(_Scaler(8.0))
    encode = feedback.codec(hvd.Sum, named)
    _fill(feedback, named)
    feedback.settle()
    for _ in range(2):
        result = torch.full(SHAPE, float("nan"))
        encoded = encode([result])
        encoded.residuals[0].fill_(float("nan"))
        encoded.decode(0, True)
    feedback.settle()
    assert feedback.residuals["a"].equal(_numbered(named[0][1]).to(torch.float32))


def test_a_state_and_a_flush_have_nothing_of_a_skipped_step():
    for call in (Feedback.state_dict, Feedback.flush):
        feedback = Feedback(TOPK)
        feedback.follow(_Scaler(8.0))
        named = _named(a=SHAPE)
        encode = feedback.codec(hvd.Sum, named)
        _fill(feedback, named)
        feedback.settle()
        result = torch.full(SHAPE, float("nan"))
        encoded = encode([result])
        encoded.residuals[0].fill_(7.0)
        encoded.decode(0, True)
        call(feedback)
        assert feedback.residuals["a"].equal(_numbered(named[0][1]).to(torch.float32))


# --- states


def test_a_state_goes_on_where_it_ended():
    named = _named(a=SHAPE, b=(200, 100))
    policy = Policy(MSTopK(), dense_steps=1, stages=2, stage_steps=1)
    feedback = Feedback(policy)
    for one in named:
        dense = feedback.codec(hvd.Sum, [one])([one[1]])
        assert not dense.residuals
        _fill(feedback, [one])
    state = feedback.state_dict()
    feedback.residuals["a"].zero_()
    assert state["kept"]["residual"]["a"].equal(_numbered(named[0][1])), "a copy"
    flat = flat_buckets([p for _, p in named])
    for new in (None, flat):
        other = Feedback(policy)
        other.codec(hvd.Sum, named, new)
        other.load_state_dict(state)
        encode = other.codec(hvd.Sum, named, new)
        encoded = encode([flat.memory] if new else [p for _, p in named])
        assert encoded.wire == wire_of(policy.codec_at(2))
        for name, parameter in named:
            assert other.residuals[name].equal(_numbered(parameter))


def test_a_state_replaces_all_that_was_left():
    named = _named(a=SHAPE, b=SHAPE)
    feedback = Feedback(TOPK)
    before = feedback.state_dict()
    encode = feedback.codec(hvd.Sum, named)
    _fill(feedback, named)
    feedback.load_state_dict(before)
    for residual in encode([p for _, p in named]).residuals:
        assert not residual.any()


@pytest.mark.parametrize("shape", [(64, 256), (100, 200)])
def test_a_state_of_another_model_is_refused_and_changes_nothing(shape):
    feedback = Feedback(TOPK)
    _fill(feedback, _named(a=SHAPE, weight=shape))
    state = feedback.state_dict()
    other = Feedback(TOPK)
    named = _named(a=SHAPE, weight=SHAPE)
    other.codec(hvd.Sum, named)
    text = rf"residual of 'weight' of shape {re.escape(str(shape))} \(expected \(128, 128\)\)"
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(state)
    for residual in other.codec(hvd.Sum, named)([p for _, p in named]).residuals:
        assert not residual.any()


def test_a_state_of_other_names_is_refused():
    feedback = Feedback(TOPK)
    _fill(feedback, _named(weight=SHAPE))
    state = feedback.state_dict()
    other = Feedback(TOPK)
    other.load_state_dict(state)  # before anything is known of the model
    other = Feedback(TOPK)
    other.codec(hvd.Sum, _named(**{"module.weight": SHAPE}))
    with pytest.raises(ValueError, match=r"'weight' for one \(expected names such as 'module\."):
        other.load_state_dict(state)
    other.codec(hvd.Sum, _named(weight=SHAPE))
    other.load_state_dict(state)


def test_a_state_of_another_rank_is_refused_unless_it_is_flushed():
    feedback = Feedback(TOPK)
    _fill(feedback, _named(a=SHAPE))
    state = {**feedback.state_dict(), "rank_and_size": (1, 4)}
    with pytest.raises(ValueError, match=r"of rank 1 of 4 \(expected rank 0 of 1\).*flush\(\)"):
        Feedback(TOPK).load_state_dict(state)
    state["kept"]["residual"]["a"].zero_()
    Feedback(TOPK).load_state_dict(state)


def test_names_of_codecs_are_those_of_compressors():
    assert str(Compression.mstopk(0.02, "exact")) == str(parse("mstopk:density=0.02,mode=exact"))


@pytest.mark.parametrize("state", [{}, {"kept": {}}, None])
def test_what_is_no_state_is_an_error_that_says_so(state):
    with pytest.raises(ValueError, match=r"without .*factors, .*\(expected what state_dict\(\)"):
        Feedback(TOPK).load_state_dict(state)


def test_a_policy_is_not_for_a_reduce_scatter():
    for call in (hvd.reducescatter, lambda one, **rest: hvd.grouped_reducescatter([one], **rest)):
        with pytest.raises(ValueError, match=r"Policy.* of a reduce-scatter .*use Compression\.bf"):
            call(torch.ones(4), compression=TOPK)
