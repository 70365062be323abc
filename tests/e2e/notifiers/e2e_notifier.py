"""A notifier as a user writes one: it appends a line to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


class FileNotifier(BaseNotifier):
    """Appends ``text`` to the file at ``path``; both are templates."""

    template_fields = ("path", "text")

    def __init__(self, path: str, text: str, token: str) -> None:
        super().__init__()
        if token != os.environ["E2E_NOTIFIER_TOKEN"]:
            raise ValueError("the reference was not resolved")
        self.path = path
        self.text = text

    def notify(self, context: Any) -> None:
        with Path(self.path).open("a", encoding="utf-8") as file:
            file.write(self.text + "\n")
