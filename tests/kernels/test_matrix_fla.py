"""Matrix memories by fla: on the CPU its naive references stand in for its kernels, on a GPU the kernels themselves run."""

import itertools
import warnings

import pytest
import torch

from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Gates, Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.kernels import matrix_fla, matrix_run

with warnings.catch_warnings():
    # importing fla on a machine without a GPU warns of that and of what torch has deprecated
    warnings.simplefilter("ignore")
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.mesa_net.naive import naive_mesa_net_exact
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def key_side_delta():
    return Spec(
        memory=memory.Matrix(),
        bias=bias.L2(),
        retention=retention.L2(side="key"),
        algorithm=algorithm.GradientDescent(),
    )


def hebbian(kept):
    return Spec(memory=memory.Matrix(), bias=bias.DotProduct(), retention=kept, algorithm=algorithm.GradientDescent())


# name: spec, channel-wise gates, fla's operation
CASES = {
    "linear_attention": (presets.linear_attention(), False, "chunk_simple_gla"),
    "retnet": (presets.retnet(), False, "chunk_simple_gla"),
    "lightning_attention": (presets.lightning_attention(), False, "chunk_simple_gla"),
    "mamba2": (presets.mamba2(), False, "chunk_simple_gla"),
    "gla": (presets.gla(), True, "chunk_gla"),
    "gla, one decay a head": (presets.gla(), False, "chunk_simple_gla"),
    "hgrn2": (presets.hgrn2(), True, "chunk_gla"),
    "dfw": (presets.dfw(), True, "fused_recurrent_gla"),
    "dfw, one decay a head": (presets.dfw(), False, "chunk_simple_gla"),
    "value-side decay": (presets.mamba2(), True, "fused_recurrent_gla"),
    "a gate eta": (hebbian(retention.L2(side="key")), True, "chunk_gla"),
    "deltanet": (presets.deltanet(), False, "chunk_delta_rule"),
    "longhorn": (presets.longhorn(), False, "chunk_delta_rule"),
    "gated_deltanet": (presets.gated_deltanet(), False, "chunk_gated_delta_rule"),
    "key-side delta": (key_side_delta(), True, "chunk_kda"),
    "delta_product": (presets.delta_product(n=2), False, "chunk_gated_delta_product"),
    "rwkv7": (presets.rwkv7(), True, "chunk_dplr_delta_rule"),
    "mesa": (presets.mesa(), False, "chunk_mesa_net"),
}


def inputs(name, dtype=torch.float32, T=21, grad=False, **sizes):
    """Arguments of a case; fla's delta rules take one eta a head, so a key-side decay comes with that."""
    spec, channelwise, _ = CASES[name]
    sizes = {"B": 2, "H": 3, "K": 8, "V": 8 if name == "mesa" else 6} | sizes
    drawn = {"eta": 0.9, "decay": 0.2} | {key: sizes.pop(key) for key in ("eta", "decay") if key in sizes}
    q, k, v, gates, keywords = draw(spec, T=T, dtype=dtype, channelwise=channelwise, **drawn, **sizes)
    if name == "key-side delta":
        gates = gates._replace(eta=gates.eta[..., 0].clone())
    given = leaves(q, k, v, gates, keywords)
    return spec, q, k, v, gates, keywords, [x.requires_grad_(grad) for x in given.values()]


def by_sequence(one):
    """A reference that takes one sequence a row, on a packed batch."""

    def packed(q, k, v, *, cu_seqlens=None, initial_state, scale, output_final_state, **gates):
        assert scale == 1.0 and output_final_state
        if cu_seqlens is None:
            return one(q, k, v, initial_state, **gates)
        pairs = k.shape[1] // q.shape[1]
        outputs, ends = [], []
        for row, (left, right) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
            token, pair = slice(left, right), slice(left * pairs, right * pairs)
            along = {n: g for n, g in gates.items() if torch.is_tensor(g) and g.dim() > 2}
            cut = gates | {n: g[:, pair if n == "beta" else token] for n, g in along.items()}
            y, end = one(q[:, token], k[:, pair], v[:, pair], initial_state[row : row + 1], **cut)
            outputs.append(y)
            ends.append(end)
        return torch.cat(outputs, 1), torch.cat(ends)

    return packed


def swapped(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def simple_gla(q, k, v, start, g=None, g_gamma=None):
    if g is None:
        g = torch.zeros(q.shape[:3]) if g_gamma is None else g_gamma.expand(q.shape[:3])
    return naive_recurrent_simple_gla(q, k, v, g, scale=1.0, initial_state=start, output_final_state=True)


def gla(q, k, v, start, g):
    return naive_recurrent_gla(q * k.shape[-1] ** 0.5, k, v, g, start, output_final_state=True)


def two_sided_gla(q, k, v, start, gk=None, gv=None):
    """fla has no naive reference for decays of the value side: the recurrence itself."""
    outputs, held = [], start
    for t in range(q.shape[1]):
        held = held if gk is None else held * gk[:, t].exp()[..., :, None]
        held = held if gv is None else held * gv[:, t].exp()[..., None, :]
        held = held + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], held))
    return torch.stack(outputs, 1), held


def delta(q, k, v, start, beta):
    y, end = delta_rule_recurrence(*swapped(q * k.shape[-1] ** 0.5, k, v, beta), initial_state=start)
    return y.transpose(1, 2), end


def gated_delta(q, k, v, start, g, beta):
    return naive_recurrent_gated_delta_rule(q, k, v, beta, g, 1.0, start, output_final_state=True)


def kda(q, k, v, start, g, beta):
    return naive_recurrent_kda(q, k, v, g, beta, 1.0, start, output_final_state=True)


def product(q, k, v, start, g, beta, num_householder):
    return naive_recurrent_gated_delta_product(
        q, k, v, g, beta, 1.0, initial_state=start, output_final_state=True, num_householder=num_householder
    )


def dplr(q, k, v, start, a, b, gk):
    y, end = dplr_recurrence(*swapped(q * k.shape[-1] ** 0.5, k, v, a, b, gk), initial_state=start)
    return y.transpose(1, 2), end


def mesa(q, k, v, g, beta, lamb, h_kk_init, h_kv_init, output_final_state, cu_seqlens=None):
    def one(q, k, v, start, g, beta):
        y, key_key, key_value = naive_mesa_net_exact(q, k, v, g, lamb, beta, start[..., :8], start[..., 8:])
        return y, torch.cat([key_key, key_value], -1)

    start = torch.cat([h_kk_init, h_kv_init], -1)
    y, end = by_sequence(one)(
        q, k, v, initial_state=start, scale=1.0, output_final_state=True, cu_seqlens=cu_seqlens, g=g, beta=beta
    )
    return y, end[..., :8], end[..., 8:]


REFERENCES = {
    "chunk_simple_gla": by_sequence(simple_gla),
    "fused_recurrent_simple_gla": by_sequence(simple_gla),
    "chunk_gla": by_sequence(gla),
    "fused_recurrent_gla": by_sequence(two_sided_gla),
    "chunk_delta_rule": by_sequence(delta),
    "fused_recurrent_delta_rule": by_sequence(delta),
    "chunk_gated_delta_rule": by_sequence(gated_delta),
    "fused_recurrent_gated_delta_rule": by_sequence(gated_delta),
    "chunk_kda": by_sequence(kda),
    "chunk_gated_delta_product": by_sequence(product),
    "chunk_dplr_delta_rule": by_sequence(dplr),
    "fused_recurrent_dplr_delta_rule": by_sequence(dplr),
    "chunk_mesa_net": mesa,
}


@pytest.fixture
def stand_in(monkeypatch):
    """fla's naive references in place of its kernels, on the CPU and in float32; the names of those that were called."""
    called = []
    wide = {name: operation._replace(half=False) for name, operation in matrix_fla.OPERATIONS.items()}
    monkeypatch.setattr(matrix_fla, "OPERATIONS", wide)
    monkeypatch.setattr(matrix_fla, "no_device", lambda device: False)
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.7.1"))
    monkeypatch.setattr(matrix_run, "load", lambda module, name: called.append(name) or REFERENCES[name])
    return called


def summed(y, state):
    mark = torch.Generator().manual_seed(1)
    return sum((x.double() * torch.randn(x.shape, generator=mark).to(x.device)).sum() for x in (y, state.weights))


@pytest.mark.parametrize("name", CASES)
def test_values_states_and_gradients(name, stand_in):
    found = {}
    for backend, dtype in (("torch", torch.float64), ("fla", torch.float32)):
        spec, q, k, v, gates, keywords, given = inputs(name, dtype, grad=True)
        y, state = memorize(spec, q, k, v, gates, backend=backend, **keywords)
        found[backend] = [y, *tensors(state), *torch.autograd.grad(summed(y, state), given)]
    assert stand_in == [CASES[name][2]]
    assert [x.shape for x in found["fla"]] == [x.shape for x in found["torch"]]
    assert max(relative(a.double(), b) for a, b in zip(found["fla"], found["torch"], strict=True)) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_packed_sequences(name, stand_in):
    spec, q, k, v, gates, keywords, _ = inputs(name, B=1)
    keywords["weights"] = torch.stack([keywords["weights"], 2 * keywords["weights"], -keywords["weights"]])
    bounds = torch.tensor([0, 4, 5, 21])
    want, end = memorize(spec, q, k, v, gates, cu_seqlens=bounds, backend="torch", **keywords)
    got, state = memorize(spec, q, k, v, gates, cu_seqlens=bounds, backend="fla", **keywords)
    assert relative(got, want) < 1e-4
    assert all(relative(a, b) < 1e-4 for a, b in zip(tensors(state), tensors(end), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_back_and_forth_at_any_token(name, stand_in):
    """Plain PyTorch, fla, fla token by token, plain PyTorch again: one long call."""
    spec, q, k, v, gates, keywords, _ = inputs(name, T=40)
    pairs = spec.algorithm.pairs if name == "delta_product" else 1
    with torch.no_grad():
        want, end = memorize(spec, q, k, v, gates, **keywords)
        outputs, state = [], None
        for left, right, backend in ((0, 5, "torch"), (5, 30, "fla"), (30, 31, "fla"), (31, 40, "torch")):
            token, pair = slice(left, right), slice(left * pairs, right * pairs)
            rest = keywords if state is None else {"state": state}
            own = (q[:, token], None if k is None else k[:, pair], v[:, pair], cut_gates(gates, token, pair))
            y, state = memorize(spec, *own, backend=backend, **rest)
            outputs.append(y)
    assert relative(torch.cat(outputs, 1), want) < 1e-4
    assert relative(state.weights, end.weights) < 1e-4
    chunked = CASES[name][2]
    alone = chunked if name in ("key-side delta", "delta_product", "mesa") else chunked.replace("chunk", "fused_recurrent")
    assert stand_in == [chunked, alone]


def test_a_decay_that_stands_still_and_needs_no_gradient_is_given_by_head(stand_in, monkeypatch):
    """fla has a backward pass for it that Hopper runs."""
    given = []
    monkeypatch.setattr(matrix_run, "load", lambda m, name: lambda **a: given.append(a) or REFERENCES[name](**a))
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    spec, q, k, v, gates, keywords, _ = inputs("lightning_attention")
    still = Gates(log_alpha=gates.log_alpha[0, 0].clone())
    q.requires_grad_()
    want, _ = memorize(spec, q, k, v, still, **keywords)
    got, _ = memorize(spec, q, k, v, still, backend="fla", **keywords)
    assert relative(got, want) < 1e-4 and given[0]["g_gamma"].shape == (3,)
    memorize(presets.retnet(), q, k, v, backend="fla", **keywords)
    assert "g" not in given[1]
    with pytest.raises(ValueError, match="refuses the backward pass of its chunk_simple_gla on Hopper"):
        memorize(spec, q, k, v, Gates(log_alpha=still.log_alpha.requires_grad_()), backend="fla", **keywords)


def test_a_call_of_no_tokens(stand_in):
    spec, q, k, v, gates, keywords, _ = inputs("deltanet", T=0)
    y, state = memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert y.shape == (2, 0, 3, 6) and relative(state.weights, keywords["weights"].expand(2, -1, -1, -1)) == 0


GATED = ["mamba2", "gated_deltanet", "delta_product"]


@pytest.mark.parametrize("name", GATED)
def test_a_backward_pass_that_fla_refuses_is_refused_with_the_reason(name, stand_in, monkeypatch):
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    spec, q, k, v, gates, keywords, _ = inputs(name)
    memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with pytest.raises(ValueError, match=r"on Hopper under Triton 3\.4 to 3\.7\.0, which compile it incorrectly"):
        memorize(spec, q.requires_grad_(), k, v, gates, backend="fla", **keywords)
    with torch.no_grad():
        memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert explain(spec, "cuda").backend == "torch"
    assert "refuses the backward pass" in explain(spec, "cuda").reason
    assert explain(spec, "cuda", gradients=False).backend == "fla"


@pytest.mark.parametrize("name", ["gla", "deltanet", "rwkv7", "retnet", "linear_attention", "dfw"])
def test_the_others_have_a_backward_pass_on_hopper(name, monkeypatch):
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    assert explain(CASES[name][0], "cuda").backend == "fla"


@pytest.mark.parametrize(
    "major, triton, wrong",
    [
        (9, "3.3.1", False),
        (9, "3.4.0", True),
        (9, "3.6.0", True),
        (9, "3.6.0+git1", True),
        (9, "3.7.0", True),
        (9, "3.7.1", False),
        (8, "3.6.0", False),
        (10, "3.6.0", False),
    ],
)
def test_which_machines_compile_it_incorrectly(major, triton, wrong):
    """The bounds of fla's own check, in fla/ops/common/chunk_o.py."""
    assert matrix_fla.backward_is_wrong(major, triton) == wrong


def momentum():
    return Spec(memory=memory.Matrix(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.Momentum())


REFUSED = {
    "for matrix memories, not MLP": presets.yaad(),
    "scaled_dot_product_attention": presets.transformer(),
    "not towards an anchor": hebbian(retention.L2(anchor=True)),
    "no Lq retention": hebbian(retention.Lq()),
    "no operation for L2 with Momentum": momentum(),
    "at the decayed weights": Spec(
        memory=memory.Matrix(),
        bias=bias.L2(),
        retention=retention.L2(at="previous"),
        algorithm=algorithm.GradientDescent(),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_fla_has_not_is_refused_with_the_reason(reason):
    spec = REFUSED[reason]
    q, k, v, gates, keywords = draw(spec, T=3, K=8, dtype=torch.float32, channelwise=False)
    with pytest.raises(ValueError, match=reason):
        memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert explain(spec, "cuda").backend != "fla"


def test_refusals_that_depend_on_the_call(monkeypatch):
    spec, q, k, v, gates, keywords, _ = inputs("deltanet")
    with pytest.raises(ValueError, match="need an NVIDIA GPU, not cpu"):
        memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with pytest.raises(ValueError, match="form='recurrent' has no kernels"):
        memorize(spec, q, k, v, gates, backend="fla", form="recurrent", **keywords)
    wide = Gates(eta=gates.eta[..., None].expand(*gates.eta.shape, 6))
    with pytest.raises(ValueError, match="one eta a head, not one a channel"):
        memorize(spec, q, k, v, wide, backend="fla", **keywords)
    gpu = torch.device("cuda")
    assert "bf16 and fp16, not torch.float32" in matrix_fla.why_not(spec, matrix_fla.Call(gpu, torch.float32, named=True))
    mesa = matrix_fla.Call(gpu, torch.bfloat16)
    assert "not exact" in matrix_fla.why_not(presets.mesa(), mesa)
    assert "one width" in matrix_fla.why_not(presets.mesa(), mesa._replace(named=True, square=False))
    single = matrix_fla.Call(gpu, torch.float32)
    assert "in TF32" in matrix_fla.why_not(presets.gla(), single)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert matrix_fla.why_not(presets.gla(), single) is None


# what bf16 (8 bits) and TF32 (11 bits) may cost: a handful of roundings of what is stored between kernels
ROUNDING = {torch.bfloat16: 8 * 2**-8, torch.float32: 16 * 2**-11}


def shaped_by_head(gates):
    """Gates as ``memorize`` hands them on."""
    return Gates(*(g if g is None or g.dim() != 3 else g[..., None] for g in gates))


def distance(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


@GPU
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name, dtype):
    """fla's kernels against plain PyTorch in float64, at odd lengths: outputs, states, gradients where fla has them."""
    sizes = {"B": 2, "T": 333, "H": 4, "K": 64, "V": 64 if name == "mesa" else 32, "eta": 0.5, "decay": 0.02}
    spec, q, k, v, gates, keywords, _ = inputs(name, torch.float64, **sizes)
    cuda = torch.device("cuda")
    call = matrix_fla.Call(cuda, dtype, gates=None if name == "retnet" else shaped_by_head(gates), named=True)
    backward = matrix_fla.why_not(spec, call) is None
    refused = matrix_fla.why_not(spec, call._replace(backward=False))
    if refused is not None:
        pytest.skip(refused)
    move = lambda x, to: x.detach().to(cuda, to).requires_grad_()  # noqa: E731
    found = []
    low = [None if x is None else x.detach().to(dtype) for x in (q, k, v)]
    for backend, own, rest in (("torch", torch.float64, torch.float64), ("fla", dtype, torch.float32)):
        tokens = [None if x is None else move(x, own) for x in low]
        shaped = Gates(*(None if g is None else move(g.float(), rest) for g in gates))
        weights = move(keywords["weights"].float(), rest)
        leaf = [x for x in (*tokens, *shaped, weights) if x is not None]
        with torch.set_grad_enabled(backward):
            y, state = memorize(spec, *tokens, shaped, weights=weights, backend=backend)
        found.append([y, state.weights])
        if backward:
            found[-1] += torch.autograd.grad(summed(y, state), leaf)
    wrong = [distance(a, b) for a, b in zip(found[1], found[0], strict=True)]
    assert max(wrong) < ROUNDING[dtype], wrong


@GPU
@pytest.mark.parametrize("name", CASES)
def test_auto_on_a_gpu_is_right_with_and_without_gradients(name):
    """Whatever it takes: fla where it is right, plain PyTorch where fla is not; packed sequences as well."""
    sizes = {"B": 1, "T": 70, "K": 64, "V": 64 if name == "mesa" else 32, "eta": 0.5, "decay": 0.02}
    spec, q, k, v, gates, keywords, _ = inputs(name, torch.float32, **sizes)
    low = [None if x is None else x.to("cuda", torch.bfloat16) for x in (q, k, v)]
    exact = [None if x is None else x.double() for x in low]
    shaped = Gates(*(None if g is None else g.cuda() for g in gates))
    weights = keywords["weights"].cuda().requires_grad_()
    for rest in ({}, {"cu_seqlens": torch.tensor([0, 3, 70], device="cuda")}):
        want, end = memorize(spec, *exact, shaped, weights=weights, backend="torch", **rest)
        with torch.no_grad():
            got, state = memorize(spec, *low, shaped, weights=weights, **rest)
        trained, _ = memorize(spec, *low, shaped, weights=weights, **rest)
        (slope,) = torch.autograd.grad(trained.sum(), weights)
        (wanted,) = torch.autograd.grad(want.sum(), weights)
        pairs = ((got, want), (state.weights, end.weights), (trained, want), (slope, wanted))
        assert max(distance(a, b.double()) for a, b in pairs) < ROUNDING[torch.bfloat16]


@GPU
@pytest.mark.parametrize("name", CASES)
def test_token_by_token_on_a_gpu(name):
    """A prompt, then three tokens on their own, as plain PyTorch has them."""
    sizes = {"B": 2, "T": 40, "K": 64, "V": 64 if name == "mesa" else 32, "eta": 0.5, "decay": 0.02}
    spec, q, k, v, gates, keywords, _ = inputs(name, torch.float32, **sizes)
    low = [None if x is None else x.to("cuda", torch.bfloat16) for x in (q, k, v)]
    shaped = Gates(*(None if g is None else g.cuda() for g in gates))
    pairs = spec.algorithm.pairs if name == "delta_product" else 1
    with torch.no_grad():
        exact = [None if x is None else x.double() for x in low]
        want, end = memorize(spec, *exact, shaped, weights=keywords["weights"].cuda(), backend="torch")
        outputs, rest = [], {"weights": keywords["weights"].cuda()}
        for left, right in ((0, 37), (37, 38), (38, 39), (39, 40)):
            token, pair = slice(left, right), slice(left * pairs, right * pairs)
            own = (low[0][:, token], None if k is None else low[1][:, pair], low[2][:, pair])
            y, state = memorize(spec, *own, cut_gates(shaped, token, pair), **rest)
            outputs.append(y)
            rest = {"state": state}
    assert distance(torch.cat(outputs, 1), want) < ROUNDING[torch.bfloat16]
    assert distance(state.weights, end.weights) < ROUNDING[torch.bfloat16]
