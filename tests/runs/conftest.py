"""A disk that is full."""

from tests.harness.full_disk import keeps_old

__all__ = ["keeps_old"]
