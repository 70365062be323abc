"""The spec of a mirror: names, what does not go together, and that migrations keep their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import FingerprintChanged, IllegalTransition, SpecInvalid
from airflow_provider_kafka_migration.journal import Fingerprint, Journal, Owner
from airflow_provider_kafka_migration.journal.spec_guard import guard_spec
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.provider.task import run_spec
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import MigrationSpec, load_spec, parse_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

_BASE: dict[str, Any] = {
    "migration_id": "m",
    "source": {"conn_id": "env:A"},
    "target": {"conn_id": "env:B"},
    "storage": {"journal": "file:///tmp/mirror"},
}


def _mirror(**sections: Any) -> MigrationSpec:
    mirror = {"source_alias": "A", "target_alias": "B", **sections.pop("mirror", {})}
    return parse_spec({**_BASE, "kind": "mirror", "mirror": mirror, **sections})


def test_the_spec_of_a_migration_does_not_mention_mirrors() -> None:
    """A migration that was started before keeps the digest of its spec."""
    dumped = parse_spec(_BASE).model_dump(mode="json")
    assert "kind" not in dumped
    assert "mirror" not in dumped
    assert parse_spec({**_BASE, "kind": "migration"}).model_dump(mode="json") == dumped


def test_default_names() -> None:
    spec = _mirror(mirror={"known_aliases": ["C"]})
    assert spec.topics.target_name("orders") == "A.orders"
    assert spec.topics.target_name("C.orders") == "A.C.orders"
    assert spec.topics.selects("C.orders")
    assert "cycle" in spec.topics.why_left_out("C.B.orders")
    assert spec.topics.rename.prefix == "A.", "prefixed ACLs follow the names"


@pytest.mark.parametrize("key", ["on_source_truncation", "on_overtaken_tombstones"])
def test_a_mirror_deletes_no_remote_topic_by_itself(key: str) -> None:
    with pytest.raises(SpecInvalid, match=rf"offsets\.{key}: repair deletes target topics"):
        _mirror(offsets={key: "recopy"})


def test_a_mirror_that_was_accepted_with_recopy_is_still_readable() -> None:
    """By what promotes it, fails back from it, or reads its journal: nobody can correct a spec that is recorded."""
    path = Path(__file__).parents[1] / "cases" / "spec" / "mirror-recopy.yaml"
    with pytest.raises(SpecInvalid, match="repair deletes target topics"):
        load_spec(path)
    spec = load_spec(path, recorded=True)
    assert (spec.offsets.on_source_truncation, spec.offsets.on_overtaken_tombstones) == ("repair", "repair")
    assert parse_spec(spec.model_dump(mode="json"), recorded=True) == spec


@pytest.mark.parametrize(
    ("acls", "grants"),
    [
        (None, "at_cutover"),
        ({}, "at_cutover"),
        ({"policy": "replace"}, "at_cutover"),
        ({"policy": "skip"}, "at_once"),
        ({"policy": "mirror_maker"}, "never"),
        ({"write_grants": "at_once"}, "at_once"),
        ({"write_grants": "never"}, "never"),
    ],
)
def test_nobody_but_the_mirror_may_write_unless_the_spec_says_so(acls: dict[str, str] | None, grants: str) -> None:
    spec = _mirror() if acls is None else _mirror(acls=acls)
    assert spec.acls.write_grants == grants
    for unset in (True, False):
        assert parse_spec(spec.model_dump(mode="json", exclude_unset=unset), recorded=True) == spec


@pytest.mark.parametrize("recorded", [True, False])
def test_all_tasks_of_a_mirror_have_the_same_defaults(recorded: bool) -> None:
    """Some tolerate what an earlier version accepted, and are given the same spec: as data, or by the form."""
    mirror = {"source_alias": "A", "target_alias": "B"}
    data = {**_BASE, "kind": "mirror", "mirror": mirror}
    assert run_spec(data, {}, recorded=recorded, kind="mirror").acls.write_grants == "at_cutover"  # type: ignore[arg-type]
    params = {"migration_id": "m", "journal": "file:///tmp/mirror", "source": "env:A", "target": "env:B"}
    context: Any = {"params": {**params, **mirror}}
    assert run_spec(None, context, recorded=recorded, kind="mirror").acls.write_grants == "at_cutover"


def test_a_mirror_that_was_accepted_when_writing_was_granted_at_once_keeps_that(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "cases" / "spec" / "mirror-recopy.yaml"
    assert load_spec(path, recorded=True).acls.write_grants == "at_once"
    # A new version does not change a mirror that runs: its spec has to say what its journal has.
    journal = Journal.create_or_open(LocalStore(tmp_path), "m", Fingerprint("A", "B"), owner=Owner("cli", "o", "a"))
    before = _mirror(acls={"write_grants": "at_once"}).model_dump(mode="json")
    guard_spec(journal, before)
    for state in (State.PRECHECK, State.TOPOLOGY_COPY):
        journal.transition(state, "test")
    with pytest.raises(FingerprintChanged, match=r"acls\.write_grants: 'at_once' -> 'at_cutover'") as caught:
        guard_spec(journal, _mirror().model_dump(mode="json"))
    assert "a mirror that says nothing about acls.write_grants has at_cutover" in caught.value.next_step
    assert guard_spec(journal, before) == {}


@pytest.mark.parametrize(
    ("acls", "wrong"),
    [
        ({"policy": "mirror_maker", "write_grants": "at_cutover"}, r"acls\.write_grants: .*never grants WRITE"),
        ({"policy": "merge_all"}, r"acls\.policy"),
        ("merge", "acls"),
    ],
)
def test_mistakes_in_the_access_of_a_mirror(acls: Any, wrong: str) -> None:
    with pytest.raises(SpecInvalid, match=wrong):
        _mirror(acls=acls)


@pytest.mark.parametrize("unset", [True, False])
def test_a_spec_stays_the_same_on_its_way_through_a_dag(unset: bool) -> None:
    spec = _mirror()
    assert parse_spec(spec.model_dump(mode="json", exclude_unset=unset)) == spec


def test_other_namings() -> None:
    assert _mirror(mirror={"naming": "identity"}).topics.target_name("orders") == "orders"
    renamed = _mirror(mirror={"naming": "rename"}, topics={"rename": {"prefix": "x-", "topics": {"a": "b"}}})
    assert [renamed.topics.target_name(name) for name in ("a", "c")] == ["b", "x-c"]
    separated = _mirror(mirror={"separator": "__"})
    assert separated.topics.target_name("orders") == "A__orders"


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"mirror": {"source_alias": "A.x"}}, "mirror.source_alias: 'A.x' contains the separator"),
        ({"mirror": {"known_aliases": ["C.x"]}}, "mirror.known_aliases[0]"),
        ({"mirror": {"target_alias": ""}}, "mirror.target_alias: a mirror needs it"),
        ({"mirror": {"target_alias": "A"}}, "mirror.target_alias: source and target have the same alias"),
        ({"mirror": {"naming": "identity", "two_way": True}}, "a partition gives each offset only once"),
        ({"mirror": {"naming": "rename", "two_way": True}}, "mirror.two_way"),
        ({"mirror": {"naming": "custom"}, "acls": {"policy": "skip"}}, "mirror.policy"),
        ({"mirror": {"policy": "a.B"}}, "mirror.policy"),
        ({"mirror": {"naming": "custom", "policy": "a.B"}}, "acls.policy"),
        ({"topics": {"rename": {"prefix": "x"}}}, "topics.rename"),
        ({"seed": {"via": "split"}}, "seed.via"),
    ],
)
def test_what_does_not_go_together(sections: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        _mirror(**sections)
    assert path in str(caught.value)


_MERGED: dict[str, Any] = {
    "mirror": {"naming": "identity", "two_way": True, "sync_groups": False},
    "offsets": {"mode": "transactional"},
    "acls": {"policy": "skip", "quotas": "skip"},
}


def test_a_mirror_may_stop_producers_before_its_promotion() -> None:
    assert not _mirror().freezes_promotion
    spec = _mirror(cutover={"freeze": "acl"})
    assert spec.freezes_promotion
    assert not parse_spec({**_BASE, "cutover": {"freeze": "acl"}}).freezes_promotion, "its cutover does"


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({**_MERGED, "cutover": {"freeze": "acl"}}, "cutover.freeze: with naming: identity in both directions"),
        ({"cutover": {"freeze": "acl", "on_bypass": "note"}}, "cutover.on_bypass: a mirror with freeze: acl"),
        ({"cutover": {"freeze": "webhook"}}, "cutover.producer_freeze_webhook: freeze: webhook needs the address"),
    ],
)
def test_what_does_not_go_together_with_a_mirror_that_stops_producers(sections: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        _mirror(**sections)
    (mistake,) = caught.value.details["mistakes"]
    assert f"{mistake['path']}: {mistake['reason']}".startswith(path)


def test_a_mirror_that_was_accepted_before_goes_on_and_stops_nobody() -> None:
    mirror = {"source_alias": "A", "target_alias": "B", **_MERGED["mirror"]}
    given = {**_BASE, "kind": "mirror", **_MERGED, "mirror": mirror, "cutover": {"freeze": "acl"}}
    assert not parse_spec(given, recorded=True).freezes_promotion


def test_identity_in_both_directions_without_equal_offsets() -> None:
    spec = _mirror(**_MERGED)
    assert spec.mirror.merges
    assert spec.topics.target_name("orders") == "orders"
    assert spec.topics.selects("B.orders"), "names do not tell cycles here"
    assert not _mirror(mirror={"naming": "identity"}).mirror.merges
    assert not _mirror(mirror={"two_way": True}).mirror.merges


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"offsets": {"mode": "auto"}}, "mirror.two_way: naming: identity cannot go both ways with equal offsets"),
        (
            {"offsets": {"mode": "transactional", "by_topic": [{"topics": ["a"], "mode": "equal"}]}},
            "offsets.by_topic[0].mode: only transactional",
        ),
        ({"mirror": {"naming": "identity", "two_way": True}}, "mirror.sync_groups: set false"),
        ({"acls": {"quotas": "skip"}}, "acls.policy: set skip"),
        ({"acls": {"policy": "skip"}}, "acls.quotas: set skip"),
        ({"topology": {"on_topic_deleted": "repair"}}, "topology.on_topic_deleted: use stop or note"),
        ({"schemas": {"topic": "_schemas"}}, "schemas: leave the section out"),
    ],
)
def test_what_does_not_go_together_with_identity_in_both_directions(sections: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        _mirror(**{**_MERGED, **sections})
    (mistake,) = caught.value.details["mistakes"]
    assert f"{mistake['path']}: {mistake['reason']}".startswith(path)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"offset_syncs": "source"}, "mirror.state_topics.offset_syncs: has no effect"),
        (
            {"heartbeats_on_source": True, "checkpoints": True},
            "mirror.state_topics.heartbeats_on_source: has no effect",
        ),
        (
            {"heartbeats": True, "heartbeats_interval": "0s"},
            "mirror.state_topics.heartbeats_interval: must be at least",
        ),
        ({"checkpoints_interval": "10ms"}, "mirror.state_topics.checkpoints_interval: must be at least 1 s"),
    ],
)
def test_what_does_not_go_together_in_state_topics(section: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        _mirror(mirror={"state_topics": section})
    (mistake,) = caught.value.details["mistakes"]
    assert f"{mistake['path']}: {mistake['reason']}".startswith(path)


def test_state_topics_are_off_and_the_source_is_not_written_to() -> None:
    for sections, is_on in (({}, False), ({"state_topics": {"checkpoints": True, "heartbeats": True}}, True)):
        section = _mirror(mirror=sections).mirror.state_topics
        assert section.is_on is is_on
        assert (section.offset_syncs, section.heartbeats_on_source) == ("target", False)


def test_a_migration_with_aliases_is_a_mistake() -> None:
    with pytest.raises(SpecInvalid, match="without kind: mirror"):
        parse_spec({**_BASE, "mirror": {"source_alias": "A"}})


def test_tasks_and_commands_of_migrations_refuse_a_mirror(tmp_path: Path) -> None:
    spec = _mirror()
    with pytest.raises(SpecInvalid, match="spec of a mirror, not of a migration"):
        run_spec(spec.model_dump(mode="json"), {})  # type: ignore[arg-type]
    assert run_spec(_BASE, {}).kind == "migration"  # type: ignore[arg-type]
    with pytest.raises(SpecInvalid, match="spec of a migration, not of a mirror"):
        parse_spec(_BASE).check_kind("mirror")
    storage = {"journal": tmp_path.as_uri()}
    migration = Migration.open(parse_spec({**_BASE, "storage": storage}), "o", Resolver(), actor="a")
    with pytest.raises(IllegalTransition, match="a migration has no phase mirror"):
        migration.run("mirror")


def test_a_journal_keeps_its_kind(tmp_path: Path) -> None:
    """The same id and storage, but another kind: refused before a cluster is asked."""
    store = LocalStore(tmp_path)
    Journal.create_or_open(store, "m", Fingerprint("A", "B"), owner=Owner("cli", "o", "a"), details={"kind": "mirror"})
    spec = parse_spec({**_BASE, "storage": {"journal": tmp_path.as_uri()}})
    with (
        Migration.open(spec, "o", Resolver(), actor="a") as migration,
        pytest.raises(FingerprintChanged, match="mirror"),
    ):
        _ = migration.journal_context
