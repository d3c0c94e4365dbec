"""Less of what the system gives."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(limit: int, value: int) -> Iterator[None]:
    """Allow this process less of something, such as open files, inside the block."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))
