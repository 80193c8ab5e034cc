"""What comes from elsewhere: states of torch, complex numbers, rates of one element."""

import pytest
import torch

from aiacc.optim import LAMB, LARS, AdamSGD

OWN = [LARS, LAMB, AdamSGD]


def _parameters():
    generator = torch.Generator().manual_seed(1)
    shapes = ((4, 5), (5,))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def _step(optimizer, parameters):
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    "other",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.25, momentum=0.9),
        lambda groups: torch.optim.SGD(groups, lr=0.25),
        lambda groups: torch.optim.Adam(groups, lr=0.25),
    ],
)
def test_it_goes_on_from_a_state_of_torch(kind, other):
    before, after = _parameters(), _parameters()
    saved = other([{"params": [one]} for one in before])
    _step(saved, before)
    # The bias is in a group of its own: LARS and LAMB see to that by themselves.
    groups = [{"params": [one]} for one in after]
    optimizer = kind(groups) if kind is AdamSGD else kind(after, trust_clamp=(0.0, 2.0))
    own = [{**group} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved.state_dict())
    for group, mine in zip(optimizer.param_groups, own, strict=True):
        assert set(mine) <= set(group)
        assert group["lr"] == 0.25  # as it was saved
        assert group.get("adapt") == mine.get("adapt")  # as it is here
        assert group.get("trust_clamp") == mine.get("trust_clamp")
    _step(optimizer, after)
    for parameter, start in zip(after, _parameters(), strict=True):
        assert torch.isfinite(parameter).all()
        assert not torch.equal(parameter, start)


def test_a_state_of_other_groups_is_refused():
    optimizer = LARS(_parameters())
    with pytest.raises(ValueError, match="parameter groups"):
        optimizer.load_state_dict(torch.optim.SGD(_parameters(), lr=1.0).state_dict())


@pytest.mark.parametrize("kind", [LAMB, AdamSGD])
def test_complex_numbers_are_refused_where_squares_are_taken(kind):
    parameter = torch.ones(3, 4, dtype=torch.complex64, requires_grad=True)
    optimizer = kind([parameter])
    with pytest.raises(ValueError, match=r"complex64 .*view_as_real"):
        _step(optimizer, [parameter])


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize("foreach", [None, False, True])
def test_a_rate_of_one_element_is_one_without_dimensions(kind, foreach):
    found = []
    for lr in (torch.tensor(0.125), torch.tensor([0.125])):
        parameters = [one.detach().double().requires_grad_() for one in _parameters()]
        parameters.append(torch.tensor(3.0, dtype=torch.float64, requires_grad=True))
        optimizer = kind(parameters, lr=lr, foreach=foreach)
        for _ in range(3):
            _step(optimizer, parameters)
        found.append([parameter.detach() for parameter in parameters])
    assert all(map(torch.equal, *found))
    assert not torch.equal(found[0][0], _parameters()[0].double())


@pytest.mark.parametrize("kind", [LAMB, AdamSGD])
def test_one_beta_is_refused(kind):
    with pytest.raises(ValueError, match=r"betas=.* two"):
        kind(_parameters(), betas=(0.9,))
