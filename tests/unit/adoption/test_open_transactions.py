"""A partition with an open transaction is refused with the name of what holds it, as far as brokers tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.adoption import by_content
from airflow_provider_kafka_migration.adoption.last_records import LogEnd
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.errors import PermissionMissing
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionFacts
from airflow_provider_kafka_migration.spec import AdoptSection

ENDED, HELD = ("orders", 0), ("orders", 1)
CANDIDATES = {key: Candidate(*key, "a.orders", "s-id", "t-id", 0, 10) for key in (ENDED, HELD)}
ENDS = {
    **{key: LogEnd(0, 10, 10, 10) for key in (ENDED, HELD)},
    ("a.orders", 0): LogEnd(0, 10, 10, 10),
    ("a.orders", 1): LogEnd(0, 10, 10, 7),
}


def transaction(name: str, *keys: tuple[str, int], start_time_ms: int = -1) -> TransactionFacts:
    return TransactionFacts(name, 1, "Ongoing", 1, keys, start_time_ms, 60_000)


def refused(monkeypatch: pytest.MonkeyPatch, answer: list[TransactionFacts] | Exception | None) -> dict[Any, str]:
    """What is refused if the brokers of the target answer so when they are asked for open transactions."""

    def open_transactions() -> list[TransactionFacts] | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(by_content, "read_log_ends", lambda _, keys: {key: ENDS[key] for key in keys})
    target = SimpleNamespace(wire=None, admin=SimpleNamespace(open_transactions=open_transactions))
    context = cast("Any", SimpleNamespace(source=SimpleNamespace(wire=None), target=target))
    adopt = AdoptSection.model_validate({"from": "mirrormaker2", "stable_window": "0s"})
    found = FoundStarts()
    ends = by_content._ends_that_stand_still(context, CANDIDATES, adopt, found)
    assert ends.keys() == {ENDED}
    return dict(found.refused)


def test_the_transaction_is_named_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    other = transaction("payments-app", ("a.orders", 0))
    mine = transaction("src-mm2-MirrorSourceConnector-0", ("a.orders", 1), start_time_ms=1_000)
    assert refused(monkeypatch, [other, mine]) == {
        HELD: "a transaction is open on the target from offset 7 on: its marker would take an offset of the copy "
        "(transactional id src-mm2-MirrorSourceConnector-0: brokers abort it soon after 1970-01-01T00:01:01+00:00); "
        "wait until it has ended, or abort it, and plan again"
    }


def test_a_transaction_without_times_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refused(monkeypatch, [transaction("app", ("a.orders", 1))])
    assert "(transactional id app); wait" in found[HELD]


@pytest.mark.parametrize("answer", [None, [], PermissionMissing("no")])
def test_it_is_refused_without_a_name_if_brokers_tell_none(
    monkeypatch: pytest.MonkeyPatch, answer: list[TransactionFacts] | Exception | None
) -> None:
    found = refused(monkeypatch, answer)
    assert found[HELD].startswith("a transaction is open on the target from offset 7 on")
    assert "transactional id" not in found[HELD]
