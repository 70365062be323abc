"""What the tail has copied is compared beside it: proven before a client moves, and a difference is in the way."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from cutover_support import CUTOVER_STEPS, Lab
from test_uncompared import check, delete_records

from airflow_provider_kafka_migration.approvals import request
from airflow_provider_kafka_migration.documents.proof import ProvenPartition
from airflow_provider_kafka_migration.errors import ApprovalRefused
from airflow_provider_kafka_migration.phases import groups, validate
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.spec import parse_spec
from airflow_provider_kafka_migration.state import State

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]


def wait_for(what: Callable[[], bool], why: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.2)


def proven(context: PhaseContext) -> dict[int, ProvenPartition]:
    """The stored documents by partition."""
    store = context.journal_store
    found = [ProvenPartition.parse(store.get(info.key) or b"") for info in store.list(context.key("proven/"))]
    return {item.partition: item for item in found}


def proven_until(context: PhaseContext) -> dict[int, int]:
    documents = proven(context)
    return {number: item.proven.source_end_offset for number, item in documents.items() if item.proven is not None}


def test_all_content_is_proven_before_a_client_moves(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic])
    context = lab.begin()
    lab.start_tail()
    wait_for(lambda: proven_until(context) == {0: 50, 1: 50}, "the tail has not compared what the seed has copied")
    # A killed tail: another one goes on from what is proven.
    lab.kill_tail()
    before = proven(context)
    producer = Producer(lab.source_cluster.client_config())
    for number in range(40):
        producer.produce(topic, b"more %d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    lab.start_tail()
    wait_for(lambda: proven_until(context) == {0: 70, 1: 70}, "what came later was not compared")
    after = proven(context)
    for number in (0, 1):
        first, last = before[number].proven, after[number].proven
        assert first is not None
        assert last is not None
        assert last.first_at == first.first_at
        assert last.pieces > first.pieces
        assert (last.content.compared, last.content.source_digest) == (70, last.content.target_digest)

    lab.drain_ready(context)
    facts = request.show(context, "cutover")
    assert (facts.facts["proof"]["proven_offsets"], facts.facts["proof"]["copied_offsets"]) == (140, 140)
    assert "Proven equal: **100 %** of what is copied so far" in facts.body
    lab.approve(context)
    context.journal.transition(State.CUTOVER, "lab")
    for step in CUTOVER_STEPS:
        if step is groups.commit_groups:
            lab.join_tail()
        step(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    # The sentinels came last: they are compared now, while producers are stopped.
    facts = request.show(context, "client_switch")
    assert "**All content up to the boundary is proven**: 142 records are equal." in facts.body
    entry = context.journal.find_step("content_proven", "client_switch")
    assert entry is not None
    assert (entry.details["is_complete"], entry.details["proven_offsets"]) == (True, 142)
    lab.approve(context, "client_switch")
    context.journal.transition(State.VALIDATING, "lab")

    # Both sides delete before the validation has begun: nothing of it is left to compare.
    for number in (0, 1):
        delete_records(lab.source_cluster, topic, number, 71)
    assert validate.run(context).details["outcome"] == "PASSED"
    assert [row["compared"] for row in check(context, "content").partitions] == [71, 71]


def test_a_difference_blocks_the_approval(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 2}, 50)
    lab = make_lab([topic])
    context = lab.begin()
    delete_records(lab.target_cluster, topic, 1, 10)
    lab.start_tail()
    wait_for(lambda: 1 in proven(context) and proven(context)[1].differing is not None, "nothing was found")
    wait_for(lambda: proven_until(context).get(0) == 50, "the other partition was not compared")
    lab.drain_ready(context)
    facts = request.show(context, "cutover")
    assert f"{topic}-1" in facts.facts["proof"]["differing"]
    assert "1 partitions DIFFER" in facts.body
    assert "Proven equal: **50 %**" in facts.body
    with pytest.raises(ApprovalRefused, match=rf"1 partitions differ .* {topic}-1: 10 differences"):
        lab.approve(context)
    changed = {**lab.spec.model_dump(mode="json"), "validation": {"on_difference": "note"}}
    lab.spec = parse_spec(changed)
    again = lab.context()
    assert "this is only shown" in request.show(again, "cutover").body
    lab.approve(again)


def test_nothing_is_compared_when_it_is_switched_off(make_lab: MakeLab, fill: Fill, unique_name: Name) -> None:
    topic = unique_name("t")
    fill({topic: 1}, 20)
    lab = make_lab([topic], validation={"before_cutover": False})
    context = lab.begin()
    lab.start_tail()
    lab.drain_ready(context)
    assert "Nothing is compared before the cutover" in request.show(context, "cutover").body
    lab.approve(context)
    assert proven(context) == {}
