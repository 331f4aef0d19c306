"""What holds of every part: closed forms are what autograd finds, steps minimise what they say, parts survive JSON."""

import json

import pytest
import torch

from catalogue import ALGORITHMS, BIASES, MEMORIES, RETENTIONS, smooth
from inputs import relative
from miras import algorithm, bias, memory, retention
from miras.types import Norm

# what has a smooth form by default has an exact one too
EXACT_BIASES = [
    *(part for part in BIASES if not smooth(part)),
    bias.Lp(p=1.5, smooth=False),
    bias.L1(smooth=False),
    bias.Huber(form="mixture"),
]


def label(part):
    return part.label


def drawn(shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("part", MEMORIES + BIASES + RETENTIONS + ALGORITHMS, ids=label)
def test_part_survives_json_and_describes_itself(part):
    kind = {"memory": memory.Memory, "bias": bias.Bias, "retention": retention.Retention, "algorithm": algorithm.Algorithm}
    assert kind[part.room].from_dict(json.loads(json.dumps(part.to_dict()))) == part
    assert hash(part) == hash(type(part)(**{k: v for k, v in part.to_dict().items() if k != "name"}))


@pytest.mark.parametrize("part", EXACT_BIASES, ids=label)
def test_bias_gradient_is_autograd(part):
    prediction = drawn((2, 3, 7, 5)).requires_grad_()
    value, delta = drawn((2, 3, 7, 5)), torch.rand(2, 3, 7, 1, dtype=torch.float64) + 0.5
    (want,) = torch.autograd.grad(part.loss(prediction, value, delta).sum(), prediction)
    assert relative(part.gradient(prediction, value, delta), want) < 1e-12


@pytest.mark.parametrize("part", BIASES, ids=label)
def test_bias_gradient_is_differentiable(part):
    prediction, value = drawn((3, 4)).requires_grad_(), drawn((3, 4)).requires_grad_()
    delta = (torch.rand(3, 1, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, v, d: part.gradient(p, v, d) + 0 * d, (prediction, value, delta))
    assert torch.autograd.gradgradcheck(lambda p, v, d: part.gradient(p, v, d) + 0 * d, (prediction, value, delta))


def test_value_shift_and_huber_at_zero_error():
    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    for part in (bias.ValueShift(delta=0.5), bias.Huber(form="norm", delta=0.0), bias.Huber(delta=0.0), bias.L1(smooth=False)):
        gradient = part.gradient(zero, torch.zeros_like(zero), None)
        assert (gradient == 0).all()
        assert torch.isfinite(torch.autograd.grad(gradient.sum(), zero, allow_unused=True)[0]).all()


@pytest.mark.parametrize("smooth", [False, True])
def test_huber_with_an_infinite_threshold_is_l2(smooth):
    prediction, value = drawn((3, 4)).requires_grad_(), drawn((3, 4))
    delta = torch.tensor(torch.inf, dtype=torch.float64, requires_grad=True)
    gradient = bias.Huber(smooth=smooth).gradient(prediction, value, delta)
    assert torch.equal(gradient, prediction - value)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(gradient.sum(), (prediction, delta)))


@pytest.mark.parametrize("part", MEMORIES, ids=label)
def test_memory_gradient_is_autograd(part):
    """The pull-back of any error to every weight, for tokens that share the weights: sums of the per-token gradients."""
    weights = tuple(drawn((2, 3, *shape)).requires_grad_() for shape in part.shapes(4, 4))
    norm = None if part.linear else Norm(drawn((3, 1, 4)), drawn((3, 1, 4)))
    x, error = drawn((2, 3, 5, 4)), drawn((2, 3, 5, 4))
    maps = part.maps(weights)
    prediction, trace = part.trace(maps, x, norm)
    want = torch.autograd.grad((prediction * error).sum(), weights)
    got = [part.gradient(factor) for factor in part.backprop(maps, trace, error)]
    assert all(relative(g, w) < 1e-12 for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("part", MEMORIES, ids=label)
@pytest.mark.parametrize("loss", BIASES, ids=label)
def test_surprise_is_differentiable_twice(part, loss):
    """Bias and memory together, as the inner loop uses them: first and second derivatives of the closed-form gradient."""
    shapes = part.shapes(2, 2)
    weights = tuple(drawn((1, 1, *shape)).requires_grad_() for shape in shapes)
    gain, shift = drawn((1, 1, 2)).requires_grad_(), drawn((1, 1, 2)).requires_grad_()
    x, value = drawn((1, 1, 1, 2)).requires_grad_(), (2 * drawn((1, 1, 1, 2))).requires_grad_()
    delta = torch.tensor(0.7, dtype=torch.float64)

    def surprise(x, value, gain, shift, *weights):
        maps = part.maps(weights)
        prediction, trace = part.trace(maps, x, None if part.linear else Norm(gain, shift))
        factors = part.backprop(maps, trace, loss.gradient(prediction, value, delta))
        return sum(part.gradient(f).sum() for f in factors) + 0 * (gain.sum() + shift.sum())

    arguments = (x, value, gain, shift, *weights)
    assert torch.autograd.gradcheck(surprise, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(surprise, arguments, fast_mode=True, atol=1e-4)


def test_unknown_parts_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"unknown bias 'Hubert': known are .*Huber"):
        bias.Bias.from_dict({"name": "Hubert"})
    with pytest.raises(ValueError, match="Lp has no parameter 'q'"):
        bias.Bias.from_dict({"name": "Lp", "q": 3})
