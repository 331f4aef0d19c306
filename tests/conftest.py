"""What the tests share: float64 by hand, one seed, and a random but tame input for any spec."""

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
