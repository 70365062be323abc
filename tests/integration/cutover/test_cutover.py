"""The whole cutover on real brokers, with the real copier behind it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cutover_support import Lab

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.phases import (
    client_switch,
    evidence,
    final_drain,
    floor_guard,
    freeze,
    groups,
    sentinels,
    validate,
)
from airflow_provider_kafka_migration.state import State
from harness import clients
from harness.load import Kind, TopicLoad, load

pytestmark = pytest.mark.integration


def kinds(stem: str) -> dict[Verdict, list[TopicLoad]]:
    """Small topics of all kinds, by the verdict that they are forced to."""
    return {
        Verdict.EQUAL: [
            TopicLoad(f"{stem}.plain", Kind.PLAIN, 3, 600, 100, "lz4"),
            TopicLoad(f"{stem}.payments", Kind.TRANSACTIONAL, 2, 300, 100),
            TopicLoad(f"{stem}.empty", Kind.EMPTY_PARTITION, 2, 50, 100),
            TopicLoad(f"{stem}.balances", Kind.COMPACTED, 1, 400, 100, "zstd"),
            TopicLoad(f"{stem}.metrics", Kind.LOG_APPEND_TIME, 1, 100, 100),
        ],
        Verdict.SHIFTED: [TopicLoad(f"{stem}.clicks", Kind.HEAD_DELETED, 2, 400, 100, "gzip")],
        Verdict.MAPPED: [
            TopicLoad(f"{stem}.balances2", Kind.COMPACTED, 2, 600, 100, "snappy"),
            TopicLoad(f"{stem}.payments2", Kind.TRANSACTIONAL, 1, 200, 100),
        ],
    }


def test_cutover_of_all_kinds_and_verdicts_ends_with_signed_evidence(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str]
) -> None:
    loads = kinds(unique_name("k"))
    topics = [topic.name for items in loads.values() for topic in items]
    verdicts = {topic.name: verdict for verdict, items in loads.items() for topic in items}
    lab = make_lab(topics, verdicts=verdicts)
    load(lab.source_cluster, [topic for items in loads.values() for topic in items])
    source_config = lab.source_cluster.client_config()
    context = lab.begin()
    lab.start_tail()
    group = f"{lab.migration_id}.middle"
    clients.commit_offsets(source_config, group, clients.positions(source_config, topics, 0.5))
    clients.commit_offsets(source_config, f"{lab.migration_id}.end", clients.positions(source_config, topics, 1.0))
    lab.enter_cutover(context)

    assert not freeze.run(context).already_done
    assert "sentinels written" in sentinels.run(context).summary
    final_drain.run(context)
    lab.join_tail()
    groups.snapshot_groups(context)
    committed = groups.commit_groups(context)
    assert "FAILED" not in committed.summary
    ready = floor_guard.run(context)
    assert ready.summary.startswith("READY_FOR_CLIENT_SWITCH")
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    lab.approve(context, "client_switch")
    assert client_switch.run(context).already_done
    context.journal.transition(State.VALIDATING, "lab")
    result = validate.run(context)
    assert result.details["checks"]["content"]["outcome"] == "PASSED", result.details
    assert result.details["checks"]["sentinels"]["outcome"] == "PASSED", result.details
    assert result.details["checks"]["groups"]["outcome"] == "PASSED", result.details
    assert result.details["checks"]["counts_and_offsets"]["outcome"] == "PASSED", result.details
    published = evidence.run(context)
    data = context.evidence_store.get(context.key("evidence.json"))
    assert data is not None
    assert verify_evidence(data, bytes.fromhex(published.details["public_key"])).trusted
