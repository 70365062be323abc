"""Changes of topics and ACLs by a class of the user instead of the brokers (KIP-787), for companies where only a
service of their own may change them.

The class gets the changes and nothing else. What it answers is never taken as proof: after each change the cluster is
read until it shows it.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from confluent_kafka import KafkaError, KafkaException

from airflow_provider_kafka_migration.errors import (
    AdminClassFailed,
    AdminClassUnusable,
    BrokerRefused,
    ChangeNotSeen,
    MigrationError,
    Transient,
    Where,
)
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.base import LOWEST_BROKER_CODE
from airflow_provider_kafka_migration.kafka.admin.client import Admin
from airflow_provider_kafka_migration.kafka.admin.topics import (
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ConfigChange,
    ConfigResource,
    Configs,
    CreatedTopic,
    NewTopic,
    TopicFacts,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import SECURITY_DISABLED, ItemError, item_error
from airflow_provider_kafka_migration.kafka.auth.tls_files import TlsFiles
from airflow_provider_kafka_migration.kafka.config import ClientConfig

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

#: Pauses between two looks at the cluster: the first one, and the longest.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
#: Most items that an error's text names; its details have all of them.
_SHOWN = 5
_ABSENT = "there is no such topic"


@runtime_checkable
class TopicsAndAcls(Protocol):
    """What an admin class has to do: six kinds of changes, each for several topics or ACLs.

    The class is called with the settings of a confluent-kafka client, which hold secrets. Each method returns when its
    change is accepted, and raises where it is not; whatever it returns is ignored. A method may be called again with
    the same change, which must then do no harm. One object is never used by two threads.

    A ``KafkaException`` with the code of a broker counts as the broker's answer. The text of any other exception is
    not shown, because it may hold a secret.
    """

    def create_topics(self, topics: Sequence[NewTopic]) -> object:
        """Create topics: ``name``, ``partitions``, ``replication_factor`` (-1: the brokers' default), ``configs``."""

    def create_partitions(self, counts: Mapping[str, int]) -> object:
        """Widen topics: name to total number of partitions."""

    def alter_topic_configs(self, changes: Mapping[str, ConfigChange]) -> object:
        """Change only these configs: topic to config to value, where ``None`` removes the topic's own value."""

    def delete_topics(self, topic_ids: Mapping[str, str]) -> object:
        """Delete topics: name to id. A topic of that name with another id must stay; an id may be empty (unknown)."""

    def create_acls(self, acls: Sequence[Acl]) -> object:
        """Create ACLs; those that exist stay."""

    def delete_acls(self, acls: Sequence[Acl]) -> object:
        """Delete exactly these ACLs; those that do not exist are no error."""


_METHODS = ("create_topics", "create_partitions", "alter_topic_configs", "delete_topics", "create_acls", "delete_acls")


@dataclass(frozen=True)
class Forwarding:
    """Which class changes a cluster's topics and ACLs.

    :param admin_class: its dotted path.
    :param wait_seconds: how long the cluster may take to show a change that the class has accepted.
    """

    admin_class: str
    wait_seconds: float = 60.0

    def load(self, role: str) -> Callable[[dict[str, Any]], TopicsAndAcls]:
        """Import the class and check its shape; nothing is created or called.

        :param role: ``source`` or ``target``, for the error.
        :raises AdminClassUnusable: it cannot be imported, is no class, or lacks a method.
        """
        module, _, name = self.admin_class.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise self._unusable(role, f"cannot be imported: {type(error).__name__}") from error
        if not inspect.isclass(found):
            raise self._unusable(role, f"is not a class: {type(found).__name__}")
        lacks = [item for item in _METHODS if not callable(getattr(found, item, None))]
        if lacks:
            raise self._unusable(role, f"lacks {', '.join(lacks)}")
        wrong = [item for item in _METHODS if not _takes(getattr(found, item), 2)]
        wrong += [] if _takes(found, 1) else ["__init__"]
        if wrong:
            raise self._unusable(role, f"has another signature in {', '.join(wrong)}: each takes one argument")
        return cast(Callable[[dict[str, Any]], TopicsAndAcls], found)

    def _unusable(self, role: str, why: str) -> AdminClassUnusable:
        return AdminClassUnusable(
            f"the admin class {self.admin_class} {why}",
            where=Where(cluster=role, path=f"{role}.admin_class"),
            next_step="give the dotted path of a class that every worker can import, with the six methods in "
            "docs/topology.md",
        )


def _takes(called: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(called).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        return True  # written in C: nothing is known about it
    return True


def open_admin(
    config: ClientConfig, forwarding: Forwarding | None, *, first_contact_seconds: float | None = None
) -> Admin:
    """Return the admin of a cluster, whose topics and ACLs a class of the user changes if ``forwarding`` is given."""
    if forwarding is None:
        return Admin(config, first_contact_seconds=first_contact_seconds)
    return ForwardingAdmin(config, forwarding, first_contact_seconds=first_contact_seconds)


class ForwardingAdmin(Admin):
    """An admin that reads from the cluster, and has topics and ACLs changed by a class of the user.

    Brokers' own objects (groups, quotas, users, brokers' configs) are changed as by :class:`~.client.Admin`.

    :raises ChangeNotSeen: (any change) the class has accepted it, and the cluster does not show it in time.
    :raises AdminClassFailed: (any change) the class has raised, and the cluster does not show the change.
    :raises AdminClassUnusable: (any change) the class cannot be imported or made.
    """

    def __init__(
        self, config: ClientConfig, forwarding: Forwarding, *, first_contact_seconds: float | None = None
    ) -> None:
        super().__init__(config, first_contact_seconds=first_contact_seconds)
        self.forwarding = forwarding
        self._made: TopicsAndAcls | None = None
        self._made_files = TlsFiles(())
        #: Tests replace it.
        self._clock: Callable[[], float] = time.monotonic

    def close(self) -> None:
        """Forget the object of the class, and close the clients."""
        self._made = None
        super().close()

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> dict[str, CreatedTopic]:
        """See :meth:`TopicsAdmin.create_topics`. The class is never asked for a topic that exists.

        :param validate_only: the brokers are asked; they decide nothing about topics that this principal may not
            create, because the class may.
        """
        if validate_only:
            checked = super().create_topics(topics, validate_only=True)
            return {name: CreatedTopic(name) if _may_not(item.error) else item for name, item in checked.items()}
        wanted = {topic.name: topic for topic in topics}
        errors = self._why_not_new(sorted(wanted))
        missing = [name for name in sorted(wanted) if name not in errors]
        errors |= self._forward(
            "create_topics",
            missing,
            lambda made, names: made.create_topics([wanted[name] for name in names]),
            lambda names: self._why_unlike({name: wanted[name] for name in names}),
            lambda name: f"{name} ({wanted[name].partitions} partitions)",
        )
        done = [name for name in sorted(errors) if errors[name] is None]
        facts = self.describe_topics(done) if done else {}
        return {
            name: CreatedTopic(name, "" if error else facts[name].topic_id, error)
            for name, error in sorted(errors.items())
        }

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """See :meth:`TopicsAdmin.create_partitions`."""
        if validate_only:
            return _allowed(super().create_partitions(counts, validate_only=True))
        return self._forward(
            "create_partitions",
            sorted(counts),
            lambda made, names: made.create_partitions({name: counts[name] for name in names}),
            lambda names: _unlike(self.describe_topics(names), lambda topic: _why_not_wide(topic, counts[topic.name])),
            lambda name: f"{name} ({counts[name]} partitions)",
        )

    def delete_topics(self, names: Sequence[str]) -> dict[str, ItemError | None]:
        """See :meth:`TopicsAdmin.delete_topics`. The class gets the ids that the topics have now."""
        facts = self.describe_topics(names) if names else {}
        return self._delete({name: item.topic_id for name, item in facts.items()})

    def delete_topic_with_id(self, name: str, topic_id: str) -> ItemError | None:
        """See :meth:`TopicsAdmin.delete_topic_with_id`."""
        return self._delete({name: topic_id})[name]

    def _delete(self, ids: Mapping[str, str]) -> dict[str, ItemError | None]:
        """Delete topics, except for those of which all brokers say that they are gone, or another one by now."""
        left = self._why_not_gone(ids)
        results: dict[str, ItemError | None] = {name: None for name in sorted(ids) if name not in left}
        return results | self._forward(
            "delete_topics",
            sorted(left),
            lambda made, names: made.delete_topics({name: ids[name] for name in names}),
            lambda names: self._why_not_gone({name: ids[name] for name in names}),
            lambda name: f"{name} (id {ids[name] or 'unknown'})",
        )

    def _why_not_new(self, names: list[str]) -> dict[str, ItemError | None]:
        """Return an error for each topic that some broker knows, or that no broker answers about."""
        found: dict[str, ItemError | None] = {}
        answers = [item for item in self._all_brokers(names).values() if not isinstance(item, Transient)]
        for name in names:
            errors = [answer[name].error for answer in answers if name in answer]
            if not errors:
                found[name] = ItemError(-1, "NO_ANSWER", "no broker describes the topic")
            elif None in errors:
                found[name] = item_error(TOPIC_ALREADY_EXISTS)
            elif others := [item for item in errors if item is not None and item.code != UNKNOWN_TOPIC_OR_PARTITION]:
                found[name] = others[0]
        return found

    def _why_unlike(self, wanted: Mapping[str, NewTopic]) -> dict[str, str]:
        """Return for each topic that is not as it is wanted what the cluster shows instead."""
        facts = self.describe_topics(sorted(wanted))
        found = _unlike(facts, lambda topic: _why_not_like(topic, wanted[topic.name]))
        there = [name for name in sorted(wanted) if name not in found and wanted[name].configs]
        return {**found, **self._why_other_configs({name: wanted[name].configs for name in there})}

    def _why_not_gone(self, ids: Mapping[str, str]) -> dict[str, str]:
        """Return the topics that not all brokers call gone, or another topic, with what one of them shows."""
        answers = self._all_brokers(sorted(ids))
        found: dict[str, str] = {}
        for name, topic_id in sorted(ids.items()):
            shown = [_why_there(broker_id, name, topic_id, answer) for broker_id, answer in sorted(answers.items())]
            if why := next(filter(None, shown), "" if shown else "no broker answers"):
                found[name] = why
        return found

    def _all_brokers(self, names: list[str]) -> dict[int, dict[str, TopicFacts] | Transient]:
        return self.describe_topics_by_broker(names) if names else {}

    # -- configs ------------------------------------------------------------------------------------------------------

    def new_topic_configs(self, name: str) -> Configs:
        """See :meth:`ConfigsAdmin.new_topic_configs`; where this principal may not create it, nothing is known."""
        found = super().new_topic_configs(name)
        if _may_not(found.error):
            return Configs(name, error=item_error(error_codes.UNSUPPORTED_VERSION, "this principal creates no topics"))
        return found

    def alter_configs(
        self, kind: ConfigResource, changes: Mapping[str, ConfigChange], *, validate_only: bool = False
    ) -> dict[str, ItemError | None]:
        """See :meth:`ConfigsAdmin.alter_configs`; the class changes those of topics only."""
        if kind is not ConfigResource.TOPIC:
            return super().alter_configs(kind, changes, validate_only=validate_only)
        if validate_only:
            return _allowed(super().alter_configs(kind, changes, validate_only=True))
        results: dict[str, ItemError | None] = {name: None for name in sorted(changes) if not changes[name]}
        return results | self._forward(
            "alter_topic_configs",
            [name for name in sorted(changes) if changes[name]],
            lambda made, names: made.alter_topic_configs({name: dict(changes[name]) for name in names}),
            lambda names: self._why_other_configs({name: changes[name] for name in names}),
            lambda name: f"{name} ({', '.join(f'{key}={value}' for key, value in sorted(changes[name].items()))})",
        )

    def _why_other_configs(self, wanted: Mapping[str, ConfigChange]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, configs in (self.topic_configs(sorted(wanted)) if wanted else {}).items():
            if configs.error is not None:
                found[name] = f"its configs cannot be read: {configs.error}"
                continue
            for key, value in sorted(wanted[name].items()):
                shown = configs.overrides.get(key) if value is None else configs.get(key)
                if shown != value:
                    found.setdefault(name, f"{key} is {shown!r}")
        return found

    # -- ACLs ---------------------------------------------------------------------------------------------------------

    def create_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """See :meth:`AclsAdmin.create_acls`."""
        if acls and not self.describe_acls().authorizer:
            return dict.fromkeys(acls, item_error(SECURITY_DISABLED))

        def absent(items: list[Acl]) -> dict[Acl, str]:
            there = set(self.describe_acls().acls)
            return {acl: "the cluster has no such ACL" for acl in items if acl not in there}

        return self._forward("create_acls", list(acls), lambda made, items: made.create_acls(items), absent, str)

    def delete_acls(self, acls: Sequence[Acl]) -> dict[Acl, ItemError | None]:
        """See :meth:`AclsAdmin.delete_acls`.

        The class is asked also for those that are not listed: a broker may not know yet what was created a moment ago.
        """
        if acls and not self.describe_acls().authorizer:
            return dict.fromkeys(acls, item_error(SECURITY_DISABLED))

        def present(items: list[Acl]) -> dict[Acl, str]:
            self.wire.metadata([])
            found: dict[Acl, str] = {}
            for broker in self.wire.brokers():
                there = set(self.describe_acls(broker_id=broker.broker_id).acls)
                found |= {acl: f"broker {broker.broker_id} still has it" for acl in items if acl in there}
            return found

        return self._forward("delete_acls", list(acls), lambda made, items: made.delete_acls(items), present, str)

    # -- the class ----------------------------------------------------------------------------------------------------

    def _forward(
        self,
        change: str,
        items: Sequence[K],
        ask: Callable[[TopicsAndAcls, list[K]], object],
        unseen: Callable[[list[K]], dict[K, str]],
        named: Callable[[K], str],
    ) -> dict[K, ItemError | None]:
        """Have items changed by the class, and wait until the cluster shows it; return the errors of items.

        :param change: the method's name.
        :param unseen: looks at the cluster and returns those that are not as they were asked for, and how they are.
        :param named: an item with what is asked of it, for people.
        """

        def send(batch: list[K]) -> dict[K, ItemError | None]:
            listed = _some([named(item) for item in batch])
            log.info("%s: %s of %s: %s", self.name, change, self.forwarding.admin_class, listed)
            failure = self._call(lambda made: ask(made, batch))
            if failure is None:
                self._wait_until_seen(change, batch, unseen, named)
                return dict.fromkeys(batch)
            left = unseen(batch)
            answer = _broker_answer(failure)
            if left and answer is None:
                raise self._failed(change, failure, {named(item): why for item, why in left.items()})
            return {item: answer if item in left else None for item in batch}

        return self.in_batches(items, send, size=max(len(items), 1))

    def _call(self, ask: Callable[[TopicsAndAcls], object]) -> Exception | None:
        """Ask the class; return what it raises."""
        made = self._object()
        self.prepare_login()
        self.wire.check_may_send()
        try:
            ask(made)
        except MigrationError:
            raise  # a signal, for instance, that arrived meanwhile
        except Exception as error:
            return error
        return None

    def _object(self) -> TopicsAndAcls:
        """Return the object of the class; make it at the first change, because clients do not survive a fork."""
        if self._made is None or self._made_files.have_changed():
            if self.config.read_only:
                raise BrokerRefused(
                    "the admin class was not called: this connection is read-only",
                    where=self.where(),
                    next_step="report this as a bug: a comparison tried to change something",
                )
            made = self.forwarding.load(self.config.name)
            self._made_files = TlsFiles(self.config.tls_paths)
            try:
                self._made = made(self.config.librdkafka())
            except Exception as error:
                # Neither its text nor its trace: both may hold the settings.
                raise AdminClassUnusable(
                    f"the admin class {self.forwarding.admin_class} cannot be made: {type(error).__name__}",
                    where=self.where(path=f"{self.config.name}.admin_class"),
                    next_step="correct its __init__, which gets the settings of a confluent-kafka client",
                ) from None
        return self._made

    def _wait_until_seen(
        self,
        change: str,
        items: list[K],
        unseen: Callable[[list[K]], dict[K, str]],
        named: Callable[[K], str],
    ) -> None:
        begun, pause = self._clock(), FIRST_PAUSE_SECONDS
        while left := unseen(items):
            waited = self._clock() - begun
            if waited >= self.forwarding.wait_seconds:
                shown = {named(item): why for item, why in left.items()}
                raise ChangeNotSeen(
                    f"the admin class {self.forwarding.admin_class} has accepted {change} for "
                    f"{_some([named(item) for item in items])}; {waited:.0f} s later the {self.name} cluster shows: "
                    f"{_some([f'{item}: {why}' for item, why in shown.items()])}",
                    where=self.where(path=f"{self.config.name}.admin_class"),
                    next_step="find out what the class has done with it, or give it more time "
                    f"({self.config.name}.admin_wait); then clear the task: the class is asked again for what is "
                    "still missing",
                    details={"change": change, "asked": [named(item) for item in items], "shown": shown},
                )
            self._sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _failed(self, change: str, failure: Exception, shown: Mapping[str, str]) -> AdminClassFailed:
        return AdminClassFailed(
            f"the admin class {self.forwarding.admin_class} failed in {change} ({type(failure).__name__}); the "
            f"{self.name} cluster shows: {_some([f'{item}: {why}' for item, why in shown.items()])}",
            where=self.where(path=f"{self.config.name}.admin_class"),
            next_step="see the class's own log: the text of its error is not shown, because it may hold a secret; then "
            "clear the task",
            details={"change": change, "error": type(failure).__name__, "shown": dict(shown)},
        )


def _broker_answer(failure: Exception) -> ItemError | None:
    """Return what a broker has answered to the class; None if this is not an answer of a broker."""
    error = failure.args[0] if isinstance(failure, KafkaException) and failure.args else None
    if not isinstance(error, KafkaError) or error.code() < LOWEST_BROKER_CODE:
        return None
    return item_error(error.code(), error.str())


def _may_not(error: ItemError | None) -> bool:
    return error is not None and error.unauthorized


def _allowed(errors: Mapping[str, ItemError | None]) -> dict[str, ItemError | None]:
    return {name: None if _may_not(error) else error for name, error in errors.items()}


def _unlike(facts: Mapping[str, TopicFacts], why: Callable[[TopicFacts], str]) -> dict[str, str]:
    found = {
        name: (_ABSENT if topic.error.code == UNKNOWN_TOPIC_OR_PARTITION else str(topic.error))
        if topic.error is not None
        else why(topic)
        for name, topic in facts.items()
    }
    return {name: text for name, text in found.items() if text}


def _why_not_wide(topic: TopicFacts, partitions: int) -> str:
    return "" if len(topic.partitions) == partitions else f"it has {len(topic.partitions)} partitions"


def _why_not_like(topic: TopicFacts, wanted: NewTopic) -> str:
    if why := _why_not_wide(topic, wanted.partitions):
        return why
    if wanted.replication_factor > 0 and topic.replication_factor != wanted.replication_factor:
        return f"its replication factor is {topic.replication_factor}, not {wanted.replication_factor}"
    return ""


def _why_there(broker_id: int, name: str, topic_id: str, answer: Mapping[str, TopicFacts] | Transient) -> str:
    """Return why a broker does not call a topic gone; empty if it does."""
    if isinstance(answer, Transient):
        return f"broker {broker_id} does not answer: {answer.what}"
    facts = answer.get(name)
    if facts is None:
        return f"broker {broker_id} says nothing about it"
    if facts.error is not None:
        is_gone = facts.error.code == UNKNOWN_TOPIC_OR_PARTITION
        return "" if is_gone else f"broker {broker_id} answers {facts.error}"
    is_another = bool(topic_id and facts.topic_id and facts.topic_id != topic_id)
    return "" if is_another else f"broker {broker_id} still has it"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"
