"""fla's delta rule, or titans-pytorch, at given sizes: a JSON line for each, for ``kernels.py``, which runs this beside itself.

python benchmarks/others.py delta "[[8, 4096, 16, 64]]"
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
import torch.nn.functional as F
from gpu_timing import measured


def delta(B: int, T: int, H: int, D: int) -> dict[str, float]:
    """fla's delta rule in bf16."""
    from fla.ops.delta_rule import chunk_delta_rule

    q, k, v = (torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    k = F.normalize(k.float(), dim=-1).bfloat16()
    beta = torch.rand(B, T, H, device="cuda", dtype=torch.bfloat16)
    leaves = [x.requires_grad_() for x in (q, k, v, beta)]
    return measured(lambda: chunk_delta_rule(q, k, v, beta)[0], leaves)


def titans(B: int, T: int, H: int, D: int, moving: bool) -> dict[str, float]:
    """titans-pytorch's neural memory, a whole layer, with the same MLP; its weights move every chunk where ``moving``."""
    from titans_pytorch import NeuralMemory
    from titans_pytorch.memory_models import MemoryMLP

    every = {"batch_size": 64} if moving else {}
    sizes = {"dim": H * D, "dim_head": D, "heads": H, "chunk_size": 64}
    memory = NeuralMemory(**sizes, **every, model=MemoryMLP(D, depth=2)).cuda().bfloat16()
    x = torch.randn(B, T, H * D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return measured(lambda: memory(x)[0], [x])


def main() -> None:
    """The one that is named, at all the sizes."""
    warnings.simplefilter("ignore")
    which, sizes = sys.argv[1], json.loads(sys.argv[2])
    for own in sizes:
        row = delta(*own) if which == "delta" else titans(*own, moving=which == "titans, moving")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
