"""What the gates of a momentum make of a chunk, in plain operations whose gradients are autograd's.

Inside a chunk, with L the cumulative log decay, S the momentum at the chunk's start and f_i = eta_i g_i the step of token i,

    S_t = mu_t S_(t-1) - f_t,                  S_C = mu_1...mu_C S - sum_i mu_(i+1)...mu_C f_i,
    W_t = alpha_t W_(t-1) + S_t                    = b_t W + sigma_t S - sum_{i<=t} kappa(t,i) f_i,
    kappa(t,i) = sum_{i<=j<=t} exp(L_t - L_j) mu_(i+1)...mu_j,   sigma_t = sum_{j<=t} exp(L_t - L_j) mu_1...mu_j.

The kernels take kappa, sigma and the products to the chunk's end, one number a head each, and return what arrives at them. b_t they
make themselves.

N chunks, C tokens of a chunk, T tokens of all sequences, H heads
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import Rows

# exp(-100) is 0 next to any weight, and a total erasure (log alpha = -inf) has no finite difference
LOWEST = -100.0


def factors(rows: Rows, size: int, log_alpha: Tensor | None, mu: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kappa ``[N,H,C,C]``, sigma ``[N,H,C]``, mu_(i+1)...mu_C ``[N,H,C]`` and mu_1...mu_C ``[N,H]`` of gates ``[T,H,1]``.

    Slots without a token keep everything: mu = 1, log alpha = 0, and they add no momentum to the weights.
    """
    place = (
        torch.arange(size, device=mu.device)
        + ((torch.arange(len(rows.row), device=mu.device) - rows.chunk[rows.row]) * size)[:, None]
    )
    there = place < rows.length[rows.row][:, None]
    token = torch.where(there, place + rows.first[rows.row][:, None], 0)

    def by_chunk(gate: Tensor, missing: float) -> Tensor:
        return torch.where(there[..., None], gate[token, :, 0], missing).transpose(1, 2)

    factor = by_chunk(mu, 1.0)
    seen = torch.ones(size, size, dtype=torch.bool, device=mu.device).tril()
    past = (seen & there[:, None, None, :]).to(mu.dtype)
    if log_alpha is not None:
        total = by_chunk(log_alpha.clamp_min(LOWEST), 0.0).cumsum(-1)
        past = past * torch.where(seen, total[..., :, None] - total[..., None, :], -torch.inf).exp()
    products = torch.where(seen, torch.where(seen.tril(-1), factor[..., None], 1.0).cumprod(-2), 0.0)
    grown = factor.cumprod(-1)
    sigma = (past @ grown[..., None]).squeeze(-1)
    kappa = (past @ products).contiguous()
    return kappa, sigma.contiguous(), products[..., -1, :].contiguous(), grown[..., -1].contiguous()
