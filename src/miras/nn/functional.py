"""What a layer does to queries, keys and values, as pure functions.

B batch, T time, H heads, D channels of a head
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch_modes import uncast

EPS = 1e-6
# numbers from which on a fused pass is taken: below, launching a kernel of ours costs more than torch's passes
LARGE = 2**18
TRITON = find_spec("triton") is not None


def takes_kernels(x: Tensor) -> bool:
    """Whether fused kernels may read x: on a GPU, with Triton, and no compiler about, which fuses the definition by itself."""
    return x.is_cuda and TRITON and not torch.compiler.is_compiling()


def worth_fusing(x: Tensor) -> bool:
    """Whether kernels may read x, and passes over it cost more than launches, as they do not for a token that is decoded."""
    return takes_kernels(x) and x.numel() >= LARGE


def unit_length(x: Tensor) -> Tensor:
    """x / sqrt(||x||^2 + eps) over the channels: rms_norm over sqrt(D), which a GPU has fused."""
    length: Tensor = unit_rms(x, EPS / x.shape[-1]) * x.shape[-1] ** -0.5
    return length


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean x^2 + eps), in the dtype of x: autocast would make it float32 on a GPU, and keys unlike their values."""
    with uncast(x.device):
        scaled: Tensor = F.rms_norm(x, (x.shape[-1],), eps=eps)
    return scaled


def positive(x: Tensor) -> Tensor:
    """elu(x) + 1, linear attention's feature map."""
    return F.elu(x) + 1


def turns(positions: Tensor, channels: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rotary positions: cosine and sine of t theta^(-2j/D), ``[B or 1,T,D/2]``, for a dtype; positions ``[B or 1,T]``.

    In float32 at least, and of angles in float64 where a device has it: a stream has no last position, and at 10^6 an angle
    in float32 is 0.04 off.
    """
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    exponent = torch.arange(channels // 2, device=positions.device, dtype=exact) / (channels // 2)
    angle = positions[..., None].to(exact) * theta**-exponent
    wide = torch.promote_types(dtype, torch.float32)
    return angle.cos().to(wide), angle.sin().to(wide)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Channels j and j + D/2 turned by an angle of their own; x ``[B,T,H,D]``, cosine and sine ``[B or 1,T,D/2]``."""
    if worth_fusing(x):
        from ..kernels import rotary

        if rotary.takes(x):
            return rotary.rotary(x, cosine, sine, False)
    cosine, sine = (turn[:, :, None].to(x.dtype) for turn in (cosine, sine))
    one, two = x.chunk(2, -1)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)


def softplus_inverse(value: float) -> float:
    """The x with softplus(x) = value."""
    return float(torch.tensor(value, dtype=torch.float64, device="cpu").expm1().log())


def logit(share: float) -> float:
    """The x with sigmoid(x) = share."""
    return float(torch.tensor(share, dtype=torch.float64, device="cpu").logit())
