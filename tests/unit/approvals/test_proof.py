"""What approvals say of the comparison before the switch, and when it stands in their way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import approval, ready

from airflow_provider_kafka_migration.approvals import check, proof, request
from airflow_provider_kafka_migration.compare.proven import proven_key, store_proven
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import (
    CheckResult,
    ContentDifference,
    ContentJob,
    ContentRange,
    Outcome,
    PartitionContent,
    ProvenPartition,
    ProvenRange,
)
from airflow_provider_kafka_migration.documents.schemas import SchemaIdSettings, TopicIdSettings, id_rule
from airflow_provider_kafka_migration.errors import ApprovalRefused, BrokerBusy
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.pages.rendering import render
from airflow_provider_kafka_migration.record import passed_content, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.passed_content import compared_log_starts, load_passed, save_passed
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.topics import bring, recopy


def proof_shown(spec: MigrationSpec, status: proof.ProofStatus) -> str:
    """What the approval of the client switch shows of a proof."""
    return render("approval_proof.md.j2", spec=spec, proof=status.as_dict(), boundary_is_known=True, max_rows=50)


def content(partition: int, records: int, **changes: Any) -> PartitionContent:
    return PartitionContent(
        topic="orders",
        partition=partition,
        source_records=records,
        target_records=records,
        compared=records,
        **changes,
    )


def prove(context: PhaseContext, partition: int, until: int, **changes: Any) -> None:
    """A stored range from the start of a partition (0) on."""
    found = ProvenRange(
        source_start_offset=0,
        source_end_offset=until,
        target_start_offset=0,
        target_end_offset=until,
        target_topic_id=changes.pop("target_topic_id", "id 1"),
        content=content(partition, until - changes.get("lost", 0), uncompared_records=changes.pop("lost", 0)),
    )
    document = ProvenPartition(
        migration_id=context.migration_id,
        topic="orders",
        target_topic="orders",
        partition=partition,
        verdict=Verdict.EQUAL,
        proven=found if until else None,
        **changes,
    )
    store_proven(context.journal_store, document)


def differ(context: PhaseContext) -> None:
    difference = ContentDifference(kind="changed", source_offset=7, target_offset=7)
    found = content(1, 3, difference_count=2, differences=[difference])
    prove(context, 1, 5, differing=found, differed_times=3, differed_at="2026-01-01T00:00:00+00:00")


def test_the_approval_says_how_much_is_proven(tmp_path: Path) -> None:
    context = ready(tmp_path)
    assert "Proven equal: **0 %**" in request.make_facts(context, "cutover").body, "nothing compared proves nothing"
    prove(context, 0, 100)
    prove(context, 1, 49)
    facts = request.make_facts(context, "cutover")
    assert "**99.3 %** of what is copied so far (149 of 150 offsets, all of 1 of 2 partitions)" in facts.body
    assert "| orders-1 | not compared yet |" in facts.body
    assert facts.code == request.make_facts(ready(tmp_path / "other"), "cutover").code, "it is not bound to it"


def test_a_hundred_percent_is_not_said_of_less(tmp_path: Path) -> None:
    context = ready(tmp_path)
    context.source.wire.offsets["latest"][("orders", 0)] = 1_000_000  # type: ignore[attr-defined]
    context.target.wire.offsets["latest"][("orders", 0)] = 1_000_000  # type: ignore[attr-defined]
    prove(context, 0, 999_999)
    prove(context, 1, 50)
    assert "**99.9 %**" in request.make_facts(context, "cutover").body


def test_records_that_nobody_compared_are_no_proof(tmp_path: Path) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100, lost=10)
    prove(context, 1, 50)
    status = proof.read_status(context.record, {("orders", 0): 100, ("orders", 1): 50})
    assert (status.uncompared_records, status.is_complete) == (10, False)
    assert "**10 records were deleted on the source before" in request.make_facts(context, "cutover").body


@pytest.mark.parametrize(
    ("changes", "proven", "why"),
    [
        ({}, 150, ""),
        # Only holes on the target, or its records were deleted, too: no record tells of it.
        ({"uncompared": [(90, 100)]}, 140, "source offsets 90..99 were deleted on the source before"),
        ({"compared": 0, "explained": {"compacted": 100}}, 50, "none of its 100 records could be compared"),
    ],
)
def test_what_nobody_compared_is_not_shown_as_proven(
    tmp_path: Path, changes: dict[str, Any], proven: int, why: str
) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    document = proof._documents(context.record)["orders", 0]
    assert document.proven is not None
    found = document.proven.model_copy(update={"content": document.proven.content.model_copy(update=changes)})
    store_proven(context.journal_store, document.model_copy(update={"proven": found}))
    prove(context, 1, 50)
    status = proof.read_status(context.record, {("orders", 0): 100, ("orders", 1): 50})
    assert (status.proven, status.complete, status.is_complete) == (proven, 1 if why else 2, not why)
    assert why in status.waiting.get("orders-0", "")
    lines = proof_shown(context.spec, status)
    assert ("All content up to the boundary is proven" in lines) is not bool(why)
    assert ("100 %" in lines) is False


def test_a_range_whose_schema_ids_were_not_gathered_is_not_shown_as_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validation compares it again."""
    context = ready(tmp_path)
    prove(context, 0, 100)
    prove(context, 1, 50)
    positions = {("orders", 0): 100, ("orders", 1): 50}
    assert proof.read_status(context.record, positions).is_complete
    settings = SchemaIdSettings(id_map_key="m1/schemas/id-map.json", topics={"orders": TopicIdSettings(parts="value")})
    monkeypatch.setattr(proof, "schema_id_settings", lambda _record: settings)
    status = proof.read_status(context.record, positions)
    assert (status.proven, status.complete) == (0, 0)


def test_a_document_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    context.journal_store.put(proven_key("m1", "orders", 0), b"{}")
    assert proof.read_status(context.record, {("orders", 0): 100}).proven == 0


def test_a_range_that_names_no_target_topic_proves_nothing(tmp_path: Path) -> None:
    """Written by an older release: the topic may have been deleted and made again since."""
    context = ready(tmp_path)
    prove(context, 0, 100, target_topic_id="")
    status = proof.read_status(context.record, {("orders", 0): 100})
    assert (status.proven, status.is_complete) == (0, False)


def test_a_topic_that_is_made_again_takes_its_proofs_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    prove(context, 1, 50)
    missing = TopicFacts("orders", error=ItemError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "x", "gone"))
    monkeypatch.setattr(context.target.admin, "describe_topics", lambda names: {"orders": missing}, raising=False)
    monkeypatch.setattr(recopy, "STATES", {context.journal.working_state})
    seen: list[int] = []

    def made(*_: Any) -> None:
        seen.append(proof.read_status(context.record, {("orders", 0): 100, ("orders", 1): 50}).proven)

    monkeypatch.setattr(bring, "make_new_partitions", made)
    partitions = [
        CopyPartition(
            topic="orders",
            target_topic="orders",
            partition=number,
            source_start_offset=0,
            target_start_offset=0,
            verdict=Verdict.EQUAL,
        )
        for number in range(2)
    ]
    recopy.make_missing(context, "seed", SimpleNamespace(partitions=partitions, provenance=None))  # type: ignore[arg-type]
    assert seen == [0], "before there is a topic again"


class _Reading:
    """In place of the clients of the comparison: the clusters are not asked."""

    def __init__(self, *_: object) -> None:
        self.asked: list[str] = []

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def wire(self, name: str, **_: Any) -> str:
        return name


RANGES = [
    ContentRange(
        topic="orders",
        target_topic="orders",
        partition=number,
        verdict=Verdict.EQUAL,
        source_start_offset=0,
        source_end_offset=until,
        target_start_offset=0,
        target_end_offset=until,
    )
    for number, until in ((0, 100), (1, 50))
]


def test_before_the_switch_what_is_proven_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    prove(context, 1, 50)
    jobs: list[ContentJob] = []
    monkeypatch.setattr(proof, "_ReadingClients", _Reading)
    monkeypatch.setattr(proof, "delete_retention_of", lambda *_: {})
    monkeypatch.setattr(proof, "still_holds", lambda wire, found, topic, partition: partition != 0)
    monkeypatch.setattr(proof.LocalContentRunner, "run", lambda self, job: jobs.append(job) or [])
    assert proof.prove_rest(context.record, context.source, context.target, RANGES) == ("", 0)
    status = proof.read_status(context.record, {("orders", 0): 100, ("orders", 1): 50})
    assert (status.proven, status.is_complete) == (50, False)
    assert [item.partition for item in jobs[0].ranges] == [0]
    assert jobs[0].attempt == 0, "the validation's results are its own"


def test_what_could_not_be_looked_at_again_is_not_shown_as_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    prove(context, 1, 50)

    def fail(*_: Any) -> bool:
        raise BrokerBusy("nobody answers", next_step="-")

    monkeypatch.setattr(proof, "_ReadingClients", _Reading)
    monkeypatch.setattr(proof, "still_holds", fail)
    assert proof.prove_rest(context.record, context.source, context.target, RANGES).unchecked == 2
    status = proof.read_status(context.record, {("orders", 0): 100, ("orders", 1): 50}, unchecked=2)
    assert (status.complete, status.is_complete) == (2, False)
    spec = context.spec
    lines = proof_shown(spec, status)
    assert "All content" not in lines
    assert "2 partitions could not be checked" in lines


def test_content_that_has_passed_is_looked_at_again_before_retention_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    prove(context, 1, 50)
    sentinels = CheckResult(name="sentinels", outcome=Outcome.PASSED, summary="-")
    passed = save_passed(context.record, RANGES, [content(0, 100), content(1, 50)], sentinels, {})
    assert compared_log_starts(context.record, RANGES, None) == {}
    with_starts = passed.model_copy(update={"target_log_starts": {"orders-0": 7}})
    assert compared_log_starts(context.record, RANGES, with_starts) == {("orders", 0): 7}
    replaced = [False]
    monkeypatch.setattr(passed_content, "is_another_log", lambda *_: replaced[0])
    assert load_passed(context.record, context.target, RANGES) == passed
    replaced[0] = True
    assert load_passed(context.record, context.target, RANGES) is None
    context.journal.step(steps.DELETING_RESTORED)
    assert load_passed(context.record, context.target, RANGES) == passed, (
        "log starts move, and nothing could be compared any more"
    )


def test_content_that_has_passed_without_its_schema_ids_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before retention is back; afterwards, records may be missing, and the result says that ids were not gathered."""
    context = ready(tmp_path)
    sentinels = CheckResult(name="sentinels", outcome=Outcome.PASSED, summary="-")
    settings = SchemaIdSettings(id_map_key="m1/schemas/id-map.json", topics={"orders": TopicIdSettings(parts="value")})
    gathered = [content(0, 100, schema_id_rule=id_rule(settings, "orders")), content(1, 50)]
    passed = save_passed(context.record, RANGES, [content(0, 100), content(1, 50)], sentinels, {})
    assert load_passed(context.record, context.target, RANGES) == passed
    monkeypatch.setattr(passed_content, "schema_id_settings", lambda _record: settings)
    assert load_passed(context.record, context.target, RANGES) is None
    save_passed(context.record, RANGES, gathered, sentinels, {})
    assert load_passed(context.record, context.target, RANGES) is None, "one of two partitions"
    gathered[1] = gathered[1].model_copy(update={"schema_id_rule": id_rule(settings, "orders")})
    passed = save_passed(context.record, RANGES, gathered, sentinels, {})
    assert load_passed(context.record, context.target, RANGES) == passed
    passed = save_passed(context.record, RANGES, [content(0, 100), content(1, 50)], sentinels, {})
    context.journal.step(steps.DELETING_RESTORED)
    assert load_passed(context.record, context.target, RANGES) == passed


def test_a_difference_refuses_the_approval_and_is_journaled(tmp_path: Path) -> None:
    context = ready(tmp_path)
    prove(context, 0, 100)
    differ(context)
    facts = request.make_facts(context, "cutover")
    assert "**1 partitions DIFFER**: the approval is refused." in facts.body
    assert "2 differences, seen 3 times" in facts.body
    with pytest.raises(ApprovalRefused, match=r"1 partitions differ .* orders-1: 2 differences") as caught:
        check.check_approval(context, approval(context, "cutover", facts.code))
    assert list(caught.value.details["differing"]) == ["orders-1"]
    assert context.journal.find_step(steps.APPROVAL_REFUSED, "cutover") is not None
    entry = context.journal.find_step(steps.CONTENT_PROVEN, "cutover/answer")
    assert entry is not None
    assert entry.details["differing_partitions"] == 1
    # It was gone at the next look: nothing is in the way.
    prove(context, 1, 50)
    assert check.check_approval(context, approval(context, "cutover", facts.code)).decision == "approve"


@pytest.mark.parametrize("validation", [{"on_difference": "note"}, {"before_cutover": False}])
def test_a_difference_may_be_accepted(tmp_path: Path, validation: dict[str, Any]) -> None:
    context = ready(tmp_path, validation=validation)
    differ(context)
    facts = request.make_facts(context, "cutover")
    assert ("this is only shown" in facts.body) == ("on_difference" in validation)
    assert check.check_approval(context, approval(context, "cutover", facts.code)).decision == "approve"
