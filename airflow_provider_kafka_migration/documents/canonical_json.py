"""Canonical JSON (RFC 8785): the one form of a document's content that is stored, hashed and signed."""

from __future__ import annotations

import json
from typing import Any

import rfc8785

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_LARGEST_INTEGER = 2**53 - 1


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 form of JSON data.

    Python's own encoder writes the same bytes several times faster for nearly all that documents contain. The reference
    implementation writes, or refuses, the rest: floats that it writes in another way than Python, and what JSON cannot
    hold.

    An integer beyond 2**53 becomes a string of its digits, as RFC 7493 advises: clients choose timestamps and committed
    offsets, and both have 64 bits. Documents read such a string as the integer that it was.

    :raises rfc8785.CanonicalizationError: the data has no canonical form.
    """
    if not _is_plain(value):
        value = _with_large_integers_as_text(value)
    if _is_plain(value):
        text = _ENCODER.encode(value)
        # RFC 8785 sorts keys by UTF-16 units and Python by code points: the orders differ from surrogates on.
        if text.isascii() or max(text) < "\ud800":
            return text.encode()
    return rfc8785.dumps(value)


def _with_large_integers_as_text(value: Any) -> Any:
    if type(value) is int and abs(value) > _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {key: _with_large_integers_as_text(item) for key, item in value.items()}
    return [_with_large_integers_as_text(item) for item in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    """Return whether Python's encoder writes this data as RFC 8785 does, except for the order of keys."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_LARGEST_INTEGER <= value <= _LARGEST_INTEGER)
    if kind is float:
        # Python and ECMAScript both write these without an exponent; ECMAScript leaves out the ".0" of whole numbers.
        return bool(1e-4 <= abs(value) < 1e15 and not value.is_integer())
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return kind is list and all(map(_is_plain, value))
