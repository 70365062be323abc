"""CRC-32C arithmetic: changing a header without reading the payload again.

A CRC is linear: changing some bytes at the front changes the checksum by the CRC of the difference, moved over the
rest. Moving needs no payload, so the checksum a producer has put on its records travels with them: a bit that flips
anywhere on the way is still refused by the target broker.
"""

from __future__ import annotations

from functools import cache

from crc32c import crc32c

_MASK = 0xFFFFFFFF
#: Below this many bytes, feeding zeros is faster than tables.
_CHUNK_BITS = 16
_CHUNK_BYTES = 1 << _CHUNK_BITS
_ZEROS = memoryview(bytes(_CHUNK_BYTES))

_Tables = tuple[list[int], list[int], list[int], list[int]]


def patched_crc(crc: int, old_head: bytes | memoryview, new_head: bytes | memoryview, rest_bytes: int) -> int:
    """CRC-32C of ``new_head + rest``, given that of ``old_head + rest``.

    :param crc: CRC-32C over ``old_head + rest``.
    :param rest_bytes: length of what follows the heads; both heads have the same length.
    """
    return crc ^ shift_crc(int(crc32c(old_head)) ^ int(crc32c(new_head)), rest_bytes)


def shift_crc(difference: int, zero_bytes: int) -> int:
    """Move a difference of CRC registers over ``zero_bytes`` bytes. O(log n) above 64 KiB."""
    low = zero_bytes & (_CHUNK_BYTES - 1)
    if low:
        # crc32c() inverts before and after; both inversions are taken back here.
        difference = int(crc32c(_ZEROS[:low], difference ^ _MASK)) ^ _MASK
    chunks = zero_bytes >> _CHUNK_BITS
    bit = 0
    while chunks:
        if chunks & 1:
            difference = _apply(_tables(bit), difference)
        chunks >>= 1
        bit += 1
    return difference


def _apply(tables: _Tables, value: int) -> int:
    first, second, third, fourth = tables
    return first[value & 255] ^ second[value >> 8 & 255] ^ third[value >> 16 & 255] ^ fourth[value >> 24]


@cache
def _tables(bit: int) -> _Tables:
    """Look-up tables, one per register byte, for a move over ``64 KiB << bit`` zero bytes."""
    if bit == 0:
        basis = [int(crc32c(_ZEROS, 1 << i ^ _MASK)) ^ _MASK for i in range(32)]
    else:
        half = _tables(bit - 1)
        basis = [_apply(half, _apply(half, 1 << i)) for i in range(32)]
    return _table(basis[:8]), _table(basis[8:16]), _table(basis[16:24]), _table(basis[24:])


def _table(basis: list[int]) -> list[int]:
    table = [0]
    for vector in basis:
        table += [entry ^ vector for entry in table]
    return table
