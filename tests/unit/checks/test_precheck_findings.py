"""Every finding of the precheck by its code, with clusters and stores that say what the case needs. No broker."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from airflow_provider_kafka_migration.access import apply as access_apply
from airflow_provider_kafka_migration.checks import (
    access,
    topics,
)
from airflow_provider_kafka_migration.checks import (
    source as precheck_compaction,
)
from airflow_provider_kafka_migration.checks import (
    source as precheck_source,
)
from airflow_provider_kafka_migration.checks import (
    target as precheck_storage,
)
from airflow_provider_kafka_migration.checks import (
    target as precheck_target,
)
from airflow_provider_kafka_migration.documents.plan import (
    AclPlan,
    Finding,
    GroupConfigPlan,
    GroupPlan,
    LeftOutGroup,
    Plan,
    QuotaPlan,
    Severity,
    UserPlan,
    Verdict,
)
from airflow_provider_kafka_migration.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClaimLost,
    KerberosUnavailable,
    KerberosUnsupported,
    ObjectExists,
    PermissionMissing,
    StorageRefused,
    StorageUnavailable,
    Terminal,
    TokenUnavailable,
    TopologyRefused,
)
from airflow_provider_kafka_migration.kafka.admin.access import Acl, AclListing, acl_row
from airflow_provider_kafka_migration.kafka.admin.cluster import LogDir
from airflow_provider_kafka_migration.kafka.admin.groups import GroupDescription, GroupMember
from airflow_provider_kafka_migration.kafka.admin.producers import TransactionFacts
from airflow_provider_kafka_migration.kafka.admin.topics import (
    Configs,
    ConfigSource,
    ConfigValue,
    PartitionFacts,
    TopicFacts,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phases import precheck
from airflow_provider_kafka_migration.record import producer_ids
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.record.finding_codes import _ALL, CODES
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import AclsSection, parse_spec
from airflow_provider_kafka_migration.storage import scratch
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.storage.s3 import StoreFacts
from airflow_provider_kafka_migration.topics import target_topics
from airflow_provider_kafka_migration.topics.probe import ProbeResult

TESTS = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answers(**values: Any) -> SimpleNamespace:
    """An admin or a wire: each method answers with its value, calls it, or raises it."""

    def method(value: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value(*args, **options) if callable(value) else value

        return call

    return SimpleNamespace(**{name: method(value) for name, value in values.items()})


@pytest.fixture
def plan() -> Plan:
    """The demo's plan."""
    return Plan.parse((TESTS / "cases" / "plan" / "plan.v1.json").read_bytes())


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., PhaseContext]:
    """A context of clusters that answer what they are told to."""

    def make(source: Any = None, target: Any = None, **sections: Any) -> PhaseContext:
        spec = parse_spec(
            {
                "migration_id": "demo",
                "source": {"conn_id": "env:S"},
                "target": {"conn_id": "env:T"},
                "storage": {"journal": tmp_path.as_uri()},
                **sections,
            }
        )
        store = LocalStore(str(tmp_path))
        none = answers()
        return PhaseContext(
            spec=spec,
            journal=cast(Any, None),
            source=cast(Any, source or SimpleNamespace(role="source", admin=none, wire=none)),
            target=cast(Any, target or SimpleNamespace(role="target", admin=none, wire=none, config=None)),
            journal_store=store,
            archive_store=store,
            evidence_store=store,
            resolver=Resolver(),
            now=lambda: NOW,
        )

    return make


def cluster(admin: Any = None, wire: Any = None) -> SimpleNamespace:
    return SimpleNamespace(role="any", admin=admin or answers(), wire=wire or answers())


def found(items: Iterator[Finding]) -> dict[str, str]:
    """Code -> what was seen; a code that comes twice is a mistake of the case."""
    listed = list(items)
    assert len({item.code for item in listed}) == len(listed)
    assert all(item.fix and item.title for item in listed)
    return {item.code: item.seen for item in listed}


def configs(**values: str) -> Configs:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return Configs("x", {name: ConfigValue(name, value, ConfigSource.STATIC_BROKER) for name, value in named.items()})


def with_topic(plan: Plan, **changes: Any) -> Plan:
    """The plan with its first topic changed, and no others."""
    return plan.model_copy(update={"topics": [plan.topics[0].model_copy(update=changes)]})


# -- the frame -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AuthenticationFailed("wrong password"), "B004"),
        (TokenUnavailable("no token"), "B004"),
        (KerberosUnavailable("no ticket"), "B004"),
        (KerberosUnsupported("no library"), "B004"),
        (BrokerUnreachable("nobody answers"), "B003"),
        (PermissionMissing("may not"), "B005"),
        (StorageRefused("no such bucket"), "B030"),
        (StorageUnavailable("slow"), "B030"),
        (Terminal("something else"), "B001"),
    ],
)
def test_a_check_that_fails_is_a_finding_and_the_others_run(
    make: Callable[..., PhaseContext], plan: Plan, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def failing(_context: PhaseContext, _plan: Plan) -> Iterator[Finding]:
        raise error
        yield

    same = plan.model_copy(update={"target": plan.source})
    monkeypatch.setattr(precheck, "CHECKS", {"first": failing, "clusters": precheck.CHECKS["clusters"]})
    listed = precheck.find_all(make(), same)
    assert {item.code for item in listed} == {code, "B002"}
    assert all(item.severity is Severity.BLOCKER for item in listed)


def test_a_lost_claim_ends_the_precheck(
    make: Callable[..., PhaseContext], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_context: PhaseContext, _plan: Plan) -> Iterator[Finding]:
        raise ClaimLost("taken over")
        yield

    monkeypatch.setattr(precheck, "CHECKS", {"first": failing})
    with pytest.raises(ClaimLost):
        precheck.find_all(make(), plan)


def test_every_code_is_shown_by_a_test() -> None:
    """A finding that nothing can bring about would be decoration."""
    texts = "".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("test_*.py")))
    assert sorted(code for code in CODES if not re.search(rf'"{code}["|]', texts)) == []


# -- storage ---------------------------------------------------------------------------------------------------------


class _Store(LocalStore):
    """A store that forgets, overwrites or refuses."""

    fault = ""

    def get(self, key: str) -> bytes | None:
        return b"other" if self.fault == "other" else super().get(key)

    def put_new(self, key: str, data: Any, *, sha256: str | None = None) -> None:
        if self.fault == "refused":
            raise StorageRefused("access denied", next_step="grant s3:PutObject")
        if self.fault == "overwrites":
            self.put(key, data)
        elif self.fault == "looks_first":
            self._look_first(key, data)
        else:
            super().put_new(key, data, sha256=sha256)

    #: All racers look before the first of them writes.
    looked = threading.Barrier(scratch.RACERS)

    def _look_first(self, key: str, data: Any) -> None:
        """Refuse a second put in a row, but look and write as two steps, as a gateway before two sites may."""
        is_there = self.get(key) is not None
        if threading.current_thread() is not threading.main_thread():
            self.looked.wait()
        if is_there:
            raise ObjectExists("it exists", next_step="read it")
        self.put(key, data)


@pytest.mark.parametrize(
    ("fault", "code", "seen"),
    [
        ("refused", "B030", "access denied"),
        ("other", "B031", "other content"),
        ("overwrites", "B032", "create-only"),
        ("looks_first", "B032", "3 of 3 create-only puts of one object at the same time succeeded"),
    ],
)
def test_each_place_is_written_read_and_not_overwritten(
    make: Callable[..., PhaseContext], plan: Plan, tmp_path: Path, fault: str, code: str, seen: str
) -> None:
    context = make()
    store = _Store(str(tmp_path / "archive"))
    store.fault = fault
    context.archive_store = store
    listed = list(precheck_storage.check_storage(context, plan))
    (item,) = [item for item in listed if item.code == code]
    assert seen in item.seen
    assert item.subject.startswith("archive ")


def test_a_race_has_one_winner_and_leaves_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert scratch.race(store, "m1/precheck") == ""
    assert list(store.list()) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (StoreFacts(True, True, 0.4), {}),
        (StoreFacts(True, False, -2.0), {"W033": "no Object Lock"}),
        (StoreFacts(True, None, None), {"W033": "the bucket does not report it"}),
        (StoreFacts(False), {"W033": "it is a folder"}),
        (StoreFacts(True, True, 61.0), {"W034": "the store's clock differs by +61 s from this machine's"}),
        (StoreFacts(True, True, -900.0), {"W034": "the store's clock differs by -900 s from this machine's"}),
    ],
)
def test_object_lock_and_clocks(
    make: Callable[..., PhaseContext],
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    facts: StoreFacts,
    expected: dict[str, str],
) -> None:
    monkeypatch.setattr(precheck_storage, "store_facts", lambda _: facts)
    assert found(precheck_storage.check_storage(make(), plan)) == expected


def test_what_the_bucket_does_with_the_journal(
    make: Callable[..., PhaseContext], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def rules(store: Any, prefix: str) -> tuple[list[str], list[str]]:
        asked.append((store.uri, prefix))
        return ["lifecycle rule r0 deletes objects after 30 days"], ["default retention: NotImplemented"]

    monkeypatch.setattr(precheck_storage, "store_facts", lambda _: StoreFacts(True, True, 0.0))
    monkeypatch.setattr(precheck_storage, "rules_for", rules)
    context = make()
    assert found(precheck_storage.check_storage(context, plan)) == {
        "W047": "lifecycle rule r0 deletes objects after 30 days",
        "I048": "default retention: NotImplemented",
    }
    assert asked == [(context.journal_store.uri, context.migration_id)]


# -- the target ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "transactions", "expected"),
    [
        ({"sequence": "", "fillers": "", "markers": "", "log_end": ""}, False, set()),
        ({"sequence": "accepted", "fillers": "no", "markers": "refused", "log_end": "?"}, False, {"B", "F", "M", "L"}),
        ({}, False, {"B", "F", "M", "L"}),
        ({"sequence": "", "fillers": "", "markers": "", "log_end": ""}, True, {"T"}),
    ],
)
def test_what_the_probe_showed(
    make: Callable[..., PhaseContext],
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: dict[str, str],
    transactions: bool,
    expected: set[str],
) -> None:
    codes = {"B": ["B020"], "F": ["B021"], "M": ["B022", "W035"], "L": ["W023"], "T": ["W025"]}
    context = make(offsets={"mode": "equal"})
    monkeypatch.setattr(precheck_target, "record_outcomes", lambda *_: None)
    monkeypatch.setattr(precheck_target, "probe_target", lambda *_, **__: ProbeResult(outcomes, {}, transactions))
    assert found(precheck_target.check_probe(context, plan)).keys() == {
        code for name in expected for code in codes[name]
    }
    lacking = ProbeResult(outcomes, missing={"markers": "Write on TransactionalId x"})
    monkeypatch.setattr(precheck_target, "probe_target", lambda *_, **__: lacking)
    items = list(precheck_target.check_probe(context, plan))
    assert [item.subject for item in items if item.code == "B005"] == ["target Write on TransactionalId x"]
    # One cluster on both sides is not probed: that would write to the source.
    same = plan.model_copy(update={"target": plan.source})
    assert found(precheck_target.check_probe(context, same)) == {}


@pytest.mark.parametrize(
    ("result", "taken", "name", "expected"),
    [
        (ProbeResult({"markers": ""}, may_mark=True), False, "", None),
        (ProbeResult({"markers": ""}, uses_transactions=True, may_mark=False), False, "", "I036"),
        (ProbeResult({"markers": ""}, uses_transactions=True, may_mark=False), True, "m.data", "I036"),
        (ProbeResult({"markers": ""}, uses_transactions=True, may_mark=False), True, "", "W035"),
        (ProbeResult({"markers": "no answer in time"}, may_mark=False), False, "", "W035"),
        (ProbeResult({"markers": "REQUEST_TIMED_OUT"}, may_mark=True), False, "", "W035"),
        (ProbeResult({}), False, "", "W035"),
    ],
)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_fence_that_lacks_a_right_is_named_before_the_cutover(
    make: Callable[..., PhaseContext],
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    result: ProbeResult,
    taken: bool,
    name: str,
    expected: str | None,
    is_mapped: bool,
) -> None:
    """Also where no hole is filled, so that nothing else needs markers."""
    monkeypatch.setattr(precheck_target, "record_outcomes", lambda *_: None)
    monkeypatch.setattr(precheck_target, "probe_target", lambda *_, **__: result)
    monkeypatch.setattr(MigrationRecord, "has_producer_ids", lambda _: taken)
    monkeypatch.setattr(producer_ids, "transactional_id", lambda _: name)
    if is_mapped:
        partitions = [item.model_copy(update={"verdict": Verdict.MAPPED}) for item in plan.topics[0].partitions]
        plan = with_topic(plan, partitions=partitions)
    seen = {
        code: text
        for code, text in found(precheck_target.check_probe(make(), plan)).items()
        if code in ("I036", "W035")
    }
    assert seen.keys() == ({expected} if expected else set())
    for text in () if result.may_mark else seen.values():
        assert "kafka-acls.sh --bootstrap-server $TARGET_BOOTSTRAP --add --allow-principal 'User:MIGRATION' " in text
        assert "--operation Alter --cluster" in text
    off = make(cutover={"fence_copiers": False})
    assert not {"I036", "W035"} & found(precheck_target.check_probe(off, plan)).keys()


def test_smaller_messages_and_requests(make: Callable[..., PhaseContext], plan: Plan) -> None:
    size = "max.message.bytes"
    small = with_topic(plan, source_configs={size: "9000000"}, target_configs={size: "1000000"})
    target = cluster(answers(broker_configs=configs(socket_request_max_bytes="5000000")))
    seen = found(precheck_target.check_message_sizes(make(target=target), small))
    assert seen["W060"] == "shop.alerts: 9000000 -> 1000000"
    assert "9000000" in seen["B061"]
    large = cluster(answers(broker_configs=configs(socket_request_max_bytes="104857600")))
    assert found(precheck_target.check_message_sizes(make(target=large), plan)) == {}


def test_timestamps_and_transaction_timeouts(make: Callable[..., PhaseContext], plan: Plan) -> None:
    assert found(precheck_target.check_timestamps(make(), plan)).keys() == {"W062"}
    assert found(precheck_target.check_timestamps(make(), plan.model_copy(update={"defaults_drift": []}))) == {}
    source = cluster(answers(broker_configs=configs(transaction_max_timeout_ms="900000")))
    target = cluster(answers(broker_configs=configs(transaction_max_timeout_ms="60000")))
    assert found(precheck_target.check_transaction_timeouts(make(source, target), plan)).keys() == {"W053"}
    assert found(precheck_target.check_transaction_timeouts(make(source, source), plan)) == {}


@pytest.mark.parametrize(
    ("dirs", "code"),
    [
        ([LogDir(1, "/a", 10**12, 9 * 10**11)], None),
        ([LogDir(1, "/a", 10**12, 10**11)], "W065"),
        ([LogDir(1, "/a", 10**7, 5 * 10**6)], "B064"),
        # Two folders of one disk are one disk; two brokers are two.
        ([LogDir(1, "/a", 10**7, 3 * 10**6), LogDir(1, "/b", 10**7, 3 * 10**6)], "B064"),
        ([LogDir(1, "/a", 10**7, 3 * 10**6), LogDir(2, "/a", 10**7, 3 * 10**6)], "W065"),
        # What is there already needs no more room.
        ([LogDir(1, "/a", 10**7, 5 * 10**6, {("shop.orders", 0): 5_400_000})], None),
        ([LogDir(1, "/a", -1, -1)], None),
        (PermissionMissing("Describe on the cluster"), None),
    ],
)
def test_disk_space_of_the_log_dirs(
    make: Callable[..., PhaseContext], plan: Plan, dirs: list[LogDir] | Exception, code: str | None
) -> None:
    context = make(target=cluster(answers(log_dirs=dirs)))
    assert set(found(precheck_target.check_disk(context, plan))) == ({code} if code else set())


# -- the source ------------------------------------------------------------------------------------------------------


def test_open_and_hanging_transactions(make: Callable[..., PhaseContext], plan: Plan) -> None:
    topic = plan.topics[0].name
    now_ms = int(NOW.timestamp() * 1000)

    def offsets(keys: list[tuple[str, int]], which: str) -> dict[tuple[str, int], int]:
        return {key: 5 if which == "stable" and key == (topic, 0) else 9 for key in keys}

    def transaction(name: str, age_ms: int, where: str) -> TransactionFacts:
        return TransactionFacts(name, 7, "Ongoing", 1, ((where, 0),), now_ms - age_ms, 60_000)

    open_ones = [transaction("old", 200_000, topic), transaction("young", 100_000, topic), transaction("x", 10**9, "y")]
    source = cluster(answers(open_transactions=open_ones), answers(list_offsets=offsets))
    seen = found(precheck_source.check_transactions(make(source), with_topic(plan)))
    assert f"{topic}-0" in seen["W050"]
    assert seen["W051"].startswith("old is open for 200 s")
    calm = cluster(answers(open_transactions=None), answers(list_offsets=lambda keys, _: dict.fromkeys(keys, 3)))
    assert found(precheck_source.check_transactions(make(calm), plan)) == {}


@pytest.mark.parametrize("written", [1, 1_000_000])
def test_a_busy_partition_without_transactions_is_no_finding(
    make: Callable[..., PhaseContext], plan: Plan, written: int
) -> None:
    """Producers write between the two answers: only an offset that stays behind what was there before is held back."""
    looks = itertools.count(1)
    source = cluster(
        answers(open_transactions=None),
        answers(list_offsets=lambda keys, _: dict.fromkeys(keys, written * next(looks))),
    )
    assert found(precheck_source.check_transactions(make(source), plan)) == {}


def test_topics_that_one_producer_writes_together(make: Callable[..., PhaseContext], plan: Plan) -> None:
    def state(producer: int, epoch: int = 0) -> SimpleNamespace:
        return SimpleNamespace(
            producers=[SimpleNamespace(producer_id=producer, coordinator_epoch=epoch, transaction_start=-1)]
        )

    producers = {("shop.payments", 0): state(1), ("other", 0): state(1), ("plain", 0): state(2, -1)}
    facts = {
        name: SimpleNamespace(error=None, partitions=[SimpleNamespace(partition=0)]) for name in ("other", "plain")
    }
    source = cluster(answers(describe_topics=facts, producers=producers))
    outside = plan.model_copy(update={"excluded_topics": {"other": "not in topics.include", "plain": "not in include"}})
    seen = found(precheck_source.check_coupled_topics(make(source), outside))
    assert seen == {"W052": "written in one transaction with other"}
    assert found(precheck_source.check_coupled_topics(make(source), plan)) == {}


@pytest.mark.parametrize(("seconds", "short"), [(0.1, False), (40.0, True), (-1.0, False)])
def test_retention_that_overtakes_the_copy(
    make: Callable[..., PhaseContext], plan: Plan, seconds: float, short: bool
) -> None:
    assert plan.estimate is not None
    slow = plan.model_copy(update={"estimate": plan.estimate.model_copy(update={"copy_seconds": seconds})})
    source = cluster(
        answers(
            topic_configs=lambda names: {name: configs(cleanup_policy="delete", retention_ms="60000") for name in names}
        )
    )
    assert set(found(precheck_source.check_retention(make(source), slow))) == ({"W063"} if short else set())


@pytest.mark.parametrize(
    ("seconds", "retention", "seen"),
    [
        (40.0, "60000", "the copy takes about 40 s; delete.retention.ms of shop.alerts (60 s)"),
        (20.0, "60000", None),
        (40.0, "", "the source does not report delete.retention.ms of shop.alerts"),
        (-1.0, "60000", "the copy time is unknown"),
    ],
)
def test_tombstones_that_the_copy_may_miss(
    make: Callable[..., PhaseContext], plan: Plan, seconds: float, retention: str, seen: str | None
) -> None:
    assert plan.estimate is not None
    estimate = plan.estimate.model_copy(update={"copy_seconds": seconds, "fill_seconds": 0.0})
    slow = with_topic(plan, kinds=["compacted"]).model_copy(update={"estimate": estimate})
    told = configs(delete_retention_ms=retention) if retention else configs()
    source = cluster(answers(topic_configs=lambda names: dict.fromkeys(names, told)))
    shown = found(precheck_compaction.check_tombstones(make(source), slow))
    assert (shown["W068"].startswith(seen) if seen else shown == {}) is True
    plain = with_topic(plan, kinds=[]).model_copy(update={"estimate": estimate})
    assert found(precheck_compaction.check_tombstones(make(source), plain)) == {}


def test_a_rate_that_is_set_makes_the_copy_longer(make: Callable[..., PhaseContext], plan: Plan) -> None:
    assert plan.estimate is not None
    estimate = plan.estimate.model_copy(update={"copy_seconds": 1.0, "fill_seconds": 0.0, "copy_bytes": 4_000_000})
    slow = with_topic(plan, kinds=["compacted"]).model_copy(update={"estimate": estimate})
    source = cluster(answers(topic_configs=lambda names: dict.fromkeys(names, configs(delete_retention_ms="60000"))))
    limited = make(source, seed={"max_bytes_per_second": "10KB", "lanes": 4})
    assert "about 100 s" in found(precheck_compaction.check_tombstones(limited, slow))["W068"]


@pytest.mark.parametrize(
    ("policy", "verdict", "codes"),
    [
        ("compact", Verdict.EQUAL, {"I066"}),
        ("delete", Verdict.EQUAL, {"I066", "W067"}),
        ("delete", Verdict.MAPPED, set()),
    ],
)
def test_what_markers_cost(
    make: Callable[..., PhaseContext], plan: Plan, policy: str, verdict: Verdict, codes: set[str]
) -> None:
    holes = (
        plan.topics[0]
        .partitions[0]
        .model_copy(update={"verdict": verdict, "estimated_holes": 1_000_000, "size_bytes": 5_000_000})
    )
    marked = with_topic(plan, partitions=[holes], target_configs={"retention.ms": str(7 * 86_400_000)})
    told = configs(cleanup_policy=policy, retention_ms="60000")
    source = cluster(answers(topic_configs=lambda names: dict.fromkeys(names, told)))
    shown = found(precheck_compaction.check_markers(make(source), marked))
    assert shown.keys() == codes
    if codes:
        assert "about 1,000,000 markers, 78,000,000 bytes per replica" in shown["I066"]
    if "W067" in codes:
        assert "shop.alerts (7.0 days, 83,000,000 bytes)" in shown["W067"]


def test_markers_need_disk(make: Callable[..., PhaseContext], plan: Plan) -> None:
    """Two million holes are 156 MB on each replica, whatever the records take."""
    dirs = [LogDir(1, "/a", 10**9, 10**8)]
    holes = (
        plan.topics[0]
        .partitions[0]
        .model_copy(update={"verdict": Verdict.EQUAL, "estimated_holes": 2_000_000, "size_bytes": 1_000})
    )
    marked = with_topic(plan, partitions=[holes], replication_factor=1)
    shown = found(precheck_target.check_disk(make(target=cluster(answers(log_dirs=dirs))), marked))
    assert "156,001,000 bytes with all replicas (156,000,000 of them control markers)" in shown["B064"]


# -- topics ----------------------------------------------------------------------------------------------------------


def test_replication_verdicts_and_defaults(make: Callable[..., PhaseContext], plan: Plan) -> None:
    lowered = with_topic(plan, source_replication_factor=3, replication_factor=1)
    assert "1 on the target" in found(topics.check_replication(make(), lowered))["W012"]
    mapped = plan.topics[0].partitions[0].model_copy(update={"verdict": Verdict.MAPPED})
    assert found(topics.check_verdicts(make(), with_topic(plan, partitions=[mapped]))).keys() == {"W024"}
    assert found(topics.check_verdicts(make(), plan)) == {}
    assert found(topics.check_configs(make(), plan)).keys() == {"W018"}
    from_source = make(topology={"use_defaults_from": "source"})
    assert found(topics.check_configs(from_source, plan)) == {}


def test_names_that_are_not_there_and_topics_of_tools(make: Callable[..., PhaseContext], plan: Plan) -> None:
    odd = plan.model_copy(
        update={
            "missing_topics": ["typo"],
            "excluded_topics": {
                "mm2-offsets.a.internal": "internal topic (built-in exclude)",
                "__consumer_offsets": "internal topic of the brokers",
                "other": "topics.exclude: oth.*",
            },
        }
    )
    seen = found(topics.check_selection(make(), odd))
    assert "typo" in seen["B090"]
    assert seen["I091"] == "__consumer_offsets, mm2-offsets.a.internal"
    assert seen["I092"] == "other (topics.exclude: oth.*)"


def test_every_group_that_is_left_out_is_named(make: Callable[..., PhaseContext], plan: Plan) -> None:
    odd = plan.model_copy(
        update={
            "excluded_groups": [
                LeftOutGroup(
                    group="legacy", type="classic", reason="not in groups.include", topics_in_scope=["orders"]
                ),
                LeftOutGroup(group="elsewhere", type="classic", reason="not in groups.include"),
                LeftOutGroup(group="hidden", type="classic", reason="not in groups.include", unread="NOT_ALLOWED"),
                LeftOutGroup(
                    group="console-consumer-1",
                    type="classic",
                    reason="groups.exclude: console-consumer-.*",
                    topics_in_scope=["orders"],
                ),
            ]
        }
    )
    (reading, others) = access.check_left_out_groups(make(), odd)
    assert (reading.code, reading.subject) == ("W074", "legacy")
    assert reading.seen == "not in groups.include; it has offsets in orders"
    assert others.code == "I075"
    assert sorted(others.details["groups"]) == ["console-consumer-1", "elsewhere", "hidden"]
    assert "its offsets cannot be read: NOT_ALLOWED" in others.details["groups"]["hidden"]


def test_drift_under_refuse(make: Callable[..., PhaseContext], plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = [{"config": "retention.ms", "target": "1", "source": "2", "planned": "2"}]
    drifted = with_topic(plan, drift=drift)
    here = SimpleNamespace(exists=True, ours=False, empty=True, partitions=3, end_offsets={})
    monkeypatch.setattr(target_topics, "read_presence", lambda *_: {"shop.alerts": here})
    refusing = make(topology={"on_config_drift": "stop"})
    assert found(topics.check_present(refusing, drifted)) == {"B011": "retention.ms is 1, source 2"}
    assert found(topics.check_present(make(), drifted)).keys() == {"W016"}


# -- access ----------------------------------------------------------------------------------------------------------


def test_groups_of_other_kinds_and_active_ones(make: Callable[..., PhaseContext], plan: Plan) -> None:
    groups = [
        GroupPlan(group="odd", type="unknown", state="Stable", topics_in_scope=[]),
        GroupPlan(group="busy", type="classic", state="Empty", topics_in_scope=["shop.orders"]),
    ]
    busy = {"busy": GroupDescription("busy", "classic", "Stable", (cast(GroupMember, object()),))}
    target = cluster(answers(describe_groups=busy))
    seen = found(access.check_groups(make(target=target), plan.model_copy(update={"groups": groups})))
    assert seen == {"W071": "its type is unknown", "W070": "state Stable, 1 members"}


def test_what_plan_could_not_look_at(make: Callable[..., PhaseContext], plan: Plan) -> None:
    unknown = {"ACLs on the source": "refused", "offsets of group g": "refused", "producers on the source": "refused"}
    seen = found(access.check_unknown(make(), plan.model_copy(update={"unknown": unknown})))
    assert seen == {"B007": "ACLs on the source: refused", "W073": "offsets of group g: refused"}


def _acl(action: str) -> AclPlan:
    return AclPlan(
        resource_type="TOPIC",
        resource_name=action,
        pattern_type="LITERAL",
        principal="User:a",
        host="*",
        operation="READ",
        permission="ALLOW",
        action=cast(Any, action),
    )


def test_acl_policies(make: Callable[..., PhaseContext], plan: Plan) -> None:
    all_kinds = plan.model_copy(update={"acls": [_acl(name) for name in ("create", "target_only", "unsupported")]})
    assert found(access.check_acls(make(), all_kinds)).keys() == {"W083"}
    assert found(access.check_acls(make(acls={"policy": "replace"}), all_kinds)).keys() == {"W083", "W084"}
    assert found(access.check_acls(make(acls={"policy": "refuse"}), all_kinds)).keys() == {"W083", "B082"}
    assert found(access.check_acls(make(acls={"policy": "skip"}), all_kinds)) == {}
    open_target = all_kinds.model_copy(update={"target": plan.target.model_copy(update={"authorizer": False})})
    assert found(access.check_acls(make(), open_target)).keys() == {"W080"}
    open_source = plan.model_copy(update={"acls": [], "source": plan.source.model_copy(update={"authorizer": False})})
    assert found(access.check_acls(make(), open_source)).keys() == {"I081"}


@pytest.mark.parametrize(
    ("on_source", "on_target", "seen"),
    [
        ("10080", "1440", {"W076": "offsets.retention.minutes is 1440 on the target, 10080 on the source"}),
        ("10080", "10080", {}),
        ("1440", "10080", {}),
        ("10080", None, {}),
    ],
)
def test_a_target_that_forgets_offsets_earlier_is_named(
    make: Callable[..., PhaseContext], plan: Plan, on_source: str, on_target: str | None, seen: dict[str, str]
) -> None:
    def side(value: str | None) -> Any:
        brokers = configs(offsets_retention_minutes=value) if value else Configs("1", {})
        return cluster(answers(broker_configs=brokers))

    context = make(source=side(on_source), target=side(on_target))
    assert found(precheck_target.check_offsets_retention(context, plan)) == seen


def test_denials_of_the_target_that_hit_migrated_clients_are_named(
    make: Callable[..., PhaseContext], plan: Plan
) -> None:
    name, group = plan.topics[0].target_name, plan.groups[0].group
    reads = _acl("create").model_copy(update={"principal": "User:reports", "target_resource_name": name})

    def denial(principal: str, kind: str = "TOPIC", place: str = name, **more: Any) -> AclPlan:
        changes = {"principal": principal, "resource_type": kind, "target_resource_name": place, "permission": "DENY"}
        return _acl("target_only").model_copy(update={**changes, **more})

    def hits(item: AclPlan, *, source_authorizer: bool = True, client: AclPlan = reads, **sections: Any) -> bool:
        source = plan.source.model_copy(update={"authorizer": source_authorizer})
        mine = plan.model_copy(update={"acls": [client, item], "source": source})
        return found(access.check_target_denials(make(**sections), mine)).keys() == {"W077"}

    assert hits(denial("User:reports"))
    assert hits(denial("User:*"))
    assert hits(denial("User:reports", "GROUP", group))
    assert hits(denial("User:reports", "GROUP", group[:2], pattern_type="PREFIXED"))
    assert hits(denial("User:etl"), client=reads.model_copy(update={"principal": "User:*"}))
    assert hits(denial("User:etl"), source_authorizer=False), "nobody knows who the clients are"
    assert not hits(denial("User:etl")), "it has nothing to do with what is migrated"
    assert not hits(denial("User:reports", "GROUP", "bank"))
    assert not hits(denial("User:reports", permission="ALLOW"))
    assert not hits(denial("User:reports", action="exists")), "the source has it, too"
    assert not hits(denial("User:reports"), acls={"target_auth": "iam"})


def test_producers_that_others_have_denied_are_named_before_a_freeze_by_acls(
    make: Callable[..., PhaseContext], plan: Plan
) -> None:
    """A lifted freeze leaves these, so nobody may take them for the migration's own."""
    name = plan.topics[0].name
    own = Acl("TOPIC", "*", "LITERAL", "User:migration", "*", "ALL", "ALLOW")
    shop = Acl("TOPIC", name, "LITERAL", "User:shop", "*", "WRITE", "ALLOW")

    def denied(principal: str, operation: str = "WRITE", place: str = name) -> Acl:
        return Acl("TOPIC", place, "LITERAL", principal, "*", operation, "DENY")

    def listed(*acls: Acl, frozen_before: Sequence[Acl] = (), freeze: str = "acl") -> dict[str, str]:
        admin = answers(
            describe_acls=AclListing(True, (own, shop, *acls)),
            facts=SimpleNamespace(brokers=[1]),
            broker_configs=Configs("1", {}),
        )
        config = SimpleNamespace(username="migration")
        source = SimpleNamespace(role="source", admin=admin, wire=None, config=config)
        context = make(source=source, cutover={"freeze": freeze})
        entry = SimpleNamespace(details={"acls": [acl_row(acl) for acl in frozen_before]})
        context.journal = cast(Any, SimpleNamespace(steps=lambda _name: [entry]))
        return found(access.check_denials(context, plan))

    assert listed() == {}
    assert "User:shop" in listed(denied("User:shop"))["I093"]
    assert listed(denied("User:shop", "ALL", "*")).keys() == {"I093"}
    assert listed(denied("User:*")).keys() == {"I093"}
    assert listed(denied("User:shop", "READ")) == {}
    assert listed(denied("User:etl")) == {}, "it may not write anyway"
    assert listed(denied("User:shop", place="payments")) == {}
    assert listed(denied("User:shop"), frozen_before=[denied("User:shop")]) == {}, "an earlier freeze has made it"
    assert listed(denied("User:shop"), freeze="manual") == {}


@pytest.mark.parametrize(("principals", "is_many"), [(2999, False), (3000, True)])
def test_so_many_denials_that_they_take_the_time_of_the_freeze_are_counted(
    make: Callable[..., PhaseContext], plan: Plan, principals: int, is_many: bool
) -> None:
    """3,000 bindings took three seconds to create, and ten to remove, of a limit of one minute."""
    name = plan.topics[0].name
    acls = [Acl("TOPIC", name, "LITERAL", f"User:{number}", "*", "WRITE", "ALLOW") for number in range(principals)]
    admin = answers(
        describe_acls=AclListing(True, (*acls, Acl("TOPIC", "*", "LITERAL", "User:own", "*", "READ", "ALLOW"))),
        facts=SimpleNamespace(brokers=[1]),
        broker_configs=Configs("1", {}),
    )
    source = SimpleNamespace(role="source", admin=admin, wire=None, config=SimpleNamespace(username="own"))
    context = make(source=source, cutover={"freeze": "acl", "max_producer_freeze": "60s"})
    context.journal = cast(Any, SimpleNamespace(steps=lambda _name: []))
    seen = found(access.check_denials(context, plan))
    assert seen.keys() == ({"W094"} if is_many else set())
    assert not is_many or seen["W094"].startswith("3000 DENY ACLs for 3000 principals: about 3 s until all exist")


def test_acls_that_reach_what_others_have_are_named(make: Callable[..., PhaseContext], plan: Plan) -> None:
    names = sorted(topic.target_name for topic in plan.topics)
    own_group = plan.groups[0].group

    def binding(kind: str, name: str, operation: str = "READ", pattern: str = "LITERAL", **more: Any) -> AclPlan:
        changes = {"resource_type": kind, "resource_name": name, "target_resource_name": name}
        changes |= {"operation": operation, "pattern_type": pattern}
        return _acl("create").model_copy(update={**changes, **more})

    def reaching(item: AclPlan, *topics: str, **sections: Any) -> bool:
        there = {name: TopicFacts(name) for name in (*names, "__consumer_offsets", *topics)}
        groups = {name: cast(Any, None) for name in (own_group, "bank-batch")}
        target = cluster(answers(describe_topics=there, list_groups=groups))
        mine = plan.model_copy(update={"acls": [item]})
        return found(access.check_reach(make(target=target, **sections), mine)).keys() == {"W078"}

    wide = [
        binding("TOPIC", "*"),
        binding("TOPIC", "*", action="deferred", operation="WRITE"),
        binding("TOPIC", "*", permission="DENY"),
        binding("TOPIC", "pay", pattern="PREFIXED"),
        binding("GROUP", "*"),
        binding("GROUP", "bank-", pattern="PREFIXED"),
        binding("TRANSACTIONAL_ID", "*", "WRITE"),
        binding("CLUSTER", "kafka-cluster", "ALTER"),
        binding("CLUSTER", "kafka-cluster", "CREATE"),
    ]
    narrow = [
        binding("TOPIC", names[0]),
        binding("TOPIC", names[0], pattern="PREFIXED"),
        binding("TOPIC", "*", action="exists"),
        binding("GROUP", own_group, pattern="PREFIXED"),
        binding("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"),
    ]
    assert [item for item in wide if not reaching(item, "payments")] == []
    assert [item for item in narrow if reaching(item, "payments")] == []
    assert [item for item in wide if reaching(item)] == [], "nobody else uses the target"
    assert not reaching(wide[0], "payments", acls={"target_auth": "iam"})


@pytest.mark.parametrize("policy", get_args(AclsSection.model_fields["policy"].annotation))
@pytest.mark.parametrize("action", get_args(AclPlan.model_fields["action"].annotation))
def test_no_task_refuses_acls_that_the_precheck_has_passed(
    make: Callable[..., PhaseContext], plan: Plan, policy: str, action: str
) -> None:
    if policy == "mirror_maker":
        return  # only in mirrors, where it refuses nothing
    context = make(acls={"policy": policy})
    plans = [_acl(action)]
    codes = found(access.check_acls(context, plan.model_copy(update={"acls": plans})))
    try:
        access_apply._refuse(context.record, plans)
    except TopologyRefused:
        assert "B082" in codes
    else:
        assert "B082" not in codes


@pytest.mark.parametrize("policy", get_args(AclsSection.model_fields["quotas"].annotation))
@pytest.mark.parametrize("action", get_args(QuotaPlan.model_fields["action"].annotation))
def test_no_task_refuses_quotas_that_the_precheck_has_passed(
    make: Callable[..., PhaseContext], plan: Plan, policy: str, action: str
) -> None:
    context = make(acls={"quotas": policy})
    plans = [QuotaPlan(entity=[("user", "ann")], values={"x": 1}, target_values={"x": 2}, action=cast(Any, action))]
    codes = found(access.check_quotas(context, plan.model_copy(update={"quotas": plans, "group_configs": []})))
    try:
        access_apply.refuse_quotas(context.record, plans)
    except TopologyRefused:
        assert codes.keys() == {"B088"}
    else:
        assert "B088" not in codes


def test_others_who_may_write_to_remote_topics_are_named(make: Callable[..., PhaseContext], plan: Plan) -> None:
    """By ACLs of the target, whose own they are, or because no ACL names a topic; not the mirror itself."""
    names = sorted(topic.target_name for topic in plan.topics)
    of_own = Acl("TOPIC", "*", "LITERAL", "User:mirror", "*", "ALL", "ALLOW")
    of_people = Acl("TOPIC", names[0], "LITERAL", "User:etl", "*", "WRITE", "ALLOW")
    reading = Acl("TOPIC", names[0], "LITERAL", "User:reader", "*", "READ", "ALLOW")
    closed = Configs("1", {})

    def listed(*acls: Acl, brokers: Configs = closed, **sections: Any) -> dict[str, str]:
        admin = answers(
            describe_acls=AclListing(True, acls), facts=SimpleNamespace(brokers=[1]), broker_configs=brokers
        )
        config = SimpleNamespace(username="mirror")
        target = SimpleNamespace(role="target", admin=admin, wire=None, config=config)
        mirror = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
        return found(access.check_remote_writers(make(target=target, **{**mirror, **sections}), plan))

    assert list(listed(of_own, of_people, reading)) == ["W079"]
    assert listed(of_own, of_people, reading)["W079"].startswith("User:etl by ACLs of the target")
    assert listed(of_own, reading) == {}
    assert listed(of_own, of_people, acls={"write_grants": "at_once"}) == {}, "they are to write there"
    assert listed(of_own, of_people, acls={"policy": "skip"}) == {}, "access is for people"
    opened = configs(allow_everyone_if_no_acl_found="true")
    assert "allow.everyone.if.no.acl.found" in listed(reading, brokers=opened)["W079"]
    assert listed(reading, of_own, brokers=opened) == {}, "every topic has an ACL"


def test_users_quotas_and_group_configs(make: Callable[..., PhaseContext], plan: Plan) -> None:
    changed = plan.model_copy(
        update={
            "users": [UserPlan(name="ann", credentials=[], action="report")],
            "quotas": [
                QuotaPlan(entity=[("user", "ann")], values={"x": 1}, target_values={"x": 2}, action="overwrite")
            ],
            "group_configs": [GroupConfigPlan(group="g", configs={}, action="unsupported")],
        }
    )
    assert found(access.check_users(make(), changed)) == {"W085": "ann"}
    assert found(access.check_quotas(make(), changed)) == {"W087": "user ann", "W089": "g"}
    refusing = make(acls={"quotas": "refuse"})
    assert found(access.check_quotas(refusing, changed)) == {"B088": "user ann", "W089": "g"}


@pytest.mark.parametrize(
    ("unknown", "acls", "sections", "needed"),
    [
        ({}, [], {}, False),
        ({}, ["create"], {}, True),
        ({}, ["deferred"], {}, True),
        ({}, ["exists", "filtered"], {}, False),
        # ACLs that may not be listed are not "no ACLs": something may have to be created.
        ({"ACLs on the source": "refused"}, [], {}, True),
        ({"ACLs on the source": "refused"}, [], {"acls": {"policy": "skip"}}, False),
        ({"ACLs on the source": "refused"}, [], {"acls": {"target_auth": "iam"}}, False),
    ],
)
def test_alter_on_the_target_is_missed_only_where_access_is_changed(
    make: Callable[..., PhaseContext],
    plan: Plan,
    unknown: dict[str, str],
    acls: list[str],
    sections: dict[str, Any],
    needed: bool,
) -> None:
    all_but = frozenset({"DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"})
    admin = answers(cluster_operations=all_but, describe_topics={}, group_operations={})
    source = SimpleNamespace(role="source", admin=admin)
    target = SimpleNamespace(role="target", admin=admin)
    mine = plan.model_copy(update={"unknown": unknown, "acls": [_acl(name) for name in acls], "users": []})
    listed = access.check_permissions(make(source, target, **sections), mine)
    missing = {item.subject for item in listed if item.code == "B005"}
    assert missing == ({"target Cluster Alter"} if needed else set())


@pytest.mark.parametrize(("policy", "missing"), [("note", set()), ("repair", {"target Group Delete"})])
def test_delete_on_groups_is_missed_only_where_groups_are_deleted(
    make: Callable[..., PhaseContext], plan: Plan, policy: str, missing: set[str]
) -> None:
    may = frozenset({"READ", "DESCRIBE"})
    admin = answers(cluster_operations=None, describe_topics={}, group_operations={"billing": may, "unknown": None})
    both = [SimpleNamespace(role=role, admin=admin) for role in ("source", "target")]
    mirror = {"kind": "mirror", "mirror": {"source_alias": "A", "target_alias": "B"}}
    listed = access.check_permissions(make(*both, **mirror, groups={"on_deleted": policy}), plan)
    assert {item.subject for item in listed if item.code == "B005"} == missing


def _state_cluster(role: str, topics: dict[str, frozenset[str] | None], partitions: int = 1) -> SimpleNamespace:
    """A cluster with these topics, on which the principal has these rights (None: the broker does not tell)."""
    unknown = ItemError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True)

    def describe(names: list[str], *, operations: bool) -> dict[str, TopicFacts]:
        assert operations
        rows = tuple(PartitionFacts(number, 1, (1,), (1,)) for number in range(partitions))
        return {
            name: TopicFacts(name, "id", partitions=rows, operations=topics[name])
            if name in topics
            else TopicFacts(name, error=unknown)
            for name in names
        }

    return SimpleNamespace(role=role, admin=answers(describe_topics=describe))


def test_rights_on_state_topics_on_both_sides(make: Callable[..., PhaseContext], plan: Plan) -> None:
    keys: dict[str, Any] = {"source_alias": "A", "target_alias": "B"}
    on = {"checkpoints": True, "heartbeats": True, "heartbeats_on_source": True, "offset_syncs": "source"}
    sections = {"kind": "mirror", "mirror": {**keys, "state_topics": on}}
    all_rights = frozenset({"DESCRIBE", "READ", "WRITE"})
    source = _state_cluster("source", {"heartbeats": frozenset({"DESCRIBE", "READ"})})
    target = _state_cluster("target", {"heartbeats": all_rights, "A.heartbeats": None})
    listed = list(access.check_state_topics(make(source, target, **sections), plan))
    assert [(item.code, item.details["topics"]) for item in listed if item.code == "B005"] == [("B005", ["heartbeats"])]
    assert [item.subject for item in listed if item.code == "B005"] == ["source Topic Write"]
    absent = {item.subject: item.seen for item in listed if item.code == "I006"}
    assert set(absent) == {"source state topics", "target state topics"}
    assert "mm2-offset-syncs.B.internal" in absent["source state topics"]
    assert "A.checkpoints.internal" in absent["target state topics"]
    off = {"kind": "mirror", "mirror": keys}
    assert list(access.check_state_topics(make(source, target, **off), plan)) == []


def test_a_state_topic_with_several_partitions_is_refused_where_it_is_written(
    make: Callable[..., PhaseContext], plan: Plan
) -> None:
    mirror = {"source_alias": "A", "target_alias": "B", "state_topics": {"heartbeats": True}}
    rights = frozenset({"ALL"})
    source = _state_cluster("source", {"heartbeats": rights}, partitions=3)
    target = _state_cluster("target", {"heartbeats": rights, "A.heartbeats": rights}, partitions=3)
    listed = access.check_state_topics(make(source, target, kind="mirror", mirror=mirror), plan)
    assert [(item.code, item.subject) for item in listed] == [
        ("B043", "target A.heartbeats"),
        ("B043", "target heartbeats"),
    ]


def test_a_broker_that_does_not_tell_permissions_says_so(make: Callable[..., PhaseContext], plan: Plan) -> None:
    admin = answers(cluster_operations=None, describe_topics={}, group_operations={})
    both = [SimpleNamespace(role=role, admin=admin) for role in ("source", "target")]
    codes = {item.code for item in access.check_permissions(make(*both), plan)}
    assert codes == {"I006"}


def test_no_code_stands_for_two_findings() -> None:
    codes = [item.code for item in _ALL]
    assert sorted(codes) == sorted(set(codes))


# -- what the cutover writes to the source ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "broker", "seen"),
    [
        ({"message_format_version": "0.10.2-IV0"}, "2.8-IV1", "message.format.version 0.10.2-IV0 has no headers"),
        ({"message_format_version": "0.9.0"}, "2.8", "message.format.version 0.9.0 has no headers"),
        ({"message_format_version": "0.10.2-IV0"}, "", "message.format.version 0.10.2-IV0 has no headers"),
        # From 3.0 on, brokers ignore the config.
        ({"message_format_version": "0.10.2-IV0"}, "3.0-IV1", ""),
        ({"message_format_version": "0.11.0-IV2"}, "2.8", ""),
        ({}, "", ""),
        ({"max_message_bytes": "100"}, "", "max.message.bytes is 100, and a sentinel has"),
        ({"max_message_bytes": "1048588"}, "", ""),
        ({"min_insync_replicas": "4"}, "", "min.insync.replicas is 4, and its partitions have"),
        ({"min_insync_replicas": "1"}, "", ""),
        ({"confluent_value_schema_validation": "true"}, "", "confluent.value.schema.validation is true"),
    ],
)
def test_a_topic_that_would_refuse_a_sentinel_is_found_before_producers_stop(
    make: Callable[..., PhaseContext], plan: Plan, topic: dict[str, str], broker: str, seen: str
) -> None:
    values = {plan.topics[0].name: configs(**topic)}
    brokers = configs(inter_broker_protocol_version=broker) if broker else Configs("1", {}, ItemError(29, "no"))
    source = cluster(answers(topic_configs=values, broker_configs=brokers))
    plan = with_topic(plan, source_replication_factor=3)
    items = list(precheck_source.check_sentinels(make(source), plan))
    assert [item.code for item in items] == (["B054"] if seen else [])
    for item in items:
        assert item.seen.startswith(seen)
        assert item.subject == plan.topics[0].name
        assert "cutover.sentinel: end_offsets" in item.fix
    assert not list(precheck_source.check_sentinels(make(source, cutover={"sentinel": "end_offsets"}), plan))
