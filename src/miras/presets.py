"""Every model of the paper's Table 1, and one of ours: each picks its parts, and has no logic of its own.

Where Table 1 simplifies a published model, the preset is the published one. Fast weights are W ``[V,K]`` and read W q.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Literal

from .algorithm import GradientDescent, ImplicitGD, Momentum, MultiStep, Newton, NonParametric
from .bias import L2, DotProduct, Huber, Lp
from .memory import MLP, Matrix
from .retention import KL, Keep, Lq
from .retention import L2 as L2Retention
from .spec import Spec


def retnet() -> Spec:
    """RetNet: W = gamma_h W + v k', gamma_h = 1 - 2^(-5-h) fixed. Table 1 calls its memory a vector; it is a matrix."""
    retention = L2Retention(schedule="retnet")
    return Spec(name="retnet", memory=Matrix(), bias=DotProduct(), retention=retention, algorithm=GradientDescent(eta=1.0))


def transformer(*, scale: float | None = None) -> Spec:
    """Softmax attention, causal; scale 1/sqrt(K) unless given, as in torch."""
    return Spec(name="transformer", memory=Matrix(), bias=L2(), retention=Keep(), algorithm=NonParametric(scale=scale))


def linear_attention() -> Spec:
    """Linear attention: W = W + v k', unnormalised."""
    return Spec(
        name="linear_attention", memory=Matrix(), bias=DotProduct(), retention=Keep(), algorithm=GradientDescent(eta=1.0)
    )


def dfw() -> Spec:
    """Decaying fast weights: W = (beta alpha') * W + v k'; log_alpha is the key side, log_beta the value side."""
    retention = L2Retention(side="outer")
    return Spec(name="dfw", memory=Matrix(), bias=DotProduct(), retention=retention, algorithm=GradientDescent(eta=1.0))


def lightning_attention() -> Spec:
    """Lightning attention: W = gamma_h W + v k', gamma data-independent: give log_alpha as ``[H]``."""
    return Spec(
        name="lightning_attention",
        memory=Matrix(),
        bias=DotProduct(),
        retention=L2Retention(),
        algorithm=GradientDescent(eta=1.0),
    )


def gla() -> Spec:
    """Gated linear attention: W = W diag(alpha) + v k', the decay on the key side. Table 1 prints it on the other side."""
    retention = L2Retention(side="key")
    return Spec(name="gla", memory=Matrix(), bias=DotProduct(), retention=retention, algorithm=GradientDescent(eta=1.0))


def mamba2() -> Spec:
    """Mamba2: W = alpha W + (dt v) k', alpha = exp(-dt A): give v already times dt, and log_alpha = -dt A."""
    return Spec(name="mamba2", memory=Matrix(), bias=DotProduct(), retention=L2Retention(), algorithm=GradientDescent(eta=1.0))


def hgrn2() -> Spec:
    """HGRN2: W = W diag(alpha) + v (1 - alpha)'; k is None. Table 1 gives it an l1 bias; it is Hebbian."""
    retention = L2Retention(side="key", tied=True)
    return Spec(name="hgrn2", memory=Matrix(), bias=DotProduct(), retention=retention, algorithm=GradientDescent(eta=1.0))


def deltanet() -> Spec:
    """DeltaNet: W = W (I - eta k k') + eta v k'."""
    return Spec(name="deltanet", memory=Matrix(), bias=L2(), retention=Keep(), algorithm=GradientDescent())


def longhorn() -> Spec:
    """Longhorn: DeltaNet with the implicit step eta/(1 + eta k.k)."""
    return Spec(name="longhorn", memory=Matrix(), bias=L2(), retention=Keep(), algorithm=ImplicitGD())


def ttt_linear() -> Spec:
    """TTT-Linear: x + LN(W x), l2, gradients at the start of each mini-batch of 16 (its chunk size)."""
    return Spec(name="ttt_linear", memory=MLP(depth=1), bias=L2(), retention=Keep(), algorithm=GradientDescent(), chunk_size=16)


def gated_deltanet() -> Spec:
    """Gated DeltaNet: W = alpha W (I - eta k k') + eta v k'. Table 1 prints the product on the other side."""
    return Spec(name="gated_deltanet", memory=Matrix(), bias=L2(), retention=L2Retention(), algorithm=GradientDescent())


def rwkv7() -> Spec:
    """RWKV-7: W = W diag(w) - (W kappa)(a * kappa)' + v k'; log_alpha = log w, eta = a, both on the key side.

    This is the published form. Table 1 has diag(alpha)(I - beta k k') W + beta v k', which removes and writes one key at one
    rate and decays after removing: the published form with kappa = k, a = alpha * beta and the write scaled by beta.
    """
    return Spec(
        name="rwkv7",
        memory=Matrix(),
        bias=L2(),
        retention=L2Retention(at="previous", side="key"),
        algorithm=GradientDescent(decoupled=True),
    )


def delta_product(n: int = 2) -> Spec:
    """Gated DeltaProduct: alpha once, then n delta steps a token; k, v and eta have length T n."""
    return Spec(name="delta_product", memory=Matrix(), bias=L2(), retention=L2Retention(), algorithm=MultiStep(n=n))


def mesa() -> Spec:
    """Mesa: the exact decayed ridge regression of all pairs so far; eta weights the pairs, ridge is ``[H,K]``."""
    return Spec(name="mesa", memory=Matrix(), bias=L2(), retention=L2Retention(), algorithm=Newton())


def ttt_mlp() -> Spec:
    """TTT-MLP: a 2-layer MLP, l2, gradients at the start of each mini-batch of 16 (its chunk size)."""
    return Spec(name="ttt_mlp", memory=MLP(), bias=L2(), retention=Keep(), algorithm=GradientDescent(), chunk_size=16)


def titans_lmm(depth: int = 2, *, anchor: bool = False) -> Spec:
    """Titans' long-term memory: an MLP, l2, W = alpha W + S, S = mu S - eta g. Table 1 subtracts S."""
    retention = L2Retention(at="previous", anchor=anchor)
    return Spec(name="titans_lmm", memory=MLP(depth=depth), bias=L2(), retention=retention, algorithm=Momentum())


def moneta(p: float = 3.0, q: float = 4.0, *, link: Literal["paper", "exact"] = "paper", anchor: bool = False) -> Spec:
    """Moneta: a 2-layer MLP, l_p bias, l_q retention. ``link="exact"`` has the power that the printed link lacks."""
    retention = Lq(q=q, link=link, anchor=anchor)
    return Spec(name="moneta", memory=MLP(), bias=Lp(p=p), retention=retention, algorithm=GradientDescent())


def yaad(*, form: Literal["coordinate", "norm", "mixture"] = "coordinate", anchor: bool = False) -> Spec:
    """Yaad: a 2-layer MLP, Huber bias with an input-dependent delta, W = alpha W - eta g.

    The paper's text makes delta channel-wise, so the preset is coordinate-wise; ``form="mixture"`` is the printed update.
    """
    return Spec(
        name="yaad",
        memory=MLP(),
        bias=Huber(form=form, smooth=form == "mixture"),
        retention=L2Retention(at="previous", anchor=anchor),
        algorithm=GradientDescent(),
    )


def memora(
    *,
    c: float | None = None,
    slice: Literal["row", "column", "matrix"] = "column",
    chunk: Literal["lag", "dual"] = "lag",
    anchor: bool = False,
) -> Spec:
    """Memora: a 2-layer MLP, l2, W = c softmax(alpha log W - eta g). The paper introduces it as elastic net; it is KL."""
    retention = KL(c=c, slice=slice, chunk=chunk, anchor=anchor)
    return Spec(name="memora", memory=MLP(), bias=L2(), retention=retention, algorithm=GradientDescent())


def hafiza() -> Spec:
    """Hafiza, which is ours and not the paper's: TTT-Linear's memory, l2, W = alpha W + (1 - alpha) W_0 - eta g.

    Of the combinations that the paper never ran the one that beat Yaad by most at 0.6M parameters (docs/results/small.md). The
    word is Arabic for the faculty that keeps.
    """
    retention = L2Retention(at="previous", anchor=True)
    return Spec(name="hafiza", memory=MLP(depth=1), bias=L2(), retention=retention, algorithm=GradientDescent(), chunk_size=16)


PRESETS: dict[str, Callable[..., Spec]] = {
    preset.__name__: preset
    for preset in (
        retnet,
        transformer,
        linear_attention,
        dfw,
        lightning_attention,
        gla,
        mamba2,
        hgrn2,
        deltanet,
        longhorn,
        ttt_linear,
        gated_deltanet,
        rwkv7,
        delta_product,
        mesa,
        ttt_mlp,
        titans_lmm,
        moneta,
        yaad,
        memora,
        hafiza,
    )
}


def get(name: str) -> Spec:
    """The preset of a name, with its default choices."""
    if name not in PRESETS:
        near = [known for known in PRESETS if known.startswith(str(name))] or difflib.get_close_matches(str(name), PRESETS, n=1)
        close = f", did you mean {near[0]}? Known" if near else ": known"
        raise ValueError(f"unknown preset {name!r}{close} are {', '.join(PRESETS)}")
    return PRESETS[name]()
