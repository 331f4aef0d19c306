"""What the tests share: float64 by hand, one seed, and a random but tame input for any spec."""

import os

# threads that wait for work would otherwise take the processor from those that have some, where tests share a machine
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# before anything imports Triton: its interpreter runs the kernels on the CPU, with a GPU about or not. `make test-gpu` says 0
if os.environ.setdefault("TRITON_INTERPRET", "1") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import torch

# the shapes are too small for a second thread to be of use
torch.set_num_threads(1)
# it runs inside transformers' source tree alone
collect_ignore = ["hf/transformers_suite.py"]


@pytest.fixture
def on_device():
    """New tensors lie where kernels run."""
    from devices import DEVICE

    with torch.device(DEVICE):
        yield


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
