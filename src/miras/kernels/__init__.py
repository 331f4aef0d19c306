"""Fused Triton kernels; imported only where they are used."""
