"""Requests of people: what runs beside the copy looks for them for as long as it runs, whatever one look fails with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
from phase_world.jobs import MIGRATION
from phase_world.world import World, Worlds
from test_mirror_phase import SECTIONS, ask, mirror_until

from airflow_provider_kafka_migration.documents.mirror import MirrorRequest
from airflow_provider_kafka_migration.errors import BrokerUnreachable, ClaimLost, DocumentUnreadable, Transient
from airflow_provider_kafka_migration.groups.sync import PeriodicSync
from airflow_provider_kafka_migration.mirrors import requests, retention
from airflow_provider_kafka_migration.phases.mirrors import finish, mirror
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import offset_maps, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.schemas import sync as schemas_sync
from airflow_provider_kafka_migration.schemas.sync import SchemaFollower
from airflow_provider_kafka_migration.state import State

KEY = f"{MIGRATION}/control/mirror.json"


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A mirror that has mirrored, and is paused."""
    world = worlds.at("tail", **SECTIONS)
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, "run")
    world.restart()
    return world


# -- one failed look ---------------------------------------------------------------------------------------------------


class Looks:
    """Fails the first times, each time otherwise, and counts."""

    def __init__(self, *errors: Exception) -> None:
        self._errors: Iterator[Exception] = iter(errors)
        self.count = 0

    def __call__(self, *_: object, **__: object) -> Any:
        self.count += 1
        error = next(self._errors, None)
        if error is not None:
            raise error


Beside = Callable[[PhaseContext, pytest.MonkeyPatch, Looks], AbstractContextManager[object]]


def _request_watch(
    context: PhaseContext, monkeypatch: pytest.MonkeyPatch, looks: Looks
) -> AbstractContextManager[object]:
    monkeypatch.setattr(requests, "stop_if_asked", looks)
    monkeypatch.setattr(requests, "POLL_SECONDS", 0.01)
    return requests.RequestWatch(context)


def _groups(context: PhaseContext, _monkeypatch: pytest.MonkeyPatch, looks: Looks) -> AbstractContextManager[object]:
    return PeriodicSync(context, looks, timedelta(seconds=0.01), phase="mirror")


def _follower(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, looks: Looks) -> AbstractContextManager[object]:
    monkeypatch.setattr(follow.Follower, "_passes", lambda _self: [looks])
    section = context.spec.topology.model_copy(update={"refresh_interval": timedelta(seconds=0.01)})
    return follow.Follower(replace(context, spec=context.spec.model_copy(update={"topology": section})))


def _map_writer(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, looks: Looks) -> AbstractContextManager[object]:
    monkeypatch.setattr(offset_maps, "write_open_map", looks)
    monkeypatch.setattr(offset_maps, "UPDATE_SECONDS", 0.01)
    return offset_maps.MapWriter(context.record, context.target)


def _retention(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, looks: Looks) -> retention.TargetRetention:
    monkeypatch.setattr(retention, "retain_once", looks)
    monkeypatch.setattr(retention, "_FIRST_SECONDS", 0.01)
    section = context.spec.topology.model_copy(update={"refresh_interval": timedelta(seconds=0.01)})
    return retention.TargetRetention(replace(context, spec=context.spec.model_copy(update={"topology": section})))


def _schemas(context: PhaseContext, monkeypatch: pytest.MonkeyPatch, looks: Looks) -> SchemaFollower:
    monkeypatch.setattr(schemas_sync, "synchronize", looks)
    section = context.spec.schemas.model_copy(
        update={"source": "registry", "target": "other", "interval": timedelta(seconds=0.01)}
    )
    context = replace(context, spec=context.spec.model_copy(update={"schemas": section}))
    return SchemaFollower(context, lambda _context: MagicMock(), poll_seconds=0.01)


@pytest.mark.parametrize("beside", [_request_watch, _groups, _follower, _map_writer, _retention, _schemas])
def test_only_final_errors_end_what_runs_beside_the_copy(
    world: World, monkeypatch: pytest.MonkeyPatch, beside: Beside
) -> None:
    looks = Looks(OSError("connection reset by peer"), BrokerUnreachable("away"), KeyError("orders"), ClaimLost("gone"))
    before = set(threading.enumerate())
    with beside(world.context(), monkeypatch, looks):
        (thread,) = set(threading.enumerate()) - before
        thread.join(30)
        assert not thread.is_alive()
    assert looks.count == 4, "the claim is lost: the next owner looks"


@pytest.mark.parametrize("made", [_groups, _follower, _retention, _schemas])
def test_one_look_of_a_task_that_wakes_up_does_not_fail(
    world: World, monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    context = replace(world.context(), progress=lambda progress: told.append(progress.message))
    looks = Looks(KeyError("orders"), ClaimLost("gone"))
    beside = made(context, monkeypatch, looks)
    once = beside.once if made is _follower else lambda: beside.once({})
    once()
    assert len(told) == 1
    assert told[0].endswith("KeyError: 'orders'")
    assert "Traceback" in caplog.text
    with pytest.raises(ClaimLost):
        once()
    assert looks.count == 2


def test_one_look_for_requests_does_not_fail(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks(BrokerUnreachable("away"), KeyError("orders"), ClaimLost("gone"))
    context = world.context()
    _request_watch(context, monkeypatch, looks)
    requests.RequestWatch(context).once()
    requests.RequestWatch(context).once()
    assert caplog.text.count("The last request could not be carried out yet; the next pass tries again") == 2
    with pytest.raises(ClaimLost):
        requests.RequestWatch(context).once()


def test_a_request_after_a_failed_look_is_carried_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = requests.stop_if_asked, threading.Event()

    def fails_once(*given: Any) -> Any:
        if failed.is_set():
            return real(*given)
        failed.set()
        raise OSError("connection reset by peer")

    monkeypatch.setattr(requests, "stop_if_asked", fails_once)
    monkeypatch.setattr(requests, "POLL_SECONDS", 0.01)
    context = world.context()
    requests.withdraw_stop(context.record)
    with requests.RequestWatch(context):
        assert failed.wait(30)
        ask(world, "paused")
        until = time.monotonic() + 30
        while not (stop := context.record.tail_stop()) or not stop.offsets:
            assert time.monotonic() < until
            time.sleep(0.01)


# -- requests that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["later", "empty", "cut"])
def test_a_request_that_cannot_be_read_is_named(world: World, damage: str) -> None:
    data = world.journal_store.get(KEY)
    assert data is not None
    later = json.dumps({**json.loads(data), "want": "drained"}).encode()
    world.journal_store.put(KEY, {"later": later, "empty": b"", "cut": data[:20]}[damage])
    with pytest.raises(DocumentUnreadable, match="the last request to the mirror cannot be read") as failure:
        requests.read(world.journal_store, MIGRATION)
    assert failure.value.where.path.endswith(KEY)
    assert "use that release here" in failure.value.next_step


# -- several people ----------------------------------------------------------------------------------------------------


class Meanwhile:
    """The journal's store; before the first request is stored, somebody else asks for something."""

    def __init__(self, world: World, want: Any) -> None:
        self._store = world.journal_store
        self._want = want
        self.other: MirrorRequest | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _before(self) -> None:
        if self.other is None:
            self.other = requests.write(self._store, MIGRATION, self._want, by="bob", at="2026-04-24T10:41:00Z")

    def put(self, key: str, data: bytes) -> None:
        self._before()
        self._store.put(key, data)

    def put_new(self, key: str, data: bytes, *, sha256: str | None = None) -> None:
        self._before()
        self._store.put_new(key, data, sha256=sha256)


def test_two_requests_at_the_same_time_have_two_numbers(world: World) -> None:
    store = Meanwhile(world, "ended")
    mine = requests.write(store, MIGRATION, "paused", by="ann", at="2026-04-24T10:41:00Z")  # type: ignore[arg-type]
    assert store.other is not None
    assert (store.other.number, mine.number) == (3, 4)
    assert requests.read(world.journal_store, MIGRATION) == mine, "both commands agree which one counts"


def test_a_request_of_a_command_that_was_killed_or_slow_counts(world: World) -> None:
    """The copy that says where to begin is written last, and by several people in any order."""
    first = world.journal_store.get(KEY)
    assert first is not None
    ask(world, "paused")
    last = ask(world, "ended")
    world.journal_store.put(KEY, first)
    assert requests.read(world.journal_store, MIGRATION) == last
    assert ask(world, "run").number == last.number + 1


def test_a_request_of_an_earlier_release_counts(world: World) -> None:
    """It is in ``control/mirror.json`` alone."""
    for key in [item.key for item in world.journal_store.list(f"{MIGRATION}/control/mirror-requests/")]:
        world.journal_store.delete(key)
    assert requests.read(world.journal_store, MIGRATION).number == 2
    assert ask(world, "paused").number == 3


def test_a_refusal_does_not_replace_what_was_asked_for_since(world: World) -> None:
    asked = ask(world, "promoted")
    store = Meanwhile(world, "ended")
    assert not requests.refuse(store, asked, "it moves", by="mirror", at="2026-04-24T10:42:00Z")  # type: ignore[arg-type]
    assert requests.read(world.journal_store, MIGRATION) == store.other
    again = ask(world, "promoted")
    assert requests.refuse(world.journal_store, again, "it moves", by="mirror", at="2026-04-24T10:42:00Z")
    last = requests.read(world.journal_store, MIGRATION)
    assert (last.want, last.refused, last.number) == ("run", "it moves", again.number + 1)


# -- requests that come too late ---------------------------------------------------------------------------------------

#: A moment before and after which the clock of a world stands for hours.
UNTIL = "2026-04-24T10:55:00Z"


@pytest.mark.parametrize("freeze", ["acl", "manual"])
def test_a_promotion_that_was_asked_for_hours_ago_is_turned_down(worlds: Worlds, freeze: str) -> None:
    """Asked for at night, while nobody ran the mirror; whoever runs it next morning must not freeze producers."""
    world = worlds.at("tail", **SECTIONS, cutover={"freeze": freeze})
    request = ask(world, "promoted", valid_until=UNTIL)
    world.clock.sleep(10 * 3600)
    mirror_until(world, lambda: ask(world, "paused"))
    assert world.state is State.PAUSED
    assert world.denied == set()
    [entry] = world.steps(steps.REQUEST_REFUSED)
    assert entry.step_key == str(request.number)
    assert f"valid until {UNTIL}" in entry.details["why"]


def test_an_end_that_was_asked_for_hours_ago_is_turned_down(world: World) -> None:
    ask(world, "ended", valid_until=UNTIL)
    world.clock.sleep(10 * 3600)
    with pytest.raises(Transient, match="valid until"):
        finish.run(world.context())
    assert world.state is not State.ENDED
    last = requests.read(world.journal_store, MIGRATION)
    assert (last.want, bool(last.refused)) == ("run", True)


@pytest.mark.parametrize("want", ["promoted", "ended"])
def test_a_mirror_that_is_paused_stays_so_when_a_late_request_is_turned_down(worlds: Worlds, want: Any) -> None:
    world = worlds.at("tail", **SECTIONS)
    mirror_until(world, lambda: ask(world, "paused"))
    ask(world, want, valid_until=UNTIL)
    world.restart()
    world.clock.sleep(10 * 3600)
    mirror.prepare(world.context())
    last = requests.read(world.journal_store, MIGRATION)
    assert (last.want, bool(last.refused)) == ("paused", True)
    assert world.state is State.PAUSED


def test_one_that_comes_while_the_mirror_runs_is_turned_down_beside_the_copy(world: World) -> None:
    ask(world, "promoted", valid_until=UNTIL)
    world.clock.sleep(10 * 3600)
    context = world.context()
    requests.in_time(context, by="mirror")
    assert requests.read(world.journal_store, MIGRATION).want == "run"


def test_a_request_in_time_and_one_of_an_earlier_release_are_carried_out(world: World) -> None:
    for more in ({"valid_until": UNTIL}, {}):
        request = ask(world, "promoted", **more)
        if not more:
            world.clock.sleep(10 * 3600)
        assert requests.in_time(world.context(), by="mirror") == request
    data = b'{"migration_id":"m1","number":1,"want":"promoted"}'
    assert MirrorRequest.parse(data).valid_until == ""
    assert b"valid_until" not in MirrorRequest.parse(data).canonical()


def test_a_freeze_that_has_begun_ends_by_its_own_limit(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS, cutover={"freeze": "acl"})
    request = ask(world, "promoted", valid_until=UNTIL)
    context = world.context()
    now = context.now().isoformat()
    details = {"method": "acl", "requested_at": now, "deadline": now, "request": request.number}
    context.journal.step(steps.FREEZE_REQUESTED, key="1", details=details)
    world.clock.sleep(10 * 3600)
    assert requests.in_time(context, by="mirror") == request, "it is called off, which frees its producers"


def test_a_promotion_that_copies_the_rest_may_take_its_time(world: World) -> None:
    """People have stopped the producers, and the copiers have hours to catch up: nobody has to ask again."""
    request = ask(world, "promoted", valid_until=UNTIL)
    context = world.context()
    requests.stop_if_asked(context.record, context.source)
    world.clock.sleep(10 * 3600)
    assert requests.in_time(context, by="mirror") == request
    mirror_until(world, lambda: None)
    assert world.state is State.PROMOTED


def test_a_late_request_says_why_nobody_has_begun(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS, cutover={"freeze": "acl"})
    ask(world, "promoted", valid_until=UNTIL)
    world.clock.sleep(10 * 3600)
    why = requests.in_time(world.context(), by="mirror").refused
    assert "nobody ran the mirror, or a partition lagged by more than 50 offsets" in why
    assert "ask again: `kafka-migration mirror promote FILE`" in why
    assert "It goes on mirroring" in why


def test_a_withdrawal_gives_way_to_a_later_request(world: World) -> None:
    former = requests.read(world.journal_store, MIGRATION)
    request = ask(world, "promoted")
    later = ask(world, "paused")
    assert not requests.withdraw(world.journal_store, request, former, by="ann", at="2026-04-24T10:40:00Z")
    assert requests.read(world.journal_store, MIGRATION) == later
