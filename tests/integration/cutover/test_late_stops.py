"""Requests that stop producers and take effect while another owner ends the freeze, on real brokers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from threading import Thread, Timer
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation
from cutover_support import Lab
from faults import Killed
from test_freeze import acl_lab, allow, denials, may_write, wait_for

from airflow_provider_kafka_migration.errors import ClaimLost, MigrationError
from airflow_provider_kafka_migration.freeze import stops
from airflow_provider_kafka_migration.journal.entries import Owner
from airflow_provider_kafka_migration.phases import freeze, rollback
from airflow_provider_kafka_migration.record import changes
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from harness.brokers import KafkaCluster
from harness.webhook import Call, FreezeWebhook

__all__ = ["acl_lab"]

pytestmark = pytest.mark.integration

Fill = Callable[..., None]
MakeLab = Callable[..., Lab]
Name = Callable[[str], str]

#: So long a request of these tests lasts at most, seconds.
LONGEST = 3.0


@pytest.fixture(autouse=True)
def _late_ones_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client sends nothing later than the lift waits; here its requests are late on purpose, and a machine slow."""
    monkeypatch.setattr(changes, "SENDING_SECONDS", 3600.0)


def rolls_back(lab: Lab) -> None:
    """Another person takes the migration over and ends it."""
    other = lab.context()
    other.journal.claim(Owner("cli", "somebody else", "else"), takeover=True)
    rollback.run(other, reason="the run hangs")


def enters_cutover(lab: Lab) -> PhaseContext:
    context = lab.begin()
    lab.start_tail()
    lab.enter_cutover(context)
    return context


def test_acls_that_brokers_create_after_a_rollback_are_removed(acl_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "ACL_SECONDS", 1.0)
    lab, topic = acl_lab, acl_lab.topics[0]
    context = enters_cutover(lab)
    create = context.source.admin.create_acls

    def late(bindings: Any) -> Any:
        rolls_back(lab)
        return create(bindings)

    monkeypatch.setattr(context.source.admin, "create_acls", late)
    with pytest.raises(ClaimLost, match="has lost the migration"):
        freeze.run(context)
    assert denials(lab.source_cluster, context, topic) == []
    wait_for(lambda: may_write(lab.source_cluster, "alice", topic))
    context.journal.refresh()
    assert context.journal.tip_state is State.ROLLED_BACK


class Slow:
    """How slow a request is at random, and whether its process survives it.

    :param dies: the process is killed when the request is sent; it takes effect all the same.
    """

    def __init__(self, chance: random.Random) -> None:
        self.before = chance.uniform(0, LONGEST * 0.9)
        self.after = chance.uniform(0, 1)
        self.dies = chance.random() < 0.5
        self.end = chance.uniform(0, LONGEST)

    def __str__(self) -> str:
        fate = "killed" if self.dies else f"{self.after:.2f} s until its answer"
        return f"{self.before:.2f} s until its effect, {fate}; the rollback after {self.end:.2f} s"


def at_random(lab: Lab, context: PhaseContext, slow: Slow) -> None:
    """Freeze in this thread, and roll back in another one."""
    ends = Timer(slow.end, rolls_back, (lab,))
    ends.start()
    try:
        freeze.run(context)
    except (MigrationError, Killed) as error:
        print(f"   {type(error).__name__}: {str(error)[:100]}")
    ends.join()


def rounds(name: str) -> Any:
    """Yield the chances of each round; the seed is printed, and ``SEED`` repeats it."""
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"{name}: SEED={seed}")
    chance = random.Random(seed)
    for number in range(int(os.environ.get("LATE_STOPS", "15"))):
        slow = Slow(chance)
        print(f"{number}: {slow}")
        yield slow


@pytest.mark.soak
def test_acls_at_random_deny_nobody_after_a_rollback(
    make_lab: MakeLab, fill: Fill, unique_name: Name, source_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "ACL_SECONDS", LONGEST)
    admin = source_cluster.admin()
    for slow in rounds("acl"):
        topic = unique_name("t")
        fill({topic: 1})
        for future in admin.create_acls([allow(source_cluster, "alice", topic, AclOperation.WRITE)]).values():
            future.result()
        lab = make_lab([topic], user="admin", cutover={"freeze": "acl", "freeze_stable_window": "200ms"})
        context = enters_cutover(lab)
        create, sent = context.source.admin.create_acls, lab.context()
        arrival: list[Thread] = []

        def takes_effect(bindings: Any, slow: Slow = slow, create: Any = create, sent: Any = sent) -> Any:
            if slow.dies:
                arrival.append(Timer(slow.before, sent.source.admin.create_acls, (bindings,)))  # noqa: B023
                arrival[0].start()  # noqa: B023
                raise Killed
            time.sleep(slow.before)
            done = create(bindings)
            time.sleep(slow.after)
            return done

        monkeypatch.setattr(context.source.admin, "create_acls", takes_effect)
        at_random(lab, context, slow)
        for item in arrival:
            item.join()
        assert denials(source_cluster, lab.context(), topic) == [], str(slow)


class Producers:
    stopped = False

    def freeze(self) -> None:
        self.stopped = True

    def unfreeze(self) -> None:
        self.stopped = False


@pytest.mark.soak
@pytest.mark.parametrize("keeps_order", [True, False], ids=["keeps the order", "knows no order"])
def test_a_webhook_at_random_stops_nobody_after_a_rollback(
    make_lab: MakeLab, fill: Fill, unique_name: Name, monkeypatch: pytest.MonkeyPatch, keeps_order: bool
) -> None:
    monkeypatch.setattr(stops, "REQUEST_SECONDS", LONGEST)
    for slow in rounds(f"webhook, keeps_order={keeps_order}"):
        topic = unique_name("t")
        fill({topic: 1})
        producers = Producers()

        def answer(call: Call, slow: Slow = slow) -> None:
            if call.action == "freeze":
                time.sleep(slow.before)

        with FreezeWebhook(producers, answer=answer, keeps_order=keeps_order) as webhook:
            lab = make_lab([topic], cutover={"freeze": "webhook", "producer_freeze_webhook": webhook.url})
            context = enters_cutover(lab)
            at_random(lab, context, slow)
            assert not producers.stopped, str(slow)
            time.sleep(LONGEST)
            assert not producers.stopped, str(slow)
