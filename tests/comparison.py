"""A call in float32 by the kernels against the chunk form in float64: values, states and every gradient."""

import contextlib
from itertools import accumulate

import torch
from torch.utils import _pytree as pytree

from devices import DEVICE
from inputs import cut_gates, draw, leaves, relative
from miras import Gates, memorize, retention
from miras.forms.common import as_tuple
from miras.retention.base import Dual
from miras.types import State


def on_device(tree, dtype=None):
    move = lambda x: x.detach().to(DEVICE, dtype).requires_grad_()  # noqa: E731
    q, k, v, gates, keywords = tree
    gates = Gates(*(None if g is None else move(g) for g in gates))
    keywords = {n: tuple(map(move, x)) if isinstance(x, tuple) else move(x) for n, x in keywords.items()}
    return move(q), move(k), move(v), gates, keywords


def tame(spec, **sizes):
    """Inputs as the kernels take them: one mu and one log_alpha a head where there is a momentum; small steps for a logarithm.

    In float32 the logarithm of a weight that crosses zero has no exact gradient, in plain PyTorch neither.
    """
    steps = {"eta": 0.05} if isinstance(spec.retention, retention.KL) else {}
    q, k, v, gates, keywords = draw(spec, **steps | sizes)
    if gates.mu is not None:
        gates = gates._replace(
            **{n: x.mean(-1) for n in ("mu", "log_alpha") if (x := getattr(gates, n)) is not None and x.dim() == 4}
        )
    return q, k, v, gates, keywords


@contextlib.contextmanager
def poisoned():
    """Room for tensors that nobody has written to yet holds NaN."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def parts(state):
    """Everything a state holds that a gradient can come from, by name.

    An open chunk's log decay comes in the shape of its weight, and what has moved with it, since it is a difference of weights.
    """
    named = {"W": as_tuple(state.weights), "A": state.accumulated, "S": state.momentum}
    if state.chunk is not None:
        start, moved, log_decay, _, _ = state.chunk
        wide = tuple(log.expand_as(x) for log, x in zip(log_decay, moved, strict=True))
        together = tuple(a + b for a, b in zip(start, moved, strict=True))
        named |= {"start": start, "start + moved": together, "log decay": wide}
    return {f"{name}{i + 1}_T": x for name, pair in named.items() for i, x in enumerate(pair)}


def read_as(kept, accumulated):
    """What a memory reads of what its retention accumulates in."""
    if isinstance(kept, retention.KL):
        return accumulated.exp()
    return kept.to_weight(accumulated) if isinstance(kept, Dual) else accumulated


def gradients(results, leaves):
    """The gradients of a fixed random mixture of all results."""
    mark = torch.Generator().manual_seed(1)
    total = sum((x * torch.randn(x.shape, generator=mark, dtype=torch.float64).to(x)).sum() for x in results.values())
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


def same(found, wanted, tolerance):
    wrong = {name: relative(found[name].double(), want) for name, want in wanted.items()}
    assert found.keys() == wanted.keys()
    assert {name: error for name, error in wrong.items() if not error < tolerance} == {}


def at_its_end(gates, size, end):
    """The gates with some, by name, of one value behind the first chunk, which moves the weights: an anchor pulls then."""
    cut = lambda x, value: torch.cat([x[:, :size], torch.full_like(x[:, size:], value)], 1)  # noqa: E731
    return gates._replace(**{name: cut(getattr(gates, name), value) for name, value in end.items()})


def compared(spec, tolerance=2e-5, size=16, cu_seqlens=None, end=None, **sizes):
    """Outputs, outgoing states and gradients of the kernels in float32, against the chunk form in float64."""
    q, k, v, gates, keywords = tame(spec, **sizes)
    exact = on_device((q, k, v, at_its_end(gates, size, end or {}), keywords))
    single = on_device(exact, torch.float32)
    results = []
    for arguments, backend in ((exact, "torch"), (single, "triton")):
        with poisoned():
            y, state = memorize(spec, *arguments[:4], chunk_size=size, backend=backend, cu_seqlens=cu_seqlens, **arguments[4])
            made = {"y": y} | parts(state)
            results.append(made | gradients(made, leaves(*arguments)))
    same(results[1], results[0], tolerance)


def compiled(spec, **sizes):
    """Values, states and gradients of a compiled call without graph breaks are those of the call itself."""
    torch.compiler.reset()
    arguments = on_device(tame(spec, B=1, **sizes), torch.float32)

    def call(q, k, v, gates, keywords):
        return memorize(spec, q, k, v, gates, chunk_size=16, backend="triton", **keywords)

    results = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        y, state = run(*arguments)
        made = {"y": y} | parts(state)
        results.append(made | gradients(made, leaves(*arguments)))
    same(results[1], results[0], 1e-6)


def carried_in(spec, first, size=16, **sizes):
    """The gradients of a state that came in, and of it alone, as ``compared`` compares those of everything else."""
    q, k, v, gates, keywords = on_device(tame(spec, B=1, **sizes))
    before, after = slice(first), slice(first, None)
    with torch.no_grad():
        own = cut_gates(gates, before, before)
        _, known = memorize(spec, *(x[:, before] for x in (q, k, v)), own, chunk_size=size, backend="torch", **keywords)
    results = []
    for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
        rest = on_device((*(x[:, after] for x in (q, k, v)), cut_gates(gates, after, after), {}), dtype)
        fresh = lambda pair, dtype=dtype: tuple(x.to(dtype).requires_grad_() for x in pair)  # noqa: E731
        given = {"A": fresh(known.accumulated), "S": fresh(known.momentum), "A_0": fresh(known.anchor)}
        weights = tuple(read_as(spec.retention, a) for a in given["A"])
        state = State(weights, given["A"], given["A_0"], given["S"])
        named = {f"{name}{i + 1}": x for name, pair in given.items() for i, x in enumerate(pair)}
        with poisoned():
            y, end = memorize(spec, *rest[:4], chunk_size=size, backend=backend, state=state)
            results.append(gradients({"y": y} | parts(end), named))
    same(results[1], results[0], 2e-5)


def from_places(spec, read, lengths, monkeypatch, tolerance=5e-5, size=16):
    """Sequences that go on from where they have ``read`` to, values, states and every gradient through both calls.

    In one packed call and, where all are of one length, as rows of a batch; how many tokens of each the kernels took, or none.
    Plain PyTorch in float32 is 2.3e-5 from float64 where KL is anchored.
    """
    from miras.kernels import mlp

    taken, operator = [], mlp.operator
    monkeypatch.setattr(mlp, "operator", lambda spec: lambda *given: taken.append(given[-1]) or operator(spec)(*given))
    first, before = sum(read), torch.tensor([0, *accumulate(read)])
    exact = on_device(tame(spec, B=1, T=first + sum(lengths), H=1, K=16))
    for packs in (True, False) if len(set(lengths)) == 1 else (True,):
        results = []
        for dtype, backend in ((torch.float64, "torch"), (torch.float32, "triton")):
            arguments = on_device(exact, dtype)
            early, late = slice(first), slice(first, None)
            *given, keywords = cut(arguments, early)
            y, state = memorize(spec, *given, chunk_size=size, backend="torch", cu_seqlens=before, **keywords)
            *given, _ = cut(arguments, late)
            how = {"cu_seqlens": torch.tensor([0, *accumulate(lengths)])}
            if not packs:
                given, how = pytree.tree_map_only(torch.Tensor, lambda x: x.view(len(read), -1, *x.shape[2:]), given), {}
            rest, end = memorize(spec, *given, chunk_size=size, backend=backend, state=state, norm=keywords["norm"], **how)
            assert rest.shape == given[2].shape and rest.dtype == dtype
            made = {"y": y, "rest": rest} | parts(end)
            places = [] if end.chunk is None else end.chunk.position.tolist()
            assert not any(places) or places == [(a + b) % size for a, b in zip(read, lengths, strict=True)]
            results.append(made | gradients(made, leaves(*arguments)))
        same(results[1], results[0], tolerance)
    assert all(counts == taken[0] for counts in taken)
    return taken[0] if taken else None


def cut(arguments, tokens):
    """Some of the tokens of a call in batches of 1, and what it starts from."""
    q, k, v, gates, keywords = arguments
    return (*(x[:, tokens] for x in (q, k, v)), cut_gates(gates, tokens, tokens), keywords)


def by_either_way(module, layer, x, monkeypatch, cut=27, kept=lambda state: ()):
    """What a layer makes of x in two pieces, what it keeps, and all gradients, by plain and by fused passes, in pairs."""
    found = []
    for fused in (False, True):
        monkeypatch.setattr(module, "worth_fusing", lambda x, fused=fused: fused)
        y, state = layer(x[:, :cut])
        rest, state = layer(x[:, cut:], state)
        total = y.square().sum() + rest.square().sum()
        found.append([y, rest, *kept(state), *torch.autograd.grad(total, (x, *layer.parameters()))])
    return zip(*found, strict=True)


def continued(spec, bounds, arguments):
    """Packed sequences' states, of either backend, go on to the same place in plain PyTorch; the places in their chunks."""
    q, k, v, gates, keywords = arguments
    ends = {}
    for backend in ("torch", "triton"):
        _, state = memorize(spec, q, k, v, gates, chunk_size=16, backend=backend, cu_seqlens=bounds, **keywords)
        _, ends[backend] = memorize(
            spec, q, k, v, gates, chunk_size=16, backend="torch", cu_seqlens=bounds, state=state, norm=keywords["norm"]
        )
    same(parts(ends["triton"]), parts(ends["torch"]), 2e-5)
    assert ends["torch"].chunk.position.tolist() == ends["triton"].chunk.position.tolist()
    return ends["triton"].chunk.position.tolist()
