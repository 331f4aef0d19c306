"""Random but tame inputs for any spec: unit keys, small steps, little decay."""

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from miras import Gates
from miras.algorithm import Descent, NonParametric
from miras.retention import L2


def draw(spec, *, B=2, T=12, H=2, K=4, V=None, dtype=torch.float64, channelwise=True, grad=False, eta=0.2, decay=0.05, seed=0):
    """q, k, v, gates and keyword arguments of ``memorize`` for a spec; channel-wise wherever the spec allows it."""
    generator = torch.Generator().manual_seed(seed)
    V = K if V is None or spec.memory.square else V

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    pairs = spec.algorithm.pairs if isinstance(spec.algorithm, Descent) else 1
    q = F.normalize(normal(B, T, H, K), dim=-1)
    k = F.normalize(normal(B, T * pairs, H, K), dim=-1)
    v = normal(B, T * pairs, H, V)
    ranges = {
        "eta": lambda x: eta * x,
        "log_alpha": lambda x: -2 * decay * x,
        "log_beta": lambda x: -2 * decay * x,
        "delta": lambda x: 0.2 + x,
        "mu": lambda x: 0.8 * x,
    }
    gates = {}
    for gate in spec.gates:
        steps = T * pairs if gate.name == "eta" else T
        width = {"scalar": None, "key": K, "keys only": K, "value": V, "ridge": None}[gate.width]
        if gate.name == "ridge":
            gates["ridge"] = 0.5 + uniform(H, K)
        elif gate.name == "kappa":
            gates["kappa"] = F.normalize(normal(B, steps, H, K), dim=-1)
        elif width is None or (not channelwise and gate.width != "keys only"):
            gates[gate.name] = ranges[gate.name](uniform(B, steps, H))
        else:
            gates[gate.name] = ranges[gate.name](uniform(B, steps, H, width))
    keywords = {}
    if not isinstance(spec.algorithm, NonParametric):
        shapes = spec.memory.shapes(K, V)
        # an MLP's weights have unit scale, so that its LayerNorm does not magnify the steps
        scale = 0.5 if spec.memory.linear else 1.0
        weights = tuple((scale * normal(H, *shape)).to(dtype).requires_grad_(grad) for shape in shapes)
        keywords["weights"] = weights[0] if len(weights) == 1 else weights
    if not spec.memory.linear:
        gain, shift = (1 + 0.1 * normal(H, V)).to(dtype), (0.1 * normal(H, V)).to(dtype)
        keywords["norm"] = (gain.requires_grad_(grad), shift.requires_grad_(grad))
    q, k, v = (x.to(dtype).requires_grad_(grad) for x in (q, k, v))
    gates = Gates(**{name: gate.to(dtype).requires_grad_(grad) for name, gate in gates.items()})
    tied = isinstance(spec.retention, L2) and spec.retention.tied
    return q, None if tied else k, v, gates, keywords


def leaves(q, k, v, gates, keywords):
    """Every tensor of a call that a gradient can flow to, by name."""
    weights = keywords.get("weights", ())
    weights = weights if isinstance(weights, tuple) else (weights,)
    named = {"q": q, "k": k, "v": v, **gates._asdict()}
    named |= {f"W{i + 1}": w for i, w in enumerate(weights)}
    named |= dict(zip(("gain", "shift"), keywords.get("norm", ()), strict=False))
    return {name: x for name, x in named.items() if x is not None}


def relative(got, want):
    """The largest difference, relative to the largest value wanted."""
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def cut_gates(gates, tokens, pairs):
    """The gates of a stretch of tokens; eta has its own count where a token has several pairs."""
    cuts = {name: pairs if name == "eta" else tokens for name in Gates._fields if name != "ridge"}
    given = {name: gate for name, gate in gates._asdict().items() if gate is not None}
    return Gates(**{name: gate[:, cuts[name]] if name in cuts else gate for name, gate in given.items()})


def tensors(state):
    """Every tensor a state holds."""
    return [x for x in pytree.tree_leaves(state) if isinstance(x, torch.Tensor)]
