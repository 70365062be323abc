"""The text of an approval, Markdown. Pure: facts in, text out. Names from clusters are escaped."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_kafka_migration.documents.approval import ApprovalKind
from airflow_provider_kafka_migration.spec import MigrationSpec

_MAX_ROWS = 50
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def escape(text: object) -> str:
    """A name as Markdown shows it literally: a topic or group name must not become a link, a heading or HTML."""
    return _SPECIAL.sub(r"\\\1", str(text)).replace("\n", " ")


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    """A Markdown table of escaped cells; long ones are cut, and say so."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append("")
        lines.append(f"... and {len(rows) - _MAX_ROWS} more")
    return lines


def render(spec: MigrationSpec, kind: ApprovalKind, code: str, facts: dict[str, Any]) -> tuple[str, str]:
    """(subject, body)."""
    lines = _cutover(spec, facts) if kind == "cutover" else _client_switch(spec, facts)
    action = "the cutover" if kind == "cutover" else "the client switch"
    lines += _left_out(facts)
    lines += [
        "",
        "## Code",
        "",
        f"To approve {action} type this code: **`{code}`**",
        "",
        "It stands for the plan, the topology, the groups and the settings named here. If any of them changes, it is "
        "refused and a new one is needed.",
    ]
    if facts.get("signing_key"):
        lines += ["", f"The evidence will be signed with the key `{facts['signing_key']}`."]
    subject = f"{spec.migration_id}: approve {action}"
    return subject, "\n".join(lines) + "\n"


def _cutover(spec: MigrationSpec, facts: dict[str, Any]) -> list[str]:
    section = spec.cutover
    estimate = facts["expected_freeze_seconds"]
    limit = section.max_producer_freeze.total_seconds()
    lines = [
        f"# Cutover of migration {escape(spec.migration_id)}",
        "",
        "## What will happen",
        "",
        f"1. Producers of the source are stopped ({_freeze_words(section.freeze)}); the brokers are asked whether all "
        "of them have stopped.",
        "2. " + _sentinel_words(section.sentinel),
        f"3. The rest is copied: {facts['total_lag']} records in {facts['partitions']} partitions.",
        f"4. The offsets of {len(facts['groups'])} consumer groups are committed on the target.",
        "5. The target is checked for anything that was cut. Then clients may switch.",
        "",
        f"Producers will be frozen for about **{estimate:g} s**, at most {limit:g} s: then the freeze is lifted and "
        "the migration goes back to mirroring.",
    ]
    if section.freeze == "manual":
        lines += ["", "**By approving you confirm that all producers of these topics are stopped now.**"]
    if estimate > limit:
        lines += ["", f"**The estimate is above the limit of {limit:g} s: the cutover will probably be undone.**"]
    lines += ["", "## Lag", ""]
    lines += table(
        ["topic", "partitions", "lag", "largest of one partition"],
        [
            [topic, item["partitions"], item["total_lag"], item["largest_lag"]]
            for topic, item in sorted(facts["lag"].items())
        ],
    )
    return lines + _groups(facts) + _source_drift(facts) + _findings(facts)


def _client_switch(spec: MigrationSpec, facts: dict[str, Any]) -> list[str]:
    frozen = facts.get("frozen") or {}
    lines = [
        f"# READY FOR CLIENT SWITCH: migration {escape(spec.migration_id)}",
        "",
        "The target has every record of the source, and the offsets of the groups. Now:",
        "",
        "1. Stop the consumers on the source.",
        "2. Approve this: the groups' offsets are taken over for the last time.",
        "3. Start consumers, then producers, with the target's addresses.",
        "",
        f"Producers were frozen for **{frozen.get('frozen_seconds', 0):g} s** until READY. They stay stopped until "
        "they are started on the target.",
    ]
    active = facts.get("active_on_source") or []
    if active:
        lines += [
            "",
            f"**{len(active)} groups still have members on the source** (policy: {spec.groups.on_active_source}): "
            + ", ".join(escape(name) for name in active[:_MAX_ROWS]),
        ]
    return lines + _groups(facts) + _findings(facts)


def _freeze_words(method: str) -> str:
    return {
        "webhook": "by the freeze webhook",
        "manual": "by hand, before you approve",
        "acl": "by DENY WRITE for each principal that may write",
    }[method]


def _sentinel_words(mode: str) -> str:
    if mode == "record":
        return "A sentinel record is written to each source partition: it marks the end."
    return "The end offset of each source partition is recorded; nothing is written."


def _groups(facts: dict[str, Any]) -> list[str]:
    rows = []
    for item in facts["groups"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in item["translations"].items())
        note = "; ".join([*([item["left_alone"]] if item["left_alone"] else []), *item["failures"]])
        rows.append([item["group"], item["type"], item["source_state"], item["target_state"], kinds, note])
    lines = ["", "## Consumer groups", ""]
    if not rows:
        return [*lines, "None."]
    return lines + table(["group", "type", "on the source", "on the target", "offsets", "note"], rows)


def _source_drift(facts: dict[str, Any]) -> list[str]:
    """Configs, ACLs, users and quotas that have changed on the source since the plan."""
    rows: list[list[object]] = [list(row) for row in facts.get("source_drift") or []]
    lines = ["", "## Changed on the source since the plan", ""]
    return lines + table(["", "what"], rows) if rows else [*lines, "Nothing that the target does not have."]


def _left_out(facts: dict[str, Any]) -> list[str]:
    """What the source has and the migration does not take."""
    rows = facts.get("left_out") or []
    lines = ["", "## Not migrated", ""]
    if not rows:
        return [*lines, "Nothing is left out."]
    return lines + table(["", "name", "why"], [list(row) for row in rows])


def _findings(facts: dict[str, Any]) -> list[str]:
    lines = ["", "## Findings", ""]
    if not facts["findings"]:
        return [*lines, "No warnings."]
    rows: list[list[object]] = [
        [item.get("code", ""), "waived" if item.get("waived") else item.get("severity", ""), item.get("seen", "")]
        for item in facts["findings"]
    ]
    return lines + table(["code", "", "what was seen"], rows)
