"""Groups that were deleted on the source, on a mirror's target: deleted by policy, and only if nobody else has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from phase_world.admin import SimAdmin
from phase_world.outside import Killed
from phase_world.world import World, Worlds, without_probes

from airflow_provider_kafka_migration.documents.mirror import MissingGroup
from airflow_provider_kafka_migration.errors import BrokerUnreachable, ClaimLost, Where
from airflow_provider_kafka_migration.kafka.admin.groups import GroupDescription, GroupOffset, GroupOffsets
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.mirrors import group_deletions, group_sync
from airflow_provider_kafka_migration.record import keys, steps

SECTIONS: dict[str, Any] = {
    "kind": "mirror",
    "mirror": {"source_alias": "A", "target_alias": "B", "sync_interval": "1h"},
    "groups": {"on_deleted": "repair", "deleted_after": "10m"},
}
PLACE = ("A.orders", 0)
LATER = 601.0
NO_ANSWER = ItemError(15, "COORDINATOR_NOT_AVAILABLE", retriable=True)


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A mirror whose groups ``audit`` and ``billing`` are on the target; ``billing`` is then deleted on the source."""
    world = worlds.at("tail", **SECTIONS)
    sync(world)
    assert sorted(world.target.groups) == ["audit", "billing"]
    del world.source.groups["billing"]
    return world


def sync(world: World, after_seconds: float = 0.0) -> None:
    """One pass of the group sync."""
    world.clock.sleep(after_seconds)
    group_sync.sync_and_delete(world.context())


def missing(world: World) -> dict[str, MissingGroup]:
    return {item.group: item for item in group_deletions.read_missing(world.context().record)}


def kept(world: World) -> str:
    """Why the target still has ``billing``, behind a second look."""
    sync(world)
    sync(world, LATER)
    assert "billing" in world.target.groups
    assert world.steps(steps.GROUP_DELETED) == []
    return missing(world)["billing"].kept


def on_source(world: World, monkeypatch: pytest.MonkeyPatch, method: str, answer: Callable[..., Any]) -> None:
    """Change an answer of the source: ``answer(real answer)``."""
    real = getattr(SimAdmin, method)

    def changed(admin: SimAdmin, *arguments: Any, **options: Any) -> Any:
        found = real(admin, *arguments, **options)
        return answer(found) if admin._state is world.source else found

    monkeypatch.setattr(SimAdmin, method, changed)


def test_a_group_is_deleted_once_two_looks_have_found_it_gone(world: World) -> None:
    sync(world)
    first = missing(world)["billing"]
    assert first.kept.startswith("the source has it no longer by one look")
    sync(world, LATER / 2)
    assert missing(world)["billing"] == first, "the second look is not due yet"
    assert "billing" in world.target.groups
    sync(world, LATER / 2)
    assert list(world.target.groups) == ["audit"]
    assert missing(world) == {}
    [deleting], [deleted] = (world.steps(name) for name in (steps.GROUP_DELETING, steps.GROUP_DELETED))
    assert deleting.seq < deleted.seq
    assert deleting.details["offsets"] == {"A.orders-0": 2, "A.orders-1": 10}
    assert deleting.details["missing_since"] == first.since
    written = world.context().record.written_groups()
    assert written is not None
    assert list(written.groups) == ["audit"]
    assert group_deletions.deleted(world.context().record) == ["billing"]


def test_a_group_that_is_created_again_on_the_source_follows_again(world: World) -> None:
    sync(world)
    sync(world, LATER)
    assert "billing" not in world.target.groups
    world.source.group("billing", orders_0=4)
    sync(world)
    assert world.target.groups["billing"].offsets[PLACE].offset == 4
    del world.source.groups["billing"]
    sync(world)
    sync(world, LATER)
    assert "billing" not in world.target.groups
    assert len(world.steps(steps.GROUP_DELETED)) == 2


def test_groups_stay_by_default(worlds: Worlds) -> None:
    world = worlds.at("tail", **{**SECTIONS, "groups": {}})
    sync(world)
    del world.source.groups["billing"]
    sync(world)
    sync(world, LATER)
    assert "billing" in world.target.groups
    assert world.stored(keys.result(keys.WRITTEN_GROUPS)) is None
    assert world.stored(keys.result(keys.MISSING_GROUPS)) is None


def test_a_group_that_comes_back_between_two_looks_begins_anew(world: World) -> None:
    sync(world)
    world.source.group("billing", orders_0=3, orders_1=10)
    sync(world, LATER)
    assert missing(world) == {}
    del world.source.groups["billing"]
    assert kept_first(world)
    assert "billing" in world.target.groups


def kept_first(world: World) -> bool:
    sync(world)
    return missing(world)["billing"].kept.startswith("the source has it no longer by one look")


def test_a_group_that_the_spec_no_longer_selects_is_not_gone(world: World) -> None:
    world.source.group("billing", orders_0=3)
    world.change_spec(groups={**SECTIONS["groups"], "exclude": ["billing"]})
    for _ in range(3):
        sync(world, LATER)
    assert "billing" in world.target.groups
    assert missing(world) == {}


def test_a_broker_that_does_not_answer_proves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sync(world)

    def fail(_: Any) -> Any:
        raise BrokerUnreachable("broker 2 does not answer", where=Where(), next_step="wait")

    on_source(world, monkeypatch, "facts", fail)
    sync(world, LATER)
    assert "billing" in world.target.groups
    assert missing(world)["billing"].kept == "broker 2 does not answer"
    monkeypatch.undo()
    sync(world, LATER)
    assert "billing" not in world.target.groups, "both looks that were answered agree"


def without_brokers(facts: Any) -> Any:
    return replace(facts, brokers=[7])


def test_a_broker_that_had_answered_before_must_answer_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its groups may be offline with it."""
    sync(world)
    on_source(world, monkeypatch, "facts", without_brokers)
    sync(world, LATER)
    assert "billing" in world.target.groups
    assert missing(world)["billing"].kept.startswith("brokers [1] of the source, which had answered before")
    sync(world, LATER)
    assert "billing" not in world.target.groups, "the same brokers have answered twice"


@pytest.mark.parametrize(
    ("method", "answer", "why"),
    [
        ("list_groups", lambda _: {}, "the source lists no group at all"),
        ("facts", lambda item: replace(item, cluster_id="another"), "the source is the cluster another, and not"),
        (
            "describe_groups",
            lambda item: {
                name: GroupDescription(name, "classic", "Empty") if name == "billing" else found
                for name, found in item.items()
            },
            "its coordinator on the source has it in state Empty",
        ),
        (
            "describe_groups",
            lambda item: {
                name: GroupDescription(name, "classic", "", error=NO_ANSWER) if name == "billing" else found
                for name, found in item.items()
            },
            "its coordinator on the source answers COORDINATOR_NOT_AVAILABLE",
        ),
        (
            "describe_groups",
            lambda item: {name: found for name, found in item.items() if name != "billing"},
            "its coordinator on the source did not answer",
        ),
        (
            "groups_offsets",
            lambda item: {
                name: GroupOffsets(name, {("orders", 0): GroupOffset(1)}) if name == "billing" else found
                for name, found in item.items()
            },
            "its coordinator on the source has it in state Dead",
        ),
        (
            "groups_offsets",
            lambda item: {
                name: GroupOffsets(name, error=NO_ANSWER) if name == "billing" else found
                for name, found in item.items()
            },
            "its coordinator on the source answers COORDINATOR_NOT_AVAILABLE",
        ),
        (
            "groups_offsets",
            lambda item: {
                name: GroupOffsets(name, errors={("orders", 0): NO_ANSWER}) if name == "billing" else found
                for name, found in item.items()
            },
            "its coordinator on the source answers COORDINATOR_NOT_AVAILABLE",
        ),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_answer_that_is_no_evidence_deletes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, answer: Callable[..., Any], why: str, is_first: bool
) -> None:
    if not is_first:
        sync(world)
    on_source(world, monkeypatch, method, answer)
    for _ in range(3):
        sync(world, LATER)
    assert "billing" in world.target.groups
    assert missing(world)["billing"].kept.startswith(why)
    assert bool(missing(world)["billing"].since) is not is_first
    assert world.steps(steps.GROUP_DELETING) == []


def test_a_group_with_members_on_the_target_is_kept_and_named(world: World) -> None:
    there = world.target.groups["billing"]
    there.members, there.state = ("reader",), "Stable"
    assert kept(world) == "it has members on the target (state Stable)"


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_group_that_a_client_has_joined_on_the_target_is_kept_and_named(world: World, kind: str) -> None:
    """It has left again and committed nothing; a failover may have been tried out."""
    world.target.groups["billing"].type = kind
    assert kept(world) == f"a client has joined it on the target (it is a {kind} group there)"


@pytest.mark.parametrize("kind", ["share", "streams"])
def test_share_and_streams_groups_are_kept_and_named(world: World, kind: str) -> None:
    world.target.groups["billing"].type = kind
    assert kept(world) == f"it is a {kind} group on the target: those are left alone"


@pytest.mark.parametrize("place", [PLACE, ("A.orders", 1), ("B.orders", 0)])
def test_a_group_with_an_offset_of_others_is_kept_and_named(world: World, place: tuple[str, int]) -> None:
    """For instance of another mirror to the same target."""
    world.target.groups["billing"].offsets[place] = GroupOffset(1)
    assert kept(world) == (f"it has an offset on the target that this mirror has not written, in {place[0]}-{place[1]}")


def test_a_group_that_had_offsets_before_the_mirror_is_kept_and_named(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    world.target.group("billing", **{"A.orders_0": 1}).type = "simple"
    sync(world)
    assert world.target.groups["billing"].offsets[PLACE].offset == 2
    del world.source.groups["billing"]
    assert kept(world) == "it had offsets on the target before this mirror wrote any"


def test_a_group_that_this_mirror_has_never_written_is_none_of_its_business(worlds: Worlds) -> None:
    world = worlds.at("tail", **SECTIONS)
    world.target.group("local", **{"A.orders_0": 1}).type = "simple"
    for _ in range(3):
        sync(world, LATER)
    assert "local" in world.target.groups
    assert missing(world) == {}


def test_a_client_that_commits_in_the_last_moment_keeps_its_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(world)
    real = group_deletions._own_offsets
    answers: list[Any] = []

    def meet(*arguments: Any) -> Any:
        answers.append(real(*arguments))
        world.target.groups["billing"].offsets[PLACE] = GroupOffset(4)
        return answers[-1]

    monkeypatch.setattr(group_deletions, "_own_offsets", meet)
    sync(world, LATER)
    assert len(answers) == 2
    assert world.target.groups["billing"].offsets[PLACE].offset == 4
    assert missing(world)["billing"].kept.startswith("it has an offset on the target that this mirror has not written")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            ItemError(86, "GROUP_SUBSCRIBED_TO_TOPIC"),
            "group billing cannot be deleted on the target: GROUP_SUBSCRIBED_TO_TOPIC",
        ),
        (ItemError(30, "GROUP_AUTHORIZATION_FAILED"), "group billing cannot be deleted on the target"),
    ],
)
def test_a_refused_deletion_is_named_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, error: ItemError, what: str
) -> None:
    monkeypatch.setattr(SimAdmin, "delete_group_offsets", lambda _admin, _group, places: dict.fromkeys(places, error))
    assert kept(world).startswith(what)
    monkeypatch.undo()
    sync(world, LATER)
    assert "billing" not in world.target.groups
    assert len(world.steps(steps.GROUP_DELETING)) == len(world.steps(steps.GROUP_DELETED)) == 1


def test_a_group_that_others_have_deleted_after_a_refusal_was_not_deleted_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ItemError(30, "GROUP_AUTHORIZATION_FAILED")
    monkeypatch.setattr(SimAdmin, "delete_group_offsets", lambda _admin, _group, places: dict.fromkeys(places, error))
    assert kept(world)
    del world.target.groups["billing"]
    sync(world, LATER)
    assert missing(world) == {}
    assert group_deletions.deleted(world.context().record) == []


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed for a while", "gone"])
def test_a_request_without_an_answer_counts_once_its_group_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    def lose(admin: SimAdmin, group: str, _places: Any) -> Any:
        if is_listed:
            admin._state.groups[group].offsets.clear()
        else:
            del admin._state.groups[group]
        raise BrokerUnreachable("no answer", where=Where(), next_step="wait")

    monkeypatch.setattr(SimAdmin, "delete_group_offsets", lose)
    sync(world)
    sync(world, LATER)
    assert missing(world)["billing"].kept == "no answer"
    monkeypatch.undo()
    sync(world, LATER)
    assert missing(world) == {}
    assert group_deletions.deleted(world.context().record) == ["billing"]


def test_offsets_that_the_target_hides_are_never_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers leave out offsets in topics that the principal may not describe."""
    hidden = ("private", 0)
    world.target.groups["billing"].offsets[hidden] = GroupOffset(7)
    real = SimAdmin.groups_offsets

    def filtered(admin: SimAdmin, names: Any, **options: Any) -> Any:
        return {
            name: GroupOffsets(name, {place: item for place, item in found.offsets.items() if place != hidden})
            for name, found in real(admin, names, **options).items()
        }

    monkeypatch.setattr(SimAdmin, "groups_offsets", filtered)
    sync(world)
    sync(world, LATER)
    assert world.target.groups["billing"].offsets == {hidden: GroupOffset(7)}
    assert missing(world) == {}
    assert group_deletions.deleted(world.context().record) == ["billing"]


def test_a_source_that_lacks_most_groups_at_once_deletes_none(worlds: Worlds) -> None:
    """It has lost its offsets, and one consumer has restarted."""
    world = worlds.at("tail", **SECTIONS)
    for number in range(10):
        world.source.group(f"g{number}", orders_0=2)
    sync(world)
    before = set(world.target.groups)
    kept_groups = dict(world.source.groups)
    world.source.groups.clear()
    world.source.group("first-one-back", orders_0=0)
    for _ in range(3):
        sync(world, LATER)
    assert before < set(world.target.groups)
    assert all(item.kept.startswith("the source lacks 12 of 13 groups at once") for item in missing(world).values())
    assert not any(item.since for item in missing(world).values())
    # Some were deleted on purpose; an administrator deletes most of these on the target, too.
    world.source.groups.update({name: kept_groups[name] for name in ("audit", "billing")})
    for name in ("g2", "g3", "g4", "g5", "g6"):
        del world.target.groups[name]
    for _ in range(3):
        sync(world, LATER)
    assert missing(world) == {}
    assert sorted(world.target.groups) == ["audit", "billing", "first-one-back"]


def test_a_group_that_others_have_deleted_on_the_target_is_forgotten(world: World) -> None:
    del world.target.groups["billing"]
    sync(world)
    sync(world, LATER)
    written = world.context().record.written_groups()
    assert written is not None
    assert list(written.groups) == ["audit"]
    assert world.steps(steps.GROUP_DELETED) == [], "this mirror has not deleted it"


@pytest.mark.parametrize("how", ["promoted", "stopped"])
def test_nothing_is_deleted_once_the_mirror_is_over(world: World, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The pass has looked at everything before."""
    sync(world)
    world.clock.sleep(LATER)
    over = threading.Event()
    real = group_deletions._own_offsets

    def look(*arguments: Any) -> Any:
        found = real(*arguments)
        over.set() if how == "stopped" else world.context().journal.step(steps.PROMOTED)
        return found

    monkeypatch.setattr(group_deletions, "_own_offsets", look)
    group_sync.sync_and_delete(world.context(), over.is_set)
    assert "billing" in world.target.groups
    assert world.steps(steps.GROUP_DELETING) == []


def test_a_mirror_that_another_owner_has_taken_over_is_no_reason_to_keep_a_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(world)
    world.clock.sleep(LATER)

    def lost(*_: Any) -> Any:
        raise ClaimLost("another owner", where=Where(), next_step="nothing")

    monkeypatch.setattr(group_deletions, "_own_offsets", lost)
    with pytest.raises(ClaimLost):
        group_sync.sync_and_delete(world.context())
    assert "billing" in world.target.groups


def test_killed_after_any_change_a_group_is_deleted_once(worlds: Worlds) -> None:
    def at() -> World:
        world = worlds.at("tail", **SECTIONS)
        sync(world)
        del world.source.groups["billing"]
        sync(world)
        world.clock.sleep(LATER)
        world.outside.revive()
        return world

    whole = at()
    sync(whole)
    assert "billing" not in whole.target.groups
    count = len(whole.outside.changes)
    assert count >= 5, whole.outside.changes
    for number in range(count):
        killed = at()
        killed.outside.dies_after = number
        with pytest.raises(Killed):
            sync(killed)
        killed.restart()
        back = killed.fork()
        # Straight, and with a source that has the group again.
        sync(killed, LATER)
        sync(killed, LATER)
        assert list(killed.target.groups) == ["audit"], f"killed after change {number}"
        assert missing(killed) == {}
        assert len(killed.steps(steps.GROUP_DELETED)) == 1, f"killed after change {number}"
        back.source.group("billing", orders_0=4)
        for _ in range(3):
            sync(back, LATER)
        assert back.target.groups["billing"].offsets[PLACE].offset == 4, f"killed after change {number}"
