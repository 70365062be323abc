"""The whole cutover of partitions that are copied in transactions, beside somebody who writes there all the time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import pytest
from cutover_support import Lab

from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.phases import (
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
from harness.compare import read_records
from harness.load import Kind, TopicLoad, load
from tests.integration.transactional.transactional_support import content, foreign_writers, split

pytestmark = pytest.mark.integration


def test_cutover_beside_a_foreign_writer_ends_with_evidence(
    make_lab: Callable[..., Lab], unique_name: Callable[[str], str]
) -> None:
    stem = unique_name("k")
    loads = [
        TopicLoad(f"{stem}.plain", Kind.PLAIN, 2, 400, 100, "lz4"),
        TopicLoad(f"{stem}.payments", Kind.TRANSACTIONAL, 2, 300, 100),
        TopicLoad(f"{stem}.balances", Kind.COMPACTED, 1, 400, 100, "zstd"),
        TopicLoad(f"{stem}.clicks", Kind.HEAD_DELETED, 1, 300, 100, "gzip"),
        TopicLoad(f"{stem}.empty", Kind.EMPTY_PARTITION, 2, 50, 100),
    ]
    topics = [item.name for item in loads]
    lab = make_lab(topics, verdicts=dict.fromkeys(topics, Verdict.TRANSACTIONAL))
    load(lab.source_cluster, loads)
    source_config, target_config = lab.source_cluster.client_config(), lab.target_cluster.client_config()
    context = lab.begin()
    with foreign_writers(lab.target_cluster, topics[0], 2), foreign_writers(lab.target_cluster, topics[1], 2):
        lab.start_tail()
        half = clients.positions(source_config, topics, 0.5)
        clients.commit_offsets(source_config, f"{lab.migration_id}.middle", half)
        clients.commit_offsets(source_config, f"{lab.migration_id}.end", clients.positions(source_config, topics, 1.0))
        lab.enter_cutover(context)
        freeze.run(context)
        sentinels.run(context)
        drained = final_drain.run(context)
        assert drained.details["verdicts"] == {"transactional": len(drained.details["partitions"])}
        lab.join_tail()
        groups.snapshot_groups(context)
        assert "FAILED" not in groups.commit_groups(context).summary
        assert floor_guard.run(context).summary.startswith("READY_FOR_CLIENT_SWITCH")
        context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
        lab.approve(context, "client_switch")
        context.journal.transition(State.VALIDATING, "lab")
        result = validate.run(context)
        checks = dict(result.details["checks"])
        assert checks.pop("independent")["outcome"] == "NOT_RUN", "it reads by Spark, which the lab does without"
        assert {name: item["outcome"] for name, item in checks.items()} == dict.fromkeys(checks, "PASSED"), (
            result.details
        )
        assert result.details["outcome"] == "PASSED"
        assert evidence.run(context).details["public_key"]

    document = context.record.offset_map()
    assert document is not None
    assert {item.verdict for item in document.partitions} == {"transactional"}
    group = f"{lab.migration_id}.middle"
    translated = context.target.admin.groups_offsets([group])[group]
    foreign_records = own_records = 0
    for topic in topics:
        source, target = read_records(source_config, topic), read_records(target_config, topic)
        for number, records in source.items():
            ours, foreign = split(target[number])
            foreign_records += len(foreign)
            own_records += len(ours)
            assert [content(item) for item in ours] == [content(item) for item in records]
            committed = half.get((topic, number))
            if committed is None:
                continue
            # The group reads next what it would have read next on the source.
            offset = translated.offsets[topic, number].offset
            before = bisect_left([item.offset for item in records], committed)
            assert sum(item.offset < offset for item in ours) == before
    assert foreign_records > 50
    counted = [context.journal.find_step(name) for name in ("seed_done", "tail_done")]
    assert [entry and entry.details["figures_of"] for entry in counted] == ["all runs", "all runs"]
    assert sum(entry.details["records"] for entry in counted if entry) == own_records
