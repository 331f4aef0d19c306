"""Several processes on one GPU at the same time, by NVIDIA's MPS; without it they take turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

CONTROL = "nvidia-cuda-mps-control"
# where a process finds the server
FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


@contextlib.contextmanager
def shared_gpu(processes: int) -> Iterator[None]:
    """A server for several processes that are to be started, where MPS is installed; one that is there is left alone."""
    if processes < 2 or shutil.which(CONTROL) is None or FOLDERS[0] in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        try:
            started = subprocess.run([CONTROL, "-d"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if started.returncode:
                print(f"MPS does not start, so processes take turns: {(started.stderr or started.stdout).strip()}", flush=True)
                forget()
            yield
        finally:
            if FOLDERS[0] in os.environ:
                subprocess.run([CONTROL], input="quit\n", capture_output=True, text=True)
            forget()


def forget() -> None:
    """Leave processes that are started from now on without a server."""
    for name in FOLDERS:
        os.environ.pop(name, None)
