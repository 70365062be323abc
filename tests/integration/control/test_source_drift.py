"""What changes on the source after the plan is taken over, refused or ignored; only what is ours is ever removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.drift import source_drift, take_over
from airflow_provider_kafka_migration.errors import FreezeFailed, PermissionMissing, TopologyRefused
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing, NewScramCredential, QuotaEntity
from airflow_provider_kafka_migration.planning import follow, tail_job
from airflow_provider_kafka_migration.record import producer_ids, steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.validation import source_drift as validated_drift
from harness.processes import wait_for
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration

PASSWORD = "secret-of-this-test"


@pytest.fixture
def stem(unique_name: Callable[[str], str]) -> str:
    """Names of topics, users and principals of one test."""
    return unique_name("drift").replace(".", "-")[-40:]


@pytest.fixture
def begin(make_control: Callable[..., Control], stem: str) -> Callable[..., tuple[Control, PhaseContext]]:
    """Makes migrations of one topic whose topology and access are copied: they stand in ``tail``."""

    def make(acls_section: dict[str, Any] | None = None, **topology_section: Any) -> tuple[Control, PhaseContext]:
        only_mine = {"exclude_principals": [f"User:(?!{stem}).*"]}
        control = make_control(
            f"{stem}.",
            acls={**only_mine, **(acls_section or {})},
            topology=topology_section,
            # The migration stops the producers itself, so nothing that takes rights away is held back.
            cutover={"freeze": "acl"},
        )
        control.source_cluster.create_topic(f"{stem}.orders", 1, {"retention.ms": "86400000"})
        return control, control.context()

    return make


def to_tail(control: Control) -> PhaseContext:
    """Plan, topology, access; the migration stands in ``tail``."""
    context, _ = control.planned()
    copy_topics(context)
    apply.run(context)
    for state in (State.SEED, State.TAIL):
        context.journal.transition(state, "test")
    return control.context()


def right(stem: str, name: str, operation: str = "READ", *, who: str = "app", allow: str = "ALLOW") -> Acl:
    return Acl("TOPIC", name, "LITERAL", f"User:{stem}-{who}", "*", operation, allow)


def mine(context: PhaseContext, stem: str) -> set[Acl]:
    return {acl for acl in context.target.admin.describe_acls().acls if acl.principal.startswith(f"User:{stem}")}


def set_config(context: PhaseContext, topic: str, **values: str | None) -> None:
    change = {name.replace("_", "."): value for name, value in values.items()}
    assert context.source.admin.alter_topic_configs({topic: change}) == {topic: None}
    wanted = {name: value for name, value in change.items() if value is not None}
    wait_for(
        "the source to have it",
        lambda: wanted.items() <= context.source.admin.topic_configs([topic])[topic].overrides.items(),
        60,
    )


def change_acls(context: PhaseContext, *, add: tuple[Acl, ...] = (), remove: tuple[Acl, ...] = ()) -> None:
    """On the source; brokers learn of them a moment later."""
    admin = context.source.admin
    assert {*admin.create_acls(add).values(), *admin.delete_acls(remove).values()} <= {None}

    def known() -> bool:
        there = set(admin.describe_acls().acls)
        return set(add) <= there and not set(remove) & there

    wait_for("the source's brokers to know", known, 120)


def test_acls_are_followed_and_only_what_the_migration_created_is_removed(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str
) -> None:
    control, context = begin()
    topic = f"{stem}.orders"
    copied, deny = right(stem, topic), right(stem, topic, "WRITE", who="other", allow="DENY")
    theirs = right(stem, topic, "DESCRIBE", who="theirs")
    kept = right(stem, topic, who="kept")
    change_acls(context, add=(copied, deny, theirs, kept))
    # The target has it already, so the migration does not create it, and must not remove it.
    assert context.target.admin.create_acls([theirs]) == {theirs: None}
    context = to_tail(control)
    assert mine(context, stem) == {copied, deny, theirs, kept}
    new = right(stem, topic, "WRITE", who="late")
    change_acls(context, add=(new,), remove=(copied, deny, theirs))
    lines = take_over.follow(context)
    assert len(lines) == 3, lines
    wait_for("the target's brokers to know", lambda: mine(context, stem) == {new, theirs, kept}, 120)
    followed = context.journal.find_step(steps.DRIFT_FOLLOWED)
    assert followed is not None
    assert sorted(followed.details["changes"]) == sorted(lines)
    assert take_over.follow(control.context()) == []


def test_topics_that_the_tail_takes_up_get_their_acls(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str
) -> None:
    control, context = begin()
    late = f"{stem}.late"
    change_acls(context, add=(right(stem, late),))
    context = to_tail(control)
    producer_ids.take_producer_ids(context.record, context.target)
    plan = context.record.plan()
    partitions = copy_jobs.planned_partitions(context.spec, plan)
    job = copy_jobs.build_job(
        context.record, context.source, "seed", copy_jobs.lanes_of(context.record, plan, partitions)
    )
    context.journal_store.put(copy_jobs.job_key(context.record, "seed"), job.canonical())
    tail_job.write(context.record, context.source, None)
    assert mine(context, stem) == set(), "the topic is not there yet"
    control.source_cluster.create_topic(late, 1)
    wait_for("the new topic", lambda: late in context.source.admin.describe_topics(), 120)
    assert follow.follow(context) == [(late, 0)]
    take_over.follow(context)
    wait_for("its ACL on the target", lambda: mine(context, stem) == {right(stem, late)}, 120)


def test_changed_configs_become_part_of_the_plan_and_of_what_is_put_back(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str
) -> None:
    control, _ = begin()
    topic = f"{stem}.orders"
    context = to_tail(control)
    before = context.record.plan().digest()
    set_config(context, topic, retention_ms="172800000", max_message_bytes="20000000", cleanup_policy="compact")
    with pytest.raises(FreezeFailed, match=r"retention.ms 86400000 -> 172800000"):
        take_over.check_before_freeze(context)
    assert any(
        "not on the target yet" in row for row in take_over.facts(context.record, context.source, context.target)
    )
    (line,) = take_over.follow(context)
    assert "max.message.bytes (default) -> 20000000" in line
    take_over.check_before_freeze(control.context())
    plan = context.record.plan()
    assert plan.digest() != before, "an approval that was given before has to be given again"
    wanted = {"cleanup.policy": "compact", "max.message.bytes": "20000000", "retention.ms": "172800000"}
    assert plan.topic(topic).source_configs == plan.topic(topic).target_configs == wanted
    assert control.overrides(topic)["max.message.bytes"] == "20000000", "larger batches have room while copying"
    assert control.overrides(topic)["retention.ms"] == "-1"
    assert take_over.follow(control.context()) == []
    copy_settings.restore_producer_visible(context.record, context.target)
    copy_settings.restore_deleting(context.record, context.target)
    # A broker learns of a change a moment after the controller has made it.
    wait_for("the settings of the source", lambda: control.overrides(topic) == wanted, 120)
    assert validated_drift.check(context.record, context.source, context.target).outcome is Outcome.PASSED


def test_a_pass_that_was_killed_is_completed_by_the_next_one(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = begin()
    topic = f"{stem}.orders"
    context = to_tail(control)
    new = right(stem, topic)
    change_acls(context, add=(new,))
    set_config(context, topic, max_message_bytes="20000000")

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    for place in ((copy_settings, "apply_configs"), (type(context.target.admin), "create_acls")):
        with monkeypatch.context() as patch:
            patch.setattr(*place, killed)
            with pytest.raises(Killed):
                take_over.follow(control.context())
    take_over.follow(control.context())
    assert control.overrides(topic)["max.message.bytes"] == "20000000"
    wait_for("the ACL", lambda: mine(context, stem) == {new}, 120)
    change_acls(context, add=(right(stem, topic, who="kept"),), remove=(new,))
    take_over.follow(control.context())
    wait_for("its removal", lambda: mine(context, stem) == {right(stem, topic, who="kept")}, 120)


def test_quotas_and_users_are_followed(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_APP", PASSWORD)
    app, other = f"{stem}-app", f"{stem}-other"
    control, context = begin({"users": {app: "env:SECRET_OF_APP"}, "quotas": "keep_target"})
    admin = context.source.admin
    set_entity: QuotaEntity = (("client-id", f"{stem}-set"),)
    gone_entity: QuotaEntity = (("client-id", f"{stem}-gone"),)
    first = {set_entity: {"producer_byte_rate": 1000.0}, gone_entity: {"producer_byte_rate": 5.0}}
    assert set(admin.alter_quotas(first).values()) == {None}
    credential = NewScramCredential(app, "SCRAM-SHA-512", PASSWORD, 4096)
    assert admin.create_scram_credentials([credential]) == {app: None}
    context = to_tail(control)
    assert app in {user.name for user in context.target.admin.scram_users() or []}
    # Quota values that the migration has set are its own to change, whatever the policy for the target's.
    changed = {set_entity: {"producer_byte_rate": 2000.0}, gone_entity: {"producer_byte_rate": None}}
    assert set(admin.alter_quotas(changed).values()) == {None}
    assert admin.delete_scram_credentials([(app, "SCRAM-SHA-512")]) == {app: None}
    new_user = NewScramCredential(other, "SCRAM-SHA-512", PASSWORD, 4096)
    assert admin.create_scram_credentials([new_user]) == {other: None}

    def seen() -> bool:
        users = {user.name for user in admin.scram_users() or []}
        quotas = {quota.entity: dict(quota.values) for quota in admin.quotas() or []}
        return (
            app not in users and other in users and quotas.get(set_entity) == changed[set_entity]
        ) and gone_entity not in quotas

    wait_for("the source to have it", seen, 120)
    take_over.follow(context)

    def taken() -> bool:
        users = {user.name for user in context.target.admin.scram_users() or []}
        quotas = {quota.entity: dict(quota.values) for quota in context.target.admin.quotas() or []}
        return app not in users and quotas.get(set_entity) == changed[set_entity] and gone_entity not in quotas

    wait_for("the target to have it", taken, 120)
    named = {entry.details["what"]: entry.details["why"] for entry in context.journal.steps(steps.DRIFT_NAMED)}
    assert "its secret cannot be read" in named[f"user {other}"]
    check = validated_drift.check(context.record, context.source, context.target)
    assert check.outcome is Outcome.WARNING
    assert any(other in finding for finding in check.findings)


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_other_policies_change_nothing_and_stay_in_sight(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str, policy: str
) -> None:
    control, context = begin(on_source_drift=policy)
    topic = f"{stem}.orders"
    copied = right(stem, topic)
    change_acls(context, add=(copied, right(stem, topic, who="kept")))
    context = to_tail(control)
    change_acls(context, remove=(copied,))
    set_config(context, topic, retention_ms="172800000")
    digest = context.record.plan().digest()
    if policy == "stop":
        assert take_over.follow(context) == []
        with pytest.raises(FreezeFailed, match="2 things have changed on the source") as caught:
            take_over.check_before_freeze(context)
        assert str(copied) in " ".join(caught.value.details["changes"])
    else:
        take_over.check_before_freeze(context)
    assert copied in mine(context, stem)
    assert context.record.plan().digest() == digest
    assert len(context.journal.steps(steps.DRIFT_NAMED)) == 2
    check = validated_drift.check(context.record, context.source, context.target)
    assert check.outcome is (Outcome.FAILED if policy == "stop" else Outcome.WARNING)
    assert len(check.findings) == 2


def test_nothing_is_changed_while_producers_are_frozen(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str
) -> None:
    control, context = begin()
    context = to_tail(control)
    new = right(stem, f"{stem}.orders")
    change_acls(context, add=(new,))
    details = {"method": "manual", "requested_at": "2026-01-01T00:00:00.000Z", "deadline": "2036-01-01T00:00:00.000Z"}
    context.journal.step("freeze_requested", key="1", details=details)
    assert take_over.follow(control.context()) == []
    assert mine(context, stem) == set()


def test_what_cannot_be_read_is_never_taken_for_no_change(
    begin: Callable[..., tuple[Control, PhaseContext]], stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, context = begin()
    copied = right(stem, f"{stem}.orders")
    change_acls(context, add=(copied,))
    context = to_tail(control)
    weak = control.context(user="alice")
    weak.target = context.target
    with pytest.raises(PermissionMissing):
        take_over.check_before_freeze(weak)
    assert validated_drift.check(weak.record, weak.source, weak.target).outcome is Outcome.FAILED
    (row,) = [row for row in take_over.facts(weak.record, weak.source, weak.target) if row[0] == "could not be checked"]
    assert row[1]
    # A broker that has just started may know no ACL yet; one with a half of them must not cost rights, either.
    half = control.context()
    everything = half.source.admin.describe_acls()

    def one_broker_knows_less(broker_id: int | None = None) -> AclListing:
        others = tuple(acl for acl in everything.acls if acl != copied)
        return everything if broker_id is not None else AclListing(True, others or (right(stem, "x", who="x"),))

    with monkeypatch.context() as patch:
        patch.setattr(half.source.admin, "describe_acls", one_broker_knows_less)
        assert source_drift.read_drift(half.record, half.source, half.target, half.record.plan()).surplus_acls == ()
        patch.setattr(half.source.admin, "describe_acls", lambda **_: AclListing(True))
        with pytest.raises(TopologyRefused, match="no longer lists any ACLs"):
            take_over.follow(half)
    assert copied in mine(context, stem)
