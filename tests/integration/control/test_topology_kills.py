"""Topology and access die before and after each of their writes; another process goes on, and ends the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_kafka_migration.access import apply
from airflow_provider_kafka_migration.documents.copy import ProducerIds
from airflow_provider_kafka_migration.kafka.admin.access import Acl, NewScramCredential
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.topics import copy_settings, log_starts
from airflow_provider_kafka_migration.topics.configs import COPY_TIME
from tests.integration.control.control_support import Control, copy_topics

pytestmark = pytest.mark.integration

FINAL = {"retention.ms": "7200000", "cleanup.policy": "compact"}


class KilledError(BaseException):
    """The process ends here; no handler may catch it."""


class Killer:
    """Counts writes of a context and ends the process at the n-th, before or after it is done."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._left = at
        self._after = after
        self.fired = False

    @contextmanager
    def watching(self, context: PhaseContext) -> Iterator[None]:
        """All that topology and access write: journal, documents, both kinds of calls to the target."""
        admin, clone = context.target.admin, context.target.clone
        with pytest.MonkeyPatch.context() as patch:
            self._wrap(patch, context.journal, "step", "step_once")
            self._wrap(patch, context.journal_store, "put")
            self._wrap(patch, context.evidence_store, "put")
            self._wrap(patch, admin, "create_topics", "create_partitions", "alter_topic_configs")
            self._wrap(patch, admin, "create_acls", "create_scram_credentials", "alter_quotas", "alter_configs")
            self._wrap(patch, context.target.wire, "init_producer_id")
            self._wrap(patch, log_starts, "fill_log_start")

            def watched_clone() -> Any:
                cluster = clone()
                self._wrap(patch, cluster.wire, "delete_records")
                return cluster

            patch.setattr(context.target, "clone", watched_clone)
            yield

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, *names: str) -> None:
        for name in names:
            patch.setattr(owner, name, self._killing(getattr(owner, name)))

    def _killing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*args: Any, **options: Any) -> Any:
            if any(item in ({}, []) for item in args):
                return call(*args, **options)  # nothing is asked for, so nothing is sent
            self._left -= 1
            due = self._left == 0
            if due and not self._after:
                self.fired = True
                raise KilledError
            result = call(*args, **options)
            if due:
                self.fired = True
                raise KilledError
            return result

        return killing


# -- topics ----------------------------------------------------------------------------------------------------------


def _prepare(control: Control) -> dict[str, str]:
    """A new topic, one whose log starts above 0, one that is there already; planned; then the first one grows."""
    names = {stem: f"{control.prefix}{stem}" for stem in ("new", "cut", "there")}
    control.source_cluster.create_topics({name: (2, FINAL if stem != "cut" else {}) for stem, name in names.items()})
    control.target_cluster.create_topic(names["there"], 1, {"segment.ms": "3600000"})
    control.produce(names["cut"], 30)
    context = control.context()
    context.source.wire.delete_records({(names["cut"], 0): 20})
    control.planned()
    assert context.source.admin.create_partitions({names["new"]: 3}) == {names["new"]: None}
    return names


def _check(control: Control, names: dict[str, str]) -> None:
    context = control.context()
    for stem, name in names.items():
        assert control.overrides(name).items() >= COPY_TIME.items()
        wanted = 3 if stem == "new" else 2
        assert len(context.target.admin.describe_topics([name])[name].partitions) == wanted
        assert len(context.record.plan().topic(name).partitions) == wanted
    assert context.target.wire.list_offsets([(names["cut"], 0)], "earliest") == {(names["cut"], 0): 20}
    assert context.target.wire.list_offsets([(names["cut"], 0)], "log_end") == {(names["cut"], 0): 20}
    settings = context.record.copy_settings()
    assert settings is not None
    assert settings.topics[names["there"]].before == {"segment.ms": "3600000"}
    assert settings.topics[names["new"]].before is None
    (taken,) = context.journal.steps(steps.PRODUCER_IDS)
    assert ProducerIds.model_validate(dict(taken.details)).data_producer_id >= 0
    assert copy_topics(control.context()).already_done


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_each_write_it_goes_on(make_control: Callable[..., Control], *, after: bool) -> None:
    killed = 0
    while True:
        control = make_control()
        names = _prepare(control)
        killer = Killer(killed + 1, after=after)
        context = control.context()
        try:
            with killer.watching(context):
                copy_topics(context)
        except KilledError:
            killed += 1
            copy_topics(control.context())
        _check(control, names)
        if not killer.fired:
            break
    assert killed >= 14


def test_killed_again_and_again_in_one_migration_it_ends_the_same(control: Control) -> None:
    """The quick form: one migration dies after its first write, the next process after its second, and so on."""
    names = _prepare(control)
    for at in range(1, 40):
        context, killer = control.context(), Killer(at, after=bool(at % 2))
        try:
            with killer.watching(context):
                copy_topics(context)
        except KilledError:
            continue
        break
    else:
        pytest.fail("topology never came to its end")
    _check(control, names)


def test_ten_runs_change_nothing_more(control: Control) -> None:
    names = _prepare(control)
    copy_topics(control.context())
    context = control.context()
    entries, configs = len(context.journal.entries()), {name: control.overrides(name) for name in names.values()}
    for _ in range(10):
        watched = control.context()
        killer = Killer(1, after=False)
        with killer.watching(watched):
            assert copy_topics(watched).already_done
        assert not killer.fired
    context.journal.refresh()
    assert len(context.journal.entries()) == entries
    assert {name: control.overrides(name) for name in names.values()} == configs


def test_killed_in_the_middle_of_a_rollback_it_is_put_back_by_the_next(control: Control) -> None:
    names = _prepare(control)
    copy_topics(control.context())
    dying, killer = control.context(), Killer(1, after=True)
    with pytest.raises(KilledError), killer.watching(dying):
        copy_settings.restore_for_rollback(dying.record, dying.target)
    control.on_target(copy_settings.restore_for_rollback)
    assert control.overrides(names["new"]) == FINAL
    assert control.overrides(names["cut"]) == {}
    assert control.overrides(names["there"]) == {"segment.ms": "3600000"}


# -- access ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_access_killed_at_each_write_ends_the_same(
    make_control: Callable[..., Control], unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_KILLED", "a secret of this test")
    killed = 0
    while True:
        stem = unique_name("ak").replace(".", "-")[-40:]
        user, topic = f"{stem}-app", f"{stem}.orders"
        section = {"exclude_principals": [f"User:(?!{stem}).*"], "users": {user: "env:SECRET_OF_KILLED"}}
        control = make_control(f"{stem}.", acls=section)
        control.source_cluster.create_topic(topic)
        context = control.context()
        bindings = [
            Acl("TOPIC", topic, "LITERAL", f"User:{user}", "*", "READ", "ALLOW"),
            Acl("TOPIC", topic, "LITERAL", f"User:{user}", "*", "ALTER_CONFIGS", "DENY"),
        ]
        quota = (("user", user),)
        assert set(context.source.admin.create_acls(bindings).values()) == {None}
        assert context.source.admin.alter_quotas({quota: {"producer_byte_rate": 1e6}}) == {quota: None}
        credential = NewScramCredential(user, "SCRAM-SHA-256", "another secret", 4096)
        assert context.source.admin.create_scram_credentials([credential]) == {user: None}
        context, _ = control.planned()
        killer = Killer(killed + 1, after=bool(killed % 2))
        try:
            with killer.watching(context):
                apply.run(context)
        except KilledError:
            killed += 1
            apply.run(control.context())
        admin = control.context().target.admin
        assert {acl for acl in admin.describe_acls().acls if acl.principal == f"User:{user}"} == set(bindings)
        assert {item.entity: dict(item.values) for item in admin.quotas() or []}[quota] == {"producer_byte_rate": 1e6}
        assert [item.credentials for item in admin.scram_users() or [] if item.name == user] == [
            (("SCRAM-SHA-256", 4096),)
        ]
        assert apply.run(control.context()).already_done
        if not killer.fired:
            break
    assert killed >= 6
