"""What stops producers on the source does not stop them on the target. Clusters' access in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from phase_support import FakeAdmin, attempt_at, make_context

from airflow_provider_kafka_migration.access import created_access, mapping, write_grants
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.drift import take_over
from airflow_provider_kafka_migration.drift.source_drift import SourceDrift, split, without_open_doors
from airflow_provider_kafka_migration.errors import BrokerUnreachable, FreezeFailed
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.kafka.admin.access import (
    Acl,
    AclListing,
    NewScramCredential,
    Quota,
    QuotaEntity,
    ScramUser,
)
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.validation import source_drift as validated_drift

CLIENT: QuotaEntity = (("client-id", "orders-app"),)
OTHER: QuotaEntity = (("client-id", "other-app"),)


def right(operation: str, permission: str = "ALLOW", *, who: str = "alice", topic: str = "orders") -> Acl:
    return Acl("TOPIC", topic, "LITERAL", f"User:{who}", "*", operation, permission)


READ, WRITE, DENY = right("READ"), right("WRITE"), right("WRITE", "DENY")


class AccessAdmin(FakeAdmin):
    """ACLs, users and quotas of a cluster."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        super().__init__()
        self.acls = set(acls)
        self.users = {"alice", "bob"}
        self.values: dict[QuotaEntity, dict[str, float]] = {CLIENT: {"producer_byte_rate": 1000.0}}

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        return AclListing(True, tuple(sorted(self.acls)))

    def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, None]:
        wanted = list(acls)
        self.acls |= set(wanted)
        return dict.fromkeys(wanted)

    def delete_acls(self, acls: Iterable[Acl]) -> dict[Acl, None]:
        wanted = list(acls)
        self.acls -= set(wanted)
        return dict.fromkeys(wanted)

    def facts(self) -> Any:
        return SimpleNamespace(brokers=[1, 2])

    def scram_users(self, *, broker_id: int | None = None) -> list[ScramUser]:
        return [ScramUser(name, (("SCRAM-SHA-512", 4096),)) for name in sorted(self.users)]

    def delete_scram_credentials(self, items: Iterable[tuple[str, str]]) -> dict[str, None]:
        names = dict.fromkeys(name for name, _ in items)
        self.users -= set(names)
        return names

    def create_scram_credentials(self, items: Iterable[NewScramCredential]) -> dict[str, None]:
        names = dict.fromkeys(item.name for item in items)
        self.users |= set(names)
        return names

    def quotas(self, *, broker_id: int | None = None) -> list[Quota]:
        return [Quota(entity, dict(values)) for entity, values in self.values.items()]

    def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> dict[QuotaEntity, None]:
        for entity, values in changes.items():
            there = {**self.values.get(entity, {}), **values}
            self.values[entity] = {key: value for key, value in there.items() if value is not None}
        return dict.fromkeys(changes)


def copied(tmp_path: Path, freeze: str, *, state: State = State.TAIL, **topology: Any) -> PhaseContext:
    """A migration that has copied the access of the source: both sides are equal, and the target's is the copy."""
    webhook = {"producer_freeze_webhook": "http://localhost:1/"} if freeze == "webhook" else {}
    context = make_context(tmp_path, state=state, cutover={"freeze": freeze, **webhook}, topology=topology)
    context.source.admin = AccessAdmin([READ, WRITE, right("READ", who="bob")])  # type: ignore[assignment]
    context.target.admin = AccessAdmin()  # type: ignore[assignment]
    created_access.create_acls(context.record, context.target, source(context).acls)
    target(context).values = {}
    created_access.set_quotas(context.record, context.target, source(context).values, {})
    for name in sorted(source(context).users):
        context.journal.step(steps.USER_CREATED, key=name, details={"mechanisms": ["SCRAM-SHA-512"]})
    users = [
        {"name": name, "credentials": [["SCRAM-SHA-512", 4096]], "action": "create", "reason": ""}
        for name in sorted(source(context).users)
    ]
    plan = context.record.plan().model_copy(update={"users": []})
    plan = type(plan).model_validate({**plan.model_dump(mode="json"), "users": users})
    context.journal_store.put(context.key("plan.json"), plan.canonical())
    context.journal.step(steps.ACLS_COPIED, details={"summary": "copied"})
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.PASSED
    return context


def grant_in_cutover(context: PhaseContext) -> None:
    for state in (State.DRAIN_READY, State.CUTOVER):
        context.journal.transition(state, "the test goes on")
    write_grants.grant(context.record, context.source, context.target)


def source(context: PhaseContext) -> AccessAdmin:
    assert isinstance(context.source.admin, AccessAdmin)
    return context.source.admin


def target(context: PhaseContext) -> AccessAdmin:
    assert isinstance(context.target.admin, AccessAdmin)
    return context.target.admin


def withdraw(admin: AccessAdmin) -> None:
    """All that a person may do to stop an application's writes."""
    admin.acls = (admin.acls - {WRITE}) | {DENY}
    admin.users -= {"alice"}
    admin.values[CLIENT] = {"producer_byte_rate": 1.0}


def access(admin: AccessAdmin) -> Any:
    return set(admin.acls), set(admin.users), {entity: dict(values) for entity, values in admin.values.items()}


def named(context: PhaseContext) -> list[str]:
    return sorted(entry.details["what"] for entry in context.journal.steps(steps.DRIFT_NAMED))


def test_bindings_of_our_own_freeze_are_no_change_of_the_source(tmp_path: Path) -> None:
    context = copied(tmp_path, "acl", state=State.CUTOVER)
    context.source.config = SimpleNamespace(username="migration")  # type: ignore[misc]
    details = stops.freeze(context, attempt_at(context, "acl"))
    assert details["deny_acls"] == 1
    assert DENY in source(context).acls
    check = validated_drift.check(context.record, context.source, context.target)
    assert (check.outcome, check.findings) == (Outcome.PASSED, [])
    assert take_over.facts(context.record, context.source, context.target) == []


def test_a_binding_of_an_earlier_freeze_that_is_still_there_is_not_taken_over(tmp_path: Path) -> None:
    """A freeze that was lifted late, or a broker that still lists what was removed."""
    context = copied(tmp_path, "acl", state=State.CUTOVER)
    context.source.config = SimpleNamespace(username="migration")  # type: ignore[misc]
    stops.freeze(context, attempt_at(context, "acl"))
    stops.freeze(context, attempt_at(context, "acl", 2))
    before = access(target(context))
    assert take_over.follow(context) == []
    take_over.check_before_freeze(context)
    assert access(target(context)) == before


def test_with_our_own_freeze_withdrawals_of_others_are_taken_over(tmp_path: Path) -> None:
    context = copied(tmp_path, "acl")
    withdraw(source(context))
    take_over.follow(context)
    assert access(target(context)) == access(source(context))


@pytest.mark.parametrize("freeze", ["manual", "webhook"])
def test_what_stops_producers_is_not_taken_over_right_before_the_freeze(tmp_path: Path, freeze: str) -> None:
    context = copied(tmp_path, freeze)
    before = access(target(context))
    withdraw(source(context))
    take_over.check_before_freeze(context)
    assert access(target(context)) == before
    assert len(named(context)) == 4, named(context)


def test_the_tail_takes_over_what_gives_access_and_holds_back_what_a_person_may_stop_producers_with(
    tmp_path: Path,
) -> None:
    context = copied(tmp_path, "manual")
    acls, users, values = access(target(context))
    withdraw(source(context))
    new = right("WRITE", who="carol")
    source(context).acls |= {new}
    source(context).acls -= {READ}
    source(context).values[OTHER] = {"consumer_byte_rate": 7.0}
    lines = take_over.follow(context)
    assert len(lines) == 3, lines
    assert access(target(context)) == (
        (acls | {new}) - {READ},
        users,
        {**values, OTHER: {"consumer_byte_rate": 7.0}},
    )
    assert [what.split(":")[0] for what in named(context)] == [
        "ACL no longer on the source",
        "ACL only on the source",
        "quota of client-id orders-app",
        "user no longer on the source",
    ]
    rows = take_over.facts(context.record, context.source, context.target)
    assert sorted(row[0] for row in rows) == ["held back"] * 4 + ["taken over"] * 3, rows
    # Given back, there is nothing left to say at this moment; that it was there stays in the text.
    source(context).acls = (source(context).acls | {WRITE}) - {DENY}
    source(context).users |= {"alice"}
    source(context).values[CLIENT] = {"producer_byte_rate": 1000.0}
    assert take_over.follow(context) == []
    assert {row[0] for row in take_over.facts(context.record, context.source, context.target)} == {
        "taken over",
        "named",
    }
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.PASSED


@pytest.mark.parametrize("freeze", ["manual", "webhook", "acl"])
def test_what_keeps_producers_from_the_source_after_the_switch_is_a_warning(tmp_path: Path, freeze: str) -> None:
    context = copied(tmp_path, freeze, state=State.VALIDATING)
    withdraw(source(context))
    check = validated_drift.check(context.record, context.source, context.target)
    assert check.outcome is Outcome.WARNING
    assert len(check.findings) == 4
    # All other changes of rights still fail.
    source(context).acls |= {right("READ", "DENY", who="bob")}
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.FAILED


def test_reading_that_was_given_until_all_is_granted_is_no_surplus(tmp_path: Path) -> None:
    """With ``write_grants: at_cutover`` ALL is READ until the switch; READ stays on the target beside ALL."""
    context = copied(tmp_path, "manual")
    section = context.spec.acls.model_copy(update={"write_grants": "at_cutover"})
    context.spec = context.spec.model_copy(update={"acls": section})
    source(context).acls |= {right("ALL", who="owner")}
    assert len(take_over.follow(context)) == 1
    assert right("READ", who="owner") in target(context).acls
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.PASSED
    grant_in_cutover(context)
    assert right("ALL", who="owner") in target(context).acls
    check = validated_drift.check(context.record, context.source, context.target)
    assert (check.outcome, check.findings) == (Outcome.PASSED, [])
    source(context).acls -= {right("ALL", who="owner")}
    check = validated_drift.check(context.record, context.source, context.target)
    assert len(check.findings) == 2, "neither is there for good"


@pytest.mark.parametrize("freeze", ["webhook", "acl"])
def test_a_receiver_that_takes_rights_away_does_not_take_the_grants_of_the_switch(tmp_path: Path, freeze: str) -> None:
    context = copied(tmp_path, freeze)
    section = context.spec.acls.model_copy(update={"write_grants": "at_cutover"})
    context.spec = context.spec.model_copy(update={"acls": section})
    held, by_hand = right("WRITE", who="carol"), right("WRITE", who="dora")
    source(context).acls |= {held, by_hand}
    assert take_over.follow(context) == []
    write_grants.remember(context.record, context.source, context.target)
    source(context).acls -= {held, by_hand}
    target(context).acls |= {by_hand}
    grant_in_cutover(context)
    # Nobody but the migration stops producers with ``acl``: then a right that is gone is gone.
    assert (held in target(context).acls) == (freeze == "webhook")
    assert by_hand not in created_access.created_acls(context.record), "a person has created it, so it is not ours"
    assert validated_drift.check(context.record, context.source, context.target).outcome is (
        Outcome.WARNING if freeze == "webhook" else Outcome.PASSED
    )


def held_back(tmp_path: Path, freeze: str, *planned: Acl) -> PhaseContext:
    """As ``copied``, with ``write_grants: at_cutover``: these were planned, and wait for the switch."""
    context = copied(tmp_path, freeze)
    section = context.spec.acls.model_copy(update={"write_grants": "at_cutover"})
    context.spec = context.spec.model_copy(update={"acls": section})
    source(context).acls |= set(planned)
    plan = context.record.plan().model_copy(
        update={"acls": mapping.plan_acls(context.record, context.source, context.target, {"orders"})}
    )
    context.journal_store.put(context.key("plan.json"), plan.canonical())
    return context


def test_grants_that_a_person_took_away_to_stop_producers_are_given_at_the_switch(tmp_path: Path) -> None:
    """With ``freeze: manual`` that is how a person stops them: on the target they are to write."""
    planned, later = right("WRITE", who="carol"), right("WRITE", who="dora")
    context = held_back(tmp_path, "manual", planned)
    source(context).acls |= {later}
    assert take_over.follow(context) == []
    assert [
        row
        for row in take_over.facts(context.record, context.source, context.target)
        if row[0] == "given at the switch"
    ] == []
    source(context).acls -= {planned, later}
    assert take_over.follow(context) == []
    rows = [
        row[1]
        for row in take_over.facts(context.record, context.source, context.target)
        if row[0] == "given at the switch"
    ]
    assert len(rows) == 2
    assert all("no longer on the source" in row and "exclude_principals" in row for row in rows), rows
    write_grants.remember(context.record, context.source, context.target)
    grant_in_cutover(context)
    assert {planned, later} <= target(context).acls
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.WARNING


@pytest.mark.parametrize("freeze", ["webhook", "acl"])
def test_where_no_person_stops_producers_a_right_that_is_gone_before_the_freeze_is_gone(
    tmp_path: Path, freeze: str
) -> None:
    planned = right("WRITE", who="carol")
    context = held_back(tmp_path, freeze, planned)
    source(context).acls -= {planned}
    assert take_over.follow(context) == []
    assert [
        row
        for row in take_over.facts(context.record, context.source, context.target)
        if row[0] == "given at the switch"
    ] == []
    write_grants.remember(context.record, context.source, context.target)
    grant_in_cutover(context)
    assert planned not in target(context).acls


def test_a_right_that_was_taken_away_for_good_is_kept_out_by_the_spec(tmp_path: Path) -> None:
    planned = right("WRITE", who="carol")
    context = held_back(tmp_path, "manual", planned)
    source(context).acls -= {planned}
    section = context.spec.acls.model_copy(update={"exclude_principals": ["User:carol"]})
    context.spec = context.spec.model_copy(update={"acls": section})
    assert [
        row
        for row in take_over.facts(context.record, context.source, context.target)
        if row[0] == "given at the switch"
    ] == []
    write_grants.remember(context.record, context.source, context.target)
    grant_in_cutover(context)
    assert planned not in target(context).acls


def test_rights_that_cannot_be_read_are_no_rights_that_are_gone(tmp_path: Path) -> None:
    context = held_back(tmp_path, "manual", right("WRITE", who="carol"))

    def away(**_: Any) -> AclListing:
        raise BrokerUnreachable("the source is away")

    source(context).describe_acls = away  # type: ignore[method-assign]
    assert ["could not be checked", "the source is away"] in take_over.facts(
        context.record, context.source, context.target
    )
    with pytest.raises(BrokerUnreachable):
        write_grants.remember(context.record, context.source, context.target)


def test_a_policy_that_refuses_changes_refuses_these_too(tmp_path: Path) -> None:
    context = copied(tmp_path, "manual", on_source_drift="stop")
    withdraw(source(context))
    with pytest.raises(FreezeFailed, match="4 things have changed"):
        take_over.check_before_freeze(context)


def test_no_door_is_opened_by_what_is_held_back(tmp_path: Path) -> None:
    """An ALLOW that came with its DENY is not taken over alone; before the freeze that is refused."""
    context = copied(tmp_path, "manual")
    carol = [right("WRITE", permission, who="carol") for permission in ("ALLOW", "DENY")]
    source(context).acls |= set(carol)
    before = access(target(context))
    assert take_over.follow(context) == []
    assert access(target(context)) == before
    with pytest.raises(FreezeFailed, match="ACL only on the source"):
        take_over.check_before_freeze(context)
    assert access(target(context)) == before
    # A person decides: with both on the target nothing is missing.
    target(context).acls |= set(carol)
    take_over.check_before_freeze(context)


def test_a_denial_stays_where_its_permission_stays() -> None:
    drift = SourceDrift(surplus_acls=(DENY, right("WRITE", "DENY", who="bob"), WRITE))
    rest, withdrawn = split(drift)
    assert withdrawn.surplus_acls == (WRITE,)
    rest, opening = without_open_doors(rest, withdrawn)
    assert (rest.surplus_acls, opening.surplus_acls) == ((right("WRITE", "DENY", who="bob"),), (DENY,))


@pytest.mark.parametrize(
    ("acl", "held"),
    [
        (right("WRITE", "DENY"), True),
        (right("ALL", "DENY"), True),
        (Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "IDEMPOTENT_WRITE", "DENY"), True),
        (Acl("TRANSACTIONAL_ID", "tx", "LITERAL", "User:alice", "*", "WRITE", "DENY"), True),
        (right("READ", "DENY"), False),
        (right("WRITE"), False),
        (Acl("GROUP", "g", "LITERAL", "User:alice", "*", "ALL", "DENY"), False),
    ],
)
def test_which_new_bindings_take_write_access_away(acl: Acl, held: bool) -> None:
    rest, withdrawn = split(SourceDrift(missing_acls=(acl,)))
    assert (acl in withdrawn.missing_acls, acl in rest.missing_acls) == (held, not held)


@pytest.mark.parametrize(
    ("key", "there", "now", "held"),
    [
        ("producer_byte_rate", 10.0, 5.0, True),
        ("producer_byte_rate", None, 5.0, True),
        ("request_percentage", 10.0, 5.0, True),
        ("producer_byte_rate", 10.0, 50.0, False),
        ("producer_byte_rate", 10.0, None, False),
        ("consumer_byte_rate", 10.0, 5.0, False),
    ],
)
def test_which_quotas_slow_producers_down(key: str, there: float | None, now: float | None, held: bool) -> None:
    present = {CLIENT: {key: there}} if there is not None else {}
    rest, withdrawn = split(SourceDrift(quotas={CLIENT: {key: now}}, present_quotas=present))
    assert (CLIENT in withdrawn.quotas, CLIENT in rest.quotas) == (held, not held)


# -- brokers that lag behind -----------------------------------------------------------------------------------------


class Lagging(AccessAdmin):
    """The source when one of its brokers knows less than the other: the first answers, and the second when asked."""

    def __init__(self, admin: AccessAdmin) -> None:
        super().__init__(admin.acls)
        self.users, self.values = set(admin.users), {entity: dict(item) for entity, item in admin.values.items()}
        self.of_second: dict[QuotaEntity, dict[str, float]] = {entity: dict(i) for entity, i in admin.values.items()}
        self.users_of_second = set(admin.users)

    def scram_users(self, *, broker_id: int | None = None) -> list[ScramUser]:
        users = self.users_of_second if broker_id == 2 else self.users
        return [ScramUser(name, (("SCRAM-SHA-512", 4096),)) for name in sorted(users)]

    def quotas(self, *, broker_id: int | None = None) -> list[Quota]:
        values = self.of_second if broker_id == 2 else self.values
        return [Quota(entity, dict(item)) for entity, item in values.items()]


@pytest.fixture
def lagging(tmp_path: Path) -> PhaseContext:
    context = copied(tmp_path, "acl")
    for entity in (CLIENT, OTHER):
        source(context).values[entity] = {"producer_byte_rate": 1000.0}
    assert take_over.follow(context)
    context.source.admin = Lagging(source(context))  # type: ignore[assignment]
    return context


def test_a_user_that_one_broker_does_not_know_stays(lagging: PhaseContext) -> None:
    """Before a freeze by ACLs a withdrawal is taken over, and nobody would undo it after READY."""
    source(lagging).users -= {"bob"}
    take_over.check_before_freeze(lagging)
    assert "bob" in target(lagging).users
    assert isinstance(lagging.source.admin, Lagging)
    lagging.source.admin.users_of_second -= {"bob"}
    take_over.check_before_freeze(lagging)
    assert "bob" not in target(lagging).users


def test_a_quota_that_one_broker_does_not_know_stays(lagging: PhaseContext) -> None:
    del source(lagging).values[OTHER]
    take_over.check_before_freeze(lagging)
    assert target(lagging).values[OTHER] == {"producer_byte_rate": 1000.0}
    assert isinstance(lagging.source.admin, Lagging)
    del lagging.source.admin.of_second[OTHER]
    take_over.check_before_freeze(lagging)
    assert not target(lagging).values[OTHER]


def test_a_quota_of_which_brokers_show_two_values_stays_as_it_is(lagging: PhaseContext) -> None:
    """The answer may be of the broker that lags behind: its value would replace the newer one."""
    source(lagging).values[OTHER] = {"producer_byte_rate": 10.0}
    take_over.check_before_freeze(lagging)
    assert target(lagging).values[OTHER] == {"producer_byte_rate": 1000.0}
    assert isinstance(lagging.source.admin, Lagging)
    lagging.source.admin.of_second[OTHER] = {"producer_byte_rate": 10.0}
    take_over.check_before_freeze(lagging)
    assert target(lagging).values[OTHER] == {"producer_byte_rate": 10.0}
