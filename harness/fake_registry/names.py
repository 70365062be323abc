"""Subjects and their contexts: ``orders-value`` is of the default context, ``:.x:orders-value`` of ``.x``."""

from __future__ import annotations

import re
from typing import NamedTuple

DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


class Subject(NamedTuple):
    """A subject; an empty name means the context as a whole."""

    context: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Subject:
        match = _QUALIFIED.fullmatch(text)
        return cls(DEFAULT_CONTEXT, text) if match is None else cls(match[1], match[2])

    @property
    def qualified(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"
