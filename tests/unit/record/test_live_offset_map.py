"""``offset-map.json`` before the cutover: written when the seed ends, kept up to date, never in the way of the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_support import Clock, make_context

from airflow_provider_kafka_migration.documents.copy import OffsetMapDocument
from airflow_provider_kafka_migration.offset_map.runs import OffsetRange
from airflow_provider_kafka_migration.offset_map.store import RunLog
from airflow_provider_kafka_migration.record import offset_maps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.offset_maps import write_open_map
from airflow_provider_kafka_migration.record.times import iso
from airflow_provider_kafka_migration.state import State


@pytest.fixture
def context(tmp_path: Path) -> PhaseContext:
    return make_context(tmp_path, clock=Clock())


def stored(context: PhaseContext) -> OffsetMapDocument:
    return OffsetMapDocument.parse(context.evidence_store.get("m1/offset-map.json") or b"")


def add_run(context: PhaseContext, run: OffsetRange) -> None:
    log = RunLog(context.journal_store, "m1", "orders", 1, OffsetRange(0, 0))
    log.take_over(0)
    log.write_ahead([run])


def freeze(context: PhaseContext) -> None:
    context.journal.transition(State.DRAIN_READY, "test")
    context.journal.transition(State.CUTOVER, "test")
    now = iso(context.now())
    details = {"method": "manual", "requested_at": now, "deadline": now}
    context.journal.step("freeze_requested", key="1", details=details)


def finish(context: PhaseContext) -> OffsetMapDocument:
    """What the final drain leaves."""
    ends = {("orders", 0): 100, ("orders", 1): 100}
    document = offset_maps.build_document(context.record, context.target, ends, ends)
    uri = offset_maps.store_final(context.record, document)
    context.journal.step(
        "cutover_step", key="1/final_drain", details={"offset_map": {"uri": uri, "sha256": document.digest()}}
    )
    return document


def test_the_map_is_there_before_the_cutover_and_follows_the_copy(context: PhaseContext) -> None:
    assert write_open_map(context.record, context.target)
    first = stored(context)
    assert (first.complete, [item.verdict for item in first.partitions]) == (False, ["equal", "equal"])
    assert first.partitions[0].source_end_offset is None
    assert not write_open_map(context.record, context.target), "nothing has changed"
    add_run(context, OffsetRange(50, 40))
    assert write_open_map(context.record, context.target)
    assert [item.verdict for item in stored(context).partitions] == ["equal", "mapped"]
    assert context.record.offset_map() is None, "the copy goes on, so nobody may take it for the end"


def test_a_finished_map_is_not_replaced(context: PhaseContext) -> None:
    write_open_map(context.record, context.target)
    freeze(context)
    assert not write_open_map(context.record, context.target), "from the freeze on it is the final drain's"
    document = finish(context)
    assert context.record.offset_map() == document
    assert not write_open_map(context.record, context.target)
    assert stored(context) == document


def test_an_update_that_comes_late_is_undone(context: PhaseContext) -> None:
    """It was sent before the freeze, and the store has taken it behind the finished map."""
    write_open_map(context.record, context.target)
    late = context.evidence_store.get("m1/offset-map.json") or b""
    freeze(context)
    document = finish(context)
    context.evidence_store.put("m1/offset-map.json", late)
    assert context.record.offset_map() == document
    assert stored(context) == document


def test_the_map_of_a_lifted_freeze_counts_no_more(context: PhaseContext) -> None:
    freeze(context)
    finish(context)
    context.journal.step("freeze_lifted", key="1", details={"reason": "too long"})
    context.journal.transition(State.TAIL, "lifted", from_states={State.CUTOVER})
    assert write_open_map(context.record, context.target)
    assert not stored(context).complete
    assert context.record.offset_map() is None
