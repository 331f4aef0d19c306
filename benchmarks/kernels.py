"""The fused kernels beside the plain chunk form, flash attention, fla and titans-pytorch, on one GPU in one run.

    python benchmarks/kernels.py --out benchmarks/results/kernels-h200.json

Medians by CUDA events, peak memory, and ratios to fla's delta rule where fla is importable (its path may be given by
PYTHONPATH). fla autotunes for minutes, so it runs in a process of its own, which is given up after ``--patience`` seconds.
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
from provenance import provenance
from torch import Tensor

from miras import Gates, Spec, algorithm, bias, memorize, memory, presets, retention

FLA = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, triton
import torch.nn.functional as F
from fla.ops.delta_rule import chunk_delta_rule
B, T, H, D = map(int, sys.argv[1:5])
q, k, v = (torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
k = F.normalize(k.float(), dim=-1).bfloat16()
beta = torch.rand(B, T, H, device="cuda", dtype=torch.bfloat16)
for x in (q, k, v, beta): x.requires_grad_()
def forward(): return chunk_delta_rule(q, k, v, beta)[0]
def both():
    out = forward()
    torch.autograd.grad(out, (q, k, v, beta), torch.ones_like(out))
bench = lambda f: triton.testing.do_bench(f, warmup=25, rep=100, return_mode="median")
with torch.no_grad(): f = bench(forward)
print(json.dumps({"forward_ms": f, "forward_backward_ms": bench(both)}))
"""


def measured(call: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, float]:
    """Median milliseconds of the forward pass alone and with the backward pass, and the peak memory of both in GiB."""
    from triton.testing import do_bench

    def both() -> None:
        y = call()
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    with torch.no_grad():
        forward = do_bench(call, warmup=25, rep=100, return_mode="median")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = do_bench(both, warmup=25, rep=100, return_mode="median")
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    return {"forward_ms": forward, "forward_backward_ms": total, "peak_gib": peak}


def memory_case(spec: Spec, backend: str, sizes: tuple[int, int, int, int]) -> dict[str, float]:
    """A deep memory at given sizes, in bf16, in the tame regime: small steps, little decay, unit weights."""
    B, T, H, D = sizes
    q, k = (F.normalize(torch.randn(B, T, H, D, device="cuda"), dim=-1).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    wanted = {gate.name for gate in spec.gates}
    made = {
        "eta": 0.01 * torch.rand(B, T, H, D, device="cuda"),
        "log_alpha": -1e-3 * torch.rand(B, T, H, D, device="cuda"),
        "delta": torch.full((B, T, H, D), 4.0, device="cuda"),
    }
    gates = Gates(**{name: gate.requires_grad_() for name, gate in made.items() if name in wanted})
    weights = tuple(torch.randn(H, *shape, device="cuda", requires_grad=True) for shape in spec.memory.shapes(D, D))
    leaves = [q, k, v, *(g for g in gates if g is not None), *weights]
    return measured(lambda: memorize(spec, q, k, v, gates, weights=weights, chunk_size=64, backend=backend)[0], leaves)


def attention_case(sizes: tuple[int, int, int, int]) -> dict[str, float]:
    """Torch's flash attention, causal."""
    B, T, H, D = sizes
    q, k, v = (torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    return measured(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])


def fla_case(sizes: tuple[int, int, int, int], patience: int) -> dict[str, Any]:
    """fla's delta rule, in a process of its own."""
    command = [sys.executable, "-c", FLA, *map(str, sizes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return {"missing": f"gave up after {patience} s of autotuning"}
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def specs() -> dict[str, Spec]:
    """What the kernels run."""
    lp = Spec(
        memory=memory.MLP(),
        bias=bias.Lp(p=3),
        retention=retention.L2(at="previous"),
        algorithm=algorithm.GradientDescent(),
    )
    return {"yaad": presets.yaad(), "yaad anchored": presets.yaad(anchor=True), "ttt_mlp": presets.ttt_mlp(), "l_p, L2": lp}


def main() -> int:
    """Run it all, write the numbers, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels.json"))
    parser.add_argument("--sizes", type=int, nargs=4, default=(8, 4096, 16, 64), metavar=("B", "T", "H", "D"))
    parser.add_argument("--patience", type=int, default=150, help="seconds fla may take to tune itself")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs an NVIDIA GPU")
    sizes = tuple(options.sizes)
    rows: dict[str, dict[str, Any]] = {"fla delta rule": fla_case(sizes, options.patience)}
    rows["flash attention (torch)"] = attention_case(sizes)
    for name, spec in specs().items():
        rows[f"{name}, kernels"] = memory_case(spec, "triton", sizes)
    rows["yaad, plain chunk form"] = memory_case(presets.yaad(), "torch", sizes)
    growth = {}
    for time in (1024, 4096, 16384):
        own = (sizes[0], time, *sizes[2:])
        growth[time] = {"yaad, kernels": memory_case(presets.yaad(), "triton", own), "flash attention": attention_case(own)}
    results = {"provenance": provenance(), "gpu": torch.cuda.get_device_name(), "sizes": sizes, "rows": rows, "growth": growth}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1))
    base = rows["fla delta rule"]
    for name, row in rows.items():
        ratio = (
            f"{row['forward_backward_ms'] / base['forward_backward_ms']:.2f} x fla"
            if "forward_ms" in base and "forward_ms" in row
            else ""
        )
        print(f"{name:28s}", {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, ratio)
    for time, row in growth.items():
        print(time, {name: round(value["forward_backward_ms"], 2) for name, value in row.items()})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
