"""Where the records of topics carry schema ids, decided from samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from sampled_logs import Logs, framed
from schema_snapshots import avro, registered, snapshot

from airflow_provider_kafka_migration.documents.schemas import TopicIds
from airflow_provider_kafka_migration.errors import RegistryRefused, Transient
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.registry.model import Schema
from airflow_provider_kafka_migration.schemas.payloads import detect
from airflow_provider_kafka_migration.schemas.payloads.detect import detect_topic_ids, sample_topics
from airflow_provider_kafka_migration.schemas.snapshot import RegistrySnapshot
from airflow_provider_kafka_migration.spec import SchemasSection

A, B = avro("A", "x"), avro("B", "x")


class Ids:
    """A registry that is only asked for ids."""

    def __init__(self, *known: tuple[str, int], refuse: Iterable[int] = ()) -> None:
        self.known = set(known)
        self.refuse = set(refuse)
        self.asked: list[tuple[str, int]] = []

    def schema_by_id(self, id: int, *, context: str = ".") -> Schema | None:
        self.asked.append((context, id))
        if id in self.refuse:
            raise RegistryRefused("no right")
        return Schema("AVRO", A) if (context, id) in self.known else None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def found(logs: Logs, source: RegistrySnapshot, registry: Any = None, **section: Any) -> dict[str, TopicIds]:
    wire: Any = logs
    topics = sorted({*logs.broken, *(topic for topic, _ in logs.logs)})
    items = detect_topic_ids(wire, registry or Ids(), SchemasSection(source="s", **section), topics, source)
    assert [item.topic for item in items] == [topic for topic in topics if topic != section.get("topic")]
    return {item.topic: item for item in items}


REGISTRY = snapshot(registered("orders-value", 1, 7, A), registered("orders-key", 1, 8, B))


def test_values_keys_and_both() -> None:
    logs = Logs(
        values=[(b"k", framed(7))] * 10,
        keys=[(framed(8), b"v")] * 10,
        both=[(framed(8), framed(7)), (framed(8), None)] * 5,
        none=[(b"k", b"v"), (None, None), (b"", b"")],
    )
    items = found(logs, REGISTRY)
    assert {name: item.parts for name, item in items.items()} == {
        "both": "both",
        "keys": "key",
        "none": "none",
        "values": "value",
    }
    both = items["both"]
    assert (both.sampled_records, both.key_ids, both.key_known_ids, both.value_ids, both.value_known_ids) == (
        10,
        10,
        10,
        5,
        5,
    )
    assert {item.decided_by for item in items.values()} == {"sample"}


def test_ids_in_headers() -> None:
    guid = "3c56e55a-9e5b-105e-df40-078ac6b3fb16"
    item = registered("orders-value", 1, 7, A)
    source = snapshot(type(item)(item.subject, 1, 7, item.schema, guid=guid.upper()))
    header = [(b"__value_schema_id", b"\1" + bytes.fromhex(guid.replace("-", "")))]
    assert found(Logs(orders=[(b"k", b"payload", header)] * 3), source)["orders"].parts == "value"
    number = [(b"__key_schema_id", framed(7, b""))]
    assert found(Logs(orders=[(b"k", b"payload", number)] * 3), source)["orders"].parts == "key"


def test_payloads_that_only_look_like_it() -> None:
    logs = Logs(mixed=[(None, framed(7))] * 10 + [(None, framed(99))] * 5, never=[(None, framed(99))] * 5)
    items = found(logs, REGISTRY)
    assert items["mixed"].parts == "none"
    assert items["mixed"].unknown_ids == [99]
    assert "5 of 15 values" in items["mixed"].note
    assert (items["never"].parts, items["never"].value_ids, items["never"].value_known_ids) == ("none", 5, 0)


def test_a_few_unknown_ids_are_ids_that_were_deleted() -> None:
    logs = Logs(orders=[(b"k", framed(7))] * 95 + [(b"k", framed(99))] * 5)
    item = found(logs, REGISTRY)["orders"]
    assert (item.parts, item.unknown_ids, item.value_known_ids) == ("value", [99], 95)


def test_numbers_of_eight_bytes_are_no_ids() -> None:
    longs = [((7 * 2**24 + number).to_bytes(8, "big"), b"v") for number in range(50)]
    item = found(Logs(counts=longs), REGISTRY)["counts"]
    assert (item.parts, item.key_known_ids) == ("none", 50)
    assert "numbers of eight bytes" in item.note
    named = snapshot(registered("counts-key", 1, 7, A))
    assert found(Logs(counts=longs), named)["counts"].parts == "key"


def test_a_topic_without_records_is_judged_by_the_names_of_subjects() -> None:
    logs = Logs(orders=[], other=[], keyless=[(None, framed(7))])
    items = found(logs, REGISTRY)
    assert (items["orders"].parts, items["orders"].decided_by) == ("both", "name")
    assert (items["other"].parts, items["other"].decided_by) == ("none", "sample")
    assert items["keyless"].parts == "value"


def test_a_subject_whose_topic_shows_no_ids_is_noted() -> None:
    item = found(Logs(orders=[(b"k", b"raw")]), REGISTRY)["orders"]
    assert item.parts == "none"
    assert "no sampled value has a known id, but there is a subject orders-value" in item.note


def test_the_registry_is_asked_for_ids_that_the_snapshot_lacks() -> None:
    registry = Ids((".", 12))
    logs = Logs(a=[(None, framed(12)), (None, framed(7))], b=[(None, framed(13))])
    items = found(logs, REGISTRY, registry)
    assert (items["a"].parts, items["b"].parts) == ("value", "none")
    assert registry.asked == [(".", 12), (".", 13)]


def test_an_id_that_could_not_be_looked_up_is_not_unknown() -> None:
    item = found(Logs(a=[(None, framed(12))] * 3), REGISTRY, Ids(refuse=[12]))["a"]
    assert (item.unknown_ids, item.unread) == ([], "schema id 12 in context .: no right")


def test_the_context_that_knows_most_ids() -> None:
    source = snapshot(registered(":.p:a-value", 1, 7, A), registered("b-value", 1, 8, A), contexts=[".", ".p"])
    items = found(Logs(a=[(None, framed(7))], b=[(None, framed(8))]), source)
    assert (items["a"].context, items["b"].context) == (".p", ".")


def test_an_id_of_several_contexts_is_told_apart_by_the_subject_or_noted() -> None:
    source = snapshot(registered(":.p:a-value", 1, 7, A), registered("b-value", 1, 7, A), contexts=[".", ".p"])
    items = found(Logs(a=[(None, framed(7))], c=[(None, framed(7))]), source)
    assert (items["a"].context, items["a"].note) == (".p", "")
    assert "any of the contexts ., .p" in items["c"].unclear
    given = found(Logs(c=[(None, framed(7))]), source, by_topic=[{"topics": ["c"], "context": ".p"}])
    assert (given["c"].context, given["c"].unclear) == (".p", "")


def test_an_id_of_several_contexts_is_told_apart_by_what_decodes() -> None:
    """Small ids exist in every context; only one of these schemas is that of the records."""
    other = avro("B", "x", "y")
    source = snapshot(registered("b-value", 1, 7, A), registered(":.p:a-value", 1, 7, other), contexts=[".", ".p"])
    items = found(Logs(a1=[(None, framed(7))] * 9, a2=[(None, framed(7, b"\2\4"))] * 9), source)
    assert [(item.parts, item.context, item.unclear) for item in items.values()] == [
        ("value", ".", ""),
        ("value", ".p", ""),
    ]


def test_a_name_without_records_that_two_contexts_have_is_unclear() -> None:
    source = snapshot(registered(":.p:a-value", 1, 7, A), registered("a-value", 1, 7, B), contexts=[".", ".p"])
    assert "any of the contexts ., .p" in found(Logs(a=[]), source)["a"].unclear


def test_guids_need_no_context() -> None:
    guid = "3c56e55a-9e5b-105e-df40-078ac6b3fb16"
    item = registered("x-value", 1, 7, A)
    source = snapshot(type(item)("x-value", 1, 7, item.schema, guid=guid), contexts=[".", ".p"])
    header = [(b"__value_schema_id", b"\1" + bytes.fromhex(guid.replace("-", "")))]
    decided = found(Logs(orders=[(b"k", b"payload", header)] * 3), source)["orders"]
    assert (decided.parts, decided.unclear) == ("value", "")


SECONDS = 1_764_000_000  # in 2025; its first bytes, behind four zeros, look like the id 105
MANY_IDS = snapshot(*(registered(f"other{number}-value", 1, number, A) for number in range(1, 400)))


def test_one_key_of_another_length_does_not_make_ids_of_numbers() -> None:
    keys = [(SECONDS + number).to_bytes(8, "big") for number in range(199)]
    item = found(Logs(clicks=[(key, framed(12)) for key in [*keys, framed(9, b"abcd1")]]), MANY_IDS)["clicks"]
    assert (item.parts, item.key_known_ids) == ("value", 200)
    assert "numbers of eight bytes" in item.note


def test_binary_keys_that_begin_like_an_id_are_no_ids() -> None:
    """An int64 and an int32, as any application may write them: they do not decode."""
    keys = [(SECONDS + number).to_bytes(8, "big") + number.to_bytes(4, "big") for number in range(200)]
    item = found(Logs(clicks=[(key, framed(12)) for key in keys]), MANY_IDS)["clicks"]
    assert (item.parts, item.key_known_ids, item.unclear) == ("value", 200, "")
    assert not item.by_decoding["key"].carries
    assert (item.by_decoding["value"].carries, item.by_decoding["value"].ids) == (True, [12])


def test_a_part_with_a_subject_is_not_decided_by_its_payloads() -> None:
    item = found(Logs(orders=[(b"k", framed(7, b"not a record"))]), REGISTRY)["orders"]
    assert (item.parts, item.by_decoding) == ("value", {})


def test_payloads_of_which_some_decode_are_unclear() -> None:
    item = found(Logs(a=[(None, framed(7))] * 5 + [(None, framed(7, b"no record"))] * 5), REGISTRY)["a"]
    assert (item.parts, item.unclear[:40]) == ("none", "5 of 10 values decode with the schema of")


def test_a_schema_that_nobody_can_read_is_unclear() -> None:
    source = snapshot(registered("x", 1, 7, A, refs=[("B", "gone", 1)]))
    item = found(Logs(a=[(None, framed(7))]), source)["a"]
    assert item.parts == "none"
    assert "version 1 of gone, to which it refers, is not known" in item.unclear


def test_other_payloads_do_not_decide_for_those_that_nobody_can_read() -> None:
    """Three odd values with the id of another schema must not leave a hundred records with ids of the source."""
    source = snapshot(registered("x", 1, 7, A, refs=[("B", "gone", 1)]), registered("y", 1, 8, B))
    item = found(Logs(a=[(None, framed(7))] * 100 + [(None, framed(8, b"no record"))] * 3), source)["a"]
    assert item.parts == "none"
    assert "nobody can tell whether they decode: the schema of id 7" in item.unclear
    few = found(Logs(a=[(None, framed(7))] + [(None, framed(8, b"no record"))] * 40), source)["a"]
    assert (few.parts, few.unclear) == ("none", "")


def test_a_context_that_nobody_can_read_is_not_ruled_out() -> None:
    """Contexts of several environments have schemas that are alike, under the same ids."""
    source = snapshot(
        registered("b-value", 1, 7, A), registered(":.p:x", 1, 7, A, refs=[("B", "gone", 1)]), contexts=[".", ".p"]
    )
    item = found(Logs(a=[(None, framed(7))] * 9), source)["a"]
    assert "any of the contexts ., .p" in item.unclear


def test_the_spec_decides_and_the_sample_gives_figures() -> None:
    by_topic = [{"topics": ["orders"], "rewrite": "key"}, {"topics": ["raw"], "rewrite": "none"}]
    logs = Logs(orders=[(b"k", framed(7))], raw=[(None, framed(7))])
    items = found(logs, REGISTRY, by_topic=by_topic)
    assert [(item.parts, item.decided_by, item.value_known_ids) for item in items.values()] == [
        ("key", "spec", 1),
        ("none", "spec", 1),
    ]


def test_the_registrys_own_topic_is_not_sampled() -> None:
    assert list(found(Logs(_schemas=[(None, framed(7))], a=[]), REGISTRY, topic="_schemas")) == ["a"]


def test_control_records_are_not_sampled() -> None:
    logs = Logs()
    logs.put("a", 0, [(framed(7), framed(7))], control=True, transactional=True, producer_id=1, producer_epoch=0)
    assert found(logs, REGISTRY)["a"].sampled_records == 0


def test_records_of_aborted_transactions_are_not_sampled() -> None:
    """Here they have unknown ids, which would hide the known ids of all others."""
    logs = Logs()
    logs.put("a", 0, [(None, framed(99))] * 3, transactional=True, producer_id=7, producer_epoch=0)
    producer = {"transactional": True, "producer_id": 8, "producer_epoch": 0}
    logs.logs["a", 0] += [
        encode_batch([Record(3 + number, 1000, None, framed(7), [])], **producer)  # type: ignore[arg-type]
        for number in range(3)
    ]
    logs.aborted = [(7, 0)]
    sample = sample_topics(logs, ["a"])["a"]  # type: ignore[arg-type]
    assert sample.records == 3
    assert dict(sample.parts["value"].ids) == {7: 3}


def test_a_topic_that_cannot_be_read_is_named_and_hides_no_other() -> None:
    logs = Logs(orders=[(b"k", framed(7))])
    logs.broken["lost"] = "no leader"
    items = found(logs, REGISTRY)
    assert (items["orders"].parts, items["orders"].unread) == ("value", "")
    assert items["lost"].unread == "no leader"


def test_a_fetch_that_fails_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(orders=[(None, framed(7))])

    def fail(*_: Any, **__: Any) -> Any:
        raise Transient("connection lost")

    monkeypatch.setattr(logs, "fetch_once", fail)
    assert found(logs, REGISTRY)["orders"].unread == "connection lost"


def test_the_sample_takes_both_ends_of_some_partitions_and_no_record_twice() -> None:
    logs = Logs()
    for partition in range(40):
        logs.put("big", partition, [(None, framed(7, bytes([partition])))] * 150)
    samples = sample_topics(logs, ["big"])  # type: ignore[arg-type]
    assert samples["big"].records <= 150 * detect.MAX_PARTITIONS_PER_TOPIC
    asked = {(item.partition, item.offset) for group in logs.fetches for item in group}
    assert len({partition for partition, _ in asked}) <= detect.MAX_PARTITIONS_PER_TOPIC
    assert {offset for _, offset in asked} == {0, 100}
    assert samples["big"].records == 150 * len({partition for partition, _ in asked})


def test_large_records_are_asked_for_again_with_more_bytes() -> None:
    logs = Logs()
    large = framed(7, b"x" * 3_000_000)
    for partition in range(3):
        logs.put("big", partition, [(None, large)])
    samples = sample_topics(logs, ["big"])  # type: ignore[arg-type]
    assert (samples["big"].records, samples["big"].unread) == (3, "")
    assert len(logs.fetches[-1]) == 1
