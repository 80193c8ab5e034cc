"""The pure decisions of the decoupled schedule: layout, buckets, state, classes."""

import copy
import io
import pickle
import random

import pytest
import torch

from aiacc.torch.decoupled.classes import ELEMENTWISE, check_elementwise
from aiacc.torch.decoupled.division import buckets
from aiacc.torch.decoupled.layout import divide
from aiacc.torch.decoupled.state import Form, Piece, cut, join
from aiacc.torch.reducer.plan import ALIGNMENT_BYTES, Gradient, Planner, by_size
from aiacc.torch.reducer.watched import Gradient as Counted


def test_each_element_of_a_parameter_is_in_one_shard():
    numbers = random.Random(1)
    for _ in range(300):
        sizes = [numbers.choice([0, 1, 3, 16, 17, 250]) for _ in range(numbers.randint(1, 9))]
        ranks, width = numbers.randint(1, 9), numbers.choice([2, 4, 8])
        parts = numbers.randint(1, 4)
        layout = divide(sizes, width, ranks, parts)
        assert layout.shard * width % ALIGNMENT_BYTES == 0
        assert layout.elements < sum(sizes) + (ranks * parts + len(sizes)) * ALIGNMENT_BYTES
        owner = {}
        for rank in range(ranks):
            end_of_last = 0
            for member, begin, end, offset in layout.segments(rank):
                assert offset >= end_of_last
                end_of_last = offset + end - begin
                part, within = divmod(offset, layout.shard)
                assert within + end - begin <= layout.shard
                in_part = layout.offsets[member] + begin - part * layout.part
                assert in_part == rank * layout.shard + within
                for element in range(begin, end):
                    assert owner.setdefault((member, element), rank) == rank
        assert sorted(owner) == [(m, e) for m, size in enumerate(sizes) for e in range(size)]


def _gradients(kinds):
    return [Gradient(f"p{i}", 100, 4, dtype, device) for i, (dtype, device) in enumerate(kinds)]


def test_buckets_have_neighbours_of_one_kind_or_follow_a_plan():
    kinds = [("float32", 0), ("float32", 0), ("float32", 0), ("bfloat16", 0), ("float32", 1)]
    assert buckets(by_size(900), _gradients(kinds)) == [[0, 1], [2], [3], [4]]
    backward = Planner(lambda _: [[4, 3], [2, 0]], "declared", "plan")
    assert buckets(backward, _gradients([("float32", 0)] * 5)) == [[0, 2], [1], [3, 4]]
    mixed = Planner(lambda _: [[2, 1, 0]], "declared", "plan")
    kinds = [("float32", 0), ("bfloat16", 0), ("float32", 0)]
    assert buckets(mixed, _gradients(kinds)) == [[0, 2], [1]]
    twice = Planner(lambda _: [[0, 1], [1]], "declared", "plan")
    with pytest.raises(ValueError, match=r"plan: a plan of buckets"):
        buckets(twice, _gradients([("float32", 0)] * 2))


def _plain():
    parameters = [
        torch.nn.Parameter(torch.randn(4, 5)),
        torch.nn.Parameter(torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)),
        torch.nn.Parameter(torch.tensor(2.0)),
        torch.nn.Parameter(torch.randn(1)),
    ]
    groups = [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}]
    return parameters, torch.optim.NAdam(groups, 0.1)


def test_what_is_cut_for_the_ranks_is_a_copy_that_is_joined_again():
    torch.manual_seed(0)
    parameters, optimizer = _plain()
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    whole = optimizer.state_dict()
    forms = [Form(tuple(p.shape), p.stride()) for p in parameters]
    of_ranks = [
        [[Piece(0, 0, 11)], [Piece(1, 0, 24)]],
        [[Piece(0, 11, 20)], [Piece(2, 0, 1), Piece(3, 0, 1)]],
    ]
    parts = [cut(whole, pieces, forms) for pieces in of_ranks]
    assert [group["params"] for group in parts[1]["param_groups"]] == [[0], [1, 2]]
    assert parts[0]["param_groups"][0]["lr"] == 0.5
    assert parts[1]["state"][1]["exp_avg"].shape == (1,)
    assert parts[1]["state"][1]["step"].shape == ()
    flat_pieces = [[piece for group in of_rank for piece in group] for of_rank in of_ranks]
    for order in (1, -1):  # common entries come from whichever rank has them first
        states = [part["state"] for part in parts[::order]]
        joined = join(states, flat_pieces[::order], forms)
        torch.testing.assert_close(joined, whole["state"], rtol=0, atol=0, check_stride=True)
    part = parts[0]["state"][0]
    part["step"] += 1
    part["exp_avg"] += 1
    assert whole["state"][0]["step"] == 1
    assert whole["state"][0]["exp_avg"].max() < 1


def test_the_state_of_another_model_is_refused():
    _, optimizer = _plain()
    with pytest.raises(
        ValueError, match=r"2 parameter groups with 4 parameters .expected 1 with 1"
    ):
        cut(optimizer.state_dict(), [[Piece(0, 0, 1)]], [Form((1,), (1,))])


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_classes_that_are_taken_update_parts_as_they_update_the_whole(kind):
    torch.manual_seed(0)
    start, gradients = torch.randn(7), torch.randn(4, 7)
    whole = torch.nn.Parameter(start.clone())
    parts = [torch.nn.Parameter(start[:3].clone()), torch.nn.Parameter(start[3:].clone())]
    check_elementwise(one := kind([whole], lr=0.05))
    two = kind(parts, lr=0.05)
    for gradient in gradients:
        whole.grad, parts[0].grad, parts[1].grad = gradient, gradient[:3], gradient[3:]
        one.step()
        two.step()
    assert torch.equal(whole, torch.cat([p.detach() for p in parts]))


class _Rows(torch.optim.SGD):
    """What a subclass does is not known."""


class _Declared(torch.optim.SGD):
    is_elementwise = True


def test_other_classes_are_refused_unless_they_declare_it():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    for kind in (getattr(torch.optim, n, _Rows) for n in ("LBFGS", "Adafactor", "Muon", "_Rows")):
        with pytest.raises(ValueError, match=f"'decoupled' with {kind.__name__} .expected one of"):
            check_elementwise(kind([weight], lr=0.1))
    check_elementwise(_Declared([weight], lr=0.1))


def test_writes_to_the_data_of_gradients_are_counted_and_copies_are_plain():
    memory = torch.arange(6.0)
    parameter = torch.nn.Parameter(torch.zeros(2, 2))
    parameter.grad = memory[1:5].view(2, 2).as_subclass(Counted)
    parameter.grad.data.clamp_(max=2.0)
    assert memory.tolist() == [0.0, 1.0, 2.0, 2.0, 2.0, 5.0]
    assert memory._version == 1
    parameter.grad.data = torch.ones(2, 2)
    assert parameter.grad.sum() == 4.0
    assert memory._version == 1
    gradient = torch.arange(3.0).as_subclass(Counted)
    file = io.BytesIO()
    torch.save(gradient, file)
    file.seek(0)
    copies = [torch.load(file, weights_only=True), pickle.loads(pickle.dumps(gradient))]
    for found in (*copies, copy.deepcopy(gradient), gradient.clone(), gradient.data):
        assert type(found) is torch.Tensor
        assert torch.equal(found, gradient)
