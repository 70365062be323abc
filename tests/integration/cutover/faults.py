"""Kills at side effects, enumerated by what the code does: each write to a store, each writing request to a broker.

Only the thread that entered :func:`counting` is counted and killed, so that a tail beside it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.storage.local import LocalStore

#: Requests that change something: Produce, OffsetCommit, CreateTopics, DeleteTopics, DeleteRecords, InitProducerId,
#: WriteTxnMarkers, CreateAcls, DeleteAcls, AlterConfigs, CreatePartitions, IncrementalAlterConfigs.
WRITING_APIS = {
    0: "produce",
    8: "offset_commit",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    27: "markers",
    30: "create_acls",
    31: "delete_acls",
    33: "alter_configs",
    37: "create_partitions",
    44: "alter_configs",
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the product catches it."""


@dataclass
class Effects:
    """What was done, in order; dies at one of them.

    :param at: number of the side effect to die at, from 1; 0: never.
    :param name: die at the first side effect whose name begins so, instead.
    :param at_cluster: die at the first writing request to a cluster, or at the webhook, instead.
    :param when: before it is done, or after.
    """

    at: int = 0
    when: Literal["before", "after"] = "after"
    name: str = ""
    at_cluster: bool = False
    seen: list[str] = field(default_factory=list)
    thread: int = 0

    def run(self, name: str, effect: Any) -> Any:
        if threading.get_ident() != self.thread:
            return effect()
        self.seen.append(name)
        dies = name.startswith(self.name) if self.name else len(self.seen) == self.at
        if self.at_cluster:
            dies = not name.startswith("put")
        if dies and self.when == "before":
            raise Killed(f"before {name}")
        try:
            return effect()
        finally:
            # A write that is refused has been sent, too: each claim asks its store to refuse one.
            if dies:
                raise Killed(f"after {name}")


@contextmanager
def counting(effects: Effects) -> Iterator[Effects]:
    """Count (and die) in this thread."""
    effects.thread = threading.get_ident()
    patch = pytest.MonkeyPatch()

    def wrap_store(name: str) -> None:
        original = getattr(LocalStore, name)

        def wrapped(self: LocalStore, key: str, data: bytes, *args: Any, **kwargs: Any) -> Any:
            if key.endswith("journal.jsonl"):  # a view that is made anew: dying there is dying before the next one
                return original(self, key, data, *args, **kwargs)
            return effects.run(f"{name} {key}", lambda: original(self, key, data, *args, **kwargs))

        patch.setattr(LocalStore, name, wrapped)

    for name in ("put", "put_new"):
        wrap_store(name)
    raw, message = BrokerConnection.call_raw, BrokerConnection.call

    def call_raw(self: BrokerConnection, api_key: int, *args: Any, **kwargs: Any) -> Any:
        if api_key not in WRITING_APIS:
            return raw(self, api_key, *args, **kwargs)
        return effects.run(WRITING_APIS[api_key], lambda: raw(self, api_key, *args, **kwargs))

    def call(self: BrokerConnection, request: Any, *args: Any, **kwargs: Any) -> Any:
        api_key = int(request.API_KEY)
        if api_key not in WRITING_APIS:
            return message(self, request, *args, **kwargs)
        return effects.run(WRITING_APIS[api_key], lambda: message(self, request, *args, **kwargs))

    patch.setattr(BrokerConnection, "call_raw", call_raw)
    patch.setattr(BrokerConnection, "call", call)
    post = FreezeWebhook._post

    def posting(self: FreezeWebhook, body: bytes, seconds: float) -> Any:
        return effects.run("webhook", lambda: post(self, body, seconds))

    patch.setattr(FreezeWebhook, "_post", posting)
    try:
        yield effects
    finally:
        patch.undo()
