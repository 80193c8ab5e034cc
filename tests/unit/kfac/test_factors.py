"""Factors beside curvlinops 3, which computes them from modules in its own way."""

import itertools
import warnings

import pytest
import torch
from torch import nn

from aiacc.kfac.factors import MicroBatches, average, gradient_factor, input_factor
from aiacc.kfac.fisher import sample_targets, terms_of
from aiacc.kfac.rows import by_places, factor_shapes, patches, why_not
from tests.unit.kfac.networks import factors_of, record

with warnings.catch_warnings():
    # What it imports scripts functions for torch.jit.
    warnings.simplefilter("ignore", DeprecationWarning)
    from curvlinops import KFACLinearOperator


def image_network(convolution):
    torch.manual_seed(0)
    last = nn.Linear(4 * convolution.out_channels, 3)
    layers = convolution, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), last
    return nn.Sequential(*layers).double()


def their_factors(model, inputs, targets, loss, approx="expand", kind="empirical"):
    """A and G by name of layer; biases are columns of the matrices."""
    operator = KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(inputs, targets)],
        fisher_type=kind,
        mc_samples=1,
        kfac_approx=approx,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    operator.compute_kronecker_factors()
    return operator._input_covariances, operator._gradient_covariances


def compare(model, inputs, targets, loss, approx="expand", theirs=1.0, **of_loss):
    """Factors beside those of curvlinops; its G is ``theirs`` times ours."""
    ours = factors_of(model, inputs, lambda o: loss(o, targets).backward(), approx, **of_loss)
    inputs_of, gradients_of = their_factors(model, inputs, targets, loss, approx)
    assert set(ours) == set(inputs_of)
    for name, (a, g) in ours.items():
        assert (tuple(a.shape), tuple(g.shape)) == factor_shapes(model.get_submodule(name))
        for found, expected in ((a, inputs_of[name]), (theirs * g, gradients_of[name])):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(2, 4, 3, bias=False),
        nn.Conv2d(2, 4, (2, 3), dilation=(3, 1), stride=(2, 1), padding=(2, 0)),
        nn.Conv2d(2, 4, 1),
    ],
    ids=str,
)
def test_convolutions_as_curvlinops(convolution, approx):
    """Whatever their patches are: see below."""
    inputs, targets = torch.randn(5, 2, 9, 9).double(), torch.tensor([0, 1, 2, 1, 0])
    compare(image_network(convolution), inputs, targets, nn.CrossEntropyLoss(), approx)


class Tokens(nn.Module):
    """The mean over tokens, or their classes on axis 1, as a cross entropy wants them."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def forward(self, values):
        return values.mean(1) if self.mean else values.movedim(-1, 1)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_linear_layers_on_sequences_as_curvlinops(approx):
    torch.manual_seed(1)

    def net(*rest):
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *rest).double()

    inputs, classes = torch.randn(6, 7, 4).double(), torch.tensor([0, 1, 2, 1, 0, 2])
    model = net(nn.Linear(5, 6, bias=False), Tokens(True), nn.Linear(6, 3))
    for loss, scale in ((nn.CrossEntropyLoss(), 1.0), (nn.CrossEntropyLoss(reduction="sum"), 6.0)):
        # Theirs is of the sum over examples, ours of the mean.
        compare(model, inputs, classes, loss, approx, theirs=scale, loss_scale=scale)
    # A loss of each token has as many terms.
    model, classes = net(nn.Linear(5, 3), Tokens(False)), torch.randint(3, (6, 7))
    compare(model, inputs, classes, nn.CrossEntropyLoss(), approx, loss_terms=42)
    # Theirs multiplies squared errors with the root of the number of outputs.
    targets = torch.randn(6, 3).double()
    compare(net(nn.Linear(5, 3)), inputs[:, 0], targets, nn.MSELoss(), approx, theirs=3)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_a_convolution_with_groups_is_that_many_convolutions(approx):
    grouped = nn.Conv2d(4, 6, 3, groups=2, stride=2, padding=1).double()
    inputs = torch.randn(5, 4, 7, 7).double()
    gradients = torch.randn(5, 6, 4, 4).double()
    a = input_factor(grouped, inputs, approx=approx)
    # Few rows are taken in the order of weights at once, and columns of many put into it.
    assert [by_places(grouped, part) for part in (inputs, inputs[:1])] == [True, False]
    parts = sum(input_factor(grouped, inputs[n : n + 1], approx=approx) for n in range(5)) / 5
    torch.testing.assert_close(a, parts)
    g = gradient_factor(grouped, gradients, approx=approx)
    assert (tuple(a.shape), tuple(g.shape)) == factor_shapes(grouped) == ((2, 19, 19), (2, 3, 3))
    alone = nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
    for group in range(2):
        mine = inputs[:, 2 * group : 2 * group + 2]
        torch.testing.assert_close(a[group], input_factor(alone, mine, approx=approx))
        mine = gradients[:, 3 * group : 3 * group + 3]
        torch.testing.assert_close(g[group], gradient_factor(alone, mine, approx=approx))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kind, {"padding": padding, "padding_mode": mode, "dilation": dilation, "groups": groups})
        for kind, padding, mode, dilation, groups in itertools.product(
            (nn.Conv1d, nn.Conv2d, nn.Conv3d),
            ("valid", 1, "same"),
            ("zeros", "reflect", "circular"),
            (1, 2),
            (1, 2),
        )
    ],
    ids=str,
)
def test_patches_times_weights_are_the_convolution(kind, options):
    """Even kernels, too, for which "same" pads more behind than before; it has no strides."""
    axes = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[kind]
    stride = 1 if options["padding"] == "same" else (2, 1, 3)[:axes]
    module = kind(4, 6, (2, 3, 2)[:axes], stride, **options).double()
    inputs = torch.randn(2, 4, *(5, 6, 7)[:axes]).double()
    found = patches(module, inputs)
    weight = module.weight.view(options["groups"], -1, 4 // options["groups"], *module.kernel_size)
    letters = "xyz"[:axes]
    result = torch.einsum(
        f"ngc{letters}{letters.upper()},goc{letters.upper()}->ngo{letters}", found, weight
    )
    bias = module.bias.view(-1, *[1] * axes)
    torch.testing.assert_close(result.flatten(1, 2) + bias, module(inputs))


def test_wide_layers_whose_products_are_computed_by_halves():
    torch.manual_seed(8)
    module = nn.Conv2d(64, 300, 3, padding=1, groups=2).double()  # 288 inputs of each group
    inputs = torch.randn(3, 64, 16, 15).double()
    gradients = torch.randn(3, 300, 16, 15).double()
    a = input_factor(module, inputs)
    rows = patches(module, inputs).permute(1, 0, 3, 4, 2, 5, 6).reshape(2, 720, 288)
    rows = torch.cat([rows, rows.new_ones(2, 720, 1)], 2)
    torch.testing.assert_close(a, rows.mT @ rows / 720)
    assert torch.equal(a, a.mT)
    # Parts of few rows are multiplied as a whole, in sums with others that are not.
    torch.testing.assert_close(
        input_factor(module, inputs, patch_bytes=2 * 64 * 240 * 9 * 8), a, rtol=1e-12, atol=1e-12
    )
    alone = nn.Conv2d(64, 300, 3, padding=1).double()
    rows = gradients.permute(0, 2, 3, 1).reshape(720, 300)
    torch.testing.assert_close(gradient_factor(alone, gradients), 3 * rows.T @ rows)


def test_embeddings_are_layers_on_ones_and_one_example_needs_no_axis():
    embedding = nn.Embedding(5, 3).double()
    linear = nn.Linear(5, 3, bias=False).double()
    indices, gradients = torch.tensor([[0, 1, 1], [4, 4, 1]]), torch.randn(2, 3, 3).double()
    ones = nn.functional.one_hot(indices, 5).double()
    torch.testing.assert_close(
        torch.diag(input_factor(embedding, indices)), input_factor(linear, ones)
    )
    torch.testing.assert_close(
        gradient_factor(embedding, gradients), gradient_factor(linear, gradients)
    )
    assert factor_shapes(embedding) == ((5,), (3, 3))
    module = nn.Linear(3, 2)
    x, g = torch.randn(3), torch.randn(2)
    torch.testing.assert_close(input_factor(module, x), input_factor(module, x[None]))
    torch.testing.assert_close(gradient_factor(module, g), gradient_factor(module, g[None]))


def test_float32_under_autocast_and_without_the_scale_of_the_loss():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, targets = torch.randn(64, 8), torch.randint(3, (64,))
    scale = torch.tensor(2.0**16)

    def backward(outputs):
        (nn.functional.cross_entropy(outputs.float(), targets) * scale).backward()

    plain = factors_of(model, inputs, lambda o: backward(o / scale * scale), loss_scale=scale)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = record(model, inputs, backward)
        assert seen["2"][0].dtype == seen["2"][1].dtype == torch.bfloat16
        for name, (a, g) in seen.items():
            module = model.get_submodule(name)
            found = input_factor(module, a), gradient_factor(module, g, loss_scale=scale)
            for ours, exact in zip(found, plain[name], strict=True):
                assert ours.dtype == torch.float32
                # As far as bfloat16's inputs allow: products of their own would be as coarse again.
                torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.02 * float(exact.max()))
            rows = torch.cat([a.double(), a.new_ones(64, 1).double()], 1)
            torch.testing.assert_close(found[0].double(), rows.T @ rows / 64, rtol=1e-5, atol=1e-6)


def test_half_precision_gradients_do_not_overflow_in_their_squares():
    module = nn.Linear(3, 2)
    gradients = torch.full((4, 2), 6e4, dtype=torch.float16)
    scale = torch.tensor(2.0**24)
    found = gradient_factor(module, gradients, loss_scale=scale)
    exact = gradient_factor(module, gradients.double(), loss_scale=2.0**24)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_micro_batches_add_up_to_the_batch():
    torch.manual_seed(5)
    model = image_network(nn.Conv2d(2, 4, 3))
    inputs, targets = torch.randn(12, 2, 9, 9).double(), torch.randint(3, (12,))
    loss = nn.CrossEntropyLoss()
    whole = factors_of(model, inputs, lambda o: loss(o, targets).backward())
    sums = {name: (MicroBatches(), MicroBatches()) for name in whole}
    # The loss of each part is weighted as its examples are, so that gradients add up to the mean.
    for start, stop in ((0, 6), (6, 8), (8, 12)):
        share = (stop - start) / 12
        parts = factors_of(
            model,
            inputs[start:stop],
            lambda o, y=targets[start:stop], share=share: (loss(o, y) * share).backward(),
            loss_scale=share,
        )
        for name, pair in parts.items():
            for total, factor in zip(sums[name], pair, strict=True):
                total.add(factor, stop - start)
    for name, pair in whole.items():
        for total, factor in zip(sums[name], pair, strict=True):
            torch.testing.assert_close(total.take(), factor)
            assert total.take() is None


def test_frozen_parameters():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    assert factor_shapes(module) == ((3, 3), (2, 2))
    assert input_factor(module, torch.randn(4, 3)).shape == (3, 3)
    module.weight.requires_grad_(False)
    assert "frozen" in why_not(module)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.BatchNorm2d(3), "BatchNorm2d has no Kronecker factors"),
        (nn.ConvTranspose2d(3, 4, 3), "ConvTranspose2d has no"),
        (nn.Embedding(3, 4, sparse=True), "sparse=scale_grad_by_freq=False"),
        (nn.LazyLinear(3), "run a forward pass first"),
    ],
)
def test_what_has_no_factors_is_said(module, text):
    assert text in why_not(module)
    with pytest.raises(TypeError, match=text):
        factor_shapes(module)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: input_factor(m, torch.ones(4, 3), approx="shrink"), "one of expand, reduce"),
        (lambda m: gradient_factor(m, torch.ones(4, 2), approx="shrink"), "one of expand, reduce"),
        (lambda m: input_factor(m, torch.ones(0, 3)), "expected one example"),
        (lambda m: gradient_factor(m, torch.ones(0, 2)), "expected one example"),
        (lambda m: gradient_factor(m, torch.ones(4, 2), loss_terms=0), "loss_terms 0"),
        (lambda m: MicroBatches().add(torch.ones(2, 2), 0), "weight 0"),
        *(
            (lambda m, decay=decay: average(None, torch.ones(2, 2), decay), "0 <= decay < 1")
            for decay in (-0.1, 1.0, float("nan"))
        ),
    ],
)
def test_bad_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call(nn.Linear(3, 2))


# --- targets that are drawn from what a network predicts: for factors of the true Fisher matrix


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss()], ids=str)
def test_sampled_targets_as_curvlinops_and_its_exact_factors(loss):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = torch.randn(20, 3).double()
    targets = torch.randint(3, (20,)) if isinstance(loss, nn.CrossEntropyLoss) else inputs
    _, exact = their_factors(model, inputs, targets, loss, kind="type-2")
    generator = torch.Generator().manual_seed(6)
    many = inputs.repeat(5000, 1)
    found = factors_of(
        model, many, lambda o: loss(o, sample_targets(o, loss, generator)).backward()
    )
    for name, (_, g) in found.items():
        expected = exact[name]
        torch.testing.assert_close(g, expected, rtol=0, atol=0.03 * float(expected.max()))


def test_targets_have_the_form_that_the_loss_takes_also_of_two_classes():
    outputs = torch.randn(2, 5, 3, 4, requires_grad=True)
    drawn = sample_targets(outputs, nn.CrossEntropyLoss())
    assert drawn.shape == (2, 3, 4)
    assert drawn.dtype == torch.long
    assert not drawn.requires_grad
    nn.CrossEntropyLoss()(outputs, drawn)
    drawn = sample_targets(outputs.half(), nn.MSELoss())
    assert (drawn.shape, drawn.dtype) == (outputs.shape, torch.float16)
    same = [
        sample_targets(outputs, nn.MSELoss(), torch.Generator().manual_seed(8)) for _ in range(2)
    ]
    assert torch.equal(*same)
    outputs = torch.tensor([[-1.0], [0.5]]).double().repeat(50_000, 1).requires_grad_()
    loss = nn.BCEWithLogitsLoss()
    drawn = sample_targets(outputs, loss, torch.Generator().manual_seed(7))
    (gradients,) = torch.autograd.grad(loss(outputs, drawn) * len(outputs), outputs)
    p = outputs.detach().sigmoid()
    torch.testing.assert_close(
        (gradients**2).view(-1, 2).mean(0), (p * (1 - p))[:2, 0], rtol=0.02, atol=0
    )


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (nn.L1Loss(), "draw them yourself"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "smoothing"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), "expected neither"),
        (nn.BCEWithLogitsLoss(), "a mean over 3 outputs"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3), reduction="sum"), "expected no weights"),
    ],
)
def test_losses_without_a_distribution(loss, text):
    with pytest.raises(TypeError, match=text):
        sample_targets(torch.randn(2, 3), loss)


@pytest.mark.parametrize(
    ("outputs", "places", "channels", "terms"),
    [
        ((6, 3), 6, 3, 6),
        ((3,), 1, 3, 1),  # one example without an axis
        ((6, 1000), 6 * 49, 512, 6),  # by a head without factors
        ((6, 10), 6 * 169, 10, 6),  # pooled
        ((6, 21, 64, 32), 6 * 8 * 4, 21, 6 * 64 * 32),  # scaled up
        ((6, 64, 32), 6 * 64 * 32, 1, 6 * 64 * 32),
        ((6, 2, 28, 28), 6, 2 * 784, 6),  # another shape of what a linear layer gave
        ((6, 7, 50), 6 * 7, 4, 42),
        ((6, 50, 7), 6 * 7, 4, 42),
        ((), 6 * 7, 50, 42),  # a loss
    ],
    ids=str,
)
def test_how_many_terms_outputs_have(outputs, places, channels, terms):
    outputs = torch.zeros(outputs, requires_grad=True)
    given = {"mask": torch.ones(6, 7), "of": [torch.zeros((), requires_grad=True), outputs]}
    assert terms_of(given, places, channels) == terms
