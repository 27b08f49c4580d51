"""Samples to send."""

from functools import partial

import pytest

from tests.harness.samples import Draw, draw_samples


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Draw features as backbones give them, sparse with zero columns, and labels."""
    return partial(draw_samples, "relu")
