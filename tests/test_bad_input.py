"""Bad input: one line that names the argument, what came, and what is allowed; nothing is clamped in silence."""

import dataclasses
import re

import pytest
import torch

from inputs import draw
from miras import Gates, Spec, algorithm, bias, checks, explain, memorize, memory, nn, presets, recall, retention


def call(spec=None, **changes):
    """A good call of gated_deltanet with some arguments exchanged."""
    spec = spec or presets.gated_deltanet()
    q, k, v, gates, keywords = draw(spec, B=1, T=4, H=2, K=4)
    given = {"q": q, "k": k, "v": v, "gates": gates, "form": "recurrent", **keywords}
    changes = {name: change(given.get(name)) if callable(change) else change for name, change in changes.items()}
    return memorize(spec, **(given | changes))


GOOD = dict(B=1, T=4, H=2, K=4)
CASES = {
    "no values": (dict(v=None), "v must be a tensor, got NoneType"),
    "bounds in a list": (dict(cu_seqlens=[0, 4]), "cu_seqlens must be a tensor, got list"),
    "gates in a tensor": (dict(gates=torch.ones(2)), "gates must be a miras.Gates, got Tensor"),
    "gates in an empty dictionary": (dict(gates={}), "gates must be a miras.Gates, got dict"),
    "weights in a number": (dict(weights=3.0), "weights must be a tensor or a tuple of them, got float"),
    "wrong rank": (dict(q=lambda q: q[0]), r"q must be \[B,T,H,D\], got a tensor of shape \[4, 2, 4\]"),
    "unequal time": (dict(k=lambda k: k[:, :3]), r"k must be \[1, 4, 2, 4\] to go with q"),
    "unequal heads": (dict(v=lambda v: v[:, :, :1]), r"v must be \[1, 4, 2, V\] to go with q"),
    "no row": (dict(q=lambda x: x[:0], k=lambda x: x[:0], v=lambda x: x[:0]), "q must have at least one row"),
    "an integer tensor": (dict(v=lambda v: v.long()), "v must be a floating-point tensor, got torch.int64"),
    "mixed dtypes": (dict(k=lambda k: k.float()), "q, k and v must have one dtype"),
    "a list": (dict(v=lambda v: v.tolist()), "v must be a tensor, got list"),
    "gate too wide": (dict(gates=lambda g: g._replace(eta=torch.ones(1, 4, 2, 5))), r"gates.eta must be \[2\] or .* got"),
    "gate of other time": (dict(gates=lambda g: g._replace(eta=torch.ones(1, 3, 2))), r"gates.eta must be \[2\] or"),
    "negative eta": (dict(gates=lambda g: g._replace(eta=-g.eta)), r"gates.eta must be >= 0 and finite everywhere, got -"),
    "infinite eta": (
        dict(gates=lambda g: g._replace(eta=g.eta + torch.inf)),
        "gates.eta must be >= 0 and finite .*, got inf",
    ),
    "eta not a number": (
        dict(gates=lambda g: g._replace(eta=g.eta * torch.nan)),
        "gates.eta must be >= 0 and finite .* nan",
    ),
    "positive log_alpha": (dict(gates=lambda g: g._replace(log_alpha=-g.log_alpha)), "gates.log_alpha must be <= 0"),
    "integer gate": (dict(gates=lambda g: g._replace(eta=torch.ones(2).long())), "gates.eta must be a floating-point tensor"),
    "missing gate": (dict(gates=Gates()), "gates.eta is missing: .* needs eta, log_alpha"),
    "too many gates": (dict(gates=lambda g: g._replace(mu=g.eta)), "gates.mu was given, but .* takes eta, log_alpha"),
    "weights of other shape": (dict(weights=torch.ones(2, 4, 5)), r"weights must be \[2, 4, 4\] .* got \[2, 4, 5\]"),
    "too many weights": (dict(weights=(torch.ones(2, 4, 4),) * 2), "weights must be .* got 2 tensors"),
    "integer weights": (dict(weights=torch.ones(2, 4, 4).long()), "each of the weights must be a floating-point tensor"),
    "norm of a matrix": (dict(norm=(torch.ones(2, 4), torch.ones(2, 4))), "norm was given, but Matrix has no LayerNorm"),
    "both weights and state": (dict(state=lambda _: call()[1]), "weights and state were both given"),
    "unknown form": (dict(form="parallel"), "form is .* got 'parallel'"),
    "packed batch": (dict(cu_seqlens=torch.tensor([0, 3])), "cu_seqlens must rise from 0 to T=4"),
    "falling bounds": (dict(cu_seqlens=torch.tensor([0, 3, 2, 4])), "cu_seqlens must rise from 0 to T=4, got"),
    "float bounds": (dict(cu_seqlens=torch.tensor([0.0, 4.0])), "cu_seqlens must be an integer tensor"),
    "spec is a name": (dict(spec="yaad"), "spec must be a Spec"),
    "gates in a dictionary": (dict(gates=lambda g: g._asdict()), "gates must be a miras.Gates, got dict"),
}


class Undecorated(bias.Lp):
    """Its parameters would be lost where it is compared or written down."""

    weight: float = 2.0


@pytest.mark.parametrize("name", CASES)
def test_memorize_refuses(name):
    changes, message = CASES[name]
    if "spec" in changes:
        q, k, v, gates, keywords = draw(presets.gated_deltanet(), **GOOD)
        with pytest.raises(ValueError, match=message):
            memorize(changes["spec"], q, k, v, gates, form="recurrent", **keywords)
        return
    with pytest.raises(ValueError, match=message) as error:
        call(**changes)
    assert "\n" not in str(error.value)


def test_k_unlike_v_with_a_residual_memory():
    q, k, v, gates, keywords = draw(presets.yaad(), **GOOD)
    with pytest.raises(ValueError, match=r"MLP memory needs K == V .* got K=4 and V=3"):
        memorize(presets.yaad(), q, k, v[..., :3], gates, form="recurrent", **keywords)


@pytest.mark.parametrize("spec", [presets.yaad(), presets.memora(), presets.moneta()], ids=lambda s: s.name)
def test_missing_weights_where_zero_is_no_start(spec):
    q, k, v, gates, _ = draw(spec, **GOOD)
    with pytest.raises(ValueError, match=r"weights are missing: .* cannot start from zeros"):
        memorize(spec, q, k, v, gates, form="recurrent")


def test_keys_given_or_missing_against_the_spec():
    q, _, v, gates, keywords = draw(presets.hgrn2(), **GOOD)
    with pytest.raises(ValueError, match="takes k=None, its key is 1 - alpha"):
        memorize(presets.hgrn2(), q, q, v, gates, form="recurrent", **keywords)
    with pytest.raises(ValueError, match="k is None, but deltanet"):
        memorize(presets.deltanet(), q, None, v, Gates(eta=torch.ones(2)), form="recurrent")


@pytest.mark.parametrize(
    ("norm", "said"), [(torch.ones(2, 4), "Tensor"), ((torch.ones(2, 4), 1.0), r"\['Tensor', 'float'\]"), ([], r"\[\]")]
)
def test_a_norm_that_is_no_pair(norm, said):
    q, k, v, gates, keywords = draw(presets.yaad(), **GOOD)
    with pytest.raises(ValueError, match=rf"norm must be two tensors, \(gain, shift\), got {said}"):
        memorize(presets.yaad(), q, k, v, gates, **(keywords | {"norm": norm}))


def test_other_gates_out_of_range():
    for spec, name, value, message in (
        (presets.titans_lmm(), "mu", 1.0, r"gates.mu must be in \[0, 1\) everywhere, got 1"),
        (presets.yaad(), "delta", -1.0, "gates.delta must be >= 0 everywhere, got -1"),
        (presets.mesa(), "ridge", 0.0, "gates.ridge must be > 0 everywhere, got 0"),
        (presets.dfw(), "log_beta", 0.5, "gates.log_beta must be <= 0"),
    ):
        q, k, v, gates, keywords = draw(spec, **GOOD)
        gates = gates._replace(**{name: torch.full_like(getattr(gates, name), value)})
        with pytest.raises(ValueError, match=message):
            memorize(spec, q, k, v, gates, form="recurrent", **keywords)


def test_states_of_another_spec_are_refused():
    def state_of(spec, **sizes):
        q, k, v, gates, keywords = draw(spec, **(GOOD | sizes))
        return memorize(spec, q, k, v, gates, form="recurrent", **keywords)[1]

    yaad, titans = presets.yaad(), presets.titans_lmm()
    q, k, v, gates, keywords = draw(yaad, **GOOD)
    for state, message in (
        (state_of(titans), "state has a momentum, unlike yaad"),
        (state_of(presets.yaad(anchor=True)), "state has an anchor, unlike yaad"),
        (state_of(presets.mesa()), "state must be a State for yaad"),
        (state_of(presets.deltanet()), "state must hold weights of shapes"),
        (state_of(yaad, B=2), "state must hold weights of shapes"),
        (state_of(yaad, dtype=torch.float32), "state is torch.float32, but q asks for torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            memorize(yaad, q, k, v, gates, form="recurrent", norm=keywords["norm"], state=state)


def in_chunk(**changes):
    return lambda state: state._replace(
        chunk=state.chunk._replace(**{n: f(getattr(state.chunk, n)) for n, f in changes.items()})
    )


STATES = {
    "places of other rows": (
        "yaad",
        in_chunk(position=lambda x: x[:1]),
        "chunk.position must be a whole number for each of 2 rows",
    ),
    "places in fractions": (
        "yaad",
        in_chunk(position=lambda x: x.double()),
        "chunk.position must be a whole number for each of 2",
    ),
    "a place before the chunk": ("yaad", in_chunk(position=lambda x: x - 13), "state stands -3 tokens into its chunk"),
    "a place behind it": ("yaad", in_chunk(position=lambda x: x + 100), "state stands 110 tokens into its chunk"),
    "nothing moved": ("yaad", in_chunk(moved=lambda x: ()), "state's chunk.moved must have the shapes"),
    "no start": ("yaad", in_chunk(start=lambda x: ()), "state's chunk.start must have the shapes"),
    "no decay": ("yaad", in_chunk(log_decay=lambda x: ()), "state's chunk.log_decay must have the shapes"),
    "one decay": ("yaad", in_chunk(log_decay=lambda x: x[:1]), "state's chunk.log_decay must have the shapes"),
    "a decay of another size": (
        "yaad",
        in_chunk(log_decay=lambda x: (x[0][..., :3, :], x[1])),
        "state's chunk.log_decay must have",
    ),
    "no threshold": ("yaad", in_chunk(threshold=lambda x: ()), "state's chunk.threshold must have the shapes"),
    "half of the digits": (
        "yaad",
        in_chunk(moved=lambda x: tuple(y.half() for y in x)),
        "chunk.moved is torch.float16, but q asks",
    ),
    "accumulated in others": (
        "yaad",
        lambda state: state._replace(accumulated=tuple(x.float() for x in state.accumulated)),
        "state's accumulated is torch.float32, but q asks for torch.float64",
    ),
    "both weights alike": (
        "yaad",
        lambda state: state._replace(accumulated=state.accumulated[::-1]),
        "state's accumulated must have the shapes",
    ),
    "fewer keys": (
        "mesa",
        lambda state: state._replace(key_key=state.key_key[:, :, :1, :1]),
        "state's key_key must have the shapes",
    ),
    "keys of other digits": (
        "mesa",
        lambda state: state._replace(key_key=state.key_key.float()),
        "state's key_key is torch.float32",
    ),
    "one length": (
        "transformer",
        lambda state: state._replace(lengths=state.lengths[:1]),
        "lengths must be a whole number for each",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_are_not_whole_are_refused(name):
    preset, damaged, message = STATES[name]
    spec = presets.get(preset)
    q, k, v, gates, keywords = draw(spec, B=2, T=10, H=2, K=4)
    _, state = memorize(spec, q, k, v, gates, chunk_size=16, **keywords)
    with pytest.raises(ValueError, match=message) as error:
        memorize(spec, q, k, v, gates, chunk_size=16, state=damaged(state), norm=keywords.get("norm"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(spec="deltanet"), "spec must be a Spec"),
        (dict(spec=presets.yaad()), r"state must hold weights of shapes \[\(2, 2, 4, 16\), \(2, 2, 16, 4\)\] for yaad"),
        (dict(spec=presets.mesa()), "state must be a NewtonState for mesa"),
        (dict(state=torch.ones(2, 2, 4, 4)), "state must be a State for deltanet"),
        (dict(q=[1.0]), "q must be a tensor, got list"),
        (dict(q=torch.ones(2, 2, 4)), r"q must be \[B,T,H,K\], got a tensor of shape \[2, 2, 4\]"),
        (dict(q=torch.ones(2, 1, 2, 4).long()), "q must be a floating-point tensor"),
        (dict(q=torch.ones(2, 1, 2, 5)), r"state must hold weights of shapes \[\(2, 2, 4, 5\)\]"),
        (dict(q=torch.ones(2, 1, 3, 4)), r"state must hold weights of shapes \[\(2, 3, 4, 4\)\]"),
        (dict(q=torch.ones(3, 1, 2, 4)), "q has 3 rows, but state has 2"),
        (dict(norm=(torch.ones(2, 4), torch.ones(2, 4))), "norm was given, but Matrix has no LayerNorm"),
    ],
)
def test_recall_refuses(change, message):
    spec = presets.deltanet()
    q, k, v, gates, keywords = draw(spec, B=2, T=4, H=2, K=4)
    given = {"spec": spec, "state": memorize(spec, q, k, v, gates, **keywords)[1], "q": q, "norm": None}
    with pytest.raises(ValueError, match=message) as error:
        recall(**(given | change))
    assert "\n" not in str(error.value)


def test_explain_refuses_a_name():
    with pytest.raises(ValueError, match="spec must be a Spec"):
        explain("yaad")


@pytest.mark.parametrize(
    "options, message",
    [
        *(
            ({"chunk_size": size}, f"chunk_size must be an integer of 1 or more, or None, got {size}")
            for size in (0, -3, 2.5, True)
        ),
        *(({"channels": n}, f"channels must be an integer of 1 or more, or None, got {n!r}") for n in (0, "64")),
        *(({"dtype": x}, f"dtype must be a floating-point torch.dtype or None, got {x!r}") for x in ("bf16", torch.int64)),
        *(({"device": x}, f"device must be a torch.device or the name of one, got {x!r}") for x in ("gpu", None)),
        ({"gradients": "no"}, "gradients must be True or False, got 'no'"),
    ],
    ids=str,
)
def test_explain_checks_what_calls_would(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        explain(presets.yaad(), **options)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: bias.Lp(p=0.5), "Lp needs p >= 1"),
        (lambda: bias.Huber(form="square"), "Huber form is one of"),
        (lambda: bias.Huber(delta=-1.0), "Huber needs delta >= 0"),
        (lambda: memory.MLP(depth=5), "MLP depth is 1 to 4, got 5"),
        (lambda: retention.Lq(q=1.0, link="exact"), "needs a q of more than 1"),
        (lambda: retention.Lq(link="exakt"), "Lq link is one of"),
        (lambda: retention.KL(slice="diagonal"), "KL slice is one of"),
        (lambda: retention.KL(c=0.0), "KL needs c > 0"),
        (lambda: retention.ElasticNet(a=0.0), "ElasticNet needs a > 0"),
        (lambda: retention.L2(at="next"), "at is one of"),
        (lambda: retention.L2(tied=True), "needs side='key'"),
        (lambda: retention.Bregman(link="cosine"), "Bregman link 'cosine' is unknown: known are"),
        (lambda: retention.FDivergence(g="l9"), "unknown divergence 'l9': known are"),
        (lambda: retention.L2Ball(radius=-1.0), "L2Ball needs radius > 0"),
        (lambda: algorithm.MultiStep(n=0), "MultiStep needs n >= 1, got 0"),
        (lambda: algorithm.MultiStep(n=1.5), "MultiStep's n must be an integer, got 1.5"),
        (lambda: memory.MLP(depth=2.0), "MLP's depth must be an integer, got 2.0"),
        (lambda: memory.MLP(depth=True), "MLP's depth must be an integer, got True"),
        (lambda: retention.L2(anchor="no"), "L2's anchor must be True or False, got 'no'"),
        (lambda: bias.Huber(smooth="no"), "Huber's smooth must be True or False, got 'no'"),
        (lambda: bias.Huber(delta="1"), "Huber's delta must be a number or None, got '1'"),
        (lambda: algorithm.GradientDescent(eta="1"), "GradientDescent's eta must be a number or None, got '1'"),
        (lambda: bias.Lp(p=float("inf")), "Lp's p must be finite, got inf"),
        (lambda: retention.Lq(q=float("inf"), link="exact"), "Lq's q must be finite, got inf"),
        (lambda: algorithm.GradientDescent(eta=float("inf")), "GradientDescent's eta must be finite, got inf"),
        (lambda: bias.Huber(delta=float("nan")), "Huber's delta must be finite, got nan"),
        (lambda: bias.Huber(delta=-float("inf")), "Huber's delta must be finite, got -inf"),
        (lambda: bias.Huber(delta=1.0, sharpness=float("inf")), "Huber's sharpness must be finite, got inf"),
        (lambda: nn.Recipe(start=float("inf")), "Recipe's start must be finite, got inf"),
        (lambda: dataclasses.replace(presets.yaad(), chunk_size=True), "Spec's chunk_size must be an integer, got True"),
        (lambda: nn.Recipe(value_norm="no"), "Recipe's value_norm must be True or False, got 'no'"),
        (lambda: nn.Recipe(convolution=2.5), "Recipe's convolution must be an integer or None, got 2.5"),
        (lambda: nn.Recipe(start=None), "Recipe's start must be a number, got None"),
        (lambda: nn.MirasLayer(16, 2, recipe="yaad"), "recipe must be a miras.nn.Recipe, got 'yaad'"),
        (lambda: nn.MirasLayer(16, 2, norm_eps=-1.0), "norm_eps must be > 0, got -1.0"),
        (lambda: nn.MirasLayer(16, 2, recipe=nn.Recipe(gates=nn.RECIPES["yaad"].gates, time_step=True)), "one number a head"),
        (lambda: nn.Block(nn.MirasLayer(16, 2), 0), "inner must be an integer of 1 or more, or None, got 0"),
        (lambda: nn.SlidingWindowAttention(16, 2, window=4.0), "window must be an integer of 1 or more, got 4.0"),
        (lambda: bias.Lp(p="3"), "Lp's p must be a number, got '3'"),
        (lambda: Spec.from_dict(presets.yaad().to_dict() | {"bias": None}), "a bias is read from a dictionary .* got None"),
        (lambda: dataclasses.replace(presets.yaad(), bias=Undecorated()), "Undecorated must be a dataclass"),
        (lambda: presets.get("jaad"), "unknown preset 'jaad', did you mean yaad. Known are retnet, transformer"),
        (lambda: Spec.from_dict({"memory": {"name": "Matrix"}}), "a Spec needs algorithm, bias, retention as well"),
        (lambda: Spec.from_dict(presets.yaad().to_dict() | {"depth": 3}), "a Spec has no depth"),
        (
            lambda: Spec(memory=bias.L2(), bias=bias.L2(), retention=retention.Keep(), algorithm=algorithm.Newton()),
            "Spec's memory must be a",
        ),
        (lambda: Spec.from_dict(presets.yaad().to_dict() | {"chunk_size": 0}), "chunk_size must be >= 1, got 0"),
    ],
)
def test_parts_check_themselves(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", checks.LIMITS)
@pytest.mark.parametrize("bad", [-1.0, 0.0, 0.5, 1.0, float("inf"), float("-inf"), float("nan")])
def test_a_gates_extremes_decide_as_all_its_values_do(name, bad):
    """What an accelerator looks at, lest it be waited for."""
    limit = checks.LIMITS[name]
    value = torch.full((3, 4), -0.5 if name.startswith("log") else 0.5)
    value[1, 2] = bad
    assert bool(limit.test(limit.extreme(value)).all()) == bool(limit.test(value).all())
