"""Work that a GPU is given as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

ResultT = TypeVar("ResultT")


class Recorded(Generic[ResultT]):
    """Work as a CUDA graph: the same kernels on the same memory, given to the GPU at once. Recording runs nothing."""

    def __init__(self, work: Callable[..., ResultT], *given: Tensor) -> None:
        self.held = [x.clone() for x in given]
        self.graph = torch.cuda.CUDAGraph()
        # kernels may still be loaded while others are recorded
        with torch.cuda.graph(self.graph, capture_error_mode="relaxed"):
            self.results = work(*self.held)

    def replay(self, *given: Tensor) -> ResultT:
        """The work on other tensors of the same sizes; what it gives holds until the next one."""
        for held, new in zip(self.held, given, strict=True):
            # a copy would repeat a lone row in silence
            assert held.shape == new.shape, (held.shape, new.shape)
            held.copy_(new)
        self.graph.replay()
        return self.results
