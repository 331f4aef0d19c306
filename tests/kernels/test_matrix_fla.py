"""Matrix memories by fla: on the CPU its naive references stand in for its kernels, on a GPU the kernels themselves run.

There fla tries the configurations of every kernel at every new shape, which takes a minute a case. With UNTUNED=1 each kernel
has its first configuration alone.
"""

import itertools
import os
import warnings

import pytest
import torch

from devices import needs_gpu
from inputs import cut_gates, draw, leaves, relative, tensors
from miras import Gates, Spec, algorithm, bias, explain, memorize, memory, presets, retention
from miras.kernels import matrix_fla, matrix_run

if os.environ.get("UNTUNED") == "1":
    from untuned import one_configuration

    one_configuration()

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


def close(got, want, tolerance=1e-4):
    """Whether all pairs agree; a NaN agrees with nothing."""
    return all(relative(a.double(), b.double()) < tolerance for a, b in zip(got, want, strict=True))


def assert_values_states_and_gradients(name, **rest):
    """fla's reference in float32 against plain PyTorch in float64."""
    found = {}
    for backend, dtype in (("torch", torch.float64), ("fla", torch.float32)):
        spec, q, k, v, gates, keywords, given = inputs(name, dtype, grad=True, B=1 if rest else 2)
        y, state = memorize(spec, q, k, v, gates, backend=backend, **keywords, **rest)
        found[backend] = [y, *tensors(state), *torch.autograd.grad(summed(y, state), given)]
    assert [x.shape for x in found["fla"]] == [x.shape for x in found["torch"]]
    assert close(found["fla"], found["torch"])


@pytest.mark.parametrize("name", CASES)
def test_values_states_and_gradients(name, stand_in):
    assert_values_states_and_gradients(name)
    assert stand_in == [CASES[name][2]]


@pytest.mark.parametrize("name", CASES)
def test_packed_sequences(name, stand_in):
    spec, q, k, v, gates, keywords, _ = inputs(name, B=1)
    keywords["weights"] = torch.stack([keywords["weights"], 2 * keywords["weights"], -keywords["weights"]])
    bounds = torch.tensor([0, 4, 5, 21])
    want, end = memorize(spec, q, k, v, gates, cu_seqlens=bounds, backend="torch", **keywords)
    got, state = memorize(spec, q, k, v, gates, cu_seqlens=bounds, backend="fla", **keywords)
    assert close([got, *tensors(state)], [want, *tensors(end)])


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
    memorize(spec, q, k, v, Gates(log_alpha=still.log_alpha.requires_grad_()), backend="fla", **keywords)
    assert given[2]["g"].shape == k.shape  # learned, it goes to the twin


@pytest.mark.parametrize("name", ["mamba2", "gla", "gated_deltanet", "key-side delta", "delta_product"])
def test_a_total_erasure_is_a_number_to_fla(name, stand_in, monkeypatch):
    """Its kernels subtract decays, and -inf - -inf is none."""
    given = []
    monkeypatch.setattr(matrix_run, "load", lambda m, name: lambda **a: given.append(a) or REFERENCES[name](**a))
    spec, q, k, v, gates, keywords, _ = inputs(name)
    gates.log_alpha[:, 7] = -torch.inf
    want, end = memorize(spec, q, k, v, gates, form="recurrent", **keywords)
    got, state = memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert close([got, *tensors(state)], [want, *tensors(end)]) and given[0]["g"].isfinite().all()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_function_goes_on_around_a_call(stand_in):
    """A compiler leaves the call to fla whole, tokens made by it before and outputs used after."""
    torch.compiler.reset()
    spec, q, k, v, gates, _, _ = inputs("gated_deltanet", torch.float32, grad=True)

    def call(q, k, v, eta, log_alpha):
        y, state = memorize(spec, 2 * q, k, v, Gates(eta=eta, log_alpha=log_alpha), backend="fla")
        return summed(y.sin(), state)

    given, found = (q, k, v, gates.eta, gates.log_alpha), []
    for run in (call, torch.compile(call, backend="aot_eager")):
        total = run(*given)
        found.append([total, *torch.autograd.grad(total, given)])
    assert close(*found) and stand_in == ["chunk_gated_delta_rule"] * 2


def test_a_call_of_no_tokens(stand_in):
    spec, q, k, v, gates, keywords, _ = inputs("deltanet", T=0)
    y, state = memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert y.shape == (2, 0, 3, 6) and relative(state.weights, keywords["weights"].expand(2, -1, -1, -1)) == 0


@pytest.fixture
def wrong_backward(stand_in, monkeypatch):
    """A machine on which fla's gated backward pass is wrong."""
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    return stand_in


# one decay a head, and the operation that decays key channels all alike instead
TWINS = {
    "lightning_attention": "chunk_gla",
    "mamba2": "chunk_gla",
    "gla, one decay a head": "chunk_gla",
    "dfw, one decay a head": "chunk_gla",
    "gated_deltanet": "chunk_kda",
}


@pytest.mark.parametrize("rest", [{}, {"cu_seqlens": torch.tensor([0, 4, 5, 21])}], ids=["rows", "packed"])
@pytest.mark.parametrize("name", TWINS)
def test_a_twin_where_the_backward_pass_is_wrong(name, rest, wrong_backward):
    assert_values_states_and_gradients(name, **rest)
    assert wrong_backward == [TWINS[name]]


@pytest.mark.parametrize("name", TWINS)
def test_a_call_without_gradients_needs_no_twin(name, wrong_backward):
    spec, q, k, v, gates, keywords, _ = inputs(name)
    memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with torch.no_grad():
        memorize(spec, q.requires_grad_(), k, v, gates, backend="fla", **keywords)
    assert wrong_backward == 2 * [CASES[name][2]]


@pytest.mark.parametrize("name", ["mamba2", "gated_deltanet"])
def test_a_twin_is_explained(name, wrong_backward):
    spec, _, own = CASES[name]
    found = explain(spec, "cuda")
    assert found.backend == "fla" and found.exact and f"fla's {TWINS[name]} for bf16" in found.reason
    assert f"a twin of {own}, since fla" in found.reason
    assert f"refuses the backward pass of its {own} on Hopper under Triton 3.4 to 3.7.0" in found.reason
    without = explain(spec, "cuda", gradients=False)
    assert without.backend == "fla" and f"fla's {own} for bf16" in without.reason and "twin" not in without.reason


def test_a_backward_pass_without_a_twin_is_refused_with_the_reason(wrong_backward):
    spec, q, k, v, gates, keywords, _ = inputs("delta_product")
    memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with pytest.raises(ValueError, match=r"on Hopper under Triton 3\.4 to 3\.7\.0, which compile it incorrectly: install"):
        memorize(spec, q.requires_grad_(), k, v, gates, backend="fla", **keywords)
    with torch.no_grad():
        memorize(spec, q, k, v, gates, backend="fla", **keywords)
    assert explain(spec, "cuda").backend == "torch"
    assert "refuses the backward pass" in explain(spec, "cuda").reason
    assert explain(spec, "cuda", gradients=False).backend == "fla"


@pytest.mark.parametrize("name", ["gla", "deltanet", "rwkv7", "retnet", "linear_attention", "dfw"])
def test_the_others_have_a_backward_pass_on_hopper(name, monkeypatch):
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    found = explain(CASES[name][0], "cuda")
    assert found.backend == "fla" and "twin" not in found.reason


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
    assert matrix_fla.compiled_wrong(major, triton) == wrong


@pytest.mark.parametrize("widths", [(64, 32), (32, 64), (96, 96)])
def test_gradients_of_narrow_heads_are_refused_where_they_are_compiled_incorrectly(widths, wrong_backward, monkeypatch):
    call = matrix_fla.Call(torch.device("cuda"), torch.bfloat16, widths, named=True)
    narrow = next(width for width in widths if width != 64)
    assert f"is wrong for {narrow} channels in 16 bits on Hopper" in matrix_fla.why_not(presets.linear_attention(), call)
    assert "fla's chunk_kda is wrong" in matrix_fla.why_not(presets.gated_deltanet(), call)
    assert "no multiple of 64" in explain(presets.linear_attention(), "cuda").reason
    assert "multiple" not in explain(presets.linear_attention(), "cuda", gradients=False).reason
    rest = [{"widths": (64, 128)}, {"backward": False}, {"dtype": torch.float32}]
    assert all(matrix_fla.why_not(presets.linear_attention(), call._replace(**change)) is None for change in rest)
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (8, "3.6.0"))
    assert matrix_fla.why_not(presets.linear_attention(), call) is None


def test_mesas_forward_pass_is_refused_for_narrow_heads_too(wrong_backward, monkeypatch):
    """It failed its comparison at 32 channels on an H200 under Triton 3.6."""
    call = matrix_fla.Call(torch.device("cuda"), torch.bfloat16, (32, 32), backward=False, named=True)
    assert matrix_fla.why_not(presets.mesa(), call).startswith(
        "fla's chunk_mesa_net is wrong for 32 channels in 16 bits on Hopper"
    )
    assert matrix_fla.why_not(presets.mesa(), call._replace(widths=(64, 64))) is None
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (8, "3.6.0"))
    assert matrix_fla.why_not(presets.mesa(), call) is None


def test_a_call_of_narrow_heads_is_refused_with_what_to_do(wrong_backward):
    spec, q, k, v, gates, keywords, _ = inputs("deltanet", torch.bfloat16)
    memorize(spec, q, k, v, gates, backend="fla", **keywords)
    with pytest.raises(ValueError, match=r"wrong for 8 channels in 16 bits .* multiples of 64, install Triton 3\.7\.1"):
        memorize(spec, q.requires_grad_(), k, v, gates, backend="fla", **keywords)


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


def test_explain_says_which_gates_have_to_be_one_number_a_head(monkeypatch):
    monkeypatch.setattr(matrix_fla, "FOUND", True)
    where = {name: explain(presets.get(name), "cuda").where for name in ("deltanet", "gated_deltanet", "gla", "rwkv7", "dfw")}
    assert where["deltanet"].endswith("plain PyTorch for float32 (plain PyTorch for a channel-wise eta)")
    assert where["gated_deltanet"].endswith("unless TF32 is allowed (plain PyTorch for a channel-wise eta or log_alpha)")
    assert not any("channel-wise" in where[name] for name in ("gla", "rwkv7", "dfw"))


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
    assert "one width" in matrix_fla.why_not(presets.mesa(), mesa._replace(named=True, widths=(64, 32)))
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


@needs_gpu
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("V", [64, 32])
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name, V, dtype):
    """fla's kernels against plain PyTorch in float64, at odd lengths: outputs, states, gradients where fla has them."""
    sizes = {"B": 2, "T": 333, "H": 4, "K": V if name == "mesa" else 64, "V": V, "eta": 0.5, "decay": 0.02}
    spec, q, k, v, gates, keywords, _ = inputs(name, torch.float64, **sizes)
    cuda = torch.device("cuda")
    own = None if name == "retnet" else shaped_by_head(gates)
    call = matrix_fla.Call(cuda, dtype, (sizes["K"], V), gates=own, named=True)
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
    assert all(x < ROUNDING[dtype] for x in wrong), wrong


# log decays, of numbers between 0 and 1
DECAYS = {
    "mild": lambda x: -0.1 * x,
    "mixed": lambda x: -9 * x,
    "strong": lambda x: -8.5 - x,
    "erased now and then": lambda x: torch.where(x < 0.05, -torch.inf, -0.1 * x),
}
# rows, tokens, bounds of packed sequences, and the form to compare with. The long one comes first: fla tunes its kernels at the
# first shape it meets, and Triton's mistakes on Hopper depend on what was chosen
LAYOUTS = {
    "long": (4, 2048, None, "chunk"),
    "rows": (2, 200, None, "recurrent"),
    "packed": (1, 400, [0, 1, 70, 200, 264, 400], "recurrent"),
}


@needs_gpu
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("name", ["gated_deltanet", "mamba2"])
def test_twins_on_a_gpu(name, D, monkeypatch):
    """bf16 against float64: values, states and every gradient. Prints all errors (pytest -s), asserts after the last.

    A decay's own gradient is a sum in which a token's own write cancels in float32: at exp(-9) what is left is good to about
    a percent, further down it is noise.
    """
    called, load = [], matrix_run.load
    monkeypatch.setattr(matrix_run, "load", lambda module, name: called.append(name) or load(module, name))
    monkeypatch.setattr(matrix_fla, "machine", lambda device: (9, "3.6.0"))
    wrong = {}
    for (layout, sizes), decay in itertools.product(LAYOUTS.items(), DECAYS):
        errors = twin_errors(name, D, *sizes, DECAYS[decay])
        print(f"\n{name}, {D} channels, {layout}, {decay}:", *(f"{part} {error:.1e}" for part, error in errors.items()))
        wrong |= {(layout, decay, part): error for part, error in errors.items()}
    assert set(called) == {TWINS[name]} and len(called) == len(LAYOUTS) * len(DECAYS)
    above = {case: error for case, error in wrong.items() if not error < ROUNDING[torch.bfloat16]}
    assert not above, f"above {ROUNDING[torch.bfloat16]:.1e}: {above}"


def twin_errors(name, D, rows, time, bounds, form, decay):
    """How far outputs, states and gradients of one call in bf16 are from float64, by name; 1024 channels in all heads."""
    spec, q, k, v, gates, keywords, _ = inputs(name, torch.float64, B=rows, T=time, H=1024 // D, K=D, V=D, eta=0.9)
    gates = gates._replace(log_alpha=decay(torch.rand(gates.log_alpha.shape, dtype=torch.float64)))
    tokens = {part: x.to(torch.bfloat16) for part, x in zip("qkv", (q, k, v), strict=True)}
    others = {part: x.float() for part, x in leaves(None, None, None, gates, keywords).items()}
    packing = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds).cuda()}
    found = []
    for backend, shape, wide in (("torch", form, True), ("fla", "chunk", False)):
        given = {
            part: x.cuda().to(torch.float64 if wide else x.dtype).requires_grad_() for part, x in (tokens | others).items()
        }
        shaped = Gates(**{part: given[part] for part in others if part != "W1"})
        own = (spec, *(given[part] for part in "qkv"), shaped)
        y, state = memorize(*own, weights=given["W1"], backend=backend, form=shape, **packing)
        slopes = torch.autograd.grad(summed(y, state), list(given.values()))
        found.append({"y": y, "W": state.weights} | {f"d{part}": x for part, x in zip(given, slopes, strict=True)})
    return {part: distance(found[1][part], found[0][part]) for part in found[0]}


@needs_gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("V", [64, 32])
def test_auto_on_a_gpu_is_right_with_and_without_gradients(name, V):
    """Whatever it takes: fla where it is right, plain PyTorch where fla is not; packed sequences as well."""
    sizes = {"B": 1, "T": 70, "K": V if name == "mesa" else 64, "V": V, "eta": 0.5, "decay": 0.02}
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
        assert all(distance(a, b.double()) < ROUNDING[torch.bfloat16] for a, b in pairs)


@needs_gpu
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
