"""Experiments small enough for a test: 8 x 8 pixels as features."""

import textwrap

import pytest

SMALL = """\
title: small
base:
  backbone: pixels
  image-size: 8
  clients: 10
  clients-per-round: 5
  upload-dtype: float64
"""


@pytest.fixture
def write_experiment(tmp_path):
    """Write an experiment file: the small one and what is added to it."""

    def write(text, name="x", start=SMALL):
        path = tmp_path / f"{name}.yaml"
        path.write_text(start + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def small():
    return SMALL
