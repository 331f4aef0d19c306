"""The fused kernels on a GPU against float64: every dtype, width, chunk and retention they claim, values and all gradients.

    python benchmarks/kernel_numerics.py --out benchmarks/results/kernel-numerics.json
    python benchmarks/kernel_numerics.py --only "^ttt_linear" --out ttt-linear.json  # the 1-layer memory alone
    TRITON_INTERPRET=1 python benchmarks/kernel_numerics.py --rehearse --workers 2 --out rehearsed.json  # without a GPU

Inputs are drawn anew in every run; ``--seed`` repeats one. What kernels write to holds NaN before, so that nothing unwritten
passes. Inputs are tame (unit keys, small steps, little decay), since the dynamics are chaotic otherwise. The loss is of all
outputs and of every part of the outgoing state. A tensor passes when its error, relative to its float64 norm, is at most four
times that of plain PyTorch with the same rounded inputs, or ``ROUNDED[dtype]``, what rounding the operands of some
chained products costs, or twice as far as float64 itself moves when operands are rounded: ``moved_by_rounding``, which knows of
gradients that jump, of differences and of dynamics that magnify. Four things it cannot know are computed beside it: a few
errors that cross Huber's threshold (``KINK``), what strong decays leave (``what_is_left``, ``below_normal``), what weak ones
give an anchor (``what_an_anchor_adds``), and a sigmoid's weights, which are all positive (``beside_their_mean``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import re
import secrets
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
import torch.nn.functional as F
from numerics_calls import Found, Inputs, call, drawn
from numerics_cases import Case, cases
from torch import Tensor

from miras import Gates, bias, memorize, presets, retention
from miras.kernels.launch import INTERPRETED
from miras.lab.provenance import provenance

ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
# of k, v and delta in 16 bits: one error in 300 crosses Huber's threshold and gains or loses all of its gradient, and how many
# of few do is chance
KINK = 0.12
# of a few roundings that follow each other, beside the one of each operand
TWICE = 2.0
# a loss of such a scale keeps float16's gradients from underflowing: the largest that overflows nothing, as a GradScaler finds
LOSS_SCALES = (2.0**10, 2.0**5, 1.0, 2.0**-5, 2.0**-10)
# one call of a million tokens may differ from that in pieces by a rounding of the float32 state at each border, and what is
# read by one of bf16
TOKENS, PIECES = 2**20, 16
SAME_STATE, SAME_READ = PIECES * 2.0**-24, 2.0**-8

# seconds without a result after which a process must have died
PATIENCE = 600


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Room for tensors that nobody has written to yet holds NaN."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        # of operations that have no other way
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def errors(found: Found, exact: Found) -> dict[str, float]:
    """Relative to the float64 norm."""
    return {n: float((found[n].double() - x).norm() / x.norm().clamp_min(1e-30)) for n, x in exact.items()}


def moved_by_rounding(case: Case, given: Inputs, exact: Found) -> dict[str, float]:
    """How far float64 itself moves when tokens are nudged by a rounding, and weights rounded where a chunk starts; in 16 bits.

    So a gradient that jumps may be as far off as the jumps that rounding makes: where a weight crosses the floor of Memora's
    logarithm, or an elastic net's threshold. And so may what depends on a small difference, as an anchored decay's gradient
    does on W - W_0, and all that a memory's dynamics magnify. Packed tokens are taken as one sequence.
    """
    if case.dtype == torch.float32:
        return {}
    whole = exact if case.bounds is None else call(case.spec, given, torch.float64, "torch", case.size, None)
    return errors(call(case.spec, given, torch.float64, "torch", case.size, None, nudge=case.dtype), whole)


def what_is_left(case: Case, given: Inputs, exact: Found) -> dict[str, float]:
    """How far off the gradient of a decay may be where decays are strong, of a memory with an anchor or a link of its norm.

    It is a difference of reads' gradients, as small as what is left of W, or of W - W_0; each read is rounded. How large they
    are says the same memory without an anchor that lets nothing go.
    """
    kept = case.spec.retention
    if not (kept.anchored or isinstance(kept, retention.Lq)) or case.draws.get("decay", 0.0) < 1:
        return {}
    still = given.gates | {"log_alpha": torch.zeros_like(given.gates["log_alpha"])}
    alone = given._replace(gates=still, start={n: () if n == "A_0" else pair for n, pair in given.start.items()})
    plain = dataclasses.replace(kept, anchor=False)  # type: ignore[call-arg]
    whole = call(dataclasses.replace(case.spec, retention=plain), alone, torch.float64, "torch", case.size, None)
    return {"dlog_alpha": ROUNDED[case.dtype] * float(whole["dlog_alpha"].norm() / exact["dlog_alpha"].norm())}


def what_an_anchor_adds(case: Case, given: Inputs) -> dict[str, float]:
    """How far off an anchor's own gradient may be in 16 bits: of q - b q, both rounded, what b has let go is left."""
    if case.dtype == torch.float32 or not case.spec.retention.anchored:
        return {}
    gone = 1 - given.gates["log_alpha"][:, : case.size].cumsum(1).exp()
    off = torch.finfo(case.dtype).eps / float(gone.square().mean().sqrt().clamp_min(1e-30))
    return {"dA_01": off, "dA_02": off}


def below_normal(case: Case, exact: Found) -> float:
    """How many times coarser float16 holds what is left of Moneta's A, which is small and has few digits below 6e-5; else 1."""
    if case.dtype != torch.float16 or not isinstance(case.spec.retention, retention.Lq) or "start1_T" not in exact:
        return 1.0
    size = lambda name: float(exact[name].square().mean().sqrt())  # noqa: E731
    left = min(size(f"A{n}_T") * size(f"W{n}_T") / size(f"start{n}_T") for n in (1, 2))
    return max(1.0, torch.finfo(torch.float16).smallest_normal / left)


def beside_their_mean(kept: retention.Retention, given: Inputs) -> float:
    """How much larger a Bregman link's weights are, all layers together, than what is beside their mean.

    A LayerNorm's gradient sums to zero, so that the mean of W_1 adds nothing to what goes back; rounded, the sum is not zero,
    and where weights are all positive, as a sigmoid's are, the mean is most of them. Next to a mean of zero this is 1.
    """
    if not isinstance(kept, retention.Bregman):
        return 1.0
    start = given.start["A"] if "A" in given.start else given.start["W"]
    weights = [kept.to_weight(a) for a in start]
    return math.prod(float(w.norm() / (w - w.mean()).norm()) for w in weights)


def by_kernels(case: Case, given: Inputs, cut: Tensor | None) -> Found:
    """What the kernels make of a case: in float16 with the largest loss that overflows nothing."""
    for scale in LOSS_SCALES if case.dtype == torch.float16 else (1.0,):
        found = call(case.spec, given, case.dtype, "triton", case.size, cut, scale, case.lean)
        if all(bool(x.isfinite().all()) for x in found.values()):
            break
    return found


def compared(case: Case, given: Inputs, cut: Tensor | None) -> dict[str, Any]:
    """Errors, those that are too large, and seconds: of the reference, and of the kernels with their compilation."""
    spec, dtype, size = case.spec, case.dtype, case.size
    began = time.perf_counter()
    exact = call(spec, given, torch.float64, "torch", size, cut)
    plain = errors(call(spec, given, dtype, "torch", size, cut, lean=case.lean), exact)
    moved, left = moved_by_rounding(case, given, exact), what_is_left(case, given, exact) | what_an_anchor_adds(case, given)
    ready = time.perf_counter()
    with poisoned():
        found = by_kernels(case, given, cut)
    fused = errors(found, exact)
    limit = limits(case, given, plain, moved, left, below_normal(case, exact))
    bad = {n: e for n, e in fused.items() if not e <= limit[n]}
    took = {"reference": round(ready - began, 1), "kernels, compiled first": round(time.perf_counter() - ready, 1)}
    return {"passed": not bad, "fused": fused, "plain": plain, "moved": moved, "bad": bad, "seconds": took}


def limits(
    case: Case, given: Inputs, plain: dict[str, float], moved: dict[str, float], left: dict[str, float], coarser: float
) -> dict[str, float]:
    """How far off each tensor may be."""
    # where a threshold is infinite no error crosses it
    kinked = isinstance(case.spec.bias, bias.Huber) and bool(given.gates["delta"].isfinite().all())
    jumps = dict.fromkeys(("dk", "dv", "ddelta"), KINK) if kinked and case.dtype != torch.float32 else {}
    usual = ROUNDED[case.dtype] * beside_their_mean(case.spec.retention, given) * coarser
    return {n: max(4 * e, TWICE * moved.get(n, 0.0), left.get(n, 0.0), jumps.get(n, 0.0), usual) for n, e in plain.items()}


def asked(case: Case) -> dict[str, Any]:
    """What a case asks for."""
    given, cut = drawn(case), None if case.bounds is None else torch.tensor(case.bounds)
    if case.check == "compared":
        return compared(case, given, cut)
    found = by_kernels(case, given, cut)
    if case.check == "finite":
        return {"passed": all(bool(x.isfinite().all()) for x in found.values())}
    again = by_kernels(case, given, cut)
    return {"passed": all(torch.equal(x, again[name]) for name, x in found.items())}


def tried(given: tuple[Case, int]) -> dict[str, Any]:
    """A case, or why it did not run."""
    case, seed = given
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    row = {"case": case.name, "check": case.check, "dtype": str(case.dtype), "D": case.D, "chunk": case.size}
    row |= {"heads": case.heads}
    try:
        return row | asked(case)
    except Exception as error:
        return row | {"passed": False, "error": repr(error)[:300]}


def told(row: dict[str, Any]) -> None:
    """One line a case."""
    worst, error = max(row.get("fused", {"-": 0.0}).items(), key=lambda item: item[1])
    mark = "ok  " if row["passed"] else "FAIL"
    place = f"{row['dtype'][6:]:9s} D={row['D']:<4d} C={row['chunk']:<3d} H={row['heads']:<3d}"
    said = f"worst {worst} {error:.1e}" if row["check"] == "compared" else row["check"]
    print(f"{mark} {row['case']:44s} {place} {said}", row.get("error", ""), row.get("bad") or "", flush=True)


def million(seed: int) -> dict[str, Any]:
    """2^20 tokens through one state, in one call (its kept weights need 64-bit addresses) and in 16: finite, and the same."""
    spec, H, D, length = presets.yaad(anchor=True), 16, 64, TOKENS // PIECES
    torch.manual_seed(seed)
    weights = tuple(torch.randn(H, *shape, device="cuda") for shape in spec.memory.shapes(D, D))

    def piece(left: int, right: int) -> tuple[Tensor, Tensor, Tensor, Gates]:
        """Tokens and gates that depend on their place alone."""
        made = []
        for block in range(left, right, length):
            g = torch.Generator("cuda").manual_seed(seed + block)
            q, k, v = (torch.randn(1, length, H, D, device="cuda", generator=g).bfloat16() for _ in range(3))
            made.append((F.normalize(q, dim=-1), F.normalize(k, dim=-1), v))
        q, k, v = (torch.cat(x, 1) for x in zip(*made, strict=True))
        shape = (1, right - left, H)
        gates = (torch.full(shape, value, device="cuda") for value in (0.02, -2e-3, 1.0))
        return q, k, v, Gates(**dict(zip(("eta", "log_alpha", "delta"), gates, strict=True)))

    with torch.no_grad():
        q, k, v, gates = piece(0, TOKENS)
        y, whole = memorize(spec, q, k, v, gates, weights=weights, chunk_size=64, backend="triton")
        finite = bool(y.isfinite().all())
        last = y[:, -64:].clone()
        del q, k, v, gates, y
        state = None
        for left in range(0, TOKENS, length):
            tokens = piece(left, left + length)
            start = {"weights": weights} if state is None else {"state": state}
            y, state = memorize(spec, *tokens, chunk_size=64, backend="triton", **start)
    named = {f"W{i + 1}": w for i, w in enumerate(whole.weights)} | {"last chunk": last.float()}
    pieces = {f"W{i + 1}": w for i, w in enumerate(state.weights)} | {"last chunk": y[:, -64:].float()}
    return agreed(finite, errors(pieces, {name: x.double() for name, x in named.items()}))


def agreed(finite: bool, apart: dict[str, float]) -> dict[str, Any]:
    """Whether one call of a million tokens is finite and what the same tokens in pieces are."""
    same = all(error <= (SAME_READ if name == "last chunk" else SAME_STATE) for name, error in apart.items())
    return {"passed": finite and same, "finite": finite, "one call against 16 pieces": apart}


def failures(results: dict[str, Any]) -> list[str]:
    """What did not pass, in words."""
    found = [f"{row['case']} {row['dtype'][6:]}, {row['check']}" for row in results["cases"] if not row["passed"]]
    return found + (["a million tokens"] if not results.get("a million tokens", {"passed": True})["passed"] else [])


def main() -> int:
    """Run it all, write what was found, fail if anything did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernel-numerics.json"))
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and compare side by side")
    parser.add_argument("--only", default="", help="a pattern: only cases whose name, dtype, width, chunk and heads match it")
    parser.add_argument("--seed", type=int, help="of the inputs, which are others in every run without it")
    parser.add_argument("--rehearse", action="store_true", help="each case once, tiny, in Triton's interpreter")
    options = parser.parse_args()
    if options.rehearse != INTERPRETED:
        parser.error("--rehearse and TRITON_INTERPRET=1 go together")
    if not options.rehearse and not torch.cuda.is_available():
        parser.error("this needs an NVIDIA GPU; --rehearse does without, in Triton's interpreter")
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    chosen = [case for case in cases() if re.search(options.only, case.label)]
    if options.rehearse:
        chosen = list({case.label: case for case in (case.tiny for case in chosen)}.values())
    rows: list[dict[str, Any]] = []
    gpu = "Triton's interpreter" if options.rehearse else torch.cuda.get_device_name()
    results: dict[str, Any] = {"provenance": provenance("triton"), "gpu": gpu, "seed": seed}
    results |= {"chosen": len(chosen), "cases": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # a process for a few cases: what one of them does to the device must not reach many others. (ProcessPoolExecutor's
    # max_tasks_per_child waits for ever once all its processes have done theirs.)
    spawn = torch.multiprocessing.get_context("spawn")
    with spawn.Pool(options.workers, maxtasksperchild=4) as pool:
        found = pool.imap(tried, [(case, seed) for case in chosen])
        for _ in chosen:
            # a process that died gives nothing
            row = found.next(timeout=PATIENCE)
            told(row)
            rows.append(row)
            # whoever stops it keeps what it has found
            options.out.write_text(json.dumps(results, indent=1))
    if not options.only and not options.rehearse:
        results |= {"a million tokens": million(seed)}
    options.out.write_text(json.dumps(results, indent=1))
    failed = failures(results)
    print(json.dumps({k: v for k, v in results.items() if k not in ("cases", "provenance")}, indent=1))
    print(f"{sum(row['passed'] for row in rows)} of {len(rows)} cases pass", *(f"failed: {name}" for name in failed), sep="\n")
    return len(failed) > 0


if __name__ == "__main__":
    raise SystemExit(main())
