"""A failure as the journal keeps it: enough to act on, and no secret."""

from __future__ import annotations

import traceback
from typing import Any

from airflow_provider_kafka_migration.errors import MigrationError

#: A reason is a sentence for people; whole listings are in the details.
MAX_REASON_CHARACTERS = 2000


def describe_failure(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Reason and details of a ``failed`` entry.

    Our own errors are made to be shown. The text of any other exception may quote what it failed on, a connection's
    settings for instance; so only its kind and place are kept, and the text is left to the task's log.
    """
    if isinstance(error, MigrationError):
        return str(error)[:MAX_REASON_CHARACTERS], {"error": error.as_dict()}
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return f"{kind}{place}; its text is in the task's log", {"error": {"code": kind, "kind": "unexpected"}}
