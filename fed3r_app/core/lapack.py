"""The tridiagonal form of a symmetric matrix and its eigenvectors, by LAPACK.

SciPy's wrappers of these routines hold Python's lock: with 10,000 features for more
than a minute, in which no other thread runs, not even the one by whose heartbeat Flower
knows that a server is alive. Called by ctypes, the same routines leave it free.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_lapack

Array = NDArray[np.float64]
_BLOCK = 64  # columns that are reduced together, at most: LAPACK takes 32


def tridiagonalise(A: Array) -> tuple[Array, Array, Array, Array]:
    """Return A = Q T Q' as LAPACK's dsytrd has it, from the lower triangle of A (d, d).

    Returns
    -------
    Array of shape (d, d), in Fortran's order
        The reflectors whose product is Q, below the subdiagonal.
    Array of shape (d,), (d - 1,), (d - 1,)
        The diagonal and subdiagonal of T, and the reflectors' factors.
    """
    d = len(A)
    packed = np.array(A, order="F")
    diagonal, off_diagonal, tau = np.empty(d), np.empty(d - 1), np.empty(d - 1)
    work = np.empty(_BLOCK * d)
    results = (packed, d, diagonal, off_diagonal, tau)
    _call("dsytrd", b"L", d, *results, work, len(work))
    return packed, diagonal, off_diagonal, tau


def eigen_tridiagonal(diagonal: Array, off_diagonal: Array) -> tuple[Array, Array]:
    """Return the eigenvalues (d,), ascending, and eigenvectors (d, d) of T."""
    d = len(diagonal)
    values, vectors = np.empty(d), np.empty((d, d), order="F")
    found, is_accurate = np.zeros(1, np.intc), np.ones(1, np.intc)
    support = np.empty(2 * d, np.intc)
    # The least sizes that dstemr accepts.
    work, integer_work = np.empty(18 * d), np.empty(10 * d, np.intc)
    _call(
        # dstemr destroys both diagonals, and wants room for one number more.
        *("dstemr", b"V", b"A", d, diagonal.copy(), np.append(off_diagonal, 0.0)),
        *(0.0, 0.0, 0, 0, found, values, vectors, d, d, support, is_accurate),
        *(work, len(work), integer_work, len(integer_work)),
    )
    return values, vectors


def _call(name: str, *arguments: bytes | int | float | NDArray[Any]) -> None:
    """Call a routine of LAPACK, all of whose arguments are pointers; info is added."""
    info = ctypes.c_int(0)
    pointers = [_pointer(argument) for argument in arguments]
    _routine(name, len(pointers) + 1)(*pointers, ctypes.byref(info))
    if info.value:
        raise np.linalg.LinAlgError(f"LAPACK's {name} failed with {info.value}.")


def _pointer(argument: bytes | int | float | NDArray[Any]) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, bytes):
        return ctypes.c_char_p(argument)
    if isinstance(argument, int):
        return ctypes.byref(ctypes.c_int(argument))
    return ctypes.byref(ctypes.c_double(argument))


@cache
def _routine(name: str, num_arguments: int) -> Callable[..., None]:
    """Return a routine of the LAPACK that SciPy brings for other compiled code."""
    capsule = cython_lapack.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = api.PyCapsule_GetName(capsule)
    assert b"int *" in signature, signature  # not the 64-bit integers of some builds
    address = api.PyCapsule_GetPointer(capsule, signature)
    arguments = [ctypes.c_void_p] * num_arguments
    return ctypes.CFUNCTYPE(None, *arguments)(address)
