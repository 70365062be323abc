"""WRITE on the target: held back until the switch, given once, and taken back when a cutover is abandoned."""

from __future__ import annotations

import pytest
from phase_world.admin import REFUSED
from phase_world.world import ORDER, PRODUCER_ACL, World, Worlds

from airflow_provider_kafka_migration.access import created_access, write_grants
from airflow_provider_kafka_migration.errors import BrokerUnreachable, MigrationError, PhaseOver, TopologyRefused
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.state import State

OWNER = Acl("TOPIC", "orders", "LITERAL", "User:owner", "*", "ALL", "ALLOW")
READS = Acl("TOPIC", "orders", "LITERAL", "User:owner", "*", "READ", "ALLOW")


@pytest.fixture
def cutover(worlds: Worlds) -> World:
    """A migration in the cutover, whose source has a producer, and an owner with all rights."""
    world = worlds.at("topology_copy", acls={"write_grants": "at_cutover"})
    world.source.acls = {*(world.source.acls or ()), OWNER}
    for name in ORDER[ORDER.index("topology_copy") : ORDER.index("cutover.floor_guard")]:
        world.clock.sleep(1)
        world.run(name)
    return world


def there(world: World) -> set[Acl]:
    return {PRODUCER_ACL, OWNER, READS} & (world.target.acls or set())


def grant(world: World) -> dict[str, object]:
    context = world.context()
    return write_grants.grant(context.record, context.source, context.target)


def take_back(world: World) -> list[str]:
    context = world.context()
    return write_grants.take_back(context.record, context.target)


def test_until_the_switch_all_is_reading(cutover: World) -> None:
    assert there(cutover) == {READS}
    assert not cutover.context().record.are_writes_granted()


def test_each_grant_is_given_once(cutover: World) -> None:
    assert grant(cutover)["granted"] == 2
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}
    cutover.target.acls = (cutover.target.acls or set()) - {PRODUCER_ACL}
    assert grant(cutover)["granted"] == 2, "what a person takes away then is not given again"
    assert there(cutover) == {OWNER, READS}


def test_grants_that_fail_are_named_and_not_journaled_as_given(cutover: World) -> None:
    cutover.outside.fail("target.admin.create_acls", lambda answers: {**answers, OWNER: REFUSED})
    with pytest.raises(TopologyRefused, match="1 of 2 write grants") as caught:
        grant(cutover)
    assert [item["acl"] for item in caught.value.details["failures"]] == [str(OWNER)]
    assert not cutover.context().record.are_writes_granted()


def test_taken_back_are_the_grants_and_no_other_right(cutover: World) -> None:
    of_others = Acl("TOPIC", "orders", "LITERAL", "User:etl", "*", "WRITE", "ALLOW")
    cutover.target.acls = {*(cutover.target.acls or ()), of_others}
    grant(cutover)
    assert take_back(cutover) == sorted(map(str, (OWNER, PRODUCER_ACL)))
    assert there(cutover) == {READS}
    assert of_others in (cutover.target.acls or ())
    assert take_back(cutover) == []
    assert grant(cutover)["granted"] == 2
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}


def test_grants_of_a_step_that_died_before_it_journaled_them_are_taken_back(cutover: World) -> None:
    context = cutover.context()
    created_access.create_acls(context.record, context.target, [PRODUCER_ACL])
    assert take_back(cutover) == [str(PRODUCER_ACL)]
    assert there(cutover) == {READS}


def test_what_cannot_be_taken_back_is_named_and_tried_again(cutover: World) -> None:
    grant(cutover)
    cutover.outside.fail("target.admin.delete_acls", lambda answers: dict.fromkeys(answers, REFUSED), times=1)
    with pytest.raises(TopologyRefused, match="2 of 2 write grants of an abandoned cutover are still on the target"):
        take_back(cutover)
    assert len(take_back(cutover)) == 2


def test_rights_that_were_given_at_once_are_no_grants_of_a_cutover(worlds: Worlds) -> None:
    world = worlds.at("cutover.floor_guard", acls={"write_grants": "at_once"})
    assert take_back(world) == []
    assert PRODUCER_ACL in (world.target.acls or ())
    assert write_grants.passes(world.spec) == ()


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "lifted"])
def test_a_slow_grant_is_undone_only_if_the_cutover_was_abandoned(cutover: World, is_ready: bool) -> None:
    """A task that was taken for dead may wake up after another one has finished the cutover."""

    def overtaken(answers: dict[Acl, object]) -> dict[Acl, object]:
        if is_ready:
            cutover.run("cutover.floor_guard")
        else:
            cutover.clock.sleep(120)
            with pytest.raises(MigrationError):
                cutover.run("cutover.freeze_limit")
        return answers

    cutover.outside.fail("target.admin.create_acls", overtaken, times=1)
    with pytest.raises(MigrationError):
        grant(cutover)
    assert there(cutover) == ({PRODUCER_ACL, OWNER, READS} if is_ready else {READS})


def goes_back(world: World) -> None:
    """The cutover is abandoned, and its grants could not be taken back then."""
    world.outside.fail("target.admin.delete_acls", BrokerUnreachable("the target is away"))
    world.clock.sleep(120)
    with pytest.raises(MigrationError):
        world.run("cutover.freeze_limit")
    world.outside.heal()


def enters_cutover(world: World) -> None:
    for state in (State.DRAIN_READY, State.CUTOVER):
        world.context().journal.transition(state, "approved again")


def take_back_in_tail(world: World) -> None:
    (again,) = write_grants.passes(world.spec)
    again(world.context())


@pytest.mark.parametrize("journaled", [True, False], ids=["granted", "still granting"])
def test_a_slow_removal_leaves_the_next_cutover_its_grants(cutover: World, journaled: bool) -> None:
    """The request that removes the grants of the former cutover takes effect once the next one has given them."""
    grant(cutover)
    goes_back(cutover)
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}

    def late(answers: dict[Acl, object]) -> dict[Acl, object]:
        enters_cutover(cutover)
        if journaled:
            grant(cutover)
            cutover.target.acls = (cutover.target.acls or set()) - set(answers)
        return answers

    cutover.outside.fail("target.admin.delete_acls", late, times=1)
    take_back_in_tail(cutover)
    if not journaled:
        grant(cutover)
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}
    assert cutover.context().record.are_writes_granted()


def test_a_grant_whose_bindings_are_taken_meanwhile_gives_them_again(cutover: World) -> None:
    def takes(answers: dict[Acl, object]) -> dict[Acl, object]:
        context = cutover.context()
        created_access.remove_acls(context.record, context.target, [PRODUCER_ACL])
        return answers

    cutover.outside.fail("target.admin.create_acls", takes, times=1)
    grant(cutover)
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}


def test_a_removal_that_begins_in_the_next_cutover_is_refused(cutover: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail has looked at the state before the cutover began."""
    grant(cutover)
    goes_back(cutover)
    created = created_access.created_acls

    def overtaken(record: MigrationRecord) -> set[Acl]:
        found = created(record)
        if record.journal.working_state is not State.CUTOVER:
            enters_cutover(cutover)
            grant(cutover)
        return found

    monkeypatch.setattr(created_access, "created_acls", overtaken)
    with pytest.raises(PhaseOver):
        take_back_in_tail(cutover)
    assert there(cutover) == {PRODUCER_ACL, OWNER, READS}
    assert cutover.context().record.are_writes_granted()
