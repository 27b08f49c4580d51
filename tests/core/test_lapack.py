"""The tridiagonal form by LAPACK: right, and other threads go on meanwhile."""

import threading
import time
from typing import Any

import numpy as np
import pytest
from scipy.linalg import lapack

from fed3r_app.core.lapack import eigen_tridiagonal, tridiagonalise


def symmetric(d: int, rank: Any = None, seed: int = 0) -> Any:
    X = np.random.default_rng(seed).normal(size=(d, d if rank is None else rank))
    return X @ X.T


@pytest.mark.parametrize("d", [2, 3, 10, 200])
def test_the_form_is_that_of_scipys_wrapper(d: int) -> None:
    A = symmetric(d)
    before = A.copy()
    packed, *ours = tridiagonalise(A)
    theirs_packed, *theirs, _ = lapack.dsytrd(A, lower=1, lwork=64 * d)
    np.testing.assert_array_equal(A, before)
    np.testing.assert_allclose(np.tril(packed), np.tril(theirs_packed), atol=1e-9)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-9)


@pytest.mark.parametrize(("d", "rank"), [(2, 2), (10, 10), (200, 200), (200, 7)])
def test_eigenvectors_diagonalise_the_form(d: int, rank: Any) -> None:
    A = symmetric(d, rank)
    _, diagonal, off_diagonal, _ = tridiagonalise(A)
    T = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    w, V = eigen_tridiagonal(diagonal, off_diagonal)
    tolerance = 100 * d * np.finfo(float).eps * np.abs(w).max()
    np.testing.assert_allclose(w, np.linalg.eigvalsh(A), atol=tolerance)
    np.testing.assert_allclose(V @ np.diag(w) @ V.T, T, atol=tolerance)
    np.testing.assert_allclose(V.T @ V, np.eye(d), atol=1e-10)


def test_numbers_that_are_none_are_no_answer() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="dstemr failed"):
        eigen_tridiagonal(np.full(3, np.nan), np.full(2, np.nan))


@pytest.mark.parametrize("routine", [tridiagonalise, eigen_tridiagonal])
def test_a_heartbeat_goes_on_meanwhile(routine: Any) -> None:
    A = symmetric(1500)
    arguments = [A] if routine is tridiagonalise else tridiagonalise(A)[1:3]
    beats, done = [], threading.Event()

    def beat() -> None:
        while not done.wait(0.005):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    began = time.monotonic()
    routine(*arguments)
    ended = time.monotonic()
    done.set()
    thread.join()
    # With Python's lock held there would be one, before it is taken.
    assert sum(began < at < ended for at in beats) >= 5
