"""Topics and ACLs that a class of the user changes: what it says is never proof, the cluster is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kafka_migration.errors import (
    AdminClassFailed,
    AdminClassUnusable,
    BrokerRefused,
    BrokerUnreachable,
    ChangeNotSeen,
    Interrupted,
    Transient,
)
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.forwarding import Forwarding, ForwardingAdmin, open_admin
from airflow_provider_kafka_migration.kafka.admin.topics import (
    ConfigResource,
    Configs,
    ConfigSource,
    ConfigValue,
    CreatedTopic,
    NewTopic,
    PartitionFacts,
    TopicFacts,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.config import ClientConfig

PASSWORD = "s3cr3t"
UNKNOWN = ItemError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True)
NOT_PERMITTED = ItemError(29, "TOPIC_AUTHORIZATION_FAILED")
READ = Acl("TOPIC", "a", "LITERAL", "User:ann", "*", "READ", "ALLOW")
DENY = Acl("TOPIC", "a", "LITERAL", "User:ann", "*", "WRITE", "DENY")
RETENTION = "retention.ms"


class State:
    """What the cluster has; ``brokers`` answer one by one what they know."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[str, int, dict[str, str]]] = {}
        self.acls: set[Acl] | None = set()
        #: answers of single brokers about topics and ACLs that differ from the cluster's
        self.stale: dict[int | None, Any] = {}
        self.calls: list[tuple[str, Any]] = []


class Service:
    """The class of the user: it changes the state, unless the test has it do something else."""

    state: ClassVar[State]
    #: method to what it does instead
    instead: ClassVar[dict[str, Callable[[], None]]]

    def __init__(self, settings: dict[str, Any]) -> None:
        assert settings["sasl.password"] == PASSWORD
        self.ids = 0

    def _asked(self, method: str, given: Any) -> bool:
        self.state.calls.append((method, given))
        if method in self.instead:
            self.instead[method]()
            return False
        return True

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        if self._asked("create_topics", list(topics)):
            for topic in topics:
                self.state.topics[topic.name] = (f"id-{topic.name}", topic.partitions, dict(topic.configs))

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        if self._asked("create_partitions", dict(counts)):
            for name, count in counts.items():
                topic_id, _, configs = self.state.topics[name]
                self.state.topics[name] = (topic_id, count, configs)

    def alter_topic_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        if self._asked("alter_topic_configs", changes):
            for name, change in changes.items():
                configs = self.state.topics[name][2]
                for key, value in change.items():
                    configs.pop(key, None) if value is None else configs.__setitem__(key, value)

    def delete_topics(self, topic_ids: Mapping[str, str]) -> None:
        if self._asked("delete_topics", dict(topic_ids)):
            for name in topic_ids:
                self.state.topics.pop(name, None)

    def create_acls(self, acls: Sequence[Acl]) -> None:
        if self._asked("create_acls", list(acls)):
            assert self.state.acls is not None
            self.state.acls |= set(acls)

    def delete_acls(self, acls: Sequence[Acl]) -> None:
        if self._asked("delete_acls", list(acls)):
            assert self.state.acls is not None
            self.state.acls -= set(acls)


class NoMethods:
    """It lacks all of them."""

    def __init__(self, settings: dict[str, Any]) -> None: ...


class OtherSignature(Service):
    """A method takes two arguments."""

    def create_acls(self, acls: Sequence[Acl], more: int) -> None: ...  # type: ignore[override]


class NoSettings(Service):
    """It takes no settings."""

    def __init__(self) -> None: ...


class Unmade(Service):
    """It cannot be made, and its error shows the settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        raise RuntimeError(settings)


class Wire:
    """Brokers 1 and 2."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config

    def metadata(self, topics: list[str]) -> None: ...

    def check_may_send(self) -> None: ...

    def brokers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(broker_id=1), SimpleNamespace(broker_id=2)]

    def close(self) -> None: ...


class Reading(ForwardingAdmin):
    """Reads the state; every look lets a second pass."""

    def __init__(self, state: State, config: ClientConfig, admin_class: str) -> None:
        super().__init__(config, Forwarding(admin_class, wait_seconds=30))
        self.wire = Wire(config)  # type: ignore[assignment]
        self.state = state
        self.seconds = 0.0
        self._clock = lambda: self.seconds
        self._sleep = self._pass

    def _pass(self, seconds: float) -> None:
        self.seconds += seconds

    def describe_topics(self, names: Sequence[str] | None = None, *, operations: bool = False) -> dict[str, TopicFacts]:
        return {name: self._facts(name) for name in sorted(names or ())}

    def _facts(self, name: str) -> TopicFacts:
        if name not in self.state.topics:
            return TopicFacts(name, error=UNKNOWN)
        topic_id, count, _ = self.state.topics[name]
        return TopicFacts(name, topic_id, partitions=tuple(PartitionFacts(n, 1, (1, 2), (1, 2)) for n in range(count)))

    def describe_topics_by_broker(self, names: Sequence[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        return {n: self.state.stale.get(n, self.describe_topics(names)) for n in (1, 2)}

    def topic_configs(self, names: Sequence[str]) -> dict[str, Configs]:
        own, default = ConfigSource.DYNAMIC_TOPIC, ConfigSource.DEFAULT
        return {
            name: Configs(
                name,
                {RETENTION: ConfigValue(RETENTION, "604800000", default)}
                | {key: ConfigValue(key, value, own) for key, value in self.state.topics[name][2].items()},
            )
            for name in names
        }

    def describe_acls(self, *, broker_id: int | None = None) -> AclListing:
        found = self.state.stale.get(broker_id, self.state.acls)
        return AclListing(found is not None, tuple(sorted(found or ())))


@pytest.fixture
def state() -> State:
    Service.state, Service.instead = State(), {}
    return Service.state


def admin_of(state: State, kind: type[Any] = Service, *, read_only: bool = False) -> Reading:
    config = ClientConfig("target", (("b1", 9092),), username="u", password=PASSWORD, read_only=read_only)
    return Reading(state, config, f"{__name__}.{kind.__name__}")


def raises(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def nothing() -> None:
    """Claim success."""


NEW = NewTopic("a", 3, 2, {RETENTION: "5"})


def test_all_changes_pass_through_the_class(state: State) -> None:
    admin = admin_of(state)
    assert admin.create_topics([NEW]) == {"a": CreatedTopic("a", "id-a")}
    assert admin.create_partitions({"a": 4}) == {"a": None}
    assert admin.alter_topic_configs({"a": {RETENTION: None, "segment.ms": "7"}, "b": {}}) == {"a": None, "b": None}
    assert admin.create_acls([READ, DENY]) == {READ: None, DENY: None}
    assert admin.delete_acls([DENY]) == {DENY: None}
    assert state.acls == {READ}
    assert state.topics == {"a": ("id-a", 4, {"segment.ms": "7"})}
    assert admin.delete_topics(["a", "absent"]) == {"a": None, "absent": None}
    assert state.topics == {}
    assert state.calls == [
        ("create_topics", [NEW]),
        ("create_partitions", {"a": 4}),
        ("alter_topic_configs", {"a": {RETENTION: None, "segment.ms": "7"}}),
        ("create_acls", [READ, DENY]),
        ("delete_acls", [DENY]),
        ("delete_topics", {"a": "id-a"}),
    ]


CHANGES: dict[str, tuple[Callable[[Admin], Any], str]] = {
    "create_topics": (lambda admin: admin.create_topics([NewTopic("b", 2)]), "b (2 partitions): there is no such"),
    "create_partitions": (lambda admin: admin.create_partitions({"a": 9}), "a (9 partitions): it has 3 partitions"),
    "alter_topic_configs": (
        lambda admin: admin.alter_topic_configs({"a": {RETENTION: "6"}}),
        "a (retention.ms=6): retention.ms is '5'",
    ),
    "delete_topics": (lambda admin: admin.delete_topics(["a"]), "a (id id-a): broker 1 still has it"),
    "create_acls": (lambda admin: admin.create_acls([DENY]), "the cluster has no such ACL"),
    "delete_acls": (lambda admin: admin.delete_acls([READ]), "still has it"),
}


def settled(state: State) -> Reading:
    """A cluster with the topic and the ACL."""
    state.topics["a"] = ("id-a", 3, {RETENTION: "5"})
    state.acls = {READ}
    return admin_of(state)


@pytest.mark.parametrize("method", CHANGES)
def test_a_class_that_claims_success_is_found_out(state: State, method: str) -> None:
    admin = settled(state)
    Service.instead[method] = nothing
    change, shown = CHANGES[method]
    with pytest.raises(ChangeNotSeen) as error:
        change(admin)
    assert f"{__name__}.Service has accepted {method}" in error.value.what
    assert shown in error.value.what
    assert error.value.details["change"] == method
    assert len(error.value.details["shown"]) == 1
    assert 30 <= admin.seconds < 35, "it has had its time, and no more"


def test_the_cluster_may_take_its_time(state: State) -> None:
    admin = settled(state)
    Service.instead["create_topics"] = nothing
    looks: list[float] = []

    def passes(seconds: float) -> None:
        admin.seconds += seconds
        looks.append(seconds)
        if admin.seconds > 20:
            state.topics["b"] = ("id-b", 2, {})

    admin._sleep = passes
    assert admin.create_topics([NewTopic("b", 2)]) == {"b": CreatedTopic("b", "id-b")}
    assert max(looks) <= 2


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (("id", 2, {RETENTION: "5"}), "it has 2 partitions"),
        (("id", 3, {}), "retention.ms is '604800000'"),
        (("id", 3, {RETENTION: "6"}), "retention.ms is '6'"),
    ],
)
def test_a_topic_that_is_made_otherwise_is_found_out(
    state: State, made: tuple[str, int, dict[str, str]], shown: str
) -> None:
    Service.instead["create_topics"] = lambda: state.topics.__setitem__("a", made)
    with pytest.raises(ChangeNotSeen, match=shown):
        admin_of(state).create_topics([NEW])


def test_another_replication_factor_is_found_out(state: State) -> None:
    with pytest.raises(ChangeNotSeen, match="its replication factor is 2, not 3"):
        admin_of(state).create_topics([NewTopic("a", 1, 3)])


def test_a_topic_that_exists_is_not_asked_for(state: State) -> None:
    found = settled(state).create_topics([NEW, NewTopic("b", 1)])
    assert found["a"].error is not None
    assert found["a"].error.name == "TOPIC_ALREADY_EXISTS"
    assert found["b"] == CreatedTopic("b", "id-b")
    assert state.calls == [("create_topics", [NewTopic("b", 1)])]


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        # Only one of them knows it yet.
        ({1: {"a": TopicFacts("a", "other")}, 2: {"a": TopicFacts("a", error=UNKNOWN)}}, "TOPIC_ALREADY_EXISTS"),
        ({1: {}, 2: {"a": TopicFacts("a", error=NOT_PERMITTED)}}, "TOPIC_AUTHORIZATION_FAILED"),
        ({1: {}, 2: {}}, "NO_ANSWER"),
        ({1: BrokerUnreachable("gone"), 2: BrokerUnreachable("gone")}, "NO_ANSWER"),
    ],
)
def test_that_a_topic_is_new_has_to_be_known(state: State, answers: dict[int, Any], name: str) -> None:
    state.stale = answers
    found = admin_of(state).create_topics([NEW])["a"].error
    assert found is not None
    assert found.name == name
    assert state.calls == []


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (BrokerUnreachable("it is down"), "broker 2 does not answer: it is down"),
        ({}, "broker 2 says nothing about it"),
        ({"a": TopicFacts("a", error=NOT_PERMITTED)}, "broker 2 answers TOPIC_AUTHORIZATION_FAILED"),
        ({"a": TopicFacts("a", "id-a")}, "broker 2 still has it"),
    ],
)
def test_a_topic_is_gone_when_all_brokers_say_so(state: State, answer: Any, shown: str) -> None:
    admin = settled(state)
    state.stale = {2: answer}
    with pytest.raises(ChangeNotSeen, match=shown):
        admin.delete_topics(["a"])
    assert "a" not in state.topics, "the class was asked"


def test_another_topic_of_the_name_is_left_alone(state: State) -> None:
    assert settled(state).delete_topic_with_id("a", "former") is None
    assert "a" in state.topics
    assert state.calls == []


def test_an_acl_that_one_broker_does_not_know_yet_is_deleted(state: State) -> None:
    admin = settled(state)
    state.stale = {None: set(), 1: set()}
    admin.delete_acls([READ])
    assert state.acls == set()


def test_an_acl_is_deleted_when_all_brokers_say_so(state: State) -> None:
    admin = settled(state)
    state.stale = {2: {READ}}
    with pytest.raises(ChangeNotSeen, match="broker 2 still has it"):
        admin.delete_acls([READ])


def test_without_an_authorizer_there_are_no_acls(state: State) -> None:
    state.acls = None
    admin = admin_of(state)
    for found in (admin.create_acls([READ]), admin.delete_acls([READ])):
        assert str(found[READ]) == "SECURITY_DISABLED"
    assert admin.create_acls([]) == {}
    assert state.calls == []


def test_a_broker_s_answer_to_the_class_is_an_answer(state: State) -> None:
    admin = settled(state)
    refused = KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "names begin with team-"))
    Service.instead["create_topics"] = raises(refused)
    found = admin.create_topics([NewTopic("b", 1)])
    assert found == {"b": CreatedTopic("b", "", ItemError(44, "POLICY_VIOLATION", "names begin with team-"))}


def test_what_the_class_has_done_before_it_failed_counts(state: State) -> None:
    admin = settled(state)

    def half() -> None:
        state.topics["b"] = ("id-b", 1, {})
        raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION))

    Service.instead["create_topics"] = half
    found = admin.create_topics([NewTopic("b", 1), NewTopic("c", 1)])
    assert found["b"] == CreatedTopic("b", "id-b")
    assert found["c"].error is not None

    def whole() -> None:
        state.topics["d"] = ("id-d", 1, {})
        raise TimeoutError

    Service.instead["create_topics"] = whole
    assert admin.create_topics([NewTopic("d", 1)]) == {"d": CreatedTopic("d", "id-d")}


@pytest.mark.parametrize("error", [RuntimeError(PASSWORD), KafkaException(KafkaError(KafkaError._TIMED_OUT, PASSWORD))])
def test_an_error_of_the_class_is_named_without_its_text(
    state: State, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    admin = settled(state)
    Service.instead["create_acls"] = raises(error)
    with caplog.at_level(logging.DEBUG), pytest.raises(AdminClassFailed) as found:
        admin.create_acls([DENY])
    assert type(error).__name__ in found.value.what
    assert "the cluster has no such ACL" in found.value.what
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__ or found.value.__context__ is None
    assert PASSWORD not in f"{found.value} {found.value.details} {caplog.text}"


def test_a_signal_is_no_error_of_the_class(state: State) -> None:
    admin = settled(state)
    Service.instead["create_acls"] = raises(Interrupted("asked to stop"))
    with pytest.raises(Interrupted):
        admin.create_acls([DENY])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"{__name__}.NoMethods", "lacks create_topics, create_partitions"),
        (f"{__name__}.OtherSignature", "another signature in create_acls"),
        (f"{__name__}.NoSettings", "another signature in __init__"),
        (f"{__name__}.PASSWORD", "is not a class: str"),
        (f"{__name__}.Absent", "cannot be imported: AttributeError"),
        ("no.such.module.Service", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_class_of_another_shape_is_named(path: str, why: str) -> None:
    with pytest.raises(AdminClassUnusable, match=why) as error:
        Forwarding(path).load("target")
    assert error.value.where.path == "target.admin_class"


def test_a_class_that_cannot_be_made_shows_no_settings(state: State) -> None:
    with pytest.raises(AdminClassUnusable, match="cannot be made: RuntimeError") as error:
        admin_of(state, Unmade).create_acls([READ])
    assert error.value.__suppress_context__
    assert PASSWORD not in str(error.value)


def test_a_comparison_changes_nothing(state: State) -> None:
    with pytest.raises(BrokerRefused, match="read-only"):
        admin_of(state, read_only=True).create_acls([READ])


def test_the_object_is_made_once_for_each_connection(state: State) -> None:
    admin = settled(state)
    admin.create_acls([DENY])
    first = admin._made
    admin.delete_acls([DENY])
    assert admin._made is first
    admin.close()
    assert admin._made is None


def test_brokers_decide_nothing_about_what_only_the_class_may_do(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = admin_of(state)
    other = ItemError(40, "INVALID_CONFIG")
    answers = {"a": CreatedTopic("a", "", NOT_PERMITTED), "b": CreatedTopic("b", "", other)}
    monkeypatch.setattr(Admin, "create_topics", lambda *_, **__: answers)
    monkeypatch.setattr(Admin, "alter_configs", lambda *_, **__: {"a": NOT_PERMITTED, "b": other})
    monkeypatch.setattr(Admin, "new_topic_configs", lambda _, name: Configs(name, error=NOT_PERMITTED))
    assert admin.create_topics([NEW], validate_only=True) == {**answers, "a": CreatedTopic("a")}
    assert admin.alter_topic_configs({"a": {}}, validate_only=True) == {"a": None, "b": other}
    assert admin.alter_configs(ConfigResource.GROUP, {"a": {}}) == {"a": NOT_PERMITTED, "b": other}, "not a topic"
    unknown = admin.new_topic_configs("a").error
    assert unknown is not None
    assert unknown.name == "UNSUPPORTED_VERSION"
    assert state.calls == []


def test_without_a_class_the_brokers_are_asked() -> None:
    config = ClientConfig("target", (("b1", 9092),))
    assert type(open_admin(config, None)) is Admin
    assert type(open_admin(config, Forwarding("a.b"))) is ForwardingAdmin
