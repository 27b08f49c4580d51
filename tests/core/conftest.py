"""Samples to test the mathematics on."""

from tests.harness.samples import draw

__all__ = ["draw"]
