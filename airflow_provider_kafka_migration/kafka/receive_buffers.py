"""Receive buffers that are used again.

Memory that is new to a process costs a page fault per 4 KiB: more than all else that a copier does with the bytes. So
the buffer of a large answer goes back to its pool when nobody holds a view of it any more. Python itself keeps count:
a bytearray with exported views cannot be resized.
"""

from __future__ import annotations

#: Answers up to this size get a buffer of their own.
SMALL_BYTES = 64 * 1024
_GRAIN_BYTES = 1024 * 1024
#: What a pool keeps at most; beyond it buffers are made and forgotten.
POOL_BYTES = 40 * 1024 * 1024


class ReceiveBuffers:
    """Buffers of one connection. Not thread-safe: one owner."""

    def __init__(self, pool_bytes: int = POOL_BYTES) -> None:
        self._pool_bytes = pool_bytes
        self._kept: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        """Size of all buffers in the pool, in use or not."""
        return sum(len(buffer) for buffer in self._kept)

    def take(self, size: int) -> memoryview:
        """A writable view of exactly ``size`` bytes. Its content is left over from earlier answers.

        The buffer is free again when this view, and all views made of it, are gone.
        """
        if size <= SMALL_BYTES:
            return memoryview(bytearray(size))
        free = [buffer for buffer in self._kept if _is_free(buffer)]
        fitting = min((buffer for buffer in free if len(buffer) >= size), key=len, default=None)
        if fitting is None:
            fitting = bytearray(-(-size // _GRAIN_BYTES) * _GRAIN_BYTES)
            self._keep(fitting, free)
        return memoryview(fitting)[:size]

    def _keep(self, buffer: bytearray, free: list[bytearray]) -> None:
        """Put a new buffer into the pool; free ones, all too small for this answer, make room."""
        excess = self.kept_bytes + len(buffer) - self._pool_bytes
        for small in sorted(free, key=len):
            if excess <= 0:
                break
            excess -= len(small)
            self._kept = [kept for kept in self._kept if kept is not small]
        if excess <= 0:
            self._kept.append(buffer)


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of it is left. Takes constant time: a shorter length keeps the memory as it is."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
