"""Keep while the new cluster's producers are frozen: they are freed first, whatever the old cluster does."""

from __future__ import annotations

import json

import pytest
from phase_world.outside import Killed
from phase_world.returning import Returns, keep
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.errors import BrokerUnreachable, MigrationError, PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.access import acl_row
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State

PHASE = "cutover.commit_groups"


@pytest.fixture(scope="module")
def all_returns(all_worlds: Worlds) -> Returns:
    """Ways back that the tests of this file share."""
    return Returns(all_worlds)


@pytest.fixture
def world(all_returns: Returns, worlds: Worlds) -> World:
    """A way back whose cutover has stopped the producers of the new cluster."""
    assert worlds is not None
    made = all_returns.at(PHASE, way_back={"freeze_old": "acl"})
    assert made.denied
    return made


def _old_denied(world: World) -> set[str]:
    return {acl.principal for acl in world.target.acls or () if acl.permission == "DENY"}


def _reported(world: World) -> list[list[str]]:
    data = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert data is not None
    return json.loads(data).get("deny_acls_left", [])


@pytest.mark.parametrize("is_down", [True, False])
def test_producers_are_freed_although_the_old_cluster_keeps_its_acls(world: World, is_down: bool) -> None:
    if is_down:
        world.outside.fail("target.*", BrokerUnreachable("away"))
    else:
        refused = ItemError(31, "CLUSTER_AUTHORIZATION_FAILED")
        world.outside.fail("target.admin.delete_acls", lambda answers: dict.fromkeys(answers, refused))
    with pytest.raises(BrokerUnreachable if is_down else PermissionMissing):
        keep(world)
    assert not world.denied, "the producers of the new cluster write again"
    assert world.steps(steps.FREEZE_LIFTED)
    assert world.state is State.TAIL, "the journal stays open for what is left"
    assert not world.steps(steps.OLD_CLUSTER_RELEASED)
    world.outside.heal()
    keep(world)
    assert world.state is State.ROLLED_BACK
    assert world.steps(steps.OLD_CLUSTER_RELEASED)[-1].details["deny_acls_removed"]
    assert _old_denied(world) == {"User:shop"}, "by the freeze of the first migration"
    assert _reported(world) == [acl_row(acl) for acl in world.target.acls or () if acl.permission == "DENY"]
    released = world.steps(steps.OLD_CLUSTER_RELEASED)[-1]
    assert released.details["deny_acls_left"] == 1
    assert "1 DENY ACLs of the first migration stay on the old cluster" in str(released.reason)


def test_killed_anywhere_it_ends_with_all_producers_free(world: World) -> None:
    whole = world.fork()
    whole.context()
    whole.outside.revive()
    keep(whole)
    for number in range(len(whole.outside.changes)):
        killed = world.fork()
        killed.context()
        killed.outside.revive()
        killed.outside.dies_after = number
        with pytest.raises((Killed, MigrationError)):
            keep(killed)
        killed.restart()
        keep(killed)
        assert killed.state is State.ROLLED_BACK, number
        assert not killed.denied, number
        assert _old_denied(killed) == {"User:shop"}, number
