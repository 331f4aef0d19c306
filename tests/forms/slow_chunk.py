"""The chunk rule as a slow loop: gradients at the chunk's start, every token's weights materialised."""

from types import SimpleNamespace

import torch

from miras import Gates, retention
from miras.algorithm import Descent
from miras.forms.common import spread
from miras.types import Held, Norm


def slow_chunk(spec, q, k, v, gates, keywords, size):
    """y ``[B,T,H,V]`` and the weights after the last token, for any spec of fast weights."""
    weights = keywords["weights"]
    weights = weights if isinstance(weights, tuple) else (weights,)
    norm = Norm(*(x[:, None] for x in keywords["norm"])) if "norm" in keywords else None
    if k is None:
        k = 1 - gates.log_alpha.exp()
    wide = {n: (g[..., None] if g.dim() == 3 else g) for n, g in gates._asdict().items() if g is not None}
    if spec.algorithm.fixed_eta is not None:
        wide["eta"] = torch.full_like(v[..., :1], spec.algorithm.fixed_eta)
    kept = spec.retention
    if isinstance(kept, retention.L2) and kept.schedule:
        wide["log_alpha"] = kept.fixed_log_alpha(q.shape[2], q)[:, None].expand(*q.shape[:3], 1)
    g = Gates(**wide)
    assert isinstance(spec.algorithm, Descent)
    pairs = spec.algorithm.pairs
    held = [kept.start(w.expand(q.shape[0], *w.shape)) for w in weights]
    anchor = [h.accumulated if kept.anchored else None for h in held]
    anchor_weights = [h.weight if kept.anchored else None for h in held]
    P = [torch.zeros_like(h.weight) for h in held]
    fresh = lambda: ([torch.zeros_like(h.weight) for h in held], [0.0 for _ in held], [0.0 for _ in held])  # noqa: E731
    G, L, gamma = fresh()
    outputs, position = [], 0
    for at in range(k.shape[1]):
        t = at // pairs
        leading = kept.leads and position == 0
        linear_rest = kept.leads and not leading
        step_rule = retention.L2(at="previous", anchor=kept.anchored) if linear_rest else kept
        start = [Held(h.weight, h.weight) for h in held] if linear_rest else held
        towards = anchor_weights if linear_rest else anchor
        key, value = k[:, at, :, None], v[:, at, :, None]
        eta = spec.algorithm.rate(g.eta[:, at], spec.memory.curvature(k[:, at]) if spec.memory.linear else None)
        rates = []
        for side in spec.memory.sides:
            log = None
            if g.log_alpha is not None and at % pairs == 0:
                if isinstance(kept, retention.L2) and kept.side != "value":
                    log = spread("in", g.log_alpha[:, t]) + (0 if g.log_beta is None else spread("out", g.log_beta[:, t]))
                else:
                    log = spread(side, g.log_alpha[:, t])
            rates.append(kept.rates(spread(side, eta), log))
        probes = []
        for i, h in enumerate(start):
            decay = L[i] + (0.0 if rates[i].log_decay is None else rates[i].log_decay)
            decay = decay if isinstance(decay, torch.Tensor) else None
            probes.append(step_rule.probe(h, decay, towards[i]))
        maps = spec.memory.maps(tuple(probes))
        prediction, trace = spec.memory.trace(maps, key, norm)
        delta = None if g.delta is None else g.delta[:, t, :, None]
        factors = spec.memory.backprop(maps, trace, spec.bias.gradient(prediction, value, delta))
        for i, side in enumerate(spec.memory.sides):
            b = 1.0 if rates[i].log_decay is None else rates[i].log_decay.exp()
            move = rates[i].step * spec.memory.gradient(factors[i])
            if g.mu is not None:
                move = P[i] = spread(side, g.mu[:, t]) * P[i] + move
            G[i] = b * G[i] + move
            L[i] = L[i] + (0.0 if rates[i].log_decay is None else rates[i].log_decay)
            if rates[i].threshold is not None:
                gamma[i] = b * gamma[i] + rates[i].threshold if kept.sums_thresholds else rates[i].threshold
        position += 1
        log = [x if isinstance(x, torch.Tensor) else None for x in L]
        if leading or position == size:
            stepped = [step_rule.step(h, *row) for h, *row in zip(start, log, G, gamma, towards, strict=True)]
            held = [kept.hold(h.weight) for h in stepped] if linear_rest else stepped
            G, L, gamma = fresh()
            position = position % size
            read = [h.weight for h in held]
        else:
            read = []
            for i, h in enumerate(start):
                base, decays, to, slope, centre = step_rule.linear(h, towards[i])
                b = 1.0 if log[i] is None or not decays else log[i].exp()
                moved = G[i] - G[i].mean(centre, keepdim=True) if centre else G[i]
                base = b * base if to is None else to + b * (base - to)
                read.append(base - (1.0 if slope is None else slope) * moved)
        if at % pairs == pairs - 1:
            maps = spec.memory.maps(tuple(read))
            outputs.append(spec.memory.recall(maps, q[:, t, :, None], norm).transpose(1, 2))
    return torch.cat(outputs, 1), SimpleNamespace(weights=read[0] if len(read) == 1 else tuple(read))
