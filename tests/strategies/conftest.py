"""Messages that can be made."""

from tests.harness.fixtures import _a_run

__all__ = ["_a_run"]
