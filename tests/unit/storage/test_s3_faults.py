"""An S3 that throttles, refuses, is slow or drops connections, seen through real requests: storage and journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_kafka_migration.copy.archive import SegmentIndex, SegmentWriter, build_manifest
from airflow_provider_kafka_migration.errors import ObjectExists, StorageRefused, StorageUnavailable
from airflow_provider_kafka_migration.journal import Fingerprint, Journal, Owner, verify_journal
from airflow_provider_kafka_migration.kafka.batches.api import Record, encode_batch
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage import s3
from airflow_provider_kafka_migration.storage.s3 import S3Config, S3Store
from harness.faults.s3_faults import Fault, FaultyS3

pytestmark = pytest.mark.slow

PASSING = (Fault.SLOW_DOWN, Fault.INTERNAL_ERROR, Fault.DROPPED, Fault.ANSWER_LOST, Fault.ANSWER_TORN)


@pytest.fixture
def front(s3_in_process: Any) -> Iterator[FaultyS3]:
    """A front before moto with clear sky."""
    config = s3_in_process.config
    with FaultyS3(config.endpoint_url, config.to_dict(), seed=11) as found:
        yield found


@pytest.fixture
def faulty_store(front: FaultyS3, s3_in_process: Any) -> S3Store:
    """A store behind the front; waiting takes no time."""
    config = S3Config.from_dict(front.config())
    return S3Store(config, s3_in_process.bucket(), "prefix", sleep=lambda _: None)


@pytest.fixture
def clear_store(faulty_store: S3Store, s3_in_process: Any) -> S3Store:
    """The same bucket, past the front."""
    return S3Store(s3_in_process.config, faulty_store.bucket, "prefix")


@pytest.mark.parametrize("fault", PASSING)
def test_each_fault_is_gone_round(front: FaultyS3, faulty_store: S3Store, clear_store: S3Store, fault: Fault) -> None:
    def once() -> None:
        front.weather(fault, hits=1)

    once()
    faulty_store.put_new("new", b"create-only")
    once()
    faulty_store.put("replaced", b"0123456789")
    once()
    assert faulty_store.get("replaced") == b"0123456789"
    once()
    assert [info.key for info in faulty_store.list()] == ["new", "replaced"]
    assert front.counts.faults[fault] == 4
    assert clear_store.get("new") == b"create-only"
    with pytest.raises(ObjectExists):
        faulty_store.put_new("new", b"create-only")


@pytest.mark.parametrize("times", [1, 2])
def test_an_error_answer_that_ends_in_its_body_is_tried_again(
    front: FaultyS3, faulty_store: S3Store, times: int
) -> None:
    """botocore reads such a body itself, and hands on what urllib3 raises then as it is."""
    front.weather(Fault.ANSWER_TORN, hits=times)
    assert faulty_store.get("missing") is None
    assert front.counts.faults[Fault.ANSWER_TORN] == times


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.DROPPED, Fault.ANSWER_LOST])
def test_what_does_not_pass_ends_as_transient_and_says_what_to_do(
    front: FaultyS3, faulty_store: S3Store, fault: Fault
) -> None:
    front.weather(fault)
    hint = "ask less of the bucket" if fault is Fault.SLOW_DOWN else "check the network"
    for action in (
        lambda: faulty_store.put_new("key", b"1"),
        lambda: faulty_store.get("key"),
        lambda: list(faulty_store.list()),
    ):
        before = front.counts.requests
        with pytest.raises(StorageUnavailable) as caught:
            action()
        assert hint in caught.value.next_step
        # A create-only put whose answer was lost also asks whose the object is.
        assert s3.MAX_ATTEMPTS <= front.counts.requests - before <= 2 * s3.MAX_ATTEMPTS


def test_a_service_that_is_slow_is_given_up_by_the_clock(
    front: FaultyS3, faulty_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MAX_SECONDS", 0.0)
    front.weather(Fault.SLOW_DOWN)
    with pytest.raises(StorageUnavailable):
        faulty_store.get("key")
    assert front.counts.requests == 1


def test_a_slow_answer_is_waited_for(front: FaultyS3, faulty_store: S3Store) -> None:
    front.weather(Fault.SLOW, delay_seconds=0.3)
    faulty_store.put_new("key", b"late")
    assert faulty_store.get("key") == b"late"
    assert front.counts.requests == 2


def test_a_refusal_ends_at_once(front: FaultyS3, faulty_store: S3Store, clear_store: S3Store) -> None:
    front.weather(Fault.REFUSED)
    with pytest.raises(StorageRefused, match="allow s3:ListBucket"):
        faulty_store.put_new("key", b"1")
    assert front.counts.requests == 1
    assert clear_store.get("key") is None


def test_20_creators_in_bad_weather_have_one_winner(front: FaultyS3, faulty_store: S3Store) -> None:
    """A lost answer must never make two winners, nor none."""
    front.weather(*PASSING, rate=0.15)

    def create(number: int) -> bool:
        try:
            faulty_store.put_new("contested", b"%d" % number)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        won = [number for number, mine in enumerate(pool.map(create, range(20))) if mine]
    assert len(won) == 1
    assert faulty_store.get("contested") == b"%d" % won[0]
    assert front.counts.faults.total() > 0


def test_a_journal_in_bad_weather(front: FaultyS3, faulty_store: S3Store, clear_store: S3Store) -> None:
    front.weather(*PASSING, rate=0.15)
    fingerprint = Fingerprint("source-id", "target-id", {"journal": "s3://jb"}, {"journal": "p"})

    def journal(name: str) -> Journal:
        return Journal.create_or_open(faulty_store, "m1", fingerprint, owner=Owner("dag_run", "run-1", name))

    first = journal("a")
    first.transition(State.PRECHECK, "planned")

    def work(number: int) -> None:
        own = journal(f"task-{number}")
        for turn in range(5):
            own.step("lane_done", f"{number}/{turn}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    report = verify_journal(clear_store, "m1")
    assert report.entries == 23
    seen = Journal(clear_store, "m1")
    seen.refresh()
    assert sorted(entry.step_key or "" for entry in seen.steps("lane_done")) == [
        f"{number}/{turn}" for number in range(4) for turn in range(5)
    ]
    assert front.counts.faults.total() > 5


def test_segments_in_bad_weather(front: FaultyS3, faulty_store: S3Store, clear_store: S3Store) -> None:
    """Nothing half-written counts, and what counts is whole."""
    writer = SegmentWriter(faulty_store, "m1", "orders", 0, "id-1")
    now = int(datetime.now(UTC).timestamp() * 1000)
    whole = {}
    front.weather(*PASSING, rate=0.15)
    for first in range(0, 200, 10):
        records = [Record(first + n, now, b"k", b"v%d" % (first + n), ()) for n in range(10)]
        data = encode_batch(records, 0)
        whole[first] = hashlib.sha256(data).hexdigest()
        writer.put(data, [], first, first + 10)
    index = SegmentIndex(faulty_store, "m1", "orders", 0, "id-1")
    entries = list(index.chain(0))
    assert {entry.from_offset: entry.sha256 for entry in entries} == whole
    assert [index.read(entry).until_offset for entry in entries] == list(range(10, 210, 10))
    # A put that is given up leaves perhaps a segment, but never an entry.
    front.weather(Fault.SLOW_DOWN, path=r"\.json")
    with pytest.raises(StorageUnavailable):
        writer.put(encode_batch([Record(200, now, None, b"", ())], 0), [], 200, 201)
    front.weather()
    assert index.find(200) is None
    assert build_manifest(clear_store, "m1").partitions[0].until_offset == 200
