"""A disk that is full, as whoever writes to it finds it, whatever they write with."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full() -> Iterator[None]:
    """No file of this process grows beyond four kilobytes: the system refuses the rest, as it does where there is no room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
