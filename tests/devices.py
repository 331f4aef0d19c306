"""Where kernels run in tests: on the CPU by Triton's interpreter, or with TRITON_INTERPRET=0 on a GPU."""

import pytest
import torch

# conftest.py hides GPUs from all but `make test-gpu`
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def needs_gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not GPU, reason="needs a GPU: make test-gpu")(test))
