"""Killed at its side effects, again and again: the cutover ends, and everything was done once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cutover_support import Lab
from faults import Effects, Killed, counting

from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.state import State
from harness import clients
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

Fill = Callable[[Mapping[str, int]], None]


def check_end(lab: Lab, webhook: FreezeWebhook) -> None:
    """What must be so, however often the migration was killed."""
    context = lab.context()
    assert context.journal.tip_state is State.FINALIZED
    assert context.journal.verify().is_good
    assert {len(found) for found in lab.sentinels(lab.source_cluster).values()} == {1}
    assert lab.sentinels(lab.source_cluster) == lab.sentinels(lab.target_cluster)
    lab.check_equal()
    source = clients.committed_offsets(lab.source_cluster.client_config(), lab.group, lab.topics)
    target = clients.committed_offsets(lab.target_cluster.client_config(), lab.group, lab.topics)
    assert source
    assert source == target
    data = context.evidence_store.get(context.key("evidence.json"))
    assert data is not None
    assert verify_evidence(data).bundle.outcome == "PASSED"
    assert [call.action for call in webhook.calls if call.action == "unfreeze"] == []
    assert context.record.stored_result("frozen-time")["frozen_seconds"] > 0


def prepared(make_lab: Callable[..., Lab], fill: Fill, topics: Mapping[str, int], url: str) -> Lab:
    fill(topics)
    lab = make_lab(
        list(topics),
        cutover={"freeze": "webhook", "producer_freeze_webhook": url, "freeze_stable_window": "100ms"},
    )
    context = lab.begin()
    config = lab.source_cluster.client_config()
    clients.commit_offsets(config, lab.group, clients.positions(config, lab.topics, 0.5))
    lab.start_tail()
    lab.enter_cutover(context)
    return lab


def live(lab: Lab, effects: Effects) -> bool:
    """One life of a process; whether it reached the end."""
    with counting(effects):
        try:
            lab.advance(lab.context())
        except Killed:
            return False
    return True


def test_killed_again_and_again_in_one_migration(
    make_lab: Callable[..., Lab], fill: Fill, unique_name: Callable[[str], str]
) -> None:
    with FreezeWebhook() as webhook:
        lab = prepared(make_lab, fill, {unique_name("a"): 2, unique_name("b"): 1}, webhook.url)
        lives: list[Effects] = []
        for number in range(200):
            # Every fourth dies at a request to a cluster, however many writes to the store lie before it. The others
            # get far enough, now and then, for the longest step: from the claim to READY there are seven effects.
            at_cluster = number % 4 == 3
            effects = Effects(at=1 + number % 9, when="before" if number % 8 < 4 else "after", at_cluster=at_cluster)
            lives.append(effects)
            if live(lab, effects):
                break
        else:
            pytest.fail("it never ended")
        lab.join_tail()
        assert len(lives) > 10
        kinds = {name.split(" ")[0] for effects in lives for name in effects.seen[-1:]}
        assert "put_new" in kinds
        assert kinds & {
            "produce",
            "offset_commit",
            "init_producer_id",
            "markers",
            "webhook",
            "alter_configs",
            "delete_records",
        }
        check_end(lab, webhook)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_each_side_effect(
    make_lab: Callable[..., Lab], fill: Fill, unique_name: Callable[[str], str]
) -> None:
    """Before and after each one of them, a migration of its own each time."""
    at, total = 0, 1
    while at < total:
        at += 1
        for when in ("before", "after"):
            with FreezeWebhook() as webhook:
                lab = prepared(make_lab, fill, {unique_name("t"): 2}, webhook.url)
                effects: Any = Effects(at=at, when=when)  # type: ignore[arg-type]
                ended = live(lab, effects)
                assert not ended or at > len(effects.seen)
                last = Effects()
                assert live(lab, last)
                lab.join_tail()
                check_end(lab, webhook)
                total = max(total, len(effects.seen) + (0 if ended else 1))
                lab.close()
    assert total > 20
