"""Clusters and stores that are away while producers are frozen: they are free again within the limit, or somebody is
told what to do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from cutover_support import CUTOVER_STEPS, Lab

from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    FingerprintChanged,
    FreezeFailed,
    IllegalTransition,
    StillFrozen,
)
from airflow_provider_kafka_migration.migration import FreezeWatch, Migration
from airflow_provider_kafka_migration.phases import freeze as cutover_freeze
from airflow_provider_kafka_migration.phases import sentinels
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.faults.s3_faults import Fault, FaultyS3
from harness.processes import free_port
from harness.s3 import S3Server
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]

#: A machine under load needs its time; all waits end as soon as what they wait for is there.
PATIENCE_SECONDS = 120.0


def dead_cluster() -> dict[str, Any]:
    """Where a killed cluster was: a port of this machine that nobody listens at."""
    return {"bootstrap.servers": f"127.0.0.1:{free_port()}"}


def resolver(lab: Lab, *dead: str, **instead: Any) -> Resolver:
    """Resolves the lab's connections; those of dead clusters lead nowhere."""
    known = {name.upper(): value for name, value in {**lab.references, **instead}.items()}
    known |= {name.upper(): dead_cluster() for name in dead}
    return Resolver({"env": lambda name: json.dumps(known[name])})


def opened(lab: Lab, *dead: str, later: bool = False, **instead: Any) -> Migration:
    """The migration as another process of the same owner opens it, with clusters that are dead.

    :param later: the limit of any freeze has long passed.
    """
    migration = Migration.open(lab.spec, "lab", resolver(lab, *dead, **instead), actor="another process", kind="cli")
    if later:
        migration._now = lambda: datetime.now(UTC) + timedelta(hours=1)  # type: ignore[method-assign]
    return migration


def freeze(lab: Lab, context: PhaseContext) -> None:
    lab.enter_cutover(context)
    cutover_freeze.run(context)


def state(context: PhaseContext) -> State | None:
    context.journal.refresh()
    return context.journal.tip_state


def actions(webhook: FreezeWebhook) -> list[str]:
    return [call.action for call in webhook.calls]


@pytest.fixture
def webhook() -> Iterator[FreezeWebhook]:
    with FreezeWebhook() as found:
        yield found


@pytest.fixture
def lab(make_lab: MakeLab, fill: Fill, unique_name: Name, webhook: FreezeWebhook) -> Lab:
    """Its producers are frozen by a webhook."""
    topic = unique_name("t")
    fill({topic: 2})
    return make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})


def test_the_watch_lifts_whatever_cluster_is_dead(lab: Lab, webhook: FreezeWebhook) -> None:
    context = lab.begin()
    lab.start_tail()
    for dead in (("target",), ("source",), ("source", "target")):
        webhook.calls.clear()
        freeze(lab, context)
        with opened(lab, *dead) as migration:
            assert migration.run("cutover.freeze_limit").details["watch"] is True
        with opened(lab, *dead, later=True) as migration, pytest.raises(FreezeFailed, match="was lifted"):
            migration.run("cutover.freeze_limit")
        assert actions(webhook) == ["freeze", "unfreeze"], dead
        assert state(context) is State.TAIL


@pytest.mark.parametrize("dead", [("target",), ("source", "target")], ids="-and-".join)
def test_rollback_frees_producers_in_a_freeze_without_the_clusters(
    lab: Lab, webhook: FreezeWebhook, dead: tuple[str, ...]
) -> None:
    context = lab.begin()
    lab.start_tail()
    freeze(lab, context)
    with opened(lab, *dead) as migration:
        result = migration.run("rollback", reason="the target is gone")
    assert actions(webhook) == ["freeze", "unfreeze"]
    assert state(context) is State.ROLLED_BACK
    assert result.details["rolled_back_from"] == "cutover"
    assert [item["part"] for item in result.details["problems"]] == ["inventory"], "what could not be looked at is told"
    assert context.journal.verify().is_good


def test_rollback_is_refused_once_clients_may_switch_and_claims_nothing(lab: Lab, webhook: FreezeWebhook) -> None:
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    for step in CUTOVER_STEPS:
        step(context)
    context.journal.transition(State.AWAITING_CLIENT_SWITCH, "lab")
    entries = len(context.journal.entries())
    other = Migration.open(lab.spec, "somebody/else", resolver(lab), actor="rollback", takeover=True)
    with other, pytest.raises(IllegalTransition, match="awaiting_client_switch"):
        other.run("rollback")
    assert actions(webhook) == ["freeze", "freeze"], "the second one without a deadline"
    context.journal.refresh()
    assert len(context.journal.entries()) == entries, "who is refused takes nothing over"


def test_a_step_lifts_when_its_cluster_stays_away_until_the_limit(lab: Lab, webhook: FreezeWebhook) -> None:
    """The task of a step starts anew, and the target has died: nothing of the step itself can run."""
    context = lab.begin()
    lab.start_tail()
    freeze(lab, context)
    sentinels.run(context)
    with opened(lab, "target", later=True) as migration, pytest.raises(FreezeFailed, match="was lifted") as caught:
        migration.run("cutover.final_drain")
    assert caught.value.details["cause"]["code"] == BrokerUnreachable.code
    assert actions(webhook) == ["freeze", "unfreeze"]
    context.journal.refresh()
    assert context.journal.working_state is State.TAIL


def test_a_target_that_comes_back_within_the_limit_costs_no_second_freeze(lab: Lab, webhook: FreezeWebhook) -> None:
    lab.spec = lab.spec.model_copy(
        update={"cutover": lab.spec.cutover.model_copy(update={"max_producer_freeze": timedelta(minutes=10)})}
    )
    context = lab.begin()
    lab.start_tail()
    freeze(lab, context)
    sentinels.run(context)
    lab.kill_tail()
    tries: list[Progress] = []
    ended: list[Any] = []
    migration = Migration.open(lab.spec, "lab", resolver(lab), actor="final_drain", kind="cli", progress=tries.append)

    def drain() -> None:
        with migration:
            try:
                ended.append(migration.run("cutover.final_drain"))
            except BaseException as error:
                ended.append(error)

    lab.target_cluster.kill(0)
    try:
        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum("trying again" in item.message for item in tries) < 2:
            assert not ended, ended
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        lab.target_cluster.restart(0)
    lab.start_tail()
    thread.join(PATIENCE_SECONDS)
    assert len(ended) == 1
    assert not isinstance(ended[0], BaseException), ended
    assert actions(webhook) == ["freeze"]
    states = [entry.to_state for entry in lab.context().journal.entries()]
    assert State.FAILED not in states, "a try that is repeated is no failure"
    lab.advance(lab.context())
    lab.check_equal()


def test_with_acls_only_the_source_is_needed_and_the_error_has_the_command(
    make_lab: MakeLab, fill: Fill, unique_name: Name, source_cluster: KafkaCluster
) -> None:
    topic = unique_name("t")
    fill({topic: 1})
    binding = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = source_cluster.admin()
    for future in admin.create_acls([binding]).values():
        future.result()
    lab = make_lab([topic], user="admin", cutover={"freeze": "acl"})
    context = lab.begin()
    lab.start_tail()
    freeze(lab, context)

    def denied() -> list[str]:
        return [
            acl.principal
            for acl in context.source.admin.describe_acls().acls
            if acl.permission == "DENY" and acl.resource_name == topic
        ]

    assert denied() == ["User:alice"]
    with opened(lab, "source", later=True) as migration, pytest.raises(StillFrozen) as caught:
        migration.run("cutover.freeze_limit")
    assert f"--remove --force --deny-principal 'User:alice' --operation Write --topic '{topic}'" in str(caught.value)
    # A connection that leads to another cluster must not be taken for the source.
    wrong = lab.references["target"]
    with opened(lab, later=True, source=wrong) as migration, pytest.raises(StillFrozen) as caught:
        migration.run("cutover.freeze_limit")
    assert caught.value.details["cause"]["code"] == FingerprintChanged.code
    assert denied() == ["User:alice"]
    with opened(lab, "source", later=True) as migration, pytest.raises(StillFrozen):
        migration.run("rollback")
    assert state(context) is not State.ROLLED_BACK, "nothing would free the producers after the end"
    with opened(lab, "target", later=True) as migration, pytest.raises(FreezeFailed, match="was lifted"):
        migration.run("cutover.freeze_limit")
    assert denied() == []


def test_without_the_journal_nobody_frees_producers_but_everybody_is_told(
    make_lab: MakeLab,
    fill: Fill,
    unique_name: Name,
    webhook: FreezeWebhook,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_kafka_migration.storage.s3.MAX_ATTEMPTS", 2)
    topic = unique_name("t")
    fill({topic: 1})
    prefix = topic.lower().replace(".", "-")
    with FaultyS3(s3_server.endpoint_url, s3_server.config()) as front:
        lab = make_lab(
            [topic],
            s3=front.config(),
            locations={name: f"s3://migration/{prefix}/{name}" for name in ("journal", "archive", "evidence")},
            storage={"conn_id": "env:STORAGE"},
            cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url},
        )
        context = lab.begin()
        lab.start_tail()
        freeze(lab, context)
        watch = FreezeWatch.open(lab.spec, resolver(lab))
        assert watch.check()["ready"] is False
        front.weather(Fault.DROPPED, rate=1.0)
        with opened(lab, later=True) as migration, pytest.raises(StillFrozen, match="journal") as caught:
            migration.run("cutover.freeze_limit")
        assert webhook.url.removesuffix("/freeze") in caught.value.next_step
        # A step's task that starts now knows nothing of the freeze: it waits as long as one may last, then tells.
        clock = [datetime.now(UTC)]
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            clock[0] += timedelta(seconds=max(seconds, 20.0))

        with opened(lab) as migration:
            migration._now, migration._sleep = lambda: clock[0], sleep  # type: ignore[method-assign]
            with pytest.raises(StillFrozen, match="journal"):
                migration.run("cutover.sentinels")
        assert len(pauses) >= 3
        # The trigger knows the freeze from before; once it is overdue somebody has to know.
        watched = watch._context
        assert watched is not None
        watched.now = lambda: datetime.now(UTC) + timedelta(hours=1)
        assert watch.check()["ready"] is True
        watch.close()
        assert actions(webhook) == ["freeze"]
        front.weather()
        with opened(lab, "source", "target", later=True) as migration, pytest.raises(FreezeFailed, match="was lifted"):
            migration.run("cutover.freeze_limit")
        assert actions(webhook) == ["freeze", "unfreeze"]
        assert state(context) is State.TAIL
