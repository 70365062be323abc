"""The text of an approval, Markdown. Pure: facts in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import ApprovalKind
from airflow_provider_kafka_migration.freeze import words as freeze_words
from airflow_provider_kafka_migration.pages.rendering import render as render_template
from airflow_provider_kafka_migration.spec import MigrationSpec

#: Rows of each table. A person reads all of them before answering.
_MAX_ROWS = 50
_ACTIONS: dict[ApprovalKind, str] = {"cutover": "the cutover", "client_switch": "the client switch"}


def with_each_kind(rows: Sequence[Sequence[str]], limit: int) -> list[Sequence[str]]:
    """Order rows, whose first column is their kind, so that the first ones have some of each kind.

    Hundreds of groups that are not migrated must not hide the one topic that is not.
    """
    kinds = sorted({row[0] for row in rows})
    by_kind = {kind: [row for row in rows if row[0] == kind] for kind in kinds}
    shown: dict[str, int] = dict.fromkeys(kinds, 0)
    left = min(limit, len(rows))
    while left:
        for kind in kinds:
            if left and shown[kind] < len(by_kind[kind]):
                shown[kind] += 1
                left -= 1
    first = [row for kind in kinds for row in by_kind[kind][: shown[kind]]]
    return first + [row for kind in kinds for row in by_kind[kind][shown[kind] :]]


def render(spec: MigrationSpec, kind: ApprovalKind, code: str, facts: dict[str, Any]) -> tuple[str, str]:
    """Return subject and body of the approval.

    :param facts: what :func:`~.approvals.request.make_facts` collects for this kind of approval.
    """
    rows = {name: with_each_kind(facts[name], _MAX_ROWS) for name in ("left_out",) if name in facts}
    body = render_template(
        f"approval_{kind}.md.j2",
        **{"way_back": None, "abort_code": "", "abandon_code": "", "former_freezes": (), **facts, **rows},
        spec=spec,
        action=_ACTIONS[kind],
        approval_code=code,
        max_rows=_MAX_ROWS,
        tell_owners=freeze_words.TELL_OWNERS,
    )
    return f"{spec.migration_id}: approve {_ACTIONS[kind]}", body
