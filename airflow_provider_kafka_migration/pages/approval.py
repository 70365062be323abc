"""The text of an approval, Markdown. Pure: facts in, text out."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.cutover import ApprovalKind
from airflow_provider_kafka_migration.freeze import words as freeze_words
from airflow_provider_kafka_migration.pages.rendering import render as render_template
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Rows of each table. A person reads all of them before answering.
_MAX_ROWS = 50
_ACTIONS: dict[ApprovalKind, str] = {"cutover": "the cutover", "client_switch": "the client switch"}


def render(spec: MigrationSpec, kind: ApprovalKind, code: str, facts: dict[str, Any]) -> tuple[str, str]:
    """Return subject and body of the approval.

    :param facts: what :func:`~.approvals.request.make_facts` collects for this kind of approval.
    """
    body = render_template(
        f"approval_{kind}.md.j2",
        **{"way_back": None, **facts},
        spec=spec,
        action=_ACTIONS[kind],
        approval_code=code,
        max_rows=_MAX_ROWS,
        tell_owners=freeze_words.TELL_OWNERS,
    )
    return f"{spec.migration_id}: approve {_ACTIONS[kind]}", body
