"""The comparison of a mirror as a job: what continues, what is removed, what is red, and what is never called equal."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from phase_world.jobs import compare_ranges
from phase_world.logs import Log
from phase_world.outside import Killed
from phase_world.world import World, Worlds, without_probes
from test_mirror_phase import ask
from test_verification import ORDERS, STATE, outcomes, rewrite, running, target_log

from airflow_provider_kafka_migration.compare.mirrored import SLICES, MirrorResults, results_prefix
from airflow_provider_kafka_migration.documents.mirror import MirrorComparison, MirrorVerification
from airflow_provider_kafka_migration.errors import (
    BrokerUnreachable,
    ConnectionInvalid,
    ContentsDiffer,
    ContentsUnchecked,
    JobMissing,
    NotInMigration,
    PermissionMissing,
    ResultMissing,
    SparkConnectorMissing,
    SparkJobFailed,
    StorageRefused,
    Terminal,
    Transient,
)
from airflow_provider_kafka_migration.jobs.submissions import Submission
from airflow_provider_kafka_migration.mirrors import comparison_job, verification
from airflow_provider_kafka_migration.mirrors.verification import Scope, last_verification
from airflow_provider_kafka_migration.phases.mirrors import finish, verify
from airflow_provider_kafka_migration.record.context import JobRef, PhaseContext
from airflow_provider_kafka_migration.state import State

RUN = "kafka_mirror_verify/scheduled__1/verify"
NAME = comparison_job.job_name(RUN)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    without_probes(monkeypatch)
    monkeypatch.setattr(verification, "_PATIENCE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds()


@pytest.fixture
def world(worlds: Worlds) -> World:
    return running(worlds)


class Engine:
    """A runner that compares in this process, as executors do.

    :param before: called before a job runs.
    """

    def __init__(self, world: World, before: Callable[[MirrorComparison], None] = lambda _: None) -> None:
        self.world, self.before = world, before
        self.ran: list[MirrorComparison] = []

    def submit(self, *_: Any) -> None:
        raise AssertionError("a job needs the record")

    def find(self, _record: Any, _name: str) -> Submission | None:
        raise AssertionError("without a claim nothing is found")

    def start(self, _record: Any, _job: JobRef) -> Submission:
        raise AssertionError("it is waited for")

    end = taken_up = start  # type: ignore[assignment]

    def run(self, record: Any, job: JobRef, _read_progress: Any) -> None:
        found = comparison_job.load(record, job.name)
        self.ran.append(found)
        self.before(found)
        compare_ranges(self.world.context(), found)


def reading(world: World, engine: Any = None) -> PhaseContext:
    """A context without a claim, as the task has it."""
    context = world.context()
    return dataclasses.replace(context, runner=engine or Engine(world))


def compare(world: World, engine: Any = None, **options: Any) -> MirrorVerification:
    verify.run(reading(world, engine), **{"run": RUN, **options})
    found = last_verification(world.context().record)
    assert found is not None
    return found


def fetches(world: World) -> list[str]:
    return [name for name in world.outside.calls if ".fetch" in name]


def stored(world: World) -> set[str]:
    return {key for key in world.journal_store.objects if "compare-" in key}


def _break(world: World, key: tuple[str, int] = ORDERS) -> None:
    rewrite(target_log(world, key), lambda items: [items[0]._replace(value=b"other"), *items[1:]])


# -- what a run does ---------------------------------------------------------------------------------------------------


def test_it_stores_the_result_and_leaves_nothing_else(world: World) -> None:
    entries, before = len(world.context().journal.entries()), len(world.outside.changes)
    engine = Engine(world)
    found = compare(world, engine)
    assert outcomes(found) == {ORDERS: "equal", ("orders", 1): "equal", STATE: "equal"}
    assert (found.state, found.is_equal, found.last, found.topics) == ("mirroring", True, None, [])
    assert len(world.context().journal.entries()) == entries, "nothing is journaled"
    changed = {item for item in world.outside.changes[before:] if "compare-" not in item}
    assert all("results/verification.json" in item for item in changed)
    assert stored(world) == set()
    assert engine.ran[0].run == RUN


def test_the_job_has_no_secrets_and_no_connections(world: World) -> None:
    job = comparison_job.write(reading(world), Scope(("orders",), 3), RUN)
    text = job.canonical().decode()
    assert MirrorComparison.parse(job.canonical()) == job
    assert (job.topics, job.last, [item.key for item in job.ranges]) == (["orders"], 3, [ORDERS, ("orders", 1)])
    for word in ("bootstrap", "password", "env:"):
        assert word not in text


def test_the_name_of_a_job_begins_its_tokens() -> None:
    assert len(NAME) == 15
    assert comparison_job.job_name("kafka_mirror_verify/scheduled__2/verify") != NAME


def test_a_paused_and_an_ended_mirror_are_compared(worlds: Worlds) -> None:
    world = running(worlds)
    ask(world, "ended")
    finish.run(world.context())
    assert world.state is State.ENDED
    world.restart()
    assert (compare(world).state, compare(world).is_equal) == ("ended", True)


def test_patterns_that_match_nothing_are_an_error(world: World) -> None:
    with pytest.raises(NotInMigration):
        compare(world, topics=["rders"])
    assert stored(world) == set()


def test_it_needs_an_engine(world: World) -> None:
    with pytest.raises(Terminal, match="needs a Spark engine"):
        verify.run(world.context(), run=RUN)


# -- red ---------------------------------------------------------------------------------------------------------------


def test_differences_are_red_and_named_without_content(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _break(world)
    with caplog.at_level(logging.INFO), pytest.raises(ContentsDiffer) as error:
        compare(world)
    assert "1 of 3 partitions differ: orders-0: 1 differences: changed at source offset 0" in str(error.value)
    assert error.value.details == {"partitions": ["orders-0"]}
    assert "orders-0 is different" in caplog.text
    assert "other" not in str(error.value) + caplog.text
    found = last_verification(world.context().record)
    assert found is not None
    assert (found.is_equal, found.count("different"), found.count("equal")) == (False, 1, 2)
    assert stored(world) == set(), "a cleared task compares again"
    rewrite(target_log(world), lambda items: [items[0]._replace(value=b"a"), *items[1:]])
    assert compare(world).is_equal


def test_unchecked_partitions_are_red(world: World) -> None:
    world.source.topics["orders"].logs.append(Log())
    world.source.log("orders", 2).write(b"new")
    with pytest.raises(ContentsUnchecked, match="1 of 4 partitions could not be checked: orders-2: the source has it"):
        compare(world)
    assert stored(world) == set()


def test_both_are_told(world: World) -> None:
    world.source.topics["orders"].logs.append(Log())
    world.source.log("orders", 2).write(b"new")
    _break(world)
    with pytest.raises(ContentsDiffer, match="1 of 4 partitions differ, and 1 could not be checked: orders-0"):
        compare(world)


def test_nothing_compared_is_not_equal(worlds: Worlds) -> None:
    def empty(world: World) -> None:
        for key in (ORDERS, ("orders", 1), STATE):
            world.source.log(*key).cut(world.source.log(*key).end)

    world = running(worlds, empty)
    for key in (ORDERS, ("orders", 1), STATE):
        target_log(world, key).cut(target_log(world, key).end)
    engine = Engine(world)
    with pytest.raises(ContentsUnchecked, match="nothing was compared, which proves nothing"):
        compare(world, engine)
    assert engine.ran == [], "Spark is not asked for nothing"


# -- absence is not evidence -------------------------------------------------------------------------------------------


def _job(world: World) -> MirrorComparison:
    return comparison_job.write(reading(world), Scope(), RUN)


def _result_keys(world: World) -> list[str]:
    return sorted(key for key in world.journal_store.objects if "/comparisons/" in key)


def test_a_partition_without_a_result_is_unchecked(world: World) -> None:
    job = _job(world)
    compare_ranges(world.context(), job)
    del world.journal_store.objects[_result_keys(world)[0]]
    found, errors = comparison_job.collect(reading(world), job)
    assert [item.outcome for item in found.partitions] == ["unchecked", "equal", "equal"]
    assert not found.is_equal
    assert [type(error) for error in errors] == [ResultMissing]
    with pytest.raises(Transient, match="1 partitions could not be compared: its comparison has brought no result"):
        verify.finish(reading(world), JobRef(NAME, "", ""))
    assert NAME in " ".join(stored(world)), "the next attempt continues"


@pytest.mark.parametrize("field", ["job_digest", "range"])
def test_a_result_of_another_job_is_none(world: World, field: str) -> None:
    job = _job(world)
    compare_ranges(world.context(), job)
    key = _result_keys(world)[0]
    data = json.loads(world.journal_store.objects[key])
    if field == "range":
        data["range"]["source_end_offset"] -= 1
    else:
        data["job_digest"] = "0" * 64
    world.journal_store.objects[key] = json.dumps(data).encode()
    found, _ = comparison_job.collect(reading(world), job)
    assert [item.outcome for item in found.partitions] == ["unchecked", "equal", "equal"]


def test_a_result_that_cannot_be_read_is_none(world: World) -> None:
    job = _job(world)
    compare_ranges(world.context(), job)
    world.journal_store.objects[_result_keys(world)[0]] = b"{"
    found, _ = comparison_job.collect(reading(world), job)
    assert found.count("unchecked") == 1


def test_a_topic_that_is_created_again_meanwhile_is_unchecked(world: World) -> None:
    def create_again(_job: MirrorComparison) -> None:
        world.source.topics["state"].topic_id = "f" * 32

    with pytest.raises(ContentsUnchecked, match="state-0: source: the topic was deleted and created again"):
        compare(world, Engine(world, create_again))
    found = last_verification(world.context().record)
    assert found is not None
    assert (found.count("equal"), found.count("unchecked")) == (2, 1)


def test_a_map_that_leads_elsewhere_by_now_is_unchecked(world: World) -> None:
    job = _job(world)
    piece = next(item for item in job.ranges if item.key == ORDERS)
    moved = piece.model_copy(update={"first_target_offset": 1})
    other = job.model_copy(update={"ranges": [moved]})
    (result,) = compare_ranges(world.context(), other)
    assert (result.found.outcome, result.error) == ("unchecked", None)
    assert "was corrected since" in result.found.reason


def test_without_its_document_nothing_is_judged(world: World) -> None:
    with pytest.raises(JobMissing):
        verify.finish(reading(world), JobRef(NAME, "", ""))
    assert last_verification(world.context().record) is None


# -- another attempt ---------------------------------------------------------------------------------------------------


def test_what_was_equal_is_not_compared_again(world: World) -> None:
    job = _job(world)
    left = job.model_copy(update={"ranges": job.ranges[:2]})

    def die(_: MirrorComparison) -> None:
        # The digest is that of the whole job.
        results = MirrorResults(job, world.journal_store)
        for piece, result in zip(left.ranges, compare_ranges(world.context(), left), strict=True):
            results.write(piece, result.found, None)
        raise BrokerUnreachable("the driver is gone", next_step="again")

    with pytest.raises(BrokerUnreachable):
        compare(world, Engine(world, die))
    before = len(fetches(world))
    engine = Engine(world)
    found = compare(world, engine)
    assert engine.ran == [job], "the same job, not another one"
    assert found.is_equal
    again = len(fetches(world)) - before
    compare(world, run="another/run")
    assert 0 < again < len(fetches(world)) - before - again, "only the third partition was read"


def test_what_differed_is_compared_again(world: World) -> None:
    _break(world)
    job = _job(world)
    compare_ranges(world.context(), job)
    rewrite(target_log(world), lambda items: [items[0]._replace(value=b"a"), *items[1:]])
    assert compare(world).is_equal


def test_what_could_not_be_read_is_compared_again_by_the_next_attempt(world: World) -> None:
    def breaks(_job: MirrorComparison) -> None:
        error = BrokerUnreachable("a broker is away", next_step="wait")
        world.outside.fail("target.wire.fetch*", error, times=1)

    with pytest.raises(Transient, match="1 partitions could not be compared: a broker is away"):
        compare(world, Engine(world, breaks))
    found = last_verification(world.context().record)
    assert found is not None
    assert (found.count("equal"), found.count("unchecked"), found.is_equal) == (2, 1, False)
    before = len(fetches(world))
    assert compare(world).is_equal
    assert len(fetches(world)) - before <= 4, "only one partition is read again"


def test_an_error_that_a_person_must_correct_is_no_reason_to_try_again(world: World) -> None:
    def breaks(_job: MirrorComparison) -> None:
        error = PermissionMissing("Read on the topic is missing", next_step="grant it")
        world.outside.fail("target.wire.fetch*", error, times=1)

    with pytest.raises(ContentsUnchecked, match="Read on the topic is missing"):
        compare(world, Engine(world, breaks))
    assert stored(world) == set()


@pytest.mark.parametrize("what", ["topics", "last", "spec", "age", "run"])
def test_another_comparison_is_another_job(world: World, what: str) -> None:
    former = _job(world)
    scope, run = Scope(), RUN
    world.clock.sleep(1)
    assert comparison_job.write(reading(world), scope, run) == former, "the same one"
    if what == "topics":
        scope = Scope(("orders",))
    elif what == "last":
        scope = Scope(last=3)
    elif what == "spec":
        world.change_spec(topology={"refresh_interval": "7s"})
    elif what == "age":
        world.clock.sleep(comparison_job.CONTINUED_FOR.total_seconds())
    else:
        run = "another/run/verify"
    assert comparison_job.write(reading(world), scope, run).digest() != former.digest()


def test_killed_after_each_change_it_finds_the_same(worlds: Worlds) -> None:
    world = running(worlds)
    _break(world, STATE)
    left = 0
    while True:
        world.outside.dies_after = len(world.outside.changes) + left
        try:
            with pytest.raises(ContentsDiffer, match="state-0"):
                compare(world)
            break
        except Killed:
            world.restart()
            world.outside.dies_after = -1
        with pytest.raises(ContentsDiffer, match="1 of 3 partitions differ: state-0"):
            compare(world)
        assert stored(world) == set()
        left += 1
    assert left >= 5


# -- what is removed ---------------------------------------------------------------------------------------------------


def test_runs_that_nobody_completes_are_removed_after_a_week(world: World) -> None:
    compare_ranges(world.context(), comparison_job.write(reading(world), Scope(), "a/run/that dies"))
    old = stored(world)
    world.clock.sleep(timedelta(days=6).total_seconds())
    assert compare(world).is_equal
    assert stored(world) == old, "it may still be completed"
    world.clock.sleep(timedelta(days=1).total_seconds())
    assert compare(world).is_equal
    assert stored(world) == set()


def test_what_drivers_leave_is_removed(world: World) -> None:
    for key in (f"jobs/ends/{NAME}-0123.json", f"sealed/{NAME}-{NAME}-0123.renewal"):
        world.journal_store.objects[f"m1/{key}"] = b"{}"
    world.journal_store.objects["m1/jobs/ends/tail-0123.json"] = b"{}"
    compare(world)
    assert stored(world) == set()
    assert "m1/jobs/ends/tail-0123.json" in world.journal_store.objects


def test_without_the_right_to_delete_the_result_counts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.outside.fail("journal_store.delete", StorageRefused("DeleteObject is denied", next_step="grant it"))
    assert compare(world).is_equal
    assert "could not be removed" in caplog.text
    assert f"m1/jobs/{NAME}.json" in stored(world)
    _break(world, STATE)
    with pytest.raises(ContentsDiffer):
        compare(world, run="another/run")


# -- with Spark's own Kafka source -------------------------------------------------------------------------------------


class OtherReader(Engine):
    """Stores what Spark's own Kafka source would find: the same, under its name."""

    def run(self, record: Any, job: JobRef, _read_progress: Any) -> None:
        super().run(record, job, _read_progress)
        found = self.ran[-1]
        assert found.independent
        results = MirrorResults(found, record.journal_store)
        for piece in found.ranges:
            known = results.read(piece)
            assert known is not None
            results.write(piece, known.found, None, reader="another reader")
        record.journal_store.put(f"{results_prefix(found.migration_id, found.name)}{SLICES}orders-0.json", b"{}")
        assert results.count() == len(found.ranges), "what is under way is no result"


def test_the_other_reader_is_named_and_leaves_nothing_behind(world: World) -> None:
    found = compare(world, OtherReader(world), independent=True)
    assert found.is_equal
    assert found.reader == "another reader"
    assert stored(world) == set()
    assert compare(world).reader == ""


def test_both_readers_have_jobs_of_their_own_in_the_same_run(world: World) -> None:
    context = reading(world)
    mine = comparison_job.write(context, Scope(), RUN)
    other = comparison_job.write(context, Scope(), RUN, independent=True)
    assert (mine.independent, other.independent) == (False, True)
    assert mine.name != other.name
    assert comparison_job.write(context, Scope(), RUN, independent=True) == other, "the next attempt continues it"


def test_where_spark_cannot_read_it_is_not_run_by_name_and_the_last_result_stays(world: World) -> None:
    known = compare(world, OtherReader(world), independent=True)
    without = Engine(world, before=_raises(SparkConnectorMissing("Spark has no Kafka source here", next_step="-")))
    with pytest.raises(ContentsUnchecked, match="was NOT RUN: Spark has no Kafka source here"):
        compare(world, without, independent=True)
    assert last_verification(world.context().record) == known
    assert stored(world) == set()


class RefusedReader(OtherReader):
    """Finds its connection refused after a restart, when some partitions are compared."""

    def run(self, record: Any, job: JobRef, _read_progress: Any) -> None:
        super().run(record, job, _read_progress)
        raise ConnectionInvalid("Spark's Kafka source cannot use the source connection", next_step="-")


def test_what_it_has_found_before_it_could_not_go_on_counts(world: World) -> None:
    _break(world)
    with pytest.raises(ContentsDiffer):
        compare(world, RefusedReader(world), independent=True)


def test_any_other_failure_is_one(world: World) -> None:
    lost = Engine(world, before=_raises(SparkJobFailed("an executor was lost", next_step="-")))
    with pytest.raises(SparkJobFailed):
        compare(world, lost, independent=True)
    # Of the comparison by the code that copies, no error means that it did not run.
    missing = Engine(world, before=_raises(SparkConnectorMissing("-", next_step="-")))
    with pytest.raises(SparkConnectorMissing):
        compare(world, missing)


def _raises(error: Exception) -> Callable[[MirrorComparison], None]:
    def fail(_job: MirrorComparison) -> None:
        raise error

    return fail
