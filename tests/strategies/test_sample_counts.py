"""Numbers of samples against those announced, and against those of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fed3r_app.core.outliers import far_above_others
from fed3r_app.wire import ImageCounts, RecordError
from strategies.sample_counts import check_announced, outnumbering

HUGE = 10**12


def by_name(*sizes: int) -> dict[str, int]:
    return {str(i): size for i, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        (by_name(*[10] * 10), []),
        (by_name(90, *[10] * 9), []),  # as many as all others is not more
        (by_name(91, *[10] * 9), ["0"]),
        (by_name(HUGE, HUGE, *[10] * 8), ["0", "1"]),
        (by_name(HUGE, HUGE // 10, *[10] * 8), ["0", "1"]),
        # A few large hospitals and many small ones are no attack.
        (by_name(5000, 4000, 3000, 2000, *[100] * 6), []),
        (by_name(121, 120, 119), []),
        (by_name(HUGE, 1, 0), ["0"]),
        (by_name(5, 4), []),
        (by_name(7), []),
        ({}, []),
        (by_name(*[0] * 10), []),
    ],
)
def test_who_outnumbers_all_others_is_found(
    sizes: dict[str, int], found: list[str]
) -> None:
    assert outnumbering(sizes) == found


@given(st.lists(st.integers(0, HUGE), max_size=40))
def test_half_of_them_are_left_and_outweigh_who_was_found_last(
    sizes: list[int],
) -> None:
    found = outnumbering(by_name(*sizes))
    assert len(found) <= len(sizes) / 2
    left = sum(sizes) - sum(sizes[int(name)] for name in found)
    assert all(sizes[int(name)] > left for name in found)


@pytest.mark.parametrize(
    ("n", "unreadable", "share", "fits"),
    [
        (1000, 0, 0.01, True),
        (990, 10, 0.01, True),
        (989, 11, 0.01, False),
        (1001, 0, 0.01, False),
        (999, 0, 0.01, False),  # by nothing that it says
        (999, 1, 0.0, False),
        (HUGE, 0, 0.01, False),
    ],
)
def test_a_contribution_lacks_what_is_unreadable_and_no_more(
    n: int, unreadable: int, share: float, fits: bool
) -> None:
    counts = ImageCounts(unreadable)
    check_announced(None, n, counts, share)
    if fits:
        check_announced(1000, n, counts, share)
        return
    with pytest.raises(RecordError, match="n must be 1000, as announced"):
        check_announced(1000, n, counts, share)


def test_a_value_is_compared_with_the_median_of_the_others() -> None:
    assert far_above_others({"a": 1e24, "b": 1.0, "c": 2.0}) == {"a": 15.0}
    assert far_above_others({"a": 1e24, "b": 1.0}) == {}  # who can tell which?
    assert far_above_others({"a": 11.0}, [1.0, 1.0]) == {"a": 10.0}
    assert far_above_others({"a": 9.0, "b": 1.0}, [1.0, 2.0]) == {}
