"""The text of an approval, Markdown. Pure: facts in, text out. Names from clusters are escaped."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_kafka_migration.documents.cutover import ApprovalKind
from airflow_provider_kafka_migration.freeze import words as freeze_words
from airflow_provider_kafka_migration.record.times import words
from airflow_provider_kafka_migration.spec import MigrationSpec

_MAX_ROWS = 50
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def escape(text: object) -> str:
    """Escape a name so that Markdown shows it literally: it must not become a link, a heading or HTML."""
    return _SPECIAL.sub(r"\\\1", str(text)).replace("\n", " ")


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    """Make a Markdown table of escaped cells; a long table is truncated with a note."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append("")
        lines.append(f"... and {len(rows) - _MAX_ROWS} more")
    return lines


def render(spec: MigrationSpec, kind: ApprovalKind, code: str, facts: dict[str, Any]) -> tuple[str, str]:
    """Return subject and body of the approval."""
    lines = _cutover(spec, facts) if kind == "cutover" else _client_switch(spec, facts)
    action = "the cutover" if kind == "cutover" else "the client switch"
    lines += _left_out(facts)
    lines += [
        "",
        "## Code",
        "",
        f"To approve {action} type this code: **`{code}`**",
        "",
        "The code depends on the plan, the topology, the groups and the settings named here. If any of them changes, "
        "the code is refused and a new one is needed.",
    ]
    if facts.get("signing_key"):
        lines += ["", f"The evidence will be signed with the key `{facts['signing_key']}`."]
    subject = f"{spec.migration_id}: approve {action}"
    return subject, "\n".join(lines) + "\n"


def _cutover(spec: MigrationSpec, facts: dict[str, Any]) -> list[str]:
    section = spec.cutover
    estimate = facts["expected_freeze_seconds"]
    limit = section.max_producer_freeze.total_seconds()
    by_hand = section.freeze == "manual"
    lines = [
        f"# Cutover of migration {escape(spec.migration_id)}",
        "",
        "## What will happen",
        "",
        f"1. Producers of the source are stopped ({_freeze_words(section.freeze)}), and the migration verifies on the "
        "brokers that all of them have stopped.",
        "2. " + _sentinel_words(section.sentinel),
        f"3. The rest is copied: {facts['total_lag']} records in {facts['partitions']} partitions.",
        f"4. The offsets of {len(facts['groups'])} consumer groups are committed on the target.",
        "5. The target is checked for lost records. Then clients may switch.",
        "",
        f"Producers will be frozen for about **{estimate:g} s**, at most {limit:g} s, counted from the moment they are "
        "asked to stop. After that the freeze is lifted and the migration goes back to mirroring"
        + (f"; the person who stopped the producers then has to {freeze_words.TELL_OWNERS}." if by_hand else "."),
    ]
    lines += ["", *_handover(facts)]
    if by_hand:
        lines += ["", "**By approving you confirm that all producers of these topics are stopped now.**"]
    if facts.get("cannot_fit"):
        lines += ["", f"**This cannot be done in time, and an approval will be refused: {facts['cannot_fit']}.**"]
    elif estimate > limit:
        lines += ["", f"**The estimate is above the limit of {limit:g} s: the cutover will probably be undone.**"]
    if facts.get("tail"):
        what = "The tail may not run" if facts.get("tail_copies_all") else "The tail does not copy all partitions"
        lines += ["", f"**{what}: {escape(facts['tail'])}**"]
    lines += ["", "## Lag", ""]
    lines += table(
        ["topic", "partitions", "lag", "largest partition lag"],
        [
            [topic, item["partitions"], item["total_lag"], item["largest_lag"]]
            for topic, item in sorted(facts["lag"].items())
        ],
    )
    lines += _overtaken(facts)
    return lines + _proof(spec, facts, "copied so far") + _groups(facts) + _source_drift(facts) + _findings(facts)


def _handover(facts: dict[str, Any]) -> list[str]:
    """Describe how much the executor's task hand-overs add to the freeze."""
    found = facts.get("handover") or {}
    if not found:
        return []
    if not found["changes"]:
        each = words(found["typical_seconds"])
        return [
            "All steps run in one task (`cutover.in_one_task`), so none of them waits for the executor. A DAG made "
            "from the spec asks for the client switch as soon as that task ends. The generic DAG starts five more "
            f"tasks before it asks, about {each} each, which adds to the time until the clients have switched."
        ]
    cost = f"Of this, {words(found['frozen_seconds'])} is task hand-over ({found['changes']} times)"
    if not found["measured"]:
        return [
            f"{cost}; nothing was measured in this migration, so {words(found['typical_seconds'])} each is an estimate."
        ]
    return [
        f"{cost}: each took {words(found['typical_seconds'])} in this migration, the longest of {found['measured']} "
        f"took {words(found['largest_seconds'])}."
    ]


def _client_switch(spec: MigrationSpec, facts: dict[str, Any]) -> list[str]:
    frozen = facts.get("frozen") or {}
    behind = facts.get("behind_boundary") or {"late": {}, "unchecked": {"source": "it was not checked"}}
    up_to = " up to the boundary of the cutover" if behind["late"] or behind["unchecked"] else ""
    lines = [
        f"# READY FOR CLIENT SWITCH: migration {escape(spec.migration_id)}",
        "",
        f"The target has every record of the source{up_to}, and the offsets of the groups. Now:",
        "",
        "1. Stop the consumers on the source.",
        "2. Approve this: the migration then syncs the groups' offsets a last time.",
        "3. Start consumers, then producers, with the target's addresses.",
        "",
        f"Producers were frozen for **{frozen.get('frozen_seconds', 0):g} s**, from the request to stop until READY. "
        "They stay stopped until they are started on the target.",
    ]
    active = facts.get("active_on_source") or []
    if active:
        lines += [
            "",
            f"**{len(active)} groups still have members on the source** (policy: {spec.groups.on_active_source}): "
            + ", ".join(escape(name) for name in active[:_MAX_ROWS]),
        ]
    return (
        lines
        + _behind_boundary(spec, behind)
        + _unfenced(facts)
        + _overtaken(facts)
        + _proof(spec, facts, "up to the boundary")
        + _groups(facts)
        + _findings(facts)
    )


def _behind_boundary(spec: MigrationSpec, found: dict[str, Any]) -> list[str]:
    """List records of the source that the target does not get, and partitions where that is unknown."""
    late, unchecked = found["late"], found["unchecked"]
    lines = ["", "## On the source beyond the boundary", ""]
    if not late and not unchecked:
        return [*lines, f"Nothing: all {found['partitions']} partitions were checked."]
    policy = "this is only shown" if spec.cutover.on_bypass == "continue" else "an approval is refused"
    if late:
        lines += [
            f"**{found['records']} records in {len(late)} partitions are on the source only** "
            f"(cutover.on_bypass: {spec.cutover.on_bypass}): {policy}.",
            "",
            *table(["partition", "what was seen"], [[name, text] for name, text in late.items()]),
        ]
    if unchecked:
        lines += [
            *([""] if late else []),
            f"**It could not be checked whether there are more** (cutover.on_bypass: {spec.cutover.on_bypass}): "
            f"{policy}.",
            "",
            *table(["partition", "why"], [[name, why] for name, why in unchecked.items()]),
        ]
    return lines


def _unfenced(facts: dict[str, Any]) -> list[str]:
    """List the target partitions where an old copier could still write."""
    advice = (
        "Make sure that no copier of this migration is left (Spark applications, command lines, suspended machines) "
        "before producers are started"
    )
    if facts["not_fenced"]:
        return ["", f"**The migration's producer is not fenced on the target**: {facts['not_fenced']}. {advice}."]
    rows = facts["unfenced"]
    if not rows:
        return []
    return [
        "",
        f"**The migration's producer is not fenced on {len(rows)} target partitions.** {advice}:",
        "",
        *[f"- {escape(item)}" for item in rows[:_MAX_ROWS]],
    ]


def _proof(spec: MigrationSpec, facts: dict[str, Any], what: str) -> list[str]:
    """Describe how much is proven equal, what differs, and what has not been compared."""
    proof = facts.get("proof")
    lines = ["", "## Proof", ""]
    if not proof:
        return [*lines, "Nothing is compared before the cutover (validation.before_cutover is off), only by validate."]
    copied, proven = proof["copied_offsets"], proof["proven_offsets"]
    if proof["is_complete"] and what == "up to the boundary":
        return [*lines, f"**All content up to the boundary is proven**: {proof['compared_records']} records are equal."]
    # Truncated, not rounded: only a complete proof shows 100 %.
    percent = 100 if copied == proven else int(1000 * proven / copied) / 10
    lines.append(
        f"Proven equal: **{percent:g} %** of what is {what} ({proven} of {copied} offsets, all of "
        f"{proof['complete_partitions']} of {proof['partitions']} partitions). The rest is compared "
        + ("while the tail runs, and by validate." if what == "copied so far" else "by validate, after the switch.")
    )
    if proof["uncompared_records"]:
        lines += [
            "",
            f"**{proof['uncompared_records']} records were deleted on the source before they were compared.**",
        ]
    if proof.get("unchecked_partitions"):
        lines += [
            "",
            f"**The target's logs of {proof['unchecked_partitions']} partitions could not be checked since they were "
            "compared**; validate checks them.",
        ]
    if proof["differing"]:
        policy = "the approval is refused" if spec.validation.on_difference == "block" else "this is only shown"
        lines += ["", f"**{proof['differing_partitions']} partitions DIFFER**: {policy}.", ""]
        lines += table(["partition", "what was seen"], [[name, text] for name, text in proof["differing"].items()])
    elif proof["waiting"]:
        lines += ["", *table(["not proven yet", "why"], [[name, text] for name, text in proof["waiting"].items()])]
    return lines


def _freeze_words(method: str) -> str:
    return {
        "webhook": "by the freeze webhook",
        "manual": "by hand, before you approve",
        "acl": "by DENY WRITE for each principal that may write",
    }[method]


def _sentinel_words(mode: str) -> str:
    if mode == "record":
        return "A sentinel record is written to each source partition to mark its end."
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
    """List configs, ACLs, users and quotas that have changed on the source since the plan."""
    rows: list[list[object]] = [list(row) for row in facts.get("source_drift") or []]
    lines = ["", "## Changed on the source since the plan", ""]
    return lines + table(["", "what"], rows) if rows else [*lines, "Nothing that the target lacks."]


def _overtaken(facts: dict[str, Any]) -> list[str]:
    """List where deleted keys may survive on the target, because the copy read the source too late."""
    found = facts.get("overtaken_tombstones") or []
    if not found:
        return []
    rows: list[list[object]] = [[f"{item['topic']}-{item['partition']}", item["what"]] for item in found]
    note = (
        "Everything that was proven in these partitions before is compared again: a key that survives is a difference."
    )
    return ["", "## Tombstones possibly removed before they were read", "", *table(["", "what"], rows), "", note]


def _left_out(facts: dict[str, Any]) -> list[str]:
    """List what the source has and the migration does not migrate."""
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
