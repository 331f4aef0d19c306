"""Quadratic retentions: Keep (no forgetting), L2 (the forget gate of most models), L2Ball (a bounded memory)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..types import Gate, Held, Rule, require
from .base import Retention, decay, weight_axes

At = Literal["decayed", "previous"]
Side = Literal["value", "key", "outer"]


@dataclass(frozen=True, kw_only=True)
class Keep(Retention):
    """W = W_prev - eta g: nothing is let go. Ret = ||W - W_prev||^2 / (2 eta)."""

    linear_step = True

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        weight = held.weight - update
        return Held(weight, weight)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        return ((weight - held.weight) ** 2 / (2 * eta)).sum()

    def rule(self, update: Rule) -> Rule:
        return Rule(f"W_t = W_(t-1) - {update.text}", rf"W_t = W_{{t-1}} - {update.latex}")


@dataclass(frozen=True, kw_only=True)
class L2(Retention):
    """W = alpha W_prev - eta g, the surprise g measured at alpha W_prev (``at="decayed"``) or at W_prev (``"previous"``).

    Ret = ||W - alpha W_prev||^2 / (2 eta), which is also, up to a constant, alpha ||W - W_prev||^2 + (1 - alpha) ||W||^2 over
    2 eta: local and global retention. ``anchor`` pulls towards the initial weights W_0 instead of 0. ``side`` is where a
    channel-wise ``log_alpha`` of a matrix acts: rows ("value"), columns ("key"), or both ("outer": columns, and rows by
    ``log_beta``). ``schedule="retnet"`` fixes alpha_h = 1 - 2^(-5-h) instead of taking the gate; ``tied`` writes with the key
    1 - alpha_t (HGRN2).
    """

    at: At = "decayed"
    side: Side = "value"
    anchor: bool = False
    schedule: Literal["retnet"] | None = None
    tied: bool = False
    linear_step = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.at in get_args(At), f"L2 retention's at is one of {get_args(At)}, got {self.at!r}")
        require(self.side in get_args(Side), f"L2 retention's side is one of {get_args(Side)}, got {self.side!r}")
        require(self.schedule in (None, "retnet"), f"L2 retention's schedule is None or 'retnet', got {self.schedule!r}")
        require(
            not self.tied or (self.side == "key" and self.schedule is None),
            "L2(tied=True) writes with the key 1 - alpha_t, so it needs side='key' and no schedule",
        )

    @property
    def gates(self) -> tuple[Gate, ...]:
        if self.schedule is not None:
            return ()
        if self.side == "outer":
            return (Gate("log_alpha", "key"), Gate("log_beta", "value"))
        return (Gate("log_alpha", "keys only" if self.tied else self.side),)

    @property
    def anchored(self) -> bool:
        return self.anchor

    def fixed_log_alpha(self, heads: int, like: Tensor) -> Tensor | None:
        """The schedule's log alpha of each head, ``[H]``, or None where the gate sets it."""
        if self.schedule is None:
            return None
        head = torch.arange(heads, dtype=like.dtype, device=like.device)
        return torch.log1p(-torch.exp2(-5 - head))

    def probe(self, held: Held, log_decay: Tensor | None, anchor: Tensor | None) -> Tensor:
        return held.weight if self.at == "previous" else decay(held.weight, log_decay, anchor)

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        weight = decay(held.weight, log_decay, anchor) - update
        return Held(weight, weight)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        if self.at == "decayed":
            return ((weight - decay(held.weight, log_alpha, anchor)) ** 2 / (2 * eta)).sum()
        alpha = torch.ones_like(eta) if log_alpha is None else log_alpha.exp()
        far = weight if anchor is None else weight - anchor
        return ((alpha * (weight - held.weight) ** 2 + (1 - alpha) * far**2) / (2 * eta)).sum()

    @property
    def retained_rule(self) -> Rule:
        """What is kept of W_(t-1), as a formula."""
        rule = {
            "value": Rule("alpha_t W_(t-1)", r"\alpha_t W_{t-1}"),
            "key": Rule("W_(t-1) diag(alpha_t)", r"W_{t-1} \mathrm{Diag}(\alpha_t)"),
            "outer": Rule("(beta_t alpha_t') * W_(t-1)", r"(\beta_t \alpha_t^\top) \odot W_{t-1}"),
        }[self.side]
        if self.schedule is not None:
            rule = Rule("gamma_h W_(t-1)", r"\gamma_h W_{t-1}")
        if not self.anchor:
            return rule
        kept = {
            "value": Rule("alpha_t", r"\alpha_t"),
            "key": Rule("alpha_t", r"\alpha_t"),
            "outer": Rule("beta_t alpha_t'", r"\beta_t \alpha_t^\top"),
        }[self.side]
        kept = kept if self.schedule is None else Rule("gamma_h", r"\gamma_h")
        return Rule(f"{rule.text} + (1 - {kept.text}) W_0", rf"{rule.latex} + (1 - {kept.latex}) W_0")

    @property
    def probe_rule(self) -> Rule:
        return self.retained_rule if self.at == "decayed" else super().probe_rule

    def rule(self, update: Rule) -> Rule:
        kept = self.retained_rule
        return Rule(f"W_t = {kept.text} - {update.text}", rf"W_t = {kept.latex} - {update.latex}")


@dataclass(frozen=True, kw_only=True)
class L2Ball(Retention):
    """The step W_prev - eta g (alpha W_prev - eta g, where ``log_alpha`` is given), projected on ||W|| <= radius.

    The norm is that of each weight matrix of a head. The objective is <W - W_prev, eta g> + 1/2 ||W - alpha W_prev||^2 over
    the ball.
    """

    radius: float = 1.0
    scales_gradient = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.radius > 0, f"L2Ball needs radius > 0, got {self.radius}")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return (Gate("log_alpha", "value", required=False),)

    def project(self, weight: Tensor) -> Tensor:
        """W / max(1, ||W|| / radius)."""
        square = (weight**2).sum(weight_axes(weight), keepdim=True)
        outside = square > self.radius**2
        return torch.where(outside, weight * (self.radius / torch.where(outside, square, 1.0).sqrt()), weight)

    def start(self, initial: Tensor) -> Held:
        weight = self.project(initial)
        return Held(weight, weight)

    def step(
        self, held: Held, log_decay: Tensor | None, update: Tensor, threshold: Tensor | None, anchor: Tensor | None
    ) -> Held:
        weight = self.project(decay(held.weight, log_decay, None) - update)
        return Held(weight, weight)

    def penalty(self, weight: Tensor, held: Held, eta: Tensor, log_alpha: Tensor | None, anchor: Tensor | None) -> Tensor:
        inside = (weight**2).sum() <= self.radius**2 * (1 + 1e-9)
        value = 0.5 * ((weight - decay(held.weight, log_alpha, None)) ** 2).sum()
        return torch.where(inside, value, torch.inf)

    def rule(self, update: Rule) -> Rule:
        return Rule(
            f"W_t = project(alpha_t W_(t-1) - {update.text}), ||W|| <= {self.radius:g}",
            rf"W_t = \Pi_{{\|W\| \le {self.radius:g}}}\left(\alpha_t W_{{t-1}} - {update.latex}\right)",
        )
