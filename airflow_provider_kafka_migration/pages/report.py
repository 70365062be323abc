"""The evidence as a page for people: one HTML file that loads nothing from elsewhere and escapes everything."""

from __future__ import annotations

from typing import Any

from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle, key_fingerprint
from airflow_provider_kafka_migration.pages.rendering import render as render_template

#: Rows of each table. The JSON file has the others.
_MAX_ROWS = 2000
#: Findings of each check. The JSON file has the others.
_MAX_FINDINGS = 10


def render(bundle: EvidenceBundle, sha256: str, public_key: bytes) -> bytes:
    """Return the page of a bundle; deterministic.

    :param sha256: digest of the signed JSON file that the page belongs to.
    """
    checks = bundle.validation.get("checks", [])
    page = render_template(
        "report.html.j2",
        bundle=bundle,
        sha256=sha256,
        public_key=public_key.hex(),
        fingerprint=key_fingerprint(public_key),
        checks=checks,
        partitions=_partitions(checks),
        groups=_groups(bundle.groups.get("groups", [])),
        max_rows=_MAX_ROWS,
        max_findings=_MAX_FINDINGS,
    )
    return page.encode()


def _partitions(checks: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each partition's counts and what the comparison of its content found (empty: it was not compared)."""
    by_name = {check["name"]: check.get("partitions", []) for check in checks}
    contents = {(item["topic"], item["partition"]): item for item in by_name.get("content", [])}
    return [
        (item, contents.get((item["topic"], item["partition"]), {})) for item in by_name.get("counts_and_offsets", [])
    ]


def _groups(groups: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return each group with each of its offsets; a group without offsets once, with None."""
    return [(group, offset) for group in groups for offset in group.get("offsets") or [None]]
