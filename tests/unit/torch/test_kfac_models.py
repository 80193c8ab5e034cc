"""KFAC of models: layers that have no factors or change between steps, and contexts of steps."""

import copy
import io
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import aiacc.torch as hvd
from aiacc.torch.kfac.solvers import SOLVERS
from tests.unit.torch.kfac_steps import backward, copied, layered, training


def _plain(model, **options):
    """K-FAC of plain SGD with its defaults."""
    return hvd.KFAC(model, torch.optim.SGD(model.parameters(), 0.1), **options)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4)
        self.skipped = nn.Sequential(nn.Linear(4, 4))
        self.kept = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight
        self.frozen.weight.requires_grad = False

    def forward(self, tokens):
        found = self.skipped(self.frozen(self.norm(self.table(tokens))))
        return self.head(self.kept(found))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.kept = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.kept(self.normed(self.attention(tokens, tokens, tokens)[0]))


class _Biases(nn.Sequential):
    def __init__(self):
        names = "pruned", "bounded", "one", "other", "kept"
        super().__init__(OrderedDict((name, nn.Linear(4, 4)) for name in names))
        prune.identity(self.pruned, "bias")
        nn.utils.parametrize.register_parametrization(self.bounded, "bias", nn.Tanh())
        self.other.bias = self.one.bias


@pytest.mark.parametrize(
    ("make", "inputs", "reasons"),
    [
        (_Tied, torch.tensor([0, 1]), {"table": "its weight is that of head, too", "frozen": ""}),
        (
            _Attention,
            torch.randn(3, 2, 4),
            {"attention.out_proj": "without calling it", "normed": "is computed from others"},
        ),
        (
            _Biases,
            torch.randn(3, 4),
            {"pruned": "as by pruning", "bounded": "as by pruning", "one": "bias is that of other"},
        ),
    ],
)
def test_layers_without_factors_are_left_to_the_optimizer_with_a_reason(make, inputs, reasons):
    model = make()
    kfac = _plain(model, skip_layers=["skipped"] if make is _Tied else [])
    model(inputs).square().sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    kfac.step()
    for name, gradient in before.items():
        changed = not torch.equal(model.get_parameter(name).grad, gradient)
        assert changed == name.startswith("kept"), name
    assert kfac.report().inverted_by == {0: ["kept A", "kept G"]}
    for name, reason in reasons.items():
        assert reason in kfac.report().left_out[name] in str(kfac.report())


def test_a_complex_layer_is_left_to_the_optimizer():
    kfac = _plain(nn.Sequential(nn.Linear(4, 5, dtype=torch.complex64), nn.Linear(5, 3)))
    assert kfac.report().left_out == {"0": "the weight of Linear is complex"}


@pytest.mark.usefixtures("job_of_one")
def test_layers_that_the_distributed_optimizer_does_not_have_are_left_to_others():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), nn.Linear(3, 2)).double()
    some = [*model[0].parameters(), model[2].weight]
    named = [(name, one) for name, one in model.named_parameters() if any(one is o for o in some)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(some, 0.1), named)
    kfac = hvd.KFAC(model, optimizer, kl_clip=None)
    backward(model)
    before = [one.grad.clone() for one in model.parameters()]
    kfac.step()
    changed = [
        not torch.equal(one.grad, old) for one, old in zip(model.parameters(), before, strict=True)
    ]
    assert changed == [True, True, False, False, False, False]
    reason = "the DistributedOptimizer does not have its parameters"
    assert {name: kfac.report().left_out[name] for name in "23"} == {"2": reason, "3": reason}


@pytest.mark.parametrize("fisher", ["empirical", "mc"])
@pytest.mark.parametrize("solve", SOLVERS)
def test_a_layer_that_is_frozen_for_some_steps_is_left_alone_and_taken_up_again(fisher, solve):
    model, sgd, kfac = training(fisher=fisher, solve=solve)

    def step(number):
        torch.manual_seed(number)
        sgd.zero_grad(set_to_none=number % 2 == 0)
        outputs = model(torch.randn(8, 3).double())
        if fisher == "mc":
            kfac.sample(outputs, nn.MSELoss())
        outputs.square().mean().backward()
        before = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
        kfac.step()
        return before

    step(0)
    kept = copied(kfac)
    model[0].requires_grad_(False)
    for number in (1, 2):
        before = step(number)
        assert not torch.equal(model[2].weight.grad, before[2])
    assert kfac.report().left_out["0"] == "the weight of Linear is frozen"
    same = {n: torch.equal(one, kept[n]) for n, one in kfac.state_dict()["factors"].items()}
    assert same == {"0 A": True, "0 G": True, "2 A": False, "2 G": False}
    model[0].requires_grad_(True)
    before = step(3)
    assert not torch.equal(model[0].weight.grad, before[0])
    assert "0" not in kfac.report().left_out


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_whose_bias_is_frozen_or_trained_later_is_left_to_the_optimizer(frozen):
    model = layered()
    model[0].bias.requires_grad_(frozen)
    model, sgd, kfac = training(model)
    backward(model)
    kfac.step()
    model[0].bias.requires_grad_(not frozen)
    sgd.zero_grad()
    backward(model)
    before = model[0].weight.grad.clone()
    kfac.step()
    assert torch.equal(model[0].weight.grad, before)
    assert "its bias is" in kfac.report().left_out["0"]


def test_a_step_in_a_block_of_autocast_is_computed_in_full():
    found = []
    for within in (False, True):
        model, _, kfac = training(layered().float())
        model(torch.ones(8, 3)).square().mean().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within):
            kfac.step()
        found.append(model[0].weight.grad)
    assert torch.equal(*found)


def test_a_model_with_hooks_can_be_saved_and_copied_as_a_whole():
    model, _, kfac = training()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    inputs = torch.randn(3, 3).double()
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        other(inputs).sum().backward()
        assert torch.equal(other(inputs), model(inputs))
    backward(model)
    kfac.step()
    assert model[0].weight.grad is not None


@pytest.mark.usefixtures("job_of_one")
def test_passes_of_a_step_may_change_between_two():
    factors = []
    for passes in (1, 2):
        model = layered()
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
        kfac = hvd.KFAC(model, optimizer, factor_every=1, decay=0.0)
        backward(model)
        kfac.step()
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(passes)
        for part in (slice(0, 6),) if passes == 1 else (slice(0, 3), slice(3, 6)):
            backward(model, 2, 1 / passes, part)
        kfac.step()
        factors.append(copied(kfac))
    torch.testing.assert_close(*factors)


class _Checkpointed(nn.Module):
    """Computes its layers once more in the backward pass."""

    def __init__(self):
        super().__init__()
        self.layers = layered()

    def forward(self, inputs):
        return checkpoint(self.layers, inputs, use_reentrant=False)


@pytest.mark.parametrize("make", [_Checkpointed, layered])
def test_a_pass_whose_gradients_are_dropped_before_the_first_step_counts_nothing(make):
    states = []
    for passes in (0, 1, 2):
        model, sgd, kfac = training(make())
        for number in range(passes):
            sgd.zero_grad()
            backward(model, 9 + number)
        for number in range(3):
            sgd.zero_grad()
            backward(model, number)
            kfac.step()
            sgd.step()
        states.append(copied(kfac))
    for state in states[1:]:
        torch.testing.assert_close(state, states[0], rtol=0, atol=0)


def _of_the_input(model, kfac, loss):
    inputs = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    ((slope.sum(1) - 1).square().mean() + loss()).backward()


def _sampled_twice(model, kfac, loss):
    losses = []
    for _ in range(2):
        outputs = model(torch.randn(8, 3).double())
        kfac.sample(outputs, nn.MSELoss())
        losses.append(outputs.square().mean())
    sum(losses).backward()


def _sharpness_aware(model, kfac, loss):
    loss().backward()
    model.zero_grad()
    loss().backward()


@pytest.mark.parametrize(
    ("step", "fisher", "uses"),
    [
        (_of_the_input, "empirical", (2, 3)),
        (_sampled_twice, "mc", (2, 2)),
        (_sharpness_aware, "empirical", (2, 2)),
    ],
)
def test_steps_of_several_passes_count_them_in_every_step(step, fisher, uses, recwarn):
    model, sgd, kfac = training(fisher=fisher)
    for _ in range(4):
        sgd.zero_grad()
        step(model, kfac, lambda: model(torch.randn(8, 3).double()).square().mean())
        kfac.step()
    layer = kfac._layers[0]
    assert (layer.a.uses_per_pass, layer.g.uses_per_pass) == uses
    assert not recwarn.list


def test_passes_that_are_added_up_before_the_first_step_all_count():
    states = []
    for passes in (1, 2):
        model, _, kfac = training()
        for _ in range(passes):
            backward(model)
        kfac.step()
        states.append(copied(kfac))
    # As if the layers were used twice.
    expected = {name: (1 + name.endswith("G")) * one for name, one in states[0].items()}
    torch.testing.assert_close(states[1], expected)


class _Words(nn.Module):
    """Predicts a class of each token of N sequences of S, in the form that ``how`` says."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.table, self.at = nn.Embedding(7, 4), nn.Embedding(8, 4)
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 5)
        self.double()

    def forward(self, tokens, classes):
        found = self.table(tokens) + self.at(torch.arange(tokens.shape[1]))
        if self.how == "flat inside":
            found = found.flatten(0, 1)
        found = self.body(found).tanh()
        found = checkpoint(self.head, found, use_reentrant=self.how == "the loss alone")
        if self.how == "pooled":
            return found.mean(1), nn.functional.cross_entropy(found.mean(1), classes[:, 0])
        loss = nn.functional.cross_entropy(found.reshape(-1, 5), classes.reshape(-1))
        return None if self.how == "the loss alone" else {"logits": found}, loss


def _g_of_words(how, length, times, **options):
    """Factors G and the loss terms, of three tokens that are repeated, alike at all places."""
    torch.manual_seed(3)
    model = _Words(how)
    model.at.weight.data[:] = model.at.weight.data[:1]
    kfac = _plain(model, factor_every=1, **options)
    tokens = torch.tensor([[0], [3], [6]]).repeat(times, length)
    model(tokens, tokens % 5)[1].backward()
    kfac.step()
    found = {name: one for name, one in copied(kfac).items() if name.endswith("G")}
    return found, kfac.report().loss_terms


@pytest.mark.parametrize(
    ("how", "skip_layers"),
    [("plain", []), ("plain", ["head"]), ("flat inside", []), ("the loss alone", [])],
)
def test_g_is_the_same_for_any_number_of_tokens_in_an_example(how, skip_layers):
    one, terms = _g_of_words(how, 1, 1, skip_layers=skip_layers)
    assert terms == 3
    for length, times in ((8, 1), (2, 3)):
        found, terms = _g_of_words(how, length, times, skip_layers=skip_layers)
        assert terms == 3 * length * times
        found["at G"] *= one["at G"].trace() / found["at G"].trace()  # has sums over examples
        torch.testing.assert_close(found, one)


def test_terms_are_examples_where_tokens_are_pooled_and_may_be_given():
    one, _ = _g_of_words("pooled", 1, 1)
    found, terms = _g_of_words("pooled", 8, 1)
    assert terms == 3
    torch.testing.assert_close(found["head G"], one["head G"] / 8)  # of each token an eighth
    given, _ = _g_of_words("pooled", 8, 1, loss_terms=24)
    torch.testing.assert_close(given["head G"], one["head G"])
    asked = []
    given, _ = _g_of_words("pooled", 8, 1, loss_terms=lambda: asked.append(1) or torch.tensor(6))
    assert asked == [1]
    torch.testing.assert_close(given["head G"], 2 * found["head G"])
    nothing, _ = _g_of_words("pooled", 8, 1, loss_terms=lambda: 0)
    assert not nothing


@pytest.mark.parametrize(("ignored", "reduction"), [(-100, "mean"), (2, "mean"), (2, "sum")])
def test_sampled_targets_leave_out_what_the_loss_ignores(ignored, reduction):
    torch.manual_seed(4)
    model = nn.Linear(3, 4).double()
    kfac = _plain(model, factor_every=1, fisher="mc")
    inputs = torch.cat([torch.randn(20_000, 3), 9 * torch.ones(5000, 3)]).double()
    targets = torch.tensor([0, ignored]).repeat_interleave(torch.tensor([20_000, 5000]))
    loss = nn.CrossEntropyLoss(ignore_index=ignored, reduction=reduction)
    outputs = model(inputs)
    kfac.sample(outputs, loss, targets)
    loss(outputs, targets).backward()
    kfac.step()
    assert kfac.report().loss_terms == 20_000
    exact = outputs[:20_000].detach().softmax(1)
    exact = torch.diag(exact.mean(0)) - exact.T @ exact / 20_000
    torch.testing.assert_close(kfac.state_dict()["factors"][" G"], exact, rtol=0, atol=0.01)
    with pytest.raises(ValueError, match=r"targets of shape \(3,\) .expected \(25000,\)"):
        kfac.sample(model(inputs), loss, targets[:3])
