"""An operator called past torch's library gives what the library gives, and whoever has to see it does."""

import contextlib

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from miras.kernels.operators import operator


@operator("miras_tests::weighted")
def weighted(x: Tensor, others: list[Tensor], shift: Tensor | None, scale: float) -> list[Tensor]:
    """scale x + sum of others + shift, and the number of others; some of it is kept."""
    assert type(x) is Tensor, "a kernel reads memory"
    total = scale * x + sum(others, torch.zeros_like(x))
    return [total if shift is None else total + shift, torch.tensor(len(others))]


@weighted.register_fake
def _(x, others, shift, scale):
    return [torch.empty_like(x), x.new_empty((), dtype=torch.int64)]


def remember(ctx, inputs, output):
    _, others, shift, ctx.scale = inputs
    ctx.count, ctx.shifted = len(others), shift is not None
    ctx.save_for_backward(output[0])


def backward(ctx, outer):
    return ctx.scale * outer[0], [outer[0]] * ctx.count, outer[0] if ctx.shifted else None, None


weighted.register_autograd(backward, setup_context=remember)


@operator("miras_tests::doubled")
def doubled(x: Tensor) -> list[Tensor]:
    """Without a derivative."""
    return [2 * x]


@doubled.register_fake
def _(x):
    return [torch.empty_like(x)]


class Watching(TorchDispatchMode):
    """Writes down every operator."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def given(count, shifted):
    x, shift, *others = (torch.randn(3, requires_grad=True) for _ in range(2 + count))
    return x, others, shift if shifted else None, 1.5


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("shifted", [False, True])
def test_both_ways_give_the_same(count, shifted):
    values = given(count, shifted)
    leaves = [x for x in (values[0], *values[1], values[2]) if x is not None]
    results = []
    for run in (weighted, weighted.library):
        y, number = run(*values)
        results.append([y, *torch.autograd.grad(y.sum(), leaves)])
        assert number == count
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_who_watches_operators_sees_it_and_nobody_else_pays_for_it():
    values = given(1, True)
    with Watching() as watch:
        weighted(*values)
    assert "miras_tests::weighted" in watch.names
    y, _ = weighted(*values)
    assert type(y.grad_fn).__name__ == "DirectBackward"
    with torch.no_grad():
        assert weighted(*values)[0].grad_fn is None


def test_tensors_without_memory_get_the_fake_kernel():
    with FakeTensorMode():
        x = torch.empty(3)
    y, _ = weighted(x, [], None, 1.0)
    assert y.shape == (3,)


def test_compilers_meet_the_operator():
    values = given(2, True)
    whole = torch.compile(lambda *args: weighted(*args)[0], fullgraph=True, backend="aot_eager")
    assert torch.equal(whole(*values), weighted(*values)[0])


# torch's own, where it first makes a dual tensor
scripted = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@scripted
@pytest.mark.parametrize("run", [lambda x: weighted(x, [], None, 2.0)[0], lambda x: doubled(x)[0]], ids=["weighted", "doubled"])
def test_derivatives_forwards_and_transforms_are_refused_in_words(run):
    """The library drops a tangent without a word where nothing else needs a gradient."""
    x = torch.randn(3)
    refused = pytest.raises(ValueError, match=r"^the fused kernels have neither .* backend=.torch. has both$")
    with forward_ad.dual_level():
        assert torch.equal(run(x), 2 * x)
        with refused:
            run(forward_ad.make_dual(x, torch.ones(3)))
        with refused, torch.no_grad():
            run(forward_ad.make_dual(x, torch.ones(3)))
    for call in (
        lambda: torch.func.jvp(run, (x,), (x,)),
        lambda: torch.func.grad(lambda x: run(x).sum())(x),
        lambda: torch.func.vmap(run)(torch.stack([x, x])),
        lambda: torch.compile(lambda x: torch.func.jvp(run, (x,), (x,)), backend="aot_eager")(x),
    ):
        with refused:
            call()


@scripted
def test_the_way_back_has_no_derivative_forwards_either():
    """Of the gradients that arrive: the operators of a backward pass are met there alone."""
    x = torch.randn(3, requires_grad=True)
    total = Through.apply(x)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="the fused kernels have neither"):
        torch.autograd.grad(total, x, forward_ad.make_dual(torch.ones(3), torch.ones(3)))


class Through(torch.autograd.Function):
    """Goes back by an operator."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, outer):
        return doubled(outer)[0]


def test_what_has_no_derivative_is_refused_one():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(doubled(x)[0], 2 * x)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        doubled(x)[0].sum().backward()


class Elsewhere(Tensor):
    """A tensor that says it lies on another GPU."""

    device = torch.device("cuda", 1)


def test_kernels_are_launched_on_the_gpu_of_their_tensors(monkeypatch):
    """Triton launches on the current one, which is another where a model is spread over several."""
    entered = []

    @contextlib.contextmanager
    def device(place):
        entered.append(place)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    doubled.run(torch.ones(2).as_subclass(Elsewhere))
    assert entered == [torch.device("cuda", 1)]
    doubled.run(torch.ones(2))
    assert len(entered) == 1


@operator("miras_tests::large")
def large(x: Tensor) -> list[Tensor]:
    """A kernel that no GPU has room for."""
    raise OutOfResources(147456, 101376, "shared memory")


def test_what_does_not_fit_a_gpu_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda place: contextlib.nullcontext())
    with pytest.raises(ValueError, match=r"one needs 147456 of shared memory, and there is 101376; a smaller chunk_size"):
        large.run(torch.ones(2).as_subclass(Elsewhere))
