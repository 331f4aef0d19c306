"""What is timed: the presets by both forms, and what others have published for the same."""

from __future__ import annotations

import warnings

import torch
from calls import Call, draw
from timing import Case

from miras import Gates, Spec, memorize, presets

DEEP = ("yaad", "moneta", "memora", "titans_lmm")
TITANS, TITANS_TOKENS = "titans-pytorch", "titans-pytorch, every token"
FLA = "fla naive_chunk_gated_delta_rule"
STRONG = 2.0


def ours(name: str, call: Call, *, form: str, chunk: int, rounds: int, note: str = "") -> Case:
    """A call of ``memorize``."""
    spec, q, k, v, gates, weights, norm = call

    def forward() -> torch.Tensor:
        size = {"chunk_size": chunk} if form == "chunk" else {}
        return memorize(spec, q, k, v, gates, weights=weights, norm=norm, form=form, **size)[0]  # type: ignore[arg-type]

    return Case(name=name, forward=forward, leaves=call.leaves, rounds=rounds, note=note)


def chunk_cases(time: int, heads: int, dim: int, chunk: int, rounds: int) -> list[Case]:
    """The presets by the chunk form."""
    shape = {"time": time, "heads": heads, "dim": dim}
    rows: list[tuple[str, Spec, bool, float, str]] = [
        ("yaad", presets.yaad(), True, 1e-3, "channel-wise gates"),
        ("yaad, strong decay", presets.yaad(), True, STRONG, "channel-wise, log alpha about -2: ratios by blocks"),
        ("moneta", presets.moneta(), True, 1e-3, "channel-wise gates"),
        ("memora", presets.memora(), True, 1e-3, "channel-wise gates, lag"),
        ("memora, dual", presets.memora(chunk="dual"), True, 1e-3, "channel-wise gates"),
        ("titans_lmm", presets.titans_lmm(), False, 1e-3, "one gate a head"),
        ("titans_lmm, channel-wise", presets.titans_lmm(), True, 1e-3, "channel-wise gates, momentum among them"),
        ("ttt_mlp", presets.ttt_mlp(), False, 0.0, "one gate a head"),
        ("gated_deltanet", presets.gated_deltanet(), False, 1e-3, "one gate a head"),
        ("gated_deltanet, channel-wise", presets.gated_deltanet(), True, 1e-3, "channel-wise gates: a system a row"),
        ("deltanet", presets.deltanet(), False, 0.0, "one gate a head"),
        ("gla", presets.gla(), True, 1e-3, "channel-wise decay"),
    ]
    return [
        ours(name, draw(spec, **shape, channelwise=wide, decay=decay), form="chunk", chunk=chunk, rounds=rounds, note=note)
        for name, spec, wide, decay, note in rows
    ]


def recurrent_cases(time: int, heads: int, dim: int, rounds: int) -> list[Case]:
    """The deep presets token by token, with the gates they have by the chunk form."""
    cases = []
    for name in DEEP:
        call = draw(presets.get(name), time=time, heads=heads, dim=dim, channelwise=name != "titans_lmm")
        cases.append(ours(f"{name}, recurrent", call, form="recurrent", chunk=1, rounds=rounds, note="token by token"))
    return cases


def titans_cases(time: int, heads: int, dim: int, chunk: int, rounds: int) -> list[Case]:
    """titans-pytorch's NeuralMemory, a whole layer: norms, projections of q, k, v and gates, and an output projection.

    With ``chunk_size`` 64 it has one step, decay and momentum for 64 tokens, which all read the weights of the chunk before;
    with 1 it has them token by token, as the chunk form here has, and holds the weights of every token.
    """
    from titans_pytorch import MemoryMLP, NeuralMemory

    cases = []
    for name, size, own, note in (
        (TITANS, chunk, rounds, "whole layer; one update and one read state a chunk"),
        (TITANS_TOKENS, 1, max(1, rounds // 3), "whole layer; an update and a read state a token, as ours"),
    ):
        torch.manual_seed(0)
        layer = NeuralMemory(
            dim=heads * dim,
            heads=heads,
            dim_head=dim,
            chunk_size=size,
            batch_size=chunk,
            model=MemoryMLP(dim, depth=2, expansion_factor=4.0),
            default_step_transform_max_lr=1e-2,  # the default of 1 does not stay finite here
        )
        sequence = torch.randn(1, time, heads * dim, requires_grad=True)
        leaves = [sequence, *layer.parameters()]

        def forward(layer: NeuralMemory = layer, sequence: torch.Tensor = sequence) -> torch.Tensor:
            return layer(sequence)[0]

        cases.append(Case(name=name, forward=forward, leaves=leaves, rounds=own, note=note))
    return cases


def fla_cases(time: int, heads: int, dim: int, chunk: int, rounds: int) -> list[Case]:
    """fla's reference of the gated delta rule in chunks, plain PyTorch."""
    with warnings.catch_warnings():
        # importing fla on a machine without a GPU warns of that and of what torch has deprecated
        warnings.simplefilter("ignore")
        from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    call = draw(presets.gated_deltanet(), time=time, heads=heads, dim=dim, channelwise=False)
    gates: Gates = call.gates

    def forward() -> torch.Tensor:
        return naive_chunk_gated_delta_rule(call.q, call.k, call.v, gates.log_alpha, gates.eta, chunk_size=chunk, scale=1.0)[0]

    return [Case(name=FLA, forward=forward, leaves=call.leaves, rounds=rounds, note="plain PyTorch, chunk 64")]
