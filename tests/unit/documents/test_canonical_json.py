"""Canonical JSON is what the reference implementation of RFC 8785 writes, whichever encoder has written it."""

from __future__ import annotations

import enum
from typing import Any
from unittest import mock

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.documents import canonical_json as module
from airflow_provider_kafka_migration.documents.base import Document
from airflow_provider_kafka_migration.documents.canonical_json import canonical_json

_LARGEST = 2**53 - 1
_NUMBERS = st.one_of(
    st.integers(-_LARGEST, _LARGEST), st.floats(allow_nan=False, allow_infinity=False), st.decimals(0, 1, places=3)
).map(lambda number: number if isinstance(number, int | float) else float(number))
#: All characters that UTF-8 can hold, and often those on both sides of the surrogates.
_TEXTS = st.one_of(st.text(), st.text(st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é\ud7ff\ue000\uffff😀a')))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(_TEXTS, inside, max_size=5)),
    max_leaves=15,
)


class Word(enum.StrEnum):
    YES = "yes"


@example({"\ue000": 1, "😀": 2})
@example([0.0, -0.0, 1e-5, 1e-4, 0.1, 123.0, 1e15, 1e16, 1e21, 5e-324, 1.5e300, 999999999999999.9])
@example([1.7976931348623157e308, 100000000000000.02, -0.00012345, 0.00010000000000000002])
@given(VALUES)
def test_the_bytes_are_those_of_the_reference(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        {"text": "plain ü", "number": 7, "nothing": None, "is_it": True, "list": [{"a": [], "b": {}}], "seconds": 1.25},
        [-_LARGEST, _LARGEST, -0.5],
        "\x00\x1f\x7f\u2028",
    ],
)
def test_usual_content_does_not_need_the_reference(value: Any) -> None:
    expected = rfc8785.dumps(value)
    with mock.patch.object(module.rfc8785, "dumps", side_effect=AssertionError):
        assert canonical_json(value) == expected


@pytest.mark.parametrize("value", [(1, (2,)), {"a": Word.YES}, [Word.YES, 3.0]])
def test_what_is_like_json_is_written_as_the_reference_writes_it(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), {1: 2}, {None: 2}, [{True: 1}], {"a": b"b"}, ["\ud800"]],
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        canonical_json(value)


@pytest.mark.parametrize("number", [2**53, -(2**53), 1_700_000_000_000_000_000, 2**63 - 1, -(2**63)])
def test_a_number_that_clients_choose_from_64_bits_is_written_as_its_digits(number: int) -> None:
    class Chosen(Document):
        at_ms: int
        standing: dict[str, list[int]]

    chosen = Chosen(at_ms=number, standing={"orders": [0, number]})
    assert canonical_json([number, {"a": (number, 1.0)}]) == f'["{number}",{{"a":["{number}",1]}}]'.encode()
    assert Chosen.parse(chosen.canonical()) == chosen
    assert Chosen.parse(chosen.canonical()).canonical() == chosen.canonical()
