"""What codecs lose of gradients, which bucket has it, and PowerSGD of one bucket."""

import copy

import pytest
import torch

import aiacc.torch as hvd
from aiacc.compression.codecs import BF16, MSTopK, Quantised
from aiacc.compression.feedback import NoFeedback, Residual
from aiacc.compression.policy import Policy
from aiacc.compression.wire import wire_of
from aiacc.torch.compression.compressors import Compression
from aiacc.torch.reducer.feedback import Feedback, feedback_of
from aiacc.torch.reducer.low_rank import LowRank
from aiacc.torch.reducer.storage import flat_buckets

SHAPE = (128, 128)
TOPK = Policy(MSTopK())


def _named(**shapes):
    return [(name, torch.zeros(shape, requires_grad=True)) for name, shape in shapes.items()]


def _numbered(parameter):
    return torch.arange(parameter.numel()).view(parameter.shape)


def _fill(feedback, named):
    """Residuals as after a step: the number of the element in its parameter."""
    feedback.codec(hvd.Sum, named)([torch.zeros_like(p) for _, p in named])
    for name, parameter in named:
        feedback.residuals[name].copy_(_numbered(parameter))


@pytest.fixture(autouse=True)
def _as_hooks_run(job_of_one):
    with torch.no_grad():
        yield


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


def test_residuals_stay_where_they_are_and_are_float32_whatever_the_default_is():
    torch.set_default_dtype(torch.float64)
    try:
        weight = torch.zeros(SHAPE, dtype=torch.float32)
        for flat in (None, flat_buckets([weight])):
            feedback = Feedback(TOPK)
            encode = feedback.codec(hvd.Sum, [("weight", weight)], flat)
            sent = [weight if flat is None else flat.memory]
            (first,), (second,) = encode(sent).residuals, encode(sent).residuals
            assert first.dtype == torch.float32
            assert first.data_ptr() == second.data_ptr()
            assert first.data_ptr() == feedback.residuals["weight"].data_ptr()
    finally:
        torch.set_default_dtype(torch.float32)


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


# --- the scale of the loss


def test_only_a_scaler_is_noticed():
    model = torch.nn.Linear(128, 128)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), compression="topk"
    )
    optimizer.feedback.settle()
    assert not optimizer._step_supports_amp_scaling
    assert not optimizer.feedback.follows, "one that asks is not the scaler"
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with torch.enable_grad():
        scaler.scale(model(torch.ones(1, 128)).sum()).backward()
    scaler.step(optimizer)
    assert optimizer.feedback.follows
    assert optimizer.feedback.state_dict()["scale"] == 16.0
    copied = copy.deepcopy(optimizer.feedback)
    assert copied.follows, "its own may skip its first step"
    copied.settle()
    assert not copied.follows, "a copy notices its own"


def test_a_skipped_step_is_undone_with_one_that_was_dropped_before_its_end():
    feedback, named = Feedback(TOPK), _named(a=SHAPE)
    feedback.follow(torch.amp.GradScaler("cpu", init_scale=8.0))
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


# --- states


def test_a_state_replaces_all_that_was_left_and_one_of_other_names_is_refused():
    named = _named(a=SHAPE, b=SHAPE)
    feedback = Feedback(TOPK)
    before = feedback.state_dict()
    encode = feedback.codec(hvd.Sum, named)
    _fill(feedback, named)
    after = feedback.state_dict()["kept"]["residual"]["a"]
    feedback.load_state_dict(before)
    assert after.equal(_numbered(after)), "a copy"
    for residual in encode([p for _, p in named]).residuals:
        assert not residual.any()
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


@pytest.mark.parametrize("state", [{}, {"kept": {}}, None])
def test_what_is_no_state_is_an_error_that_says_so(state):
    with pytest.raises(ValueError, match=r"without .*factors, .*\(expected what state_dict\(\)"):
        Feedback(TOPK).load_state_dict(state)


# --- PowerSGD, as far as steps of jobs do not show it: see tests/parallel/compression

SHAPES = {"a": (12, 20), "bias": (7,), "b": (6, 4, 3, 3)}
PLACES = [("a", 0), ("b", 2)]


def _low_rank_step(rank, given, factors):
    """Gradients and residuals of two ranks after a step with these gradients."""
    gradients = [[gradient.clone() for gradient in mine] for mine in given]
    residuals = [[torch.zeros(SHAPES[name]) for name, _ in PLACES] for _ in range(2)]
    members = [LowRank(rank, PLACES, own) for own in factors]
    each = zip(members, gradients, residuals, strict=True)
    first = sum(one.begin(mine, left) for one, mine, left in each)
    second = sum([one.project(first.clone()) for one in members])
    for one in members:
        one.finish(second)
    return gradients, residuals


def _gradients_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(s, generator=generator) for s in SHAPES.values()] for _ in range(2)]


def test_a_low_rank_as_large_as_the_matrix_is_the_sum():
    given = _gradients_of(0)
    results, residuals = _low_rank_step(100, given, [{}, {}])
    for place in range(3):
        torch.testing.assert_close(results[0][place], given[0][place] + given[1][place])
    for residual in (*residuals[0], *residuals[1]):
        assert residual.abs().max() < 1e-4


def test_gradients_of_zeros_do_not_end_powersgd():
    factors = [{}, {}]
    _low_rank_step(2, [[torch.zeros(shape) for shape in SHAPES.values()]] * 2, factors)
    assert _low_rank_step(2, _gradients_of(0), factors)[0][0][0].any()


def test_powersgd_of_gradients_on_a_gpu_is_refused():
    with pytest.raises(ValueError, match=r"powersgd of gradients on GPUs \(expected host memory"):
        LowRank(1, [("a", 0)], {}).begin([torch.zeros(3, 3, device="meta")], [None])
