"""The fused kernels beside the plain chunk form, flash attention, fla and titans-pytorch, on one GPU in one run.

    python benchmarks/kernels.py --out benchmarks/results/kernels.json

Medians by CUDA events, as launched from Python, and of a GPU that does not wait for launches; peak memory, TFLOP/s as launched
and their share of a measured matrix product, forwards and both ways, ratios to fla's delta rule where fla is importable (its
path may be given by PYTHONPATH); what each kernel takes, by torch's profiler, and how fast it moves what it is given; then time
against length at a fixed number of tokens, and a plot of it. fla tunes itself for minutes, so it runs in a process of its own,
which is given up after ``--patience`` seconds; so does titans-pytorch, once as it comes and once with weights that move every
chunk, as ours do.

``arithmetic.py`` says what arithmetic is counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from arithmetic import CHUNK, Sizes, Work, rated, work_of
from gpu_timing import both_passes, gpu_ms, measured
from torch import Tensor

from miras import Gates, Spec, memorize, presets
from miras.lab.provenance import provenance


def profiled(call: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, float]:
    """Milliseconds of each kernel in a forward and a backward pass; torch's own together."""
    from torch.profiler import ProfilerActivity, profile

    repeats = 3
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            both_passes(call, leaves)
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        # torch's are C++ names, and copies and fills
        name = "torch's own" if "::" in event.key or " " in event.key else event.key
        found[name] = found.get(name, 0.0) + event.device_time_total / repeats / 1e3
    return dict(sorted(((name, own) for name, own in found.items() if own), key=lambda one: -one[1]))


def carried(call: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, float]:
    """Gigabytes of the tensors that each of our kernels is given in both passes: what it reads or writes at least."""
    from triton.runtime.jit import JITFunction

    found: dict[str, float] = {}
    run = JITFunction.run

    def counting(kernel: Any, *given: Any, **named: Any) -> Any:
        tensors = {x.data_ptr(): x.numel() * x.element_size() for x in (*given, *named.values()) if isinstance(x, Tensor)}
        found[kernel.__name__] = found.get(kernel.__name__, 0.0) + sum(tensors.values()) / 1e9
        return run(kernel, *given, **named)

    JITFunction.run = counting
    try:
        both_passes(call, leaves)
    finally:
        JITFunction.run = run
    return found


def memory_case(
    spec: Spec, backend: str, sizes: Sizes, *, profile: bool = False, recompute: int | None = None
) -> dict[str, Any]:
    """A deep memory at given sizes, in bf16, in the tame regime: small steps, little decay, unit weights.

    Gates come as a layer makes them: bf16 where they are as large as the tokens, float32 where they are one number a head, and
    their ranges are not looked at again.
    """
    B, T, H, D = sizes
    q, k = (F.normalize(torch.randn(B, T, H, D, device="cuda"), dim=-1).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    wanted = {gate.name for gate in spec.gates}
    wide, single = (B, T, H, D), (B, T, H)
    made = {
        "eta": 0.01 * torch.rand(wide, device="cuda"),
        "log_alpha": -1e-3 * torch.rand(single if "mu" in wanted else wide, device="cuda"),
        "delta": torch.full(wide, 4.0, device="cuda"),
        "mu": 0.5 * torch.rand(single, device="cuda"),
    }
    kinds = {name: torch.bfloat16 if gate.dim() == 4 else torch.float32 for name, gate in made.items()}
    gates = Gates(**{name: gate.to(kinds[name]).requires_grad_() for name, gate in made.items() if name in wanted})
    weights = tuple(torch.randn(H, *shape, device="cuda", requires_grad=True) for shape in spec.memory.shapes(D, D))
    leaves = [q, k, v, *(g for g in gates if g is not None), *weights]

    def call() -> Tensor:
        how = {"chunk_size": CHUNK, "backend": backend, "recompute": recompute, "check_gates": False}
        return memorize(spec, q, k, v, gates, weights=weights, **how)[0]

    row: dict[str, Any] = dict(measured(call, leaves))
    if profile:
        row |= {"kernels_ms": profiled(call, leaves), "kernels_gb": carried(call, leaves)}
    return row


def attention_case(sizes: Sizes) -> dict[str, float]:
    """Torch's flash attention, causal."""
    B, T, H, D = sizes
    q, k, v = (torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    return measured(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])


def ceiling() -> float:
    """TFLOP/s of one large matrix product in bf16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / gpu_ms(lambda: a @ b) / 1e9


def bandwidth() -> float:
    """TB/s of a large copy, read and written."""
    a, b = (torch.empty(2**30, dtype=torch.int8, device="cuda") for _ in range(2))
    return 2 * a.numel() / gpu_ms(lambda: b.copy_(a)) / 1e9


def others(which: str, sizes: list[Sizes], patience: int) -> list[dict[str, Any]]:
    """fla's delta rule or titans-pytorch, in a process of its own: a row for each of the sizes, or why there is none."""
    command = [sys.executable, str(Path(__file__).with_name("others.py")), which, json.dumps(sizes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
        lines, why = done.stdout.strip().splitlines(), (done.stderr.strip().splitlines() or ["failed"])[-1]
    except subprocess.TimeoutExpired as late:
        lines, why = (late.stdout or b"").decode().strip().splitlines(), f"gave up after {patience} s"
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return found + [{"missing": why}] * (len(sizes) - len(found))


def growing(sizes: Sizes) -> list[Sizes]:
    """1K to 64K tokens a sequence, 2^18 in all."""
    _, _, H, D = sizes
    return [(2**18 // time, time, H, D) for time in (2**n for n in range(10, 17))]


def tried(
    name: str, spec: Spec, backend: str, sizes: Sizes, *, profile: bool = False, recompute: int | None = None
) -> dict[str, Any]:
    """A row, or why there is none."""
    try:
        row = memory_case(spec, backend, sizes, profile=profile, recompute=recompute)
    except (ValueError, torch.OutOfMemoryError) as error:
        row = {"missing": str(error).splitlines()[0][:200]}
    print(f"  {name}: {row}", file=sys.stderr, flush=True)
    return row


def plot(results: dict[str, Any], path: Path) -> None:
    """Time forwards and backwards against length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, row in results["growth"].items():
        points = [(int(time), own["forward_backward_ms"]) for time, own in row.items() if "forward_backward_ms" in own]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens a sequence (2^18 in all)", ylabel="forward + backward, ms")
    axes.set_xticks([2**n for n in range(10, 17)], [f"{2 ** (n - 10)}K" for n in range(10, 17)])
    axes.set_title(f"{results['gpu']}, bf16, 16 heads of 64")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def share(row: dict[str, Any], kernel: str) -> str:
    """What a kernel takes, and how fast it moves what it is given."""
    if kernel not in row["kernels_ms"]:
        return ""
    time = row["kernels_ms"][kernel]
    return f"{time:.2f} ({row['kernels_gb'][kernel] / time:.1f})" if kernel in row["kernels_gb"] else f"{time:.2f}"


def told(results: dict[str, Any]) -> None:
    """Tables."""
    kinds = {"launched": ("forward_ms", "forward_backward_ms"), "ahead": ("forward_ahead_ms", "forward_backward_ahead_ms")}
    base = results["rows"]["fla delta rule"]
    for name, row in results["rows"].items():
        if "missing" in row:
            print(f"{name:30s} {row['missing']}")
            continue
        said = [f"{name:30s}"]
        for kind, keys in kinds.items():
            said += [kind, *(f"{row[key]:7.2f}" for key in keys), "ms"]
            said += [] if "missing" in base else [*(f"{row[key] / base[key]:6.2f}" for key in keys), "x fla"]
        said.append(f"{row['peak_gib']:6.2f} GiB")
        if row["forward_tflops"] is not None:
            said.append(" / ".join(f"{row[f'{kind}_tflops']:.0f}" for kind in Work._fields) + " TFLOP/s,")
            said.append(" / ".join(f"{row[f'{kind}_share']:.1%}" for kind in Work._fields) + " of the ceiling")
        print(" ".join(said))
    profiles = {name: row for name, row in results["rows"].items() if "kernels_ms" in row}
    kernels = dict.fromkeys(kernel for row in profiles.values() for kernel in row["kernels_ms"])
    print(f"\nms, and TB/s of what a kernel is given (a copy has {results['copy_tb_s']:.1f})")
    print("| | " + " | ".join(profiles) + " |\n|---|" + "---|" * len(profiles))
    for kernel in kernels:
        print(f"| {kernel} | " + " | ".join(share(row, kernel) for row in profiles.values()) + " |")
    print()
    for name, row in results["growth"].items():
        print(
            f"{name:28s}",
            {time: round(own["forward_backward_ms"], 2) if "forward_ms" in own else "-" for time, own in row.items()},
        )


def main() -> int:
    """Run it all, write the numbers and the plot, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    parser.add_argument("--sizes", type=int, nargs=4, default=(8, 4096, 16, 64), metavar=("B", "T", "H", "D"))
    parser.add_argument("--patience", type=int, default=150, help="seconds fla and titans-pytorch may take each")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs an NVIDIA GPU")
    sizes: Sizes = tuple(options.sizes)
    lengths = growing(sizes)
    fla = others("delta", [sizes, *lengths], options.patience)
    rows: dict[str, dict[str, Any]] = {"fla delta rule": fla[0], "flash attention (torch)": dict(attention_case(sizes))}
    specs = {
        "yaad": presets.yaad(), "yaad anchored": presets.yaad(anchor=True), "ttt_mlp": presets.ttt_mlp(),
        "titans_lmm": presets.titans_lmm(), "moneta": presets.moneta(), "memora": presets.memora(),
    }  # fmt: skip
    for name, spec in specs.items():
        rows[name] = tried(name, spec, "triton", sizes, profile=True)
    for name in ("yaad", "titans_lmm"):
        rows[f"{name}, recompute 2048"] = tried(f"{name}, recomputed", specs[name], "triton", sizes, recompute=2048)
    rows["yaad, plain chunk form"] = tried("yaad, plain", presets.yaad(), "torch", sizes)
    for backend in ("triton", "torch"):
        rows[f"moneta, exact link, {backend}"] = tried("moneta, exact link", presets.moneta(link="exact"), backend, sizes)
    rows["titans-pytorch"] = others("titans", [sizes], options.patience)[0]
    rows["titans-pytorch, weights moving"] = others("titans, moving", [sizes], options.patience)[0]
    growth = {
        "yaad, kernels": {str(own[1]): tried(f"yaad {own[1]}", presets.yaad(), "triton", own) for own in lengths},
        "flash attention": {str(own[1]): dict(attention_case(own)) for own in lengths},
        "fla delta rule": {str(own[1]): row for own, row in zip(lengths, fla[1:], strict=True)},
    }
    long = {
        "yaad, kernels": tried("B=8 T=16K", presets.yaad(), "triton", (8, 16384, *sizes[2:])),
        "flash attention": dict(attention_case((8, 16384, *sizes[2:]))),
    }
    results = {
        "provenance": provenance("triton", "fla-core", "titans-pytorch"),
        "gpu": torch.cuda.get_device_name(), "sizes": sizes, "ceiling_tflops": (top := ceiling()),
        "copy_tb_s": bandwidth(),
        "rows": {name: rated(row, work_of(name, sizes), top) for name, row in rows.items()},
        "growth": {
            name: {str(own[1]): rated(row[str(own[1])], work_of(name, own), top) for own in lengths}
            for name, row in growth.items()
        },
        "B=8, T=16384": {name: rated(row, work_of(name, (8, 16384, *sizes[2:])), top) for name, row in long.items()},
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))
    plot(results, options.out.with_suffix(".png"))
    told(results)
    print("B=8, T=16384:", {name: round(row.get("forward_backward_ms", float("nan")), 2) for name, row in long.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
