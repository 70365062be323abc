"""The transform of lanes that replace schema ids: any source log, in any pieces, with an unknown id anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_id_logs import framed
from source_logs import SourceLog, source_logs

from airflow_provider_kafka_migration.copy.transform import Append, BatchTransformer, CopyOp
from airflow_provider_kafka_migration.documents.schemas import SchemaIdMap
from airflow_provider_kafka_migration.errors import SchemaIdUnknown
from airflow_provider_kafka_migration.kafka.batches.api import Record, Timestamps, read_batches, records
from airflow_provider_kafka_migration.schema_ids.id_map import IdMap
from airflow_provider_kafka_migration.schema_ids.rewrite import IdRewriter

#: 3 stays as it is.
IDS = {1: 1001, 2: 2**31 - 1, 3: 3}
_FIVE = 5


def id_at(offset: int) -> bytes:
    """What the value of a record begins with; every fifth has no id."""
    return b"" if offset % _FIVE == 4 else framed(1 + offset % 3, b"")


def mapped(record: Record) -> Record:
    """A record of the source as it has to be on the target."""
    assert record.value is not None
    if not record.value.startswith(b"\0"):
        return record
    number = int.from_bytes(record.value[1:5], "big")
    return record._replace(value=framed(IDS[number], record.value[5:]))


def rewriter(*known: int) -> IdRewriter:
    ids = [(".", number, IDS[number]) for number in known]
    return IdRewriter("value", IdMap(SchemaIdMap(migration_id="m", id_mode="translate", ids=ids)))


def appended(steps: list[CopyOp]) -> list[Record]:
    """The records at their source offsets."""
    found = []
    for step in steps:
        if isinstance(step, Append):
            step.batch.check_crc()
            offsets = [
                source_offset + place
                for (source_offset, first), (_, stop) in zip(
                    step.runs, [*step.runs[1:], (0, step.record_count)], strict=True
                )
                for place in range(stop - first)
            ]
            pairs = zip(offsets, records(step.batch), strict=True)
            found += [record._replace(offset=offset) for offset, record in pairs]
    return found


@given(source_logs(id_at), st.lists(st.integers(1, 3), max_size=8), st.sampled_from(["visible", "raw"]), st.booleans())
def test_steps_are_the_source_under_the_map(
    log: SourceLog, cuts: list[int], timestamps: Timestamps, packs: bool
) -> None:
    steps: list[CopyOp] = []
    position = log.batches[0][1]
    for cut in [*cuts, 1000]:
        decider = BatchTransformer(position, timestamps, 3000, packs=packs, rewriter=rewriter(*IDS))
        data, aborted, until = log.fetch(position, cut)
        steps += decider.decide(read_batches(data)[0], aborted, until)
        position = decider.next_offset
    assert position == log.end_offset
    found, wanted = appended(steps), [mapped(record) for record in log.visible]
    if timestamps == "raw":
        found, wanted = ([record._replace(timestamp=0) for record in items] for items in (found, wanted))
    assert found == wanted


@given(source_logs(id_at), st.booleans(), st.sampled_from([1, 2, 3]))
def test_everything_before_an_unknown_id_is_decided(log: SourceLog, packs: bool, unknown: int) -> None:
    """The steps end before the batch of the first such record, and go on there once its schema is known."""
    start = log.batches[0][1]
    data, aborted, until = log.fetch(start, 1000)
    batches = read_batches(data)[0]
    decider = BatchTransformer(start, packs=packs, rewriter=rewriter(*(IDS.keys() - {unknown})))
    steps: list[CopyOp] = []
    waits = any(record.value is not None and record.value.startswith(framed(unknown, b"")) for record in log.visible)
    if waits:
        with pytest.raises(SchemaIdUnknown):
            steps.extend(decider.decide(batches, aborted, until))
    else:
        steps.extend(decider.decide(batches, aborted, until))
    wanted = [mapped(record) for record in log.visible]
    assert appended(steps) == [record for record in wanted if record.offset < decider.next_offset]
    again = BatchTransformer(decider.next_offset, packs=packs, rewriter=rewriter(*IDS))
    steps += again.decide(batches, aborted, until)
    assert appended(steps) == wanted
