"""A changed spec on resume: refused by name, or journaled."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args, get_origin

import pytest
from journal_support import BOB, OpenJournal, go_to

from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.journal import SPEC_RECORDED
from airflow_provider_kafka_migration.errors import ClaimLost, FingerprintChanged
from airflow_provider_kafka_migration.journal.spec_guard import (
    MAPPINGS,
    flatten,
    guard_spec,
    last_spec,
)
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from airflow_provider_kafka_migration.spec.advice import KEYS, key_of
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

SPEC = parse_spec(
    {
        "migration_id": "m1",
        "source": {"conn_id": "kafka_source"},
        "target": {"conn_id": "kafka_target"},
        "storage": {"journal": "s3://jb/p"},
        "cutover": {"freeze": "webhook", "producer_freeze_webhook": "https://hooks/freeze?token=hunter2"},
        "notifications": {"notifier": "a.B", "kwargs": {"url": "hunter3"}},
    },
    recorded=True,
).model_dump(mode="json")


def changed(path: str, value: Any) -> dict[str, Any]:
    """The spec with one field changed."""
    spec = copy.deepcopy(SPEC)
    place = spec
    *above, last = path.split(".")
    for part in above:
        place = place[part]
    assert place[last] != value
    place[last] = value
    return spec


def test_recorded_once(open_journal: OpenJournal) -> None:
    assert guard_spec(open_journal(), SPEC) == {}
    count = len(open_journal().entries())
    assert guard_spec(open_journal(), SPEC) == {}
    assert len(open_journal().entries()) == count
    entry = last_spec(open_journal())
    assert entry is not None
    assert entry.details["fields"]["tail.drain_max_partition_lag"] == 100


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tail.drain_max_partition_lag", 5),
        ("seed.max_bytes_per_second", 1_000_000),
        ("tail.max_bytes_per_second", 1_000_000),
        ("seed.max_concurrent_partitions", 9),
        ("tail.drain_stable_window", "1m"),
        ("cutover.max_producer_freeze", "90s"),
        ("notifications.notifier", "c.D"),
        ("notifications.kwargs", {"url": "x"}),
        ("source.conn_id", "kafka_source_new_password"),
        ("approvals.assigned_users", ["alice"]),
    ],
)
def test_what_may_change_is_journaled(open_local: OpenJournal, path: str, value: Any) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    go_to(journal, State.AWAITING_CLIENT_SWITCH)
    changes = guard_spec(open_local(), changed(path, value))
    assert all(name.startswith(path) for name in changes)
    assert len(changes) == 1
    entry = open_local().tip
    assert entry is not None
    assert entry.step == "spec_changed"
    assert path in entry.reason
    assert entry.details["changes"] == changes
    assert guard_spec(open_local(), changed(path, value)) == {}


@pytest.mark.parametrize(
    ("path", "value", "last"),
    [
        ("topics.include", ["orders"], State.PRECHECK),
        ("offsets.mode", "mapped", State.PRECHECK),
        ("storage.archive", "s3://other/p", State.PRECHECK),
        ("seed.lanes", 9, State.PRECHECK),
        ("cutover.sentinel", "end_offsets", State.DRAIN_READY),
        ("cutover.freeze", "manual", State.DRAIN_READY),
    ],
)
def test_what_may_not_change_any_more_is_named(open_local: OpenJournal, path: str, value: Any, last: State) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    go_to(journal, last)
    assert list(guard_spec(journal, changed(path, value))) == [path]
    assert list(guard_spec(journal, SPEC)) == [path]
    go_to(journal, State(list(State)[list(State).index(last) + 1]))
    for _ in range(2):
        before = journal.entries()
        with pytest.raises(FingerprintChanged, match=path) as caught:
            guard_spec(open_local(), changed(path, value))
        assert list(caught.value.details["changes"]) == [path]
        assert open_local().entries() == before
        journal.fail(RuntimeError())


def test_the_list_of_excluded_groups_may_still_grow(open_local: OpenJournal) -> None:
    """Each new group in migrated topics changes the codes of the approvals, and they come while the copy runs."""
    given = SPEC["groups"]["exclude"]
    journal = open_local()
    guard_spec(journal, SPEC)
    go_to(journal, State.DRAIN_READY)
    assert "groups.exclude" in guard_spec(journal, changed("groups.exclude", [*given, "anonymous.*"]))
    with pytest.raises(FingerprintChanged, match=r"groups\.exclude may still grow until drain_ready"):
        guard_spec(journal, changed("groups.exclude", ["anonymous.*"]))
    go_to(journal, State.CUTOVER)
    with pytest.raises(FingerprintChanged) as caught:
        guard_spec(journal, changed("groups.exclude", [*given, "anonymous.*", "more"]))
    assert "grow" not in caught.value.next_step


def test_an_address_that_is_missing_may_be_added_and_no_other_one_used(open_local: OpenJournal) -> None:
    """Without it nobody could free the producers whom a webhook has stopped."""
    without = copy.deepcopy(SPEC)
    without["cutover"] |= {"producer_freeze_webhook": None}
    journal = open_local()
    guard_spec(journal, without)
    go_to(journal, State.CUTOVER)
    assert list(guard_spec(journal, changed("cutover.producer_freeze_webhook", "https://hooks/freeze"))) == [
        "cutover.producer_freeze_webhook"
    ]
    with pytest.raises(FingerprintChanged, match=r"cutover\.producer_freeze_webhook"):
        guard_spec(journal, changed("cutover.producer_freeze_webhook", "https://hooks/freeze2"))
    with pytest.raises(FingerprintChanged, match=r"cutover\.producer_freeze_webhook"):
        guard_spec(journal, without)


def test_there_and_back_and_there_again(open_local: OpenJournal) -> None:
    journal = open_local()
    other = changed("tail.slice_seconds", 30)
    guard_spec(journal, SPEC)
    for _ in range(2):
        assert guard_spec(journal, other) == {"tail.slice_seconds": {"old": 20, "new": 30}}
        assert guard_spec(journal, SPEC) == {"tail.slice_seconds": {"old": 30, "new": 20}}
    assert len(journal.steps("spec_changed")) == 4


def test_several_tasks_bring_the_same_change(open_journal: OpenJournal) -> None:
    guard_spec(open_journal(), SPEC)
    other = changed("tail.slice_seconds", 30)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: guard_spec(open_journal(), other), range(8)))
    assert len(open_journal().steps("spec_changed")) == 1


def test_only_the_holder_changes_it(open_local: OpenJournal) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    open_local(BOB, takeover=True)
    with pytest.raises(ClaimLost):
        guard_spec(journal, changed("tail.slice_seconds", 30))


def test_nothing_happens_in_an_ended_migration(open_local: OpenJournal) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    journal.transition(State.ROLLED_BACK, "abort")
    assert guard_spec(journal, changed("topics.include", ["x"])) == {}


def test_values_that_may_hold_secrets_are_not_kept(open_local: OpenJournal, local_store: LocalStore) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    for address in (
        "https://bob:hunter4@hooks/x",
        "https://hooks/x#hunter5",
        "HTTPS://hooks/x?hunter6",
        "https://hooks/x/hunter7Aa1Bb2Cc3Dd4Ee5",
    ):
        guard_spec(journal, changed("cutover.producer_freeze_webhook", address))
    everything = b"".join(local_store.get(info.key) or b"" for info in local_store.list())
    assert b"hunter" not in everything
    assert b"cutover.producer_freeze_webhook" in everything


def _as_recorded_by_an_earlier_version(journal: Any, address: str) -> None:
    """It kept a fragment in plain, and hashed a query."""
    fields = flatten(SPEC) | {"cutover.producer_freeze_webhook": address}
    journal.step_once(SPEC_RECORDED, None, {"sha256": canonical_digest(fields), "fields": fields})


def test_what_is_hashed_only_now_has_not_changed(open_local: OpenJournal) -> None:
    journal = open_local()
    _as_recorded_by_an_earlier_version(journal, "https://hooks/freeze#token")
    go_to(journal, State.CUTOVER)
    assert guard_spec(journal, changed("cutover.producer_freeze_webhook", "https://hooks/freeze#token")) == {}
    with pytest.raises(FingerprintChanged, match="producer_freeze_webhook"):
        guard_spec(journal, changed("cutover.producer_freeze_webhook", "https://hooks/freeze#other"))


@pytest.mark.parametrize(("target_auth", "is_allowed"), [("iam", True), ("kafka", False)])
def test_a_policy_that_no_spec_may_have_any_more_may_be_corrected_at_any_time(
    open_local: OpenJournal, target_auth: str, is_allowed: bool
) -> None:
    """It passed where the source has no ACLs, and this version refuses every spec that has it."""
    journal = open_local()
    spec = copy.deepcopy(SPEC)
    spec["acls"] |= {"policy": "refuse", "target_auth": target_auth}
    guard_spec(journal, spec)
    go_to(journal, State.TAIL)
    spec["acls"]["policy"] = "merge"
    if is_allowed:
        assert list(guard_spec(journal, spec)) == ["acls.policy"]
        return
    with pytest.raises(FingerprintChanged, match=r"acls\.policy"):
        guard_spec(journal, spec)


def test_an_address_with_a_secret_may_become_a_reference_at_any_time(open_local: OpenJournal) -> None:
    """After an upgrade in the middle of a migration there is no other way to write it."""
    journal = open_local()
    guard_spec(journal, SPEC)
    go_to(journal, State.CUTOVER)
    reference = changed("cutover.producer_freeze_webhook", "env:FREEZE_WEBHOOK")
    assert list(guard_spec(journal, reference)) == ["cutover.producer_freeze_webhook"]
    assert guard_spec(journal, reference) == {}
    for other in ("https://elsewhere/freeze", "env:ANOTHER"):
        with pytest.raises(FingerprintChanged, match="producer_freeze_webhook"):
            guard_spec(journal, changed("cutover.producer_freeze_webhook", other))


@pytest.mark.parametrize(
    "address", ["https://hooks/freeze#hunter8", "https://hooks/freeze/hunter8Aa1Bb2Cc3Dd4Ee5", "https://u:hunter8@h/x"]
)
def test_an_address_that_was_kept_in_plain_may_become_a_reference(open_local: OpenJournal, address: str) -> None:
    """An earlier version kept some secrets in plain; from this one on a reference is the only way to write them."""
    journal = open_local()
    _as_recorded_by_an_earlier_version(journal, address)
    go_to(journal, State.CUTOVER)
    with pytest.raises(FingerprintChanged, match="producer_freeze_webhook") as caught:
        guard_spec(journal, changed("cutover.producer_freeze_webhook", "https://elsewhere/freeze"))
    assert "hunter8" not in f"{caught.value} {caught.value.details}"
    reference = changed("cutover.producer_freeze_webhook", "env:FREEZE_WEBHOOK")
    changes = guard_spec(journal, reference)
    assert list(changes) == ["cutover.producer_freeze_webhook"]
    entry = open_local().tip
    assert entry is not None
    assert entry.step == "spec_changed"
    assert "hunter8" not in entry.model_dump_json()
    assert guard_spec(journal, reference) == {}


def test_an_upgrade_that_brings_or_drops_fields_changes_nothing(open_local: OpenJournal) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    go_to(journal, State.SEED)
    newer = copy.deepcopy(SPEC)
    newer["topics"]["brand_new"] = True
    del newer["offsets"]["mode"]
    assert guard_spec(journal, newer) == {}
    assert journal.steps("spec_changed") == []


def test_a_section_that_appears_or_vanishes_is_a_change(open_local: OpenJournal) -> None:
    journal = open_local()
    guard_spec(journal, SPEC)
    with_adopt = copy.deepcopy(SPEC) | {"adopt": {"from": "comparison"}}
    assert guard_spec(journal, with_adopt) == {"adopt": {"old": None, "new": "present"}}
    assert guard_spec(journal, SPEC) == {"adopt": {"old": "present", "new": None}}
    go_to(journal, State.TOPOLOGY_COPY)
    with pytest.raises(FingerprintChanged, match="adopt"):
        guard_spec(open_local(), with_adopt)


def _mappings(model: Any, above: str = "") -> set[str]:
    """Paths of all fields that are mappings."""
    found = set()
    for name, field in model.model_fields.items():
        path = f"{above}.{name}" if above else name
        kinds = [field.annotation, *get_args(field.annotation)]
        if any(get_origin(kind) is dict for kind in kinds):
            found.add(path)
        for kind in kinds:
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                found |= _mappings(kind, path)
    return found


def test_the_paths_are_the_specs() -> None:
    """A field that is renamed in the spec must be renamed here."""
    assert _mappings(MigrationSpec) == MAPPINGS
    for path in KEYS:
        place: Any = MigrationSpec
        for part in path.split("."):
            assert part in place.model_fields, path
            place = place.model_fields[part].annotation
    assert key_of("cutover.drain_timeout").until is State.VALIDATING
    assert key_of("cutover.sentinel").until is State.DRAIN_READY
    assert key_of("anything.new").until is State.PRECHECK


@pytest.mark.parametrize(("naming", "matters"), [("default", False), ("identity", True)])
def test_an_opposite_flow_may_come_and_go_where_names_tell_cycles(
    open_local: OpenJournal, naming: str, matters: bool
) -> None:
    """In ``mirrors.yaml`` it changes ``two_way``, which decides something with ``identity`` only."""
    before = {**SPEC, "mirror": {"naming": naming, "two_way": True}}
    after = {**SPEC, "mirror": {"naming": naming, "two_way": False}}
    journal = open_local()
    guard_spec(journal, before)
    go_to(journal, State.TAIL)
    if matters:
        with pytest.raises(FingerprintChanged, match="would then arrive twice"):
            guard_spec(journal, after)
    else:
        assert guard_spec(journal, after).keys() == {"mirror.two_way"}
