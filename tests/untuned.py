"""Kernels that are tuned take the first configuration they have: what they compute is asked, not how fast."""

from triton.runtime.autotuner import Autotuner


def one_configuration():
    """For all kernels made from now on."""
    whole = Autotuner.__init__

    def first(self, *args, **keywords):
        whole(self, *args, **keywords)
        del self.configs[1:]

    Autotuner.__init__ = first
