"""The fused kernels on a GPU against float64: every dtype, width, chunk and retention they claim, values and all gradients.

    python benchmarks/kernel_numerics.py --out benchmarks/results/kernel-numerics.json
    python benchmarks/kernel_numerics.py --only "^ttt_linear" --out ttt-linear.json  # the 1-layer memory alone

Memory is filled with NaN before every call, so that nothing unwritten passes. Inputs are tame (unit keys, small steps, little
decay), since the dynamics are chaotic otherwise. A tensor passes when its error, relative to its float64 norm, is at most four
times that of plain PyTorch with the same rounded inputs, or ``ROUNDED[dtype]``, what rounding the operands of some
chained products costs. Huber's gradient jumps where an error crosses its threshold; in 16 bits a few errors
do, so k, v and delta get ``KINK`` there. Memora's gradient jumps where a weight crosses the floor of its logarithm; it may be
as far off as ``moved_by_rounding`` finds float64 to be.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor

from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention
from miras.forms.common import as_tuple
from miras.kernels import linear_op
from miras.kernels.deep_op import PROVEN
from miras.lab.provenance import provenance
from miras.lab.untrained import initial_weights, unit_step

ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
KINK = 0.12
# an anchored decay's gradient multiplies W - W_0, the difference of two rounded numbers: here it is 1 % of W, and rounding W to
# bf16 moves it by 0.2 %
NEAR = {torch.bfloat16: 0.2, torch.float16: 0.025}
# a loss of such a scale keeps float16's gradients from underflowing: the largest that overflows nothing, as a GradScaler finds
LOSS_SCALES = (2.0**10, 2.0**5, 1.0)

# seconds without a result after which a process must have died
PATIENCE = 600


class Inputs(NamedTuple):
    """The leaves of one call, in float64."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: dict[str, Tensor]
    weights: tuple[Tensor, ...]
    norm: tuple[Tensor, Tensor]


def draw(
    spec: Spec, B: int, T: int, H: int, D: int, *, channelwise: bool = True, decay: float = 2e-3, step: float = 0.02
) -> Inputs:
    """Fresh random leaves whose tokens are exact in bfloat16, on the CPU."""
    width = (B, T, H, D) if channelwise else (B, T, H)
    weights = initial_weights(spec, H, D, seed=0)
    assert weights is not None
    step *= unit_step(spec, weights)
    vary = lambda value: value * (0.5 + torch.rand(width))  # noqa: E731
    made = {"eta": vary(step), "log_alpha": vary(-decay), "delta": vary(1.0), "mu": 0.5 * torch.rand(B, T, H)}
    if "mu" in {gate.name for gate in spec.gates}:
        made["log_alpha"] = made["log_alpha"].mean(-1) if channelwise else made["log_alpha"]
    tokens = [torch.randn(B, T, H, D) for _ in range(3)]
    q, k, v = F.normalize(tokens[0], dim=-1), F.normalize(tokens[1], dim=-1), tokens[2]
    norm = (1 + 0.1 * torch.randn(H, D).double(), 0.1 * torch.randn(H, D).double())
    wanted = {gate.name for gate in spec.gates}
    gates = {name: x.double() for name, x in made.items() if name in wanted}
    return Inputs(*(x.bfloat16().double() for x in (q, k, v)), gates, tuple(w.double() for w in weights), norm)


def call(
    spec: Spec,
    given: Inputs,
    dtype: torch.dtype,
    backend: str,
    size: int,
    bounds: Tensor | None,
    scale: float = 1.0,
    lean: bool = False,
) -> dict[str, Tensor]:
    """y, the outgoing weights and the gradients of everything, from a loss of all outputs.

    The kernels run on the GPU, what they are compared with on the CPU, which many processes share better. ``lean`` gates have
    the tokens' dtype.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    device = "cuda" if backend == "triton" else "cpu"
    leaf = lambda x, kind: x.detach().to(device, kind).requires_grad_()  # noqa: E731
    named = {name: leaf(getattr(given, name), dtype) for name in "qkv"} | {
        n: leaf(x, dtype if lean and x.dim() == 4 else wide) for n, x in given.gates.items()
    }
    named |= {f"W{i + 1}": leaf(x, wide) for i, x in enumerate(given.weights)}
    named |= {"gain": leaf(given.norm[0], wide), "shift": leaf(given.norm[1], wide)}
    gates = Gates(**{n: named[n] for n in given.gates})
    weights = tuple(named[f"W{i + 1}"] for i in range(len(given.weights)))
    y, state = memorize(
        spec, named["q"], named["k"], named["v"], gates, weights=weights, norm=(named["gain"], named["shift"]),
        chunk_size=size, backend=backend, cu_seqlens=bounds,
    )  # fmt: skip
    mark = torch.Generator().manual_seed(1)
    reached = as_tuple(state.weights)
    outputs = (y, *reached)
    marks = ((torch.randn(x.shape, generator=mark) / x.detach().norm().cpu()).to(device) for x in outputs)
    loss = scale * sum((x.double() * own).sum() for x, own in zip(outputs, marks, strict=True))
    grads = torch.autograd.grad(loss, list(named.values()))
    found = (
        {"y": y}
        | {f"W{i + 1}_T": w for i, w in enumerate(reached)}
        | {f"d{n}": g / scale for n, g in zip(named, grads, strict=True)}
    )
    return {name: x.detach().cpu() for name, x in found.items()}


def poison() -> None:
    """Leave NaN in the memory that the next call is given."""
    torch.full((2**27,), torch.nan, device="cuda")


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the float64 norm."""
    return {n: float((found[n].double() - x).norm() / x.norm().clamp_min(1e-30)) for n, x in exact.items()}


def moved_by_rounding(
    spec: Spec, given: Inputs, dtype: torch.dtype, size: int, bounds: Tensor | None, exact: dict[str, Tensor]
) -> dict[str, float]:
    """How far float64 itself moves when nothing but the weights it starts from is rounded; Memora in 16 bits alone.

    Its first token of a chunk takes log max(W, 1e-8), whose derivative is 1 / W above the floor and 0 below. The tokens before
    it have brought 1 % of the weights below zero, and many near it. Products of rounded numbers move W by 1e-4 and so a few
    weights in 100 000 across the floor; each gains or loses its whole adjoint, and with it every chunk before.
    """
    if dtype == torch.float32 or not isinstance(spec.retention, retention.KL):
        return {}
    coarse = given._replace(weights=tuple(w.to(dtype).double() for w in given.weights))
    return errors(call(spec, coarse, torch.float64, "torch", size, bounds), exact)


def case(
    name: str,
    spec: Spec,
    dtype: torch.dtype,
    D: int,
    size: int,
    *,
    T: int = 211,
    bounds: list[int] | None = None,
    lean: bool = False,
    **draws: Any,
) -> dict[str, Any]:
    """One comparison; its seconds are those of the reference, and of the kernels with their compilation."""
    given = draw(spec, 1 if bounds else 2, T, 2, D, **draws)
    if lean:
        given = given._replace(gates={n: x.to(dtype).double() if x.dim() == 4 else x for n, x in given.gates.items()})
    cut = None if bounds is None else torch.tensor(bounds)
    began = time.perf_counter()
    exact = call(spec, given, torch.float64, "torch", size, cut)
    plain = errors(call(spec, given, dtype, "torch", size, cut, lean=lean), exact)
    jumps = moved_by_rounding(spec, given, dtype, size, cut, exact)
    compared = time.perf_counter()
    for scale in LOSS_SCALES if dtype == torch.float16 else (1.0,):
        poison()
        found = call(spec, given, dtype, "triton", size, cut, scale, lean)
        if all(bool(x.isfinite().all()) for x in found.values()):
            break
    fused = errors(found, exact)
    kinked = isinstance(spec.bias, bias.Huber) and dtype != torch.float32
    near = spec.retention.anchored and dtype != torch.float32
    wide = dict.fromkeys(("dk", "dv", "ddelta"), KINK) if kinked else {}
    wide |= {"dlog_alpha": NEAR[dtype]} if near else {}
    limit = {n: max(4 * plain[n], jumps.get(n, 0.0), wide.get(n, ROUNDED[dtype])) for n in exact}
    bad = {n: e for n, e in fused.items() if not e <= limit[n]}
    return {
        "case": name,
        "dtype": str(dtype),
        "D": D,
        "chunk": size,
        "passed": not bad,
        "fused": fused,
        "plain": plain,
        "moved": jumps,
        "bad": bad,
        "seconds": {
            "reference": round(compared - began, 1),
            "kernels, compiled first": round(time.perf_counter() - compared, 1),
        },
    }


def squared(anchor: bool = False) -> Spec:
    """Titans' memory without momentum: no kink anywhere."""
    kept = retention.L2(at="previous", anchor=anchor)
    return Spec(memory=memory.MLP(), bias=bias.L2(), retention=kept, algorithm=algorithm.GradientDescent())


def cases() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every dtype, width and chunk size, plain and anchored; then biases, gates, packed sequences, the gates' ends."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for dtype, (sizes, widths) in PROVEN.items():
        for D, size, anchor in itertools.product(widths[::-1], sizes[::-1], (True, False)):
            found.append((("anchored" if anchor else "plain", squared(anchor), dtype, D, size), {}))
    cubed = Spec(
        memory=memory.MLP(), bias=bias.Lp(p=3), retention=retention.L2(at="previous"), algorithm=algorithm.GradientDescent()
    )
    named = {"yaad": presets.yaad(), "yaad anchored": presets.yaad(anchor=True), "l_p": cubed, "ttt_mlp": presets.ttt_mlp()}
    named |= {"titans_lmm": presets.titans_lmm(), "titans_lmm anchored": presets.titans_lmm(anchor=True)}
    named |= {"moneta": presets.moneta(), "moneta anchored": presets.moneta(anchor=True)}
    named |= {"memora": presets.memora(), "memora anchored": presets.memora(anchor=True)}
    moved = {name: spec for name, spec in named.items() if name.split()[0] in ("titans_lmm", "moneta", "memora")}
    for D, size in ((128, 64), (96, 64), (48, 64), (64, 32), (64, 16)):
        fitting = {name: spec for name, spec in moved.items() if D <= 64 or name != "titans_lmm anchored"}
        found += [((name, spec, torch.bfloat16, D, size), {}) for name, spec in fitting.items()]
    found += [((f"lean gates {name}", spec, torch.bfloat16, 64, 64), {"lean": True}) for name, spec in named.items()]
    ends = {
        "alpha 1e-6 to 1e-2": {"decay": 9.2},
        "alpha 0.01": {"decay": 4.6},
        "alpha 1": {"decay": 0.0},
        "eta 0": {"step": 0.0},
    }
    for dtype, (sizes, _) in PROVEN.items():
        size = sizes[-1]
        found += [((name, spec, dtype, 64, size), {}) for name, spec in named.items()]
        found.append((("scalar gates", presets.yaad(), dtype, 64, size), {"channelwise": False}))
        for name, spec in (("packed", squared()), ("packed anchored", squared(True))):
            found.append(((name, spec, dtype, 64, size), {"T": 300, "bounds": [0, 1, 65, 129, 300]}))
        for (name, changed), T in itertools.product(ends.items(), (size, size * 3 // 4, size * 5 // 8)):
            found.append(((f"{T} tokens of a chunk, {name}", squared(), dtype, 64, size), {"T": T} | changed))
    return found + own_step_cases() + linear_cases(ends)


def own_step_cases() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Retentions whose step between chunks is PyTorch's: every dtype, the shapes that differ most, scalar gates, packed."""
    kept = {
        "elastic net": retention.ElasticNet(a=20.0),
        "elastic net ftrl": retention.ElasticNetFTRL(a=20.0),
        "sigmoid": retention.Bregman(link="sigmoid"),
        "ball": retention.L2Ball(radius=100.0),
    }
    named = {name: dataclasses.replace(squared(), retention=own) for name, own in kept.items()}
    named |= {"l_q exact": presets.moneta(link="exact"), "l_q exact anchored": presets.moneta(link="exact", anchor=True)}
    named |= {"kl row": presets.memora(slice="row"), "kl matrix": presets.memora(slice="matrix")}
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for (name, spec), (dtype, (sizes, widths)) in itertools.product(named.items(), PROVEN.items()):
        shapes = {(64, sizes[-1]), (widths[0], sizes[0]), (widths[-1], sizes[-1])}
        found += [((f"own step {name}", spec, dtype, D, size), {}) for D, size in sorted(shapes)]
    spec = named["elastic net"]
    found.append((("own step, scalar gates", spec, torch.bfloat16, 64, 64), {"channelwise": False}))
    found.append((("own step, packed", spec, torch.bfloat16, 64, 64), {"T": 300, "bounds": [0, 1, 65, 129, 300]}))
    return found


def linear_cases(ends: dict[str, dict[str, float]]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The 1-layer memory: every dtype, width and chunk size it claims, kept, decayed and anchored; then what the others had."""
    single = memory.MLP(depth=1)
    decayed, anchored = (dataclasses.replace(squared(anchor), memory=single) for anchor in (False, True))
    named = {"ttt_linear": presets.ttt_linear(), "ttt_linear decayed": decayed, "ttt_linear anchored": anchored}
    huber, cubed = presets.yaad().bias, bias.Lp(p=3)
    others = {
        "ttt_linear huber": dataclasses.replace(decayed, bias=huber),
        "ttt_linear l_p": dataclasses.replace(decayed, bias=cubed),
    }
    others |= {"ttt_linear huber anchored": dataclasses.replace(anchored, bias=huber)}
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for dtype, (sizes, widths) in linear_op.PROVEN.items():
        for D, size in itertools.product(widths, sizes):
            found += [((name, spec, dtype, D, size), {}) for name, spec in named.items()]
        size = sizes[-1]
        found += [((name, spec, dtype, 64, size), {}) for name, spec in others.items()]
        for name, spec in named.items():
            found.append(((f"{name}, scalar gates", spec, dtype, 64, size), {"channelwise": False}))
            found.append(((f"{name}, packed", spec, dtype, 64, size), {"T": 300, "bounds": [0, 1, 65, 129, 300]}))
        for (name, changed), T in itertools.product(ends.items(), (size, size * 5 // 8)):
            found.append(((f"ttt_linear decayed, {T} tokens of a chunk, {name}", decayed, dtype, 64, size), {"T": T} | changed))
    return found


def label(case_of: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    """A case in words."""
    name, _, dtype, D, size = case_of[0]
    return f"{name} {str(dtype)[6:]} D={D} C={size}"


def tried(case_of: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    """A case, or why it did not run."""
    arguments, options = case_of
    name, _, dtype, D, size = arguments
    torch.manual_seed(0)
    torch.set_num_threads(1)
    try:
        return case(*arguments, **options)
    except Exception as error:
        return {
            "case": name, "dtype": str(dtype), "D": D, "chunk": size, "passed": False, "bad": {}, "error": repr(error)[:300]
        }  # fmt: skip


def told(row: dict[str, Any]) -> None:
    """One line a case."""
    worst, error = max(row.get("fused", {"-": 0.0}).items(), key=lambda item: item[1])
    mark = "ok  " if row["passed"] else "FAIL"
    place = f"{row['dtype'][6:]:9s} D={row['D']:<4d} C={row['chunk']:<3d}"
    print(f"{mark} {row['case']:28s} {place} worst {worst} {error:.1e}", row.get("error", ""), row["bad"] or "", flush=True)


def extremes() -> dict[str, Any]:
    """Gates at their ends over many chunks: finite, values and gradients."""
    found = {}
    for name, changes in {
        "alpha 1e-4": {"log_alpha": -9.2}, "alpha 1": {"log_alpha": 0.0}, "eta 0": {"eta": 0.0},
        "delta 0": {"delta": 0.0}, "delta inf": {"delta": torch.inf},
    }.items():  # fmt: skip
        given = draw(presets.yaad(), 2, 1000, 2, 64)
        gates = {n: torch.full_like(x, changes[n]) if n in changes else x for n, x in given.gates.items()}
        out = call(presets.yaad(), given._replace(gates=gates), torch.bfloat16, "triton", 64, None)
        found[name] = all(bool(x.isfinite().all()) for x in out.values())
    return found


def repeated() -> bool:
    """Two runs give the same bits."""
    given = draw(presets.yaad(), 4, 1000, 4, 64)
    first, second = (call(presets.yaad(), given, torch.bfloat16, "triton", 64, None) for _ in range(2))
    return all(torch.equal(x, second[name]) for name, x in first.items())


def million() -> dict[str, Any]:
    """2^20 tokens through one state, in one call (its kept weights need 64-bit addresses) and in 16: finite, and the same."""
    spec, H, D, T = presets.yaad(anchor=True), 16, 64, 2**20
    weights = tuple(torch.randn(H, *shape, device="cuda") for shape in spec.memory.shapes(D, D))

    def piece(left: int, right: int) -> tuple[Tensor, Tensor, Tensor, Gates]:
        """Tokens and gates that depend on their place alone."""
        made = []
        for block in range(left, right, 2**16):
            g = torch.Generator("cuda").manual_seed(block)
            q, k, v = (torch.randn(1, 2**16, H, D, device="cuda", generator=g).bfloat16() for _ in range(3))
            made.append((F.normalize(q, dim=-1), F.normalize(k, dim=-1), v))
        q, k, v = (torch.cat(x, 1) for x in zip(*made, strict=True))
        shape = (1, right - left, H)
        gates = (torch.full(shape, value, device="cuda") for value in (0.02, -2e-3, 1.0))
        return q, k, v, Gates(**dict(zip(("eta", "log_alpha", "delta"), gates, strict=True)))

    with torch.no_grad():
        q, k, v, gates = piece(0, T)
        y, whole = memorize(spec, q, k, v, gates, weights=weights, chunk_size=64, backend="triton")
        finite = bool(y.isfinite().all())
        last = y[:, -64:].clone()
        del q, k, v, gates, y
        state = None
        for left in range(0, T, 2**16):
            tokens = piece(left, left + 2**16)
            start = {"weights": weights} if state is None else {"state": state}
            y, state = memorize(spec, *tokens, chunk_size=64, backend="triton", **start)
    same = float((state.weights[0] - whole.weights[0]).norm() / whole.weights[0].norm())
    return {"finite": finite, "whole against 16 pieces, W1": same, "last chunk equal": bool(torch.equal(last, y[:, -64:]))}


def main() -> int:
    """Run it all, write what was found, fail if anything did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernel-numerics.json"))
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and compare side by side")
    parser.add_argument("--only", default="", help="a pattern: only cases whose name, dtype, width and chunk match it")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU")
    torch.manual_seed(0)
    chosen = [case_of for case_of in cases() if re.search(options.only, label(case_of))]
    rows: list[dict[str, Any]] = []
    results: dict[str, Any] = {"provenance": provenance("triton"), "gpu": torch.cuda.get_device_name()}
    results |= {"chosen": len(chosen), "cases": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # a process for a few cases: what one of them does to the device must not reach many others. (ProcessPoolExecutor's
    # max_tasks_per_child waits for ever once all its processes have done theirs.)
    spawn = torch.multiprocessing.get_context("spawn")
    with spawn.Pool(options.workers, maxtasksperchild=4) as pool:
        found = pool.imap(tried, chosen)
        for _ in chosen:
            # a process that died gives nothing
            row = found.next(timeout=PATIENCE)
            told(row)
            rows.append(row)
            # whoever stops it keeps what it has found
            options.out.write_text(json.dumps(results, indent=1))
    if not options.only:
        results |= {"finite at the gates' ends": extremes(), "same bits twice": repeated(), "a million tokens": million()}
    options.out.write_text(json.dumps(results, indent=1))
    failed = [row for row in rows if not row["passed"]]
    print(json.dumps({k: v for k, v in results.items() if k not in ("cases", "provenance")}, indent=1))
    print(f"{len(rows) - len(failed)} of {len(rows)} cases pass")
    return len(failed) > 0


if __name__ == "__main__":
    raise SystemExit(main())
