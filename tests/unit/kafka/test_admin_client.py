"""Admin calls by confluent-kafka's AdminClient: errors per item, bounded waits, and what a lost answer becomes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kafka_migration.errors import AuthenticationFailed, BrokerRefused, BrokerUnreachable, Transient
from airflow_provider_kafka_migration.kafka.admin import base
from airflow_provider_kafka_migration.kafka.admin.topics import TopicsAdmin
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.config import ClientConfig


class Wire:
    """A cluster that answers the wire, and tries again what may pass."""

    def __init__(self, *, read_only: bool = False, attempts: int = 1) -> None:
        self.config = ClientConfig("target", (("b1", 9092),), read_only=read_only)
        self.attempts = attempts
        self.asked = 0

    def metadata(self, topics: list[str]) -> None:
        assert topics == []
        self.asked += 1

    def retrying(self, attempt: Callable[[], Any]) -> Any:
        for _ in range(self.attempts - 1):
            try:
                return attempt()
            except Transient:
                pass
        return attempt()


class Client:
    """A simulated AdminClient. ``answers`` has one entry per topic, in order; ``...`` means no answer."""

    def __init__(self, config: dict[str, Any], script: dict[str, list[Any]], requests: list[list[str]]) -> None:
        self.config, self.script, self.requests = config, script, requests

    def poll(self, seconds: float) -> None:
        self.config["error_cb"]("b1:9092: certificate verify failed")

    def delete_topics(self, names: list[str], **options: float) -> dict[str, Future[None]]:
        assert options["request_timeout"] < base.ANSWER_SECONDS or base.ANSWER_SECONDS < 1
        self.requests.append(list(names))
        return {name: self._future(self.script[name].pop(0)) for name in names}

    def _future(self, answer: Any) -> Future[None]:
        future: Future[None] = Future()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, KafkaError):
            future.set_exception(KafkaException(answer))
        elif answer is None:
            future.set_result(None)
        return future


class Lab:
    """An admin whose AdminClients follow a script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wire: Wire, **script: list[Any]) -> None:
        self.clients: list[Client] = []
        self.requests: list[list[str]] = []

        def make(config: dict[str, Any]) -> Client:
            self.clients.append(Client(config, script, self.requests))
            return self.clients[-1]

        monkeypatch.setattr(base, "AdminClient", make)
        monkeypatch.setattr(base, "ANSWER_SECONDS", 0.05)
        self.wire = wire
        self.admin = TopicsAdmin(wire, "target")  # type: ignore[arg-type]
        self.admin._sleep = lambda _: None


def test_each_item_has_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(
        monkeypatch,
        Wire(),
        done=[None],
        gone=[KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)],
        policy=[KafkaError(KafkaError.POLICY_VIOLATION, "not on Fridays")],
        mine=[KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)],
        null=[KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "(null)")],
        dump=[KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Request Request(processor=0, ...")],
    )
    found = lab.admin.delete_topics(["done", "gone", "policy", "mine", "null", "dump"])
    assert found == {
        "done": None,
        "gone": None,
        "policy": ItemError(44, "POLICY_VIOLATION", "not on Fridays"),
        # Where the broker sent no text, librdkafka's own one is not passed off as the broker's.
        "mine": ItemError(29, "TOPIC_AUTHORIZATION_FAILED"),
        "null": ItemError(31, "CLUSTER_AUTHORIZATION_FAILED"),
        "dump": ItemError(31, "CLUSTER_AUTHORIZATION_FAILED"),
    }
    assert found["mine"] is not None
    assert found["mine"].unauthorized
    assert len(lab.clients) == 1


def test_only_retriable_items_are_sent_again_and_another_controller_gets_a_new_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved, late = KafkaError(KafkaError.NOT_CONTROLLER), KafkaError(KafkaError.REQUEST_TIMED_OUT)
    lab = Lab(monkeypatch, Wire(), a=[moved, late, None], b=[None])
    assert lab.admin.delete_topics(["a", "b"]) == {"a": None, "b": None}
    assert lab.requests == [["a", "b"], ["a"], ["a"]]
    assert len(lab.clients) == 2


def test_an_item_without_an_answer_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, Wire(), answered=[None], silent=[...])
    found = lab.admin.delete_topics(["answered", "silent"])
    assert found["answered"] is None
    assert found["silent"] is not None
    assert found["silent"].name == "NO_ANSWER"


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_lost_answer_is_named_and_tried_again_with_a_new_client(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    lost = KafkaError(code, "Failed while waiting for controller")
    lab = Lab(monkeypatch, Wire(attempts=2), t=[lost, None])
    assert lab.admin.delete_topics(["t"]) == {"t": None}
    assert len(lab.clients) == 2
    assert lab.wire.asked == 1
    lab = Lab(monkeypatch, Wire(), t=[lost])
    with pytest.raises(BrokerUnreachable, match="waiting for controller; b1:9092: certificate verify failed") as caught:
        lab.admin.delete_topics(["t"])
    assert caught.value.where.cluster == "target"
    assert "advertised addresses" in caught.value.next_step


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such thing"),
        RuntimeError("Key t not found in future-map"),
        KafkaException(KafkaError(KafkaError._INVALID_ARG)),
    ],
)
def test_what_the_client_refuses_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    lab = Lab(monkeypatch, Wire(attempts=3), t=[error])
    with pytest.raises(BrokerRefused, match="the AdminClient refuses the request"):
        lab.admin.delete_topics(["t"])
    assert len(lab.requests) == 1


def test_a_token_that_does_not_come_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds"))
    lab = Lab(monkeypatch, Wire(), t=[error])
    with pytest.raises(AuthenticationFailed, match="OAuth token not set"):
        lab.admin.delete_topics(["t"])


def test_the_client_is_opened_late_and_never_on_a_read_only_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, Wire(), t=[None, None])
    assert not lab.clients
    lab.admin.delete_topics(["t"])
    lab.admin.close_client()
    lab.admin.delete_topics(["t"])
    assert len(lab.clients) == 2
    lab = Lab(monkeypatch, Wire(read_only=True), t=[None])
    with pytest.raises(BrokerRefused, match="read-only"):
        lab.admin.delete_topics(["t"])
    assert not lab.clients


def test_an_address_where_nobody_answers_is_the_wires_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, Wire(), t=[None])

    def nobody(topics: list[str]) -> None:
        raise BrokerUnreachable("no broker answers")

    monkeypatch.setattr(lab.wire, "metadata", nobody)
    with pytest.raises(BrokerUnreachable, match="no broker answers"):
        lab.admin.delete_topics(["t"])
    assert not lab.clients


class _ById:
    """A controller that deletes topics by id, from a given version of the request on."""

    def __init__(self, version: int, *codes: int) -> None:
        self.config = ClientConfig("target", (("b1", 9092),))
        self.api_versions = {20: (1, version)}
        self.codes = list(codes)
        self.sent: list[bytes] = []

    def connection(self) -> _ById:
        return self

    def controller_request(self, request: Any, *, version: int, **_: Any) -> Any:
        self.sent.append(bytes(request.encode(version=version)))
        responses = [SimpleNamespace(name=None, error_code=code, error_message=None) for code in [self.codes.pop(0)]]
        return SimpleNamespace(responses=responses)


@pytest.mark.parametrize(("code", "error"), [(0, None), (100, None), (29, "TOPIC_AUTHORIZATION_FAILED")])
def test_a_topic_is_deleted_by_its_id(code: int, error: str | None) -> None:
    topic_id = UUID(int=12345)
    wire = _ById(6, code)
    found = TopicsAdmin(wire, "target").delete_topic_with_id("orders", str(topic_id))  # type: ignore[arg-type]
    assert (found.name if found else None) == error
    assert topic_id.bytes in wire.sent[0]
    assert b"orders" not in wire.sent[0], "a topic of that name that was created since stays"


def test_a_broker_that_knows_no_ids_deletes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = _ById(5)
    monkeypatch.setattr(TopicsAdmin, "delete_topics", lambda _self, names: dict.fromkeys(names))
    admin = TopicsAdmin(wire, "target")  # type: ignore[arg-type]
    assert admin.delete_topic_with_id("orders", str(UUID(int=1))) is None
    assert wire.sent == []
