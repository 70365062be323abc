"""The evidence as a page for people: one HTML file that loads nothing from elsewhere and escapes everything."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle, key_fingerprint

_MAX_ROWS = 2000

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --pass: #1a7f37; --warn: #9a6700; --fail: #cf222e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { white-space: nowrap; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; border: 1px solid var(--line); padding: .6rem; }
.PASSED { color: var(--pass); font-weight: 600; } .WARNING { color: var(--warn); font-weight: 600; }
.FAILED { color: var(--fail); font-weight: 600; }
"""


def esc(value: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(value), quote=True)


def render(bundle: EvidenceBundle, sha256: str, public_key: bytes) -> bytes:
    """Return the page of a bundle; deterministic.

    :param sha256: digest of the signed JSON file that the page belongs to.
    """
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Kafka migration {esc(bundle.migration_id)}: {esc(bundle.outcome)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Kafka migration {esc(bundle.migration_id)}: {_outcome(bundle.outcome)}</h1>",
        "<p>This page is for reading. The proof is the signed JSON file next to it: "
        "<code>kafka-migration verify-evidence FILE --public-key KEY</code>.</p>",
        *_head(bundle, sha256, public_key),
        *_warnings(bundle),
        *_checks(bundle),
        *_topics(bundle),
        *_cutover(bundle),
        *_groups(bundle),
        *_approvals(bundle),
        *_findings(bundle),
        *_not_copied(bundle),
        *_journal(bundle),
        "</body></html>\n",
    ]
    return "\n".join(parts).encode()


def _outcome(value: object) -> str:
    return f"<span class='{esc(value)}'>{esc(value)}</span>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Make a table: escaped cells, right-aligned numbers, coloured outcomes. A long table is truncated with a note."""
    rows = list(rows)
    lines = ["<table><thead><tr>", *(f"<th>{esc(cell)}</th>" for cell in head), "</tr></thead><tbody>"]
    lines += ["<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows[:_MAX_ROWS]]
    lines.append("</tbody></table>")
    if len(rows) > _MAX_ROWS:
        lines.append(f"<p>... and {len(rows) - _MAX_ROWS} more in the JSON file.</p>")
    return lines


def _cell(value: object) -> str:
    if str(value) in ("PASSED", "WARNING", "FAILED"):
        return f"<td>{_outcome(value)}</td>"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<td class='n'>{value:,}</td>"
    return f"<td>{esc('' if value is None else value)}</td>"


def _head(bundle: EvidenceBundle, sha256: str, public_key: bytes) -> list[str]:
    rows: list[tuple[str, object]] = [
        ("Signed at", bundle.signed_at),
        ("Signing key", f"{key_fingerprint(public_key)} ({public_key.hex()})"),
        ("SHA-256 of the JSON file", sha256),
        ("Plan digest", bundle.plan_digest),
        ("Configuration fingerprint", bundle.config_fingerprint),
        ("Fingerprint of clusters and buckets", bundle.resume_fingerprint or bundle.config_fingerprint),
        ("Source", _cluster(bundle.source)),
        ("Target", _cluster(bundle.target)),
        ("Object Lock", _lock(bundle.object_lock)),
        ("Version", bundle.tool_version),
    ]
    cells = "".join(f"<tr><th>{esc(name)}</th><td><code>{esc(value)}</code></td></tr>" for name, value in rows)
    return [f"<table><tbody>{cells}</tbody></table>"]


def _cluster(facts: dict[str, Any]) -> str:
    brokers = len(facts.get("brokers", []))
    return f"{facts.get('cluster_id')} (Kafka {facts.get('kafka_version')}, {facts.get('mode')}, {brokers} brokers)"


def _lock(lock: dict[str, Any]) -> str:
    return f"{lock.get('mode')} until {lock.get('retain_until')}" if lock.get("applied") else "none"


def _warnings(bundle: EvidenceBundle) -> list[str]:
    return [f"<p class='WARNING'>{esc(text)}</p>" for text in bundle.warnings]


def _checks(bundle: EvidenceBundle) -> list[str]:
    checks = bundle.validation.get("checks", [])
    lines = ["<h2>Validation</h2>"]
    if not checks:
        return [*lines, "<p>Validation was not run.</p>"]
    lines += _table(
        ["check", "outcome", "summary", "findings"],
        [[c["name"], c["outcome"], c["summary"], "; ".join(c.get("findings", [])[:10])] for c in checks],
    )
    return lines


def _topics(bundle: EvidenceBundle) -> list[str]:
    """Make the table of partitions: verdict, offsets, records of both sides, and the outcome of the comparison."""
    checks = {check["name"]: check for check in bundle.validation.get("checks", [])}
    counts = checks.get("counts_and_offsets", {}).get("partitions", [])
    contents = {(item["topic"], item["partition"]): item for item in checks.get("content", {}).get("partitions", [])}
    rows = []
    for item in counts:
        content = contents.get((item["topic"], item["partition"]), {})
        rows.append(
            [
                f"{item['topic']}-{item['partition']}",
                item["verdict"],
                item["source_end_offset"],
                item["target_end_offset"],
                item["source_records"],
                item["target_records"],
                content.get("compared", -1),
                content.get("outcome", ""),
                (content.get("source_digest") or "")[:16],
            ]
        )
    head = ["partition", "verdict", "source end", "target end", "source records", "target records", "compared"]
    return ["<h2>Partitions</h2>", *_table([*head, "content", "digest"], rows)]


def _cutover(bundle: EvidenceBundle) -> list[str]:
    frozen = bundle.cutover.get("frozen_time", {})
    freeze = bundle.cutover.get("freeze", {})
    lines = ["<h2>Cutover</h2>"]
    if not freeze:
        return [*lines, "<p>There was no cutover.</p>"]
    lines.append(
        f"<p>Producers frozen by {esc(freeze.get('method'))}, verified at {esc(freeze.get('verified_at'))}; "
        f"ready for the client switch <b>{esc(frozen.get('frozen_seconds', '?'))} s</b> after producers were asked to "
        "stop.</p>"
    )
    lines += _table(["step", "seconds"], sorted(frozen.get("steps", {}).items()))
    lifted = bundle.cutover.get("lifted", [])
    if lifted:
        lines.append("<h3>Attempts that were lifted</h3>")
        lines += _table(["at", "reason"], [[item["at"], item.get("reason")] for item in lifted])
    return lines


def _groups(bundle: EvidenceBundle) -> list[str]:
    rows = []
    for group in bundle.groups.get("groups", []):
        if not group.get("offsets"):
            rows.append([group["group"], group["type"], "", "", "", "", group.get("skipped_reason", "")])
        rows += [
            [
                group["group"],
                group["type"],
                f"{item['topic']}-{item['partition']}",
                item["source_offset"],
                item["target_offset"],
                item["translation"],
                item.get("reason") or group.get("skipped_reason", ""),
            ]
            for item in group.get("offsets", [])
        ]
    head = ["group", "type", "partition", "source offset", "target offset", "translation", "note"]
    return ["<h2>Consumer groups</h2>", *_table(head, rows)]


def _approvals(bundle: EvidenceBundle) -> list[str]:
    lines = ["<h2>Approvals</h2>"]
    for item in bundle.approvals:
        answer = item.get("answer", item)
        people = ", ".join(
            f"{person.get('user_name') or person.get('user_id')}" for person in answer.get("responders", [])
        )
        refused = f" REFUSED: {item['why']}" if "why" in item else ""
        lines.append(
            f"<p><b>{esc(answer.get('kind'))}</b>: {esc(answer.get('decision'))} by {esc(people)} at "
            f"{esc(answer.get('answered_at'))}, code <code>{esc(answer.get('code'))}</code>{esc(refused)}</p>"
        )
        shown = esc(answer.get("body_shown", ""))
        lines.append(f"<details><summary>What they saw</summary><pre>{shown}</pre></details>")
    return lines if len(lines) > 1 else [*lines, "<p>None.</p>"]


def _findings(bundle: EvidenceBundle) -> list[str]:
    rows = [
        [item.get("code"), item.get("severity"), "waived" if item.get("waived") else "", item.get("seen")]
        for item in bundle.findings
    ]
    return ["<h2>Findings of the precheck</h2>", *_table(["code", "severity", "", "what was seen"], rows)]


def _not_copied(bundle: EvidenceBundle) -> list[str]:
    rows = [[item.get("kind"), item.get("name"), item.get("reason")] for item in bundle.not_copied]
    return ["<h2>What was not copied</h2>", *_table(["kind", "name", "reason"], rows)]


def _journal(bundle: EvidenceBundle) -> list[str]:
    head = ["seq", "at", "from", "to", "step", "reason", "actor"]
    rows = [[entry.get(name) if entry.get(name) is not None else "" for name in head] for entry in bundle.journal]
    return ["<h2>Journal</h2>", *_table(head, rows)]
