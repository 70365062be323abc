"""Transactions are asked for on all brokers that the cluster has now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from airflow_provider_kafka_migration.kafka.admin.producers import API_LIST_TRANSACTIONS, TransactionsAdmin


class Wire:
    """A cluster that another broker has joined; each coordinates one transaction."""

    def __init__(self) -> None:
        self.known, self.present = [1, 2], [1, 2, 3]

    def connection(self) -> Any:
        return SimpleNamespace(api_versions={API_LIST_TRANSACTIONS: (0, 1)})

    def metadata(self, topics: list[str]) -> None:
        self.known = self.present

    def brokers(self) -> list[Any]:
        return [SimpleNamespace(broker_id=number) for number in self.known]

    def retrying(self, attempt: Any) -> Any:
        return attempt()

    def request(self, request: Any, *, broker_id: int) -> Any:
        state = SimpleNamespace(transactional_id=f"t{broker_id}", producer_id=broker_id, transaction_state="Ongoing")
        return SimpleNamespace(error_code=0, transaction_states=[state])


def test_a_broker_that_joins_later_is_asked() -> None:
    found = TransactionsAdmin(cast(Any, Wire()), "source").list_transactions()
    assert found is not None
    assert [(item.transactional_id, item.broker) for item in found] == [("t1", 1), ("t2", 2), ("t3", 3)]
