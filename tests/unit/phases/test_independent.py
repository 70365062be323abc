"""The independent proof as a check of the validation: when it runs, what it compares, and what its result means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from phase_world.jobs import MIGRATION
from phase_world.world import World, Worlds

from airflow_provider_kafka_migration.compare.independent import IndependentResults
from airflow_provider_kafka_migration.compare.runner import ContentResults
from airflow_provider_kafka_migration.documents.independent import IndependentJob, IndependentResult
from airflow_provider_kafka_migration.documents.proof import CheckResult, ContentDifference, ContentJob, Outcome
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    MigrationError,
    SparkConnectorMissing,
    SparkJobFailed,
    SparkReaderUnfit,
    ValidationFailed,
)
from airflow_provider_kafka_migration.jobs import independent_jobs
from airflow_provider_kafka_migration.jobs.content_jobs import SubmittedVerifier
from airflow_provider_kafka_migration.phases import validate
from airflow_provider_kafka_migration.record.context import JobRef
from airflow_provider_kafka_migration.record.record import MigrationRecord

READER = "Kafka source of Spark 4.2.0"


class Spark:
    """Runs the jobs of the validation as Spark would; a ``JobRunner`` that knows no Spark.

    :param judge: what the reader finds in a partition.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.ran: list[str] = []
        self.fails: MigrationError | None = None
        #: whether the driver notes that it has started
        self.begins = False
        self.judge: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
        #: whether it reads before it fails
        self.reads_before = False
        self.omits: set[tuple[str, int]] = set()

    def submit(self, spec: Any, job_location: str, job_key: str, read_progress: Any) -> None:
        raise AssertionError("jobs of Spark have a record")

    def run(self, record: MigrationRecord, job: JobRef, read_progress: Any) -> None:
        self.ran.append(job.name)
        data = record.journal_store.get(job.key)
        assert data is not None
        if job.name == "verify":
            content = ContentJob.parse(data)
            for item, found in zip(content.ranges, self._world.verifier.verify(content.ranges)[::-1], strict=True):
                ContentResults(content, record.journal_store).write(item, found)
            return
        if self.begins:
            independent_jobs.note_begun(record.journal_store, IndependentJob.parse(data))
        if self.fails is not None:
            if self.reads_before:
                self._read_again(IndependentJob.parse(data), record)
            raise self.fails
        self._read_again(IndependentJob.parse(data), record)

    def _read_again(self, job: IndependentJob, record: MigrationRecord) -> None:
        results = IndependentResults.of(job, record.journal_store)
        for item in job.ranges:
            if item.key in self.omits or results.read(item) is not None:
                continue
            records = item.source_end_offset - item.source_start_offset
            fields = {"range": item, "source_records": records, "target_records": records, "compared": records}
            fields |= {"migration_id": job.migration_id, "job_digest": job.digest(), "reader": READER}
            results.write(IndependentResult(**self.judge(fields)))

    def find(self, record: Any, name: str) -> None:
        return None

    def start(self, record: Any, job: Any) -> Any:
        raise AssertionError

    def end(self, record: Any, submission: Any) -> None:
        raise AssertionError

    def taken_up(self, record: Any, submission: Any) -> None:
        raise AssertionError


@pytest.fixture
def spark(worlds: Worlds) -> Spark:
    """A validation on Spark, about to begin."""
    return on_spark(worlds.at("validate"))


def on_spark(world: World, **section: Any) -> Spark:
    if section:
        world.change_spec(validation=section)
    spark = Spark(world)
    world.context().runner = spark
    return spark


def run(spark: Spark) -> dict[str, Any]:
    """Validate; return the check."""
    context = spark._world.context()
    validate.JOB_PHASE.run(context)
    return check(spark._world)


def check(world: World) -> dict[str, Any]:
    data = world.stored("results/validation.json")
    assert data is not None
    result = json.loads(data)
    found: dict[str, Any] = next(item for item in result["checks"] if item["name"] == "independent")
    return {**found, "overall": result["outcome"]}


def test_it_runs_after_the_first_comparison_and_its_reader_is_named(spark: Spark) -> None:
    found = run(spark)
    assert spark.ran == ["verify", "independent"]
    assert (found["outcome"], found["overall"]) == ("PASSED", "PASSED")
    assert READER in found["summary"]
    assert {row["reader"] for row in found["partitions"]} == {READER}


def test_as_airflow_opens_it_the_runner_of_the_first_comparison_runs_it(worlds: Worlds) -> None:
    world = worlds.at("validate")
    context, spark = world.context(), Spark(world)
    context.runner = None
    context.verifier = SubmittedVerifier(context.record, context.source, spark)
    validate.run(context)
    assert spark.ran == ["verify", "independent"]
    assert check(world)["outcome"] == "PASSED"


def test_a_difference_fails_and_keeps_what_is_on_the_target(spark: Spark) -> None:
    difference = ContentDifference(kind="missing", source_offset=3)
    spark.judge = lambda fields: {**fields, "difference_count": 1, "differences": [difference]}
    with pytest.raises(ValidationFailed):
        run(spark)
    found = check(spark._world)
    assert found["outcome"] == "FAILED"
    assert "missing at source offset 3" in found["findings"][0]
    assert spark._world.target.topics["orders"].configs["retention.ms"] == "-1"


def test_a_difference_stays_one_though_timestamps_of_another_slice_cannot_be_held(spark: Spark) -> None:
    spark.judge = lambda fields: {**fields, "difference_count": 1, "not_compared": "timestamps"}
    with pytest.raises(ValidationFailed):
        run(spark)
    assert check(spark._world)["outcome"] == "FAILED"


@pytest.mark.parametrize("differences", [0, 1])
def test_a_difference_stays_one_though_the_reader_cannot_go_on(spark: Spark, differences: int) -> None:
    """Its first slices are compared; then a restarted driver finds its connection refused."""
    spark.judge = lambda fields: {**fields, "difference_count": differences, "reached_offset": 1}
    spark.reads_before = True
    spark.fails = ConnectionInvalid("Spark's Kafka source cannot use the source connection", next_step="-")
    if differences:
        with pytest.raises(ValidationFailed):
            run(spark)
        assert check(spark._world)["outcome"] == "FAILED"
    else:
        assert run(spark)["outcome"] == "NOT_RUN"


@pytest.mark.parametrize(
    "error",
    [
        SparkConnectorMissing("Spark has no Kafka source here", next_step="-"),
        ConnectionInvalid("Spark's Kafka source cannot use the source connection", next_step="-"),
        SparkReaderUnfit("Spark's Kafka source cannot read a cluster from where it runs", next_step="-"),
        SparkJobFailed("ended", next_step="-", details={"log": ["unresolved dependency: org.apache.spark#spark-sql"]}),
        SparkJobFailed("ended: basedir must be absolute: ?/.ivy2/local", next_step="-"),
        SparkJobFailed("ended: FileNotFoundException: /opt/spark/.ivy2/cache/a.xml (No such file)", next_step="-"),
        SparkJobFailed('ended: No FileSystem for scheme "s3a"', next_step="-"),
    ],
)
def test_where_spark_cannot_it_is_not_run_by_name(spark: Spark, error: MigrationError) -> None:
    spark.fails = error
    found = run(spark)
    assert (found["outcome"], found["overall"]) == ("NOT_RUN", "PASSED")
    assert found["summary"].startswith("NOT RUN: Spark")


def test_differences_of_an_earlier_attempt_are_not_forgotten(spark: Spark) -> None:
    """A reader that cannot run any more refutes nothing."""
    spark.judge = lambda fields: {**fields, "difference_count": 1}
    with pytest.raises(ValidationFailed):
        run(spark)
    spark.judge = lambda fields: fields
    spark.fails = ConnectionInvalid("Spark's Kafka source cannot use the source connection", next_step="-")
    for _ in range(2):
        with pytest.raises(ValidationFailed):
            run(spark)
        found = check(spark._world)
        assert found["outcome"] == "FAILED"
        assert "an earlier attempt has found differences" in found["findings"][1]
    spark.fails = None
    assert run(spark)["outcome"] == "PASSED"


def test_whoever_switches_it_off_after_differences_is_warned(spark: Spark) -> None:
    """They may be mended by now. What was equal then counts no more, either."""
    world = spark._world
    spark.judge = lambda fields: {**fields, "difference_count": 1}
    with pytest.raises(ValidationFailed):
        run(spark)
    world.change_spec(validation={"independent": "off"})
    on_spark(world)
    validate.JOB_PHASE.run(world.context())
    found = check(world)
    assert (found["outcome"], found["overall"]) == ("WARNING", "WARNING")


def test_asked_for_by_name_it_is_a_warning_that_it_did_not_run(worlds: Worlds) -> None:
    spark = on_spark(worlds.at("validate"), independent="all")
    spark.fails = SparkConnectorMissing("Spark has no Kafka source here", next_step="-")
    found = run(spark)
    assert (found["outcome"], found["overall"]) == ("WARNING", "WARNING")


def silent() -> SparkJobFailed:
    """What an engine says of a driver that has said nothing."""
    return SparkJobFailed("ended without saying why: it is FAILED", next_step="-", details={"log": [], "job_id": "7"})


def test_a_driver_that_does_not_start_twice_means_not_run(spark: Spark) -> None:
    spark.fails = silent()
    with pytest.raises(SparkJobFailed):
        run(spark)
    found = run(spark)
    assert (found["outcome"], found["overall"]) == ("NOT_RUN", "PASSED")
    assert found["summary"] == "NOT RUN: its driver never started: ended without saying why: it is FAILED"


def test_a_driver_that_began_and_died_is_a_failure_each_time(spark: Spark) -> None:
    spark.fails, spark.begins = silent(), True
    for _ in range(3):
        with pytest.raises(SparkJobFailed):
            run(spark)
    spark.fails = None
    assert run(spark)["outcome"] == "PASSED"


def test_what_spark_submit_says_each_time_is_no_reason(spark: Spark) -> None:
    """The driver was killed for its memory; its log begins with where packages are stored."""
    log = [
        "Ivy Default Cache set to: /opt/spark/.ivy2/cache",
        "The jars for the packages stored in: /opt/spark/.ivy2/jars",
        "found org.apache.spark#spark-sql-kafka-0-10_2.13;4.0.0 in central",
        "OutOfMemoryError: Java heap space",
    ]
    spark.fails = SparkJobFailed("ended: OOMKilled", next_step="-", details={"log": log})
    with pytest.raises(SparkJobFailed):
        run(spark)


def test_a_driver_that_has_begun_had_its_jars(spark: Spark) -> None:
    log = ["WARN an optional package: unresolved dependency", "OutOfMemoryError: Java heap space"]
    spark.fails, spark.begins = SparkJobFailed("ended", next_step="-", details={"log": log}), True
    with pytest.raises(SparkJobFailed):
        run(spark)


def test_any_other_failure_is_one(spark: Spark) -> None:
    spark.fails = SparkJobFailed("an executor was lost", next_step="-")
    with pytest.raises(SparkJobFailed):
        run(spark)
    spark.fails = None
    assert run(spark)["outcome"] == "PASSED"


def test_without_spark_differences_of_an_earlier_attempt_stay(spark: Spark) -> None:
    world = spark._world
    spark.judge = lambda fields: {**fields, "difference_count": 1}
    with pytest.raises(ValidationFailed):
        run(spark)
    world.context().runner = None
    with pytest.raises(ValidationFailed):
        validate.run(world.context())
    assert check(world)["findings"][0] == "not run: the validation ran without Spark (--runner local)"


def test_once_all_content_has_passed_its_own_proof_is_kept(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check fails: nothing is compared again, and the proof of the attempt that has passed stays."""
    bad = CheckResult(name="groups", outcome=Outcome.FAILED, summary="-", findings=["-"])
    with monkeypatch.context() as patched:
        patched.setattr(validate.groups, "check", lambda *_: bad)
        with pytest.raises(ValidationFailed):
            run(spark)
    spark.judge = lambda fields: pytest.fail("it was read again")
    found = run(spark)
    assert spark.ran == ["verify", "independent"]
    assert (found["outcome"], found["overall"]) == ("PASSED", "PASSED")


def test_a_first_comparison_that_fails_is_no_proof_that_was_not_run(spark: Spark) -> None:
    """Although a job of the independent proof is there, from the attempt that was killed."""
    record = spark._world.context().record
    spark.fails = SparkJobFailed("an executor was lost", next_step="-")
    with pytest.raises(SparkJobFailed):
        run(spark)
    for info in list(record.journal_store.list(f"{MIGRATION}/results/")):
        record.journal_store.delete(info.key)
    gone = ConnectionInvalid("the source connection is gone", next_step="-")
    assert not validate._can_do_without(spark._world.context(), gone)


def test_a_draw_has_the_ranges_of_now(worlds: Worlds) -> None:
    """A killed validation, then the copy was continued: its last records are part of the sample."""
    spark = on_spark(worlds.at("validate"), independent="sample", independent_sample="1B")
    context = spark._world.context()
    spark.fails = SparkJobFailed("an executor was lost", next_step="-")
    with pytest.raises(SparkJobFailed):
        run(spark)
    former = independent_jobs.read_job(context.record)
    assert former is not None
    content = ContentJob.parse(context.record.journal_store.get(f"{MIGRATION}/jobs/verify.json") or b"")
    longer = [item.model_copy(update={"source_end_offset": item.source_end_offset + 1}) for item in content.ranges]
    independent_jobs.write_job(context, longer)
    job = independent_jobs.read_job(context.record)
    assert job is not None
    assert job.sample_seed == former.sample_seed
    assert all(item in longer for item in job.ranges)


def test_switched_off_it_is_not_run(worlds: Worlds) -> None:
    spark = on_spark(worlds.at("validate"), independent="off")
    found = run(spark)
    assert spark.ran == ["verify"]
    assert (found["outcome"], found["overall"]) == ("NOT_RUN", "PASSED")
    assert "validation.independent is off" in found["summary"]


def test_a_partition_that_was_not_read_is_named(spark: Spark) -> None:
    spark.omits = {("orders", 1)}
    found = run(spark)
    assert found["outcome"] == "WARNING"
    assert found["findings"] == ["orders-1: the partition was not read"]


def test_what_cannot_be_compared_is_named(spark: Spark) -> None:
    spark.judge = lambda fields: {**fields, "compared": 0, "not_compared": "timestamps"}
    found = run(spark)
    assert found["outcome"] == "WARNING"
    assert "was not compared: timestamps" in found["findings"][0]


def test_what_an_application_has_deleted_on_the_target_since_it_was_proven_is_no_difference(spark: Spark) -> None:
    """Kafka Streams deletes what it has read from its repartition topics, on the target, too."""
    spark.judge = lambda fields: {
        **fields,
        "compared": fields["compared"] - 1,
        "target_records": fields["target_records"] - 1,
        "target_deleted_records": 1,
    }
    found = run(spark)
    assert found["outcome"] == "PASSED"
    assert "were no longer on the target to compare with" in found["summary"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"compared": 0, "source_records": 0, "target_records": 0}, "has read 0 records on the target, the first"),
        ({"compared": 1, "source_records": 1, "target_records": 1}, "has read 1 records on the target, the first"),
        ({"compared": 0, "deleted_records": 5}, "records could be compared"),
    ],
)
def test_what_the_reader_passes_over_on_both_sides_is_not_passed(
    spark: Spark, fields: dict[str, int], problem: str
) -> None:
    spark.judge = lambda found: {**found, **fields}
    found = run(spark)
    assert (found["outcome"], found["overall"]) == ("WARNING", "WARNING")
    assert problem in found["findings"][0]


def test_a_sample_has_whole_partitions_and_a_seed(worlds: Worlds) -> None:
    spark = on_spark(worlds.at("validate"), independent="sample", independent_sample="1B")
    found = run(spark)
    job = independent_jobs.read_job(spark._world.context().record)
    assert job is not None
    assert job.sample_seed is not None
    assert (len(job.ranges), job.left_out > 0) == (1, True)
    assert f"a sample (seed {job.sample_seed})" in found["summary"]
    assert len(found["partitions"]) == 1


def test_a_draw_can_be_repeated_and_is_kept_by_the_next_attempt(worlds: Worlds) -> None:
    spark = on_spark(worlds.at("validate"), independent="sample", independent_sample="1B")
    record = spark._world.context().record
    spark.fails = SparkJobFailed("an executor was lost", next_step="-")
    drawn = set()
    for _ in range(4):
        with pytest.raises(SparkJobFailed):
            run(spark)
        job = independent_jobs.read_job(record)
        assert job is not None
        drawn.add((job.sample_seed, job.ranges[0].key))
    assert len(drawn) == 1
    assert job.sample_seed is not None
    content = ContentJob.parse(record.journal_store.get(f"{MIGRATION}/jobs/verify.json") or b"")
    assert independent_jobs.draw(content.ranges, record.plan(), 1, job.sample_seed) == job.ranges


def test_larger_sources_are_sampled_by_default(worlds: Worlds) -> None:
    world = worlds.at("validate")
    plan = world.context().record.plan()
    assert independent_jobs._extent(None, plan, plan.total_bytes) == "all"
    assert independent_jobs._extent(None, plan, plan.total_bytes - 1) == ("sample" if plan.total_bytes else "all")


@pytest.mark.parametrize(
    ("where", "conf"),
    [
        ("provided", {}),
        ("/jars/a.jar,s3a://b/c.jar", {"spark.jars": "/jars/a.jar,s3a://b/c.jar"}),
    ],
)
def test_where_spark_finds_its_source(where: str, conf: dict[str, str]) -> None:
    assert independent_jobs.connector_conf(where) == conf


def test_packages_have_the_version_of_the_installed_spark() -> None:
    package = independent_jobs.connector_conf("packages")["spark.jars.packages"]
    assert package.startswith("org.apache.spark:spark-sql-kafka-0-10_2.13:4.")
