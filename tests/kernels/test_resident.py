"""The kernels in Gluon, which Hopper gets, on the CPU: values, states and every gradient against the chunk form in float64."""

import importlib

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from comparison import carried_in, compared, on_device, tame
from gluon_on_cpu import Kernel
from inputs import tensors
from miras import memorize, presets, retention
from miras.kernels import deep_backward, deep_forward, launch

KERNELS = {
    "resident_kernels": ["scan_resident"],
    "resident_reads": ["readout_resident", "read_backward_resident"],
    "resident_backward": ["scan_backward_resident"],
    "resident_momentum_backward": ["scan_backward_momentum"],
    "resident_writes": ["write_backward_resident"],
}
SPECS = {
    "yaad": presets.yaad(),
    "ttt_mlp": presets.ttt_mlp(),
    "titans": presets.titans_lmm(),
    "moneta": presets.moneta(),
    "memora": presets.memora(),
    "yaad anchored": presets.yaad(anchor=True),
    "titans anchored": presets.titans_lmm(anchor=True),
    "moneta anchored": presets.moneta(anchor=True, q=2.5),
    "memora anchored": presets.memora(anchor=True, c=32.0),
}
CARRIED = ["yaad anchored", "titans anchored", "moneta anchored", "memora anchored"]


@pytest.fixture
def launches(monkeypatch):
    """Calls take Hopper's kernels whatever their dtype (float32 here, so that only mistakes are seen); what was launched."""
    made = []
    for room, names in KERNELS.items():
        module = importlib.import_module(f"miras.kernels.{room}")
        for name in names:
            monkeypatch.setattr(module, name, Kernel(getattr(module, name), made))

    def options(q, size, hidden, decays, anchored, moves, link):
        usual = launch.options(q, size, hidden, decays, anchored, moves, link)
        return usual._replace(scan_resident=True, scan_backward_resident=True, reads_resident=not (anchored and moves))

    for module in (deep_forward, deep_backward):
        monkeypatch.setattr(module, "options", options)
    return made


def small(name):
    """Steps that bring no weight of Memora's across zero in chunks of 64: its logarithm's gradient jumps there."""
    return {"eta": 0.003} if isinstance(SPECS[name].retention, retention.KL) else {}


@pytest.mark.parametrize("name", SPECS)
def test_values_and_every_gradient(name, launches):
    compared(SPECS[name], B=1, T=150, H=2, K=48, size=64, **small(name))
    moves, anchored = name.startswith("titans"), name.endswith("anchored")
    reads = set() if moves and anchored else {"readout_resident", "read_backward_resident", "write_backward_resident"}
    back = "scan_backward_momentum" if moves else "scan_backward_resident"
    assert set(launches) == {"scan_resident", back} | reads


@pytest.mark.parametrize("channels", [16, 64])
def test_other_channels_and_scalar_gates(channels, launches):
    compared(presets.yaad(), B=1, T=70, H=1, K=channels, size=64, channelwise=False)


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_packed_sequences(name, launches):
    """Lengths of no whole number of chunks, one of them shorter than one, one empty."""
    bounds = torch.tensor([0, 70, 73, 73, 160])
    compared(SPECS[name], B=1, T=160, H=1, K=16, size=64, cu_seqlens=bounds, **small(name))


@pytest.mark.parametrize("name", CARRIED)
def test_gradients_reach_the_state_that_came_in(name, launches):
    carried_in(SPECS[name], first=64, T=150, H=1, K=16, size=64, **{"eta": 0.01} | small(name))


@pytest.mark.parametrize("name", ["yaad", *CARRIED])
def test_without_gradients_the_same_comes_out(name, launches):
    arguments, found = on_device(tame(SPECS[name], B=1, T=150, H=1, K=16), torch.float32), []
    for wanted in (True, False):
        with torch.set_grad_enabled(wanted):
            found.append(memorize(SPECS[name], *arguments[:4], chunk_size=64, backend="triton", **arguments[4]))
    (y, state), (again, end) = found
    assert torch.equal(y, again) and all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(end), strict=True))


@gluon.jit
def squared(x_ptr, y_ptr, count, FENCED: gl.constexpr, WAITS: gl.constexpr):
    """x x of 16 x 16 numbers, as the kernels do it, or with a step left out."""
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    L: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    x_s = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [16, 16], gl.NVMMASharedLayout(32, 16, rank=2))
    i = gl.arange(0, 16, layout=gl.SliceLayout(1, LINES))
    j = gl.arange(0, 16, layout=gl.SliceLayout(0, LINES))
    async_copy.async_copy_global_to_shared(x_s, x_ptr + i[:, None] * 16 + j[None, :], mask=(i < count)[:, None])
    async_copy.commit_group()
    if WAITS:
        async_copy.wait_group(0)
    if FENCED:
        fence_async_shared()
    y = warpgroup_mma(x_s, x_s, gl.zeros([16, 16], gl.float32, L), use_acc=False)
    gl.store(y_ptr + i[:, None] * 16 + j[None, :], y)


def test_what_a_gpu_would_get_wrong_is_seen():
    """A product before its operand has arrived, or without a fence, and an address that is nobody's."""
    x, y = torch.randn(16, 16), torch.full((16, 16), torch.nan)
    run = Kernel(squared, [])[(1,)]
    run(x, y, 12, True, True, num_warps=4)
    rows = torch.where(torch.arange(16)[:, None] < 12, x, 0.0)
    assert torch.allclose(y, rows @ rows, atol=1e-5)
    with pytest.raises(AssertionError, match="while a copy into it is under way"):
        run(x, y, 12, True, False)
    with pytest.raises(AssertionError, match="what no fence was set behind"):
        run(x, y, 12, False, True)
    with pytest.raises(AssertionError, match="outside its tensor"):
        run(x, torch.empty(15, 16), 12, True, True)
    with pytest.raises(AssertionError, match="outside its tensor"):
        run(x[:12].clone(), y, 16, True, True)
