"""Both EMR engines against the simulated services: states, failures with a log, cancelling, submitting again."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from emr_world import AwsError, Run

from airflow_provider_kafka_migration.engines import aws
from airflow_provider_kafka_migration.engines.base import JobState, SparkEngine
from airflow_provider_kafka_migration.errors import (
    EngineAnswerInvalid,
    EngineCredentialsExpired,
    EngineForbidden,
    EngineJobUnknown,
    EngineNotFound,
    EngineQuotaExceeded,
    EngineRefused,
    EngineThrottled,
    EngineUnreachable,
    MigrationError,
    Terminal,
    Transient,
)

pytestmark = pytest.mark.slow

SERVERLESS, CONTAINERS = "emr-serverless", "emr-containers"


def of(world: Any, serverless: Any, containers: Any) -> Any:
    """What applies to the service at hand."""
    return serverless if world.emr.is_serverless else containers


def test_the_engine_fulfils_the_protocol(world: Any) -> None:
    engine = world.engine()
    assert isinstance(engine, SparkEngine)
    assert engine.detached
    assert engine.trigger("any") is None


def test_a_job_goes_through_its_states(world: Any) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    assert job_id == world.emr.arn(world.emr.only().id)
    states = of(
        world,
        [
            *[("SUBMITTED", "pending"), ("PENDING", "pending"), ("SCHEDULED", "pending"), ("QUEUED", "pending")],
            *[("RUNNING", "running"), ("CANCELLING", "running"), ("CANCELLED", "cancelled"), ("SUCCESS", "succeeded")],
        ],
        [
            *[("PENDING", "pending"), ("SUBMITTED", "pending"), ("RUNNING", "running")],
            *[("CANCEL_PENDING", "running"), ("CANCELLED", "cancelled"), ("COMPLETED", "succeeded")],
        ],
    )
    world.emr.only().states = [state for state, _ in states]
    for _, expected in states:
        assert world.engine().status(job_id).state == JobState(expected)


def test_every_state_of_the_services_model_is_known(world: Any) -> None:
    shape = world.emr.model.shape_for("JobRunState")
    assert set(world.kind.states) == set(shape.enum)
    over = {state for state, meaning in world.kind.states.items() if meaning.is_over}
    assert set(world.kind.active_states) == set(shape.enum) - over


def test_a_state_of_a_later_release_is_no_end(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.instead["GetJobRun"] = world.emr.instead["DescribeJobRun"] = {"jobRun": {"state": "HIBERNATING"}}
    status = world.engine().status(job_id)
    assert status.state is JobState.UNKNOWN
    assert "HIBERNATING" in status.reason
    assert not status.state.is_over


# -- failure ----------------------------------------------------------------------------------------------------------


def fail(world: Any, job_id: str) -> Run:
    """Let the only run fail."""
    run: Run = world.emr.only()
    run.state, run.details, run.failure = "FAILED", "Job failed, please check the logs", "USER_ERROR"
    return run


def log_key(world: Any, run: str) -> str:
    return of(
        world,
        f"staging/logs/applications/{world.emr.place}/jobs/{run}/SPARK_DRIVER/stderr.gz",
        f"staging/logs/{world.emr.place}/jobs/{run}/containers/spark-{run}/spark-{run}-driver/stderr.gz",
    )


def test_a_failure_has_the_end_of_the_drivers_log(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    run = fail(world, job_id)
    lines = [f"line {number}" for number in range(200)] + ["\x1b[31m[COPY_FAILED] 2 of 10\x1b[0m. Next: clear\x07"]
    world.put_log(
        log_key(world, run.id),
        gzip.compress("\n".join(lines[:100]).encode() + b"\n") + gzip.compress("\n".join(lines[100:]).encode()),
    )
    world.put_log(log_key(world, run.id).replace("stderr", "stdout"), gzip.compress(b"not this one"))
    status = world.engine().status(job_id)
    assert status.state is JobState.FAILED
    assert "please check the logs" in status.reason
    assert len(status.log_tail) == 40
    assert status.log_tail[0] == "line 161"
    assert "[COPY_FAILED] 2 of 10" in status.log_tail[-1]
    assert "\x1b" not in status.log_tail[-1]
    assert "\x07" not in status.log_tail[-1]


def test_a_log_that_is_elsewhere_or_broken_does_not_hide_the_failure(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    run = fail(world, job_id)
    assert world.engine().status(job_id).log_tail == ()
    world.put_log(log_key(world, run.id), b"this is not gzip")
    status = world.engine().status(job_id)
    assert (status.state, status.log_tail) == (JobState.FAILED, ())
    # A streaming run, or another layout of the container's name.
    elsewhere = of(
        world,
        log_key(world, run.id).replace("/SPARK_DRIVER/", "/attempts/1/SPARK_DRIVER/"),
        log_key(world, run.id).replace(f"/spark-{run.id}/", "/other/"),
    )
    world.client("s3").delete_object(Bucket=world.bucket, Key=log_key(world, run.id))
    world.put_log(elsewhere, gzip.compress(b"found"))
    assert world.engine().status(job_id).log_tail == ("found",)


def test_the_log_is_read_from_cloudwatch_if_s3_has_none(world: Any) -> None:
    engine = world.engine(log_group="/kafka-migration/spark")
    job_id = engine.submit(world.job)
    run = fail(world, job_id)
    logs = world.client("logs")
    stream = of(
        world,
        f"applications/{world.emr.place}/jobs/{run.id}/SPARK_DRIVER/stderr",
        f"{world.emr.place}/jobs/{run.id}/containers/spark-{run.id}/spark-{run.id}-driver/stderr",
    )
    logs.create_log_group(logGroupName="/kafka-migration/spark")
    for name in (stream, stream.replace("stderr", "stdout")):
        logs.create_log_stream(logGroupName="/kafka-migration/spark", logStreamName=name)
    now = int(run.created.timestamp() * 1000)
    events = [{"timestamp": now + number, "message": f"event {number}"} for number in range(60)]
    logs.put_log_events(logGroupName="/kafka-migration/spark", logStreamName=stream, logEvents=events)
    tail = engine.status(job_id).log_tail
    assert (len(tail), tail[-1]) == (40, "event 59")
    logs.delete_log_group(logGroupName="/kafka-migration/spark")


def test_a_huge_log_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "MAX_PLAIN_LOG_BYTES", 4_000_000)
    bomb = gzip.compress(b"x" * 99 + b"\n" + b"y\n" * 10_000_000 + b"the end")
    tail = aws.tail_of_gzip(bomb[start : start + 1000] for start in range(0, len(bomb), 1000))
    assert len(tail) == 40
    assert tail[-1].startswith("(the log is longer")
    assert aws.tail_of_gzip(iter([gzip.compress(b"z" * 3_000_000 + b"\nend")]))[-1] == "end"


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_cancel_asks_once_and_is_calm_about_jobs_that_are_over(world: Any) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    engine.cancel(job_id)
    run = world.emr.only()
    assert run.state == of(world, "CANCELLING", "CANCEL_PENDING")
    engine.cancel(job_id)
    for state in ("FAILED", "CANCELLED", of(world, "SUCCESS", "COMPLETED")):
        run.state = state
        engine.cancel(job_id)
    world.emr.runs.clear()
    engine.cancel(job_id)


def test_a_cancel_that_is_refused_while_the_job_runs_is_an_error(world: Any) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    world.emr.only().state = "RUNNING"
    world.emr.refuse("CancelJobRun", 400, "ValidationException", "not now", times=1)
    with pytest.raises(EngineRefused, match="not now"):
        engine.cancel(job_id)
    world.emr.refuse("CancelJobRun", 403, "AccessDeniedException", "no right", times=1)
    with pytest.raises(EngineForbidden):
        engine.cancel(job_id)
    engine.cancel(job_id)


# -- again ------------------------------------------------------------------------------------------------------------


def test_the_same_token_gives_the_same_job_in_every_state(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    for state in world.kind.states:
        world.emr.only().state = state
        assert world.engine().submit(world.job) == job_id
    assert len(world.emr.started()) == 1


def test_an_answer_that_is_lost_after_submit_does_not_start_a_second_job(world: Any) -> None:
    world.emr.lost_answers.append("StartJobRun")
    job_id = world.engine().submit(world.job)
    assert job_id == world.emr.arn(world.emr.only().id)
    first, second = world.emr.started()
    assert first == second


def test_a_crash_after_submit_is_recovered_when_the_service_has_forgotten_the_token(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.remembers_tokens = False
    assert world.engine().submit(world.job) == job_id
    assert len(world.emr.runs) == 1


def test_the_token_decides_when_the_list_is_late(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.list_is_late = True
    assert world.engine().submit(world.job) == job_id
    assert len(world.emr.runs) == 1


def test_a_token_with_other_settings_gives_the_first_job(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    other = replace(world.job, conf={"spark.executor.memory": "8g"})
    assert world.engine().submit(other) == job_id
    world.emr.list_is_late = True
    if world.emr.is_serverless:
        with pytest.raises(EngineUnreachable, match="ConflictException") as caught:
            world.engine().submit(other)
        assert "not started twice" in caught.value.next_step
    else:
        assert world.engine().submit(other) == job_id
    assert len(world.emr.runs) == 1


def test_the_job_is_found_on_a_later_page_and_others_are_not_mistaken_for_it(world: Any) -> None:
    world.emr.page_size = 3
    engine = world.engine()
    for number in range(8):
        engine.submit(replace(world.job, token=f"seed-{number}"))
    job_id = engine.submit(world.job)
    for number in range(8, 12):
        engine.submit(replace(world.job, token=f"seed-0f3a9c{number}"))
    world.emr.remembers_tokens = False
    before = len(world.emr.runs)
    for state in ("RUNNING", "FAILED"):
        for run in world.emr.runs.values():
            run.state = state
        assert world.engine().submit(world.job) == job_id
    assert len(world.emr.runs) == before


def test_of_two_runs_of_a_token_the_one_that_may_still_run_is_taken(world: Any) -> None:
    engine = world.engine()
    engine.submit(world.job)
    (first,) = world.emr.runs.values()
    second = Run("00ffffffffffffff", first.request, "RUNNING", first.created - timedelta(days=30))
    world.emr.runs[second.id] = second
    first.state = "FAILED"
    assert engine.submit(world.job) == world.emr.arn(second.id)
    second.state = "CANCELLED"
    assert engine.submit(world.job) == world.emr.arn(first.id)


def test_a_list_without_end_is_given_up(world: Any) -> None:
    world.emr.instead["ListJobRuns"] = {"jobRuns": [], "nextToken": "again"}
    with pytest.raises(EngineAnswerInvalid, match="does not end"):
        world.engine().submit(world.job)
    assert world.emr.started() == []
    assert len(world.emr.requests) < 5


# -- trouble ----------------------------------------------------------------------------------------------------------


THROTTLED = {
    SERVERLESS: [(429, "ThrottlingException"), (429, "TooManyRequestsException")],
    CONTAINERS: [
        (429, "EKSRequestThrottledException"),
        (400, "RequestThrottledException"),
        (400, "ThrottlingException"),
    ],
}


def test_throttling_is_retried_in_bounds(world: Any, waits: list[float]) -> None:
    for status, code in THROTTLED[world.emr.kind]:
        world.emr.refuse("StartJobRun", status, code, "Rate exceeded", times=3)
        world.engine().submit(replace(world.job, token=f"seed-{code.lower()[:20]}"))
    assert len(world.emr.runs) == len(THROTTLED[world.emr.kind])
    assert len(waits) == 3 * len(world.emr.runs)
    waits.clear()
    world.emr.refuse("StartJobRun", 429, "ThrottlingException", "Rate exceeded")
    with pytest.raises(EngineThrottled) as caught:
        world.engine().submit(replace(world.job, token="seed-other"))
    assert isinstance(caught.value, Transient)
    assert len(waits) == aws.MAX_ATTEMPTS - 1
    assert sum(waits) < 60


REFUSALS: list[tuple[int, str, type[MigrationError], bool]] = [
    (403, "AccessDeniedException", EngineForbidden, False),
    (403, "UnrecognizedClientException", EngineForbidden, False),
    (403, "ExpiredTokenException", EngineCredentialsExpired, True),
    (402, "ServiceQuotaExceededException", EngineQuotaExceeded, False),
    (400, "ValidationException", EngineRefused, False),
    (500, "InternalServerException", EngineUnreachable, True),
    (503, "ServiceUnavailable", EngineUnreachable, True),
]


@pytest.mark.parametrize(("status", "code", "expected", "transient"), REFUSALS, ids=[row[1] for row in REFUSALS])
def test_refusals_are_named(
    world: Any, status: int, code: str, expected: type[MigrationError], transient: bool
) -> None:
    job_id = world.engine().submit(replace(world.job, token="seed-first"))
    world.emr.refuse("StartJobRun", status, code, "Some\nreason of AWS.")
    with pytest.raises(expected) as caught:
        world.engine().submit(world.job)
    error = caught.value
    assert type(error) is expected
    assert isinstance(error, Transient) is transient
    assert code in error.what
    assert "Some reason of AWS" in error.what
    assert error.where.migration_id == "orders"
    assert error.where.phase == "seed"
    assert error.next_step
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    for operation in ("GetJobRun", "DescribeJobRun"):
        world.emr.refuse(operation, status, code, "Some reason.")
    if transient:
        found = world.engine().status(job_id)
        assert found.state is JobState.UNKNOWN
        assert code in found.reason
    else:
        with pytest.raises(expected):
            world.engine().status(job_id)


def test_a_place_that_does_not_exist_is_named(world: Any) -> None:
    place = {of(world, "application_id", "virtual_cluster_id"): "00nosuch"}
    with pytest.raises(EngineNotFound, match="00nosuch") as caught:
        world.engine(**place).submit(world.job)
    assert isinstance(caught.value, Terminal)
    assert "region" in caught.value.next_step


def test_no_right_to_list_job_runs_stops_before_anything_is_started(world: Any) -> None:
    world.emr.refuse("ListJobRuns", 403, "AccessDeniedException", "not authorized")
    with pytest.raises(EngineForbidden, match="list the job runs"):
        world.engine().submit(world.job)
    assert world.emr.started() == []
    assert world.stored() == []


def test_a_connection_without_keys_or_region_is_named(world: Any, connection: Any, monkeypatch: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    connection("aws_empty", conn_type="aws", extra={})
    with pytest.raises(EngineRefused, match="NoRegionError") as caught:
        world.engine(aws_conn_id="aws_empty").submit(world.job)
    assert "region" in caught.value.next_step
    with pytest.raises(EngineForbidden, match="NoCredentialsError"):
        world.engine(aws_conn_id="aws_empty", region="eu-west-1").submit(world.job)


def test_another_connection_than_the_named_one_is_never_used(world: Any) -> None:
    with pytest.raises(EngineRefused, match="does not exist") as caught:
        world.engine(aws_conn_id="aws_production").submit(world.job)
    assert caught.value.where.path == "airflow:aws_production"
    assert world.emr.requests == []


@pytest.mark.parametrize(
    "extra",
    [
        {"config_kwargs": ["the-secret"]},
        {"service_config": {"emr-serverless": "the-secret", "emr-containers": "the-secret"}},
        {"role_arn": "arn:aws:iam::123456789012:role/x", "assume_role_method": "the-secret"},
    ],
    ids=["config", "services", "role"],
)
def test_a_connection_that_cannot_be_read_is_named_without_its_content(
    world: Any, connection: Any, extra: dict[str, Any]
) -> None:
    connection("aws_broken", conn_type="aws", login="AKIA", password="x", extra=extra)
    with pytest.raises(EngineRefused) as caught:
        world.engine(aws_conn_id="aws_broken", region="eu-west-1").submit(world.job)
    assert "the-secret" not in str(caught.value)


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_keys_that_were_replaced_in_the_connection_are_read_again(world: Any, code: str) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    hook = engine._aws().hook
    for operation in ("GetJobRun", "DescribeJobRun", "StartJobRun"):
        world.emr.refuse(operation, 403, code, "The security token is expired", times=1)
    assert engine.status(job_id).state is JobState.PENDING
    engine.submit(replace(world.job, token="seed-other"))
    assert engine._aws().hook is not hook
    assert len(world.emr.runs) == 2


# -- lost -------------------------------------------------------------------------------------------------------------


def test_a_run_is_lost_only_if_its_own_account_says_so(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    world.emr.runs.clear()
    assert engine.status(job_id).state is JobState.LOST
    foreign = job_id.replace("123456789012", "999999999999")
    status = engine.status(foreign)
    assert status.state is JobState.UNKNOWN
    assert "999999999999" in status.reason


def test_a_run_that_the_service_does_not_show_yet_is_not_lost(world: Any) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)
    for operation in ("GetJobRun", "DescribeJobRun"):
        status = 404 if world.emr.is_serverless else 400
        world.emr.refuse(operation, status, "ResourceNotFoundException", "not yet", times=2)
    assert engine.status(job_id).state is JobState.PENDING


def test_a_run_is_not_lost_while_the_account_is_not_known(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.runs.clear()
    # STS does not answer: nothing says whose answer it is that there is no such run.
    world.connect(sts="http://127.0.0.1:9")
    status = world.engine().status(job_id)
    assert status.state is JobState.UNKNOWN
    assert "account is not known" in status.reason


def test_a_404_of_somebody_else_is_not_the_services(world: Any) -> None:
    engine = world.engine()
    job_id = engine.submit(world.job)

    def not_found(operation: str, request: dict[str, Any]) -> None:
        raise AwsError(404, "", body=b"<html>no such page</html>")

    world.emr.before.append(not_found)
    with pytest.raises(EngineRefused):
        engine.status(job_id)


@pytest.mark.parametrize("text", ["", "application_1_2", "arn:aws:s3:::bucket", "arn:aws:emr-serverless:x:1:/y"])
def test_an_id_of_another_engine_is_refused(world: Any, text: str) -> None:
    for act in (world.engine().status, world.engine().cancel, world.engine().links):
        with pytest.raises(EngineJobUnknown):
            act(text)
    assert world.emr.requests == []


def test_a_job_is_asked_for_in_its_own_region_and_place(world: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.only().state = "RUNNING"
    place = {of(world, "application_id", "virtual_cluster_id"): "00other"}
    changed = world.engine(region="us-west-2", **place)
    assert changed.status(job_id).state is JobState.RUNNING
    changed.cancel(job_id)
    assert world.emr.only().state.startswith("CANCEL")


# -- hostile answers --------------------------------------------------------------------------------------------------


HOSTILE: list[Any] = [
    b"",
    b"<html>login please</html>",
    b"[]",
    b"{}",
    {"arn": 7, "id": None, "jobRunId": ["x"]},
    {"arn": "arn:aws:emr-serverless:eu-west-1:123456789012:/applications/a/jobruns/../../b"},
    {"jobRun": "RUNNING"},
    {"jobRun": {"state": 7}},
    {"jobRun": {"state": None}},
    {"jobRuns": "none", "nextToken": 7},
]


@pytest.mark.parametrize("answer", HOSTILE, ids=[str(row)[:30] for row in HOSTILE])
def test_answers_without_sense_are_neither_success_nor_an_end(world: Any, answer: Any) -> None:
    job_id = world.engine().submit(replace(world.job, token="seed-first"))
    world.emr.instead |= {"GetJobRun": answer, "DescribeJobRun": answer}
    assert world.engine().status(job_id).state is JobState.UNKNOWN
    world.emr.instead |= {"StartJobRun": answer}
    with pytest.raises(MigrationError) as caught:
        world.engine().submit(world.job)
    assert isinstance(caught.value, Transient)
    assert len(world.emr.runs) == 2
    world.emr.instead.clear()
    assert world.engine().submit(world.job) in {world.emr.arn(run) for run in world.emr.runs}
    assert len(world.emr.runs) == 2


@pytest.mark.parametrize("answer", HOSTILE, ids=[str(row)[:30] for row in HOSTILE])
def test_a_list_without_sense_starts_at_most_one_job(world: Any, answer: Any) -> None:
    job_id = world.engine().submit(world.job)
    world.emr.instead["ListJobRuns"] = answer
    try:
        assert world.engine().submit(world.job) == job_id
    except MigrationError as error:
        assert isinstance(error, Transient)  # noqa: PT017 - either is right, but nothing else
    assert len(world.emr.runs) == 1


def test_links_lead_to_the_console_and_contain_no_credential(world: Any) -> None:
    engine = world.engine(log_group="/kafka-migration/spark")
    job_id = engine.submit(world.job)
    links = engine.links(job_id)
    assert list(links) == ["EMR", "Logs on S3", "Logs in CloudWatch"]
    assert all(link.startswith("https://console.aws.amazon.com/") for link in links.values())
    assert world.emr.only().id in links["Logs on S3"]
    assert "GetDashboardForJobRun" not in world.emr.operations()
    hostile = {"s3MonitoringConfiguration": {"logUri": "ftp://x"}}
    answer = {"jobRun": {"state": "FAILED", "configurationOverrides": {"monitoringConfiguration": hostile}}}
    world.emr.instead |= {"GetJobRun": answer, "DescribeJobRun": answer}
    assert list(engine.links(job_id)) == ["EMR"]
    assert engine.status(job_id).state is JobState.FAILED
    world.emr.refuse("GetJobRun", 403, "AccessDeniedException")
    world.emr.refuse("DescribeJobRun", 403, "AccessDeniedException")
    assert list(engine.links(job_id)) == ["EMR"]
    china = job_id.replace("arn:aws:", "arn:aws-cn:").replace("eu-west-1", "cn-north-1")
    assert engine.links(china)["EMR"].startswith("https://console.amazonaws.cn/")
