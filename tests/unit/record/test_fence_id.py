"""The transactional id that the data id is taken with, where markers may not be written. No broker."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import make_context

from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.errors import BrokerUnreachable, MigrationError, PermissionMissing
from airflow_provider_kafka_migration.record import producer_ids, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State


class Coordinator:
    """Producer ids by transactional id, with an epoch that goes up; new ones without."""

    def __init__(self) -> None:
        self.taken: dict[str, tuple[int, int]] = {}
        self.asked: list[str] = []
        self.error: MigrationError | None = None
        self.renewed = threading.Event()
        self._next = 100

    def init_producer_id(self, name: str | None = None) -> tuple[int, int]:
        self.asked.append(name or "")
        if name and self.error is not None:
            raise self.error
        if name and name in self.taken:
            producer_id, epoch = self.taken[name]
            self.taken[name] = (producer_id, epoch + 1)
            self.renewed.set()
            return self.taken[name]
        self._next += 1
        if name:
            self.taken[name] = (self._next, 0)
        return self._next, 0


def context_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, refused: bool, **sections: Any
) -> tuple[PhaseContext, Coordinator]:
    context, coordinator = make_context(folder, state=State.TOPOLOGY_COPY, **sections), Coordinator()
    context.target.wire = coordinator  # type: ignore[misc,assignment]
    context.target.clone = lambda: SimpleNamespace(wire=coordinator, close=lambda: None)  # type: ignore[assignment]
    monkeypatch.setattr(producer_ids, "markers_are_refused", lambda _: refused)
    return context, coordinator


def test_where_markers_may_be_written_no_coordinator_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=False)
    producer_ids.take_producer_ids(context.record, context.target)
    assert (coordinator.asked, producer_ids.transactional_id(context.record)) == (["", ""], "")


def test_nor_where_nothing_is_to_be_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True, cutover={"fence_copiers": False})
    producer_ids.take_producer_ids(context.record, context.target)
    assert (coordinator.asked, producer_ids.transactional_id(context.record)) == (["", ""], "")


def test_the_data_id_is_taken_with_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path / "a", monkeypatch, refused=True)
    ids = producer_ids.take_producer_ids(context.record, context.target)
    name = producer_ids.transactional_id(context.record)
    assert name.startswith("kafka-migration.m1.data.")
    assert coordinator.asked == [name, ""]
    assert (ids.data_producer_id, ids.data_producer_epoch) == coordinator.taken[name]
    assert producer_ids.take_producer_ids(context.record, context.target) == ids
    # A later migration of the same name never gets this producer id, whose records it would take for its own.
    other, _ = context_of(tmp_path / "b", monkeypatch, refused=True)
    producer_ids.take_producer_ids(other.record, other.target)
    assert producer_ids.transactional_id(other.record) != name


def test_killed_between_the_name_and_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True)
    producer_ids.take_data_id(context.record, context.target)
    ids = producer_ids.take_producer_ids(context.record, context.target)
    name = producer_ids.transactional_id(context.record)
    assert (ids.data_producer_id, ids.data_producer_epoch) == coordinator.taken[name]
    assert ids.data_producer_epoch == 1, "the same id, in the epoch under which it will be used"


def test_without_any_right_the_migration_goes_on_unfenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True)
    coordinator.error = PermissionMissing("Write on TransactionalId is missing")
    producer_ids.take_producer_ids(context.record, context.target)
    assert producer_ids.transactional_id(context.record) == ""


def test_killed_between_and_refused_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is journaled, but the id that is used was taken without it: another's fence would fence nothing."""
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True)
    producer_ids.take_data_id(context.record, context.target)
    coordinator.error = PermissionMissing("Write on TransactionalId is missing")
    ids = producer_ids.take_producer_ids(context.record, context.target)
    assert ids.data_producer_id not in {producer_id for producer_id, _ in coordinator.taken.values()}
    assert producer_ids.transactional_id(context.record) == ""
    with producer_ids.Renewal(context.record, context.target) as renewal:
        assert renewal._thread is None


@pytest.mark.parametrize("name", ["", "kafka-migration.m1.data.0123456789ab"])
def test_journals_that_have_the_name_in_its_own_step_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    context, _ = context_of(tmp_path, monkeypatch, refused=True)
    if name:
        context.journal.step_once(steps.DATA_TRANSACTIONAL_ID, details={"transactional_id": name})
    ids = ProducerIds(data_producer_id=7, data_producer_epoch=0, filler_producer_id=8, filler_producer_epoch=0)
    context.journal.step_once(steps.PRODUCER_IDS, details=ids.model_dump(mode="json"))
    assert producer_ids.take_producer_ids(context.record, context.target) == context.record.producer_ids() == ids
    assert producer_ids.transactional_id(context.record) == name


def test_a_coordinator_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True)
    coordinator.error = BrokerUnreachable("the coordinator does not answer", next_step="start it")
    with pytest.raises(BrokerUnreachable):
        producer_ids.take_producer_ids(context.record, context.target)
    assert context.journal.find_step(steps.PRODUCER_IDS) is None


def test_the_id_is_renewed_for_as_long_as_a_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, coordinator = context_of(tmp_path, monkeypatch, refused=True)
    monkeypatch.setattr(producer_ids, "RENEW_SECONDS", 0.01)
    with producer_ids.Renewal(context.record, context.target) as idle:
        assert idle._thread is None, "there is nothing to renew yet"
    producer_ids.take_producer_ids(context.record, context.target)
    name = producer_ids.transactional_id(context.record)
    with producer_ids.Renewal(context.record, context.target) as renewal:
        assert coordinator.renewed.wait(60)
        # A coordinator that is away for a while ends nothing.
        coordinator.error = BrokerUnreachable("the coordinator does not answer", next_step="start it")
        asked = len(coordinator.asked)
        while len(coordinator.asked) < asked + 2:
            assert renewal._thread is not None
            assert renewal._thread.is_alive()
        coordinator.error = None
        coordinator.renewed.clear()
        assert coordinator.renewed.wait(60)
    assert not renewal._thread.is_alive()  # type: ignore[union-attr]
    assert coordinator.taken[name][1] >= 2
