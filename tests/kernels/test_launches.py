"""Every launch of both passes gives a kernel exactly the arguments it has: Hopper's kernels too, which no CPU runs."""

import itertools

import pytest
import torch

pytest.importorskip("triton")

from miras.kernels import deep_backward, deep_forward, launch, lead_tokens
from miras.kernels.arguments import Given, Link, Momentum, Rows, Tokens, Weights
from miras.kernels.biases import Fused

resident = [
    pytest.importorskip(f"miras.kernels.{name}")
    for name in (
        "resident_kernels",
        "resident_reads",
        "resident_writes",
        "resident_backward",
        "resident_momentum_backward",
    )
]
LAUNCH = {"num_warps", "num_stages", "maxnreg"}
FORWARD = {"gather", "accumulate", "prepare", "scan", "readout", "finish", "scan_resident", "readout_resident"}
BACKWARD = {
    "begin_backward", "read_backward", "finish_backward", "linearise", "scan_backward", "write_backward", "anchor_backward",
    "bias_backward", "gate_backward", "read_backward_resident", "write_backward_resident", "scan_backward_resident",
    "scan_backward_momentum", "scatter",
}  # fmt: skip
KERNELS = FORWARD | BACKWARD
T, H, D, E, C = 128, 2, 64, 256, 64


class Bound:
    """A kernel that looks at its arguments and computes nothing."""

    def __init__(self, kernel, seen):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *given, **named):
        name, names = self.kernel.__name__, list(self.kernel.arg_names)
        assert set(names[len(given) :]) == set(named) - LAUNCH, name
        for argument, value in zip(names, given, strict=False):
            is_tensor = value is None or isinstance(value, torch.Tensor)
            assert is_tensor == argument.endswith("_ptr"), (name, argument)
        self.seen.append(name)


@pytest.fixture
def seen(monkeypatch):
    """The kernels that were launched."""
    found = []
    for module in (deep_forward, deep_backward, lead_tokens, *resident):
        for name, value in list(vars(module).items()):
            if name in KERNELS:
                monkeypatch.setattr(module, name, Bound(value, found))
    return found


def arguments(anchored, moves, linked, leads):
    low, full = (lambda *shape: torch.zeros(shape, dtype=torch.bfloat16)), (lambda *shape: torch.zeros(shape))
    weights = [full(1, H, E, D) for _ in range(4)]
    tokens = Tokens(*(low(T, H, D) for _ in range(3)), full(T, H, D), full(T, H, 1 if moves else D), full(T, H, D))
    anchors = weights[2:] if anchored else [None, None]
    momentum = Momentum(*weights[:2], full(2, H, C, C), full(2, H, C), full(2, H, C), full(2, H)) if moves else None
    logs = weights[2:] if anchored else [full(0), full(0)]
    link = Link(4.0, 1e-4) if linked else Link(mass1=64.0, mass2=256.0) if leads else Link()
    rows = Rows.of([T], C, torch.device("cpu"))
    lead = lead_tokens.lead_of(tokens, logs, rows, C) if leads else None
    kept = Weights(*weights[:2], *anchors, full(H, D), full(H, D))
    return Given(tokens, kept, momentum, lead, rows, C, Fused("Huber", 2.0), link)


def both_passes(hopper, anchored, kind, monkeypatch):
    """Everything that a call of a kind launches."""
    moves = kind == "momentum"
    made = launch.options

    def forced(*given):
        reads = not (anchored and moves)
        return made(*given)._replace(scan_resident=True, scan_backward_resident=True, reads_resident=reads)

    for module in (deep_forward, deep_backward):
        monkeypatch.setattr(module, "options", forced if hopper else made)
    given = arguments(anchored, moves, kind == "link", kind == "lead")
    result, saved = deep_forward.forward(given)
    deep_backward.backward(given, (result.w1, result.w2), saved, result)


CASES = list(itertools.product([False, True], [False, True], ["plain", "momentum", "link", "lead"]))


@pytest.mark.parametrize("hopper, anchored, kind", CASES)
def test_launches_fit_their_kernels(hopper, anchored, kind, seen, monkeypatch):
    both_passes(hopper, anchored, kind, monkeypatch)
    own = [name for name in seen if name.endswith(("_resident", "_momentum"))]
    assert len(seen) == 13 + anchored + 2 * (kind == "lead")
    assert len(own) == (0 if not hopper else 2 if anchored and kind == "momentum" else 5)


def test_nothing_is_left_out(seen, monkeypatch):
    """Each kernel is launched by one of the cases above."""
    for case in CASES:
        with monkeypatch.context() as own:
            both_passes(*case, own)
    assert set(seen) == KERNELS
