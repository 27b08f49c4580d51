"""Bytes that travel, measured on the records."""

from typing import Any

import pytest
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto

from fed3r_app.wire import FORMS, count_bytes, pack_statistics
from tests.harness.samples import Draw

# A mean client of iNaturalist-Users-120K: 13 images, each of a class of its own.
N, D, C = 13, 1280, 1203


@pytest.fixture(scope="module")
def records(draw: Draw) -> Any:
    Z, y = draw(N, D, C, seed=0)
    assert len(y.unique()) == N
    return {form: pack_statistics(Z, y, C, form) for form in FORMS}


def deflated_size(item: Any) -> Any:
    """Return the bytes of an object and its children as Flower sends them."""
    children = (item.children or {}).values()
    return len(item.deflate()) + sum(map(deflated_size, children))


def counted(record: Any) -> Any:
    return count_bytes(RecordDict({"statistics": record}))


def protobuf_size(record: Any) -> Any:
    return recorddict_to_proto(RecordDict({"statistics": record})).ByteSize()


@pytest.mark.parametrize("measure", [counted, deflated_size, protobuf_size])
def test_a_factor_is_150_times_smaller_than_dense_sums(
    records: Any, measure: Any
) -> None:
    sizes = {form: measure(record) for form, record in records.items()}
    assert sizes["dense"] / sizes["factor"] >= 150
    assert sizes["dense"] / sizes["packed"] >= 1.9


def test_dense_sums_are_the_papers_bytes_and_little_more(records: Any) -> None:
    paper = 4 * (D * D + D * C)
    assert paper < counted(records["dense"]) < 1.01 * paper


def test_a_factor_is_never_larger_than_the_triangle(draw: Draw) -> None:
    for n in (1, 2, 20, 40, 80, 400):
        Z, y = draw(n, 40, 6, seed=n)
        sizes = [counted(pack_statistics(Z, y, 6, form)) for form in FORMS]
        # The pivots, 8 bytes for each of at most 40 rows, and one more array.
        assert sizes[0] <= sizes[1] + 8 * 40 + 256


def test_repeated_images_do_not_add_bytes(draw: Draw) -> None:
    Z, y = draw(1, 40, 6, seed=0)
    one, many = (pack_statistics(Z.repeat(k, 1), y.repeat(k), 6) for k in (1, 9))
    assert counted(one) == counted(many)
