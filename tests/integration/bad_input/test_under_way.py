"""What goes wrong once a migration has begun: another owner, other buckets, a changed journal, foreign writers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_kafka_migration.copy.clients import Clients
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.errors import CopyFailed, MigrationError
from airflow_provider_kafka_migration.lanes.job_progress import LocalRunner
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import load_spec
from harness.brokers import KafkaCluster
from tests.integration.bad_input.world import World
from tests.integration.copy.copying import Copying, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def planned(world: World) -> World:
    """A migration that somebody has planned and left."""
    world.fill()
    said = world.run("--until", "plan", as_user="ann")
    assert said.code == 0, said.output
    return world


def same_as_before(world: World, before: tuple[dict[str, Any], list[str]]) -> None:
    assert (world.holdings(), world.journal_entries()) == before


def state_of(world: World) -> tuple[dict[str, Any], list[str]]:
    return world.holdings(), world.journal_entries()


def test_a_second_run_of_another_owner(planned: World) -> None:
    before = state_of(planned)
    said = planned.run(as_user="bob")
    error = said.check("CLAIM_HELD", what="is held by cli ann@elsewhere", next_step="--takeover")
    assert error["details"]["identity"] == "ann@elsewhere"
    assert error["details"]["since"]
    same_as_before(planned, before)


def test_who_was_taken_over_is_refused_from_then_on(planned: World) -> None:
    assert planned.run("--takeover", "--until", "plan", as_user="bob").code == 0
    before = state_of(planned)
    planned.run(as_user="ann").check("CLAIM_HELD", what="is held by cli bob@elsewhere", next_step="--takeover")
    same_as_before(planned, before)


def test_a_dag_goes_on_after_precheck_on_the_command_line_and_commands_that_look(world: World) -> None:
    """As the guide for beginners has it: plan and precheck on the command line, then the DAG."""
    world.fill()
    for command in ("plan", "precheck", "status", "journal show"):
        said = world.run(command=command, as_user="ann")
        assert said.code == 0, said.output
    spec = load_spec(world.write_spec())
    with Migration.open(spec, "kafka_migration/run-1", Resolver(), actor="plan") as migration:
        assert migration.status().owner is None
        for phase in ("plan", "precheck"):
            assert not migration.run(phase).already_done
        assert migration.status().owner == "dag_run kafka_migration/run-1"
    world.run(command="precheck", as_user="ann").check("CLAIM_HELD", what="dag_run", next_step="release")
    world.run(command="release", as_user="ann").check("CLAIM_HELD", what="dag_run", next_step="release")
    assert world.run("--takeover", command="release", as_user="ann").code == 0
    with Migration.open(spec, "kafka_migration/run-2", Resolver(), actor="plan") as migration:
        assert migration.run("plan").details


@pytest.mark.parametrize("command", ["run", "resume"])
@pytest.mark.parametrize("role", ["archive", "evidence"])
def test_changed_buckets_on_resume(planned: World, command: str, role: str) -> None:
    bucket = planned.s3.bucket("other")
    before = state_of(planned)
    setattr(planned, f"{role}_bucket", bucket)
    said = planned.run(command=command, as_user="ann")
    error = said.check("FINGERPRINT_CHANGED", what=f"buckets.{role}", next_step="put the old values back")
    assert error["details"]["changes"][f"buckets.{role}"]["new"] == f"s3://{bucket}"
    same_as_before(planned, before)


def test_another_journal_bucket_has_nothing_to_resume(planned: World) -> None:
    before = state_of(planned)
    journal_bucket = planned.journal_bucket
    planned.journal_bucket = planned.s3.bucket("other")
    said = planned.run(command="resume", as_user="ann")
    error = said.check("ILLEGAL_TRANSITION", what="no migration to resume", next_step="storage.journal")
    assert planned.journal_bucket in error["where"]["path"]
    planned.journal_bucket = journal_bucket
    same_as_before(planned, before)


@pytest.mark.parametrize("side", ["source", "target"])
def test_another_cluster_on_resume(planned: World, side: str) -> None:
    """The connection leads elsewhere now: here, the two are swapped."""
    before = state_of(planned)
    planned.source_keys, planned.target_keys = planned.target_keys, planned.source_keys
    said = planned.run(command="resume", as_user="ann")
    said.check("FINGERPRINT_CHANGED", what=f"{side}_cluster_id", next_step="put the old values back")
    same_as_before(planned, before)


@pytest.mark.parametrize("command", ["run", "resume", "status", "journal verify"])
@pytest.mark.parametrize("spoil", ["altered", "missing"])
def test_a_tampered_journal(planned: World, command: str, spoil: str) -> None:
    s3, bucket = planned.s3.client(), planned.journal_bucket
    entries = [key for key in planned.journal_entries() if key.endswith(".json")]
    victim = entries[1]
    if spoil == "altered":
        entry = json.loads(s3.get_object(Bucket=bucket, Key=victim)["Body"].read())
        entry["reason"] = "nothing happened here"
        s3.put_object(Bucket=bucket, Key=victim, Body=json.dumps(entry).encode())
    else:
        s3.delete_object(Bucket=bucket, Key=victim)
    before = state_of(planned)
    said = planned.run(command=command, as_user="ann")
    assert said.code == 1, said.output
    assert "JOURNAL_TAMPERED" in said.output
    assert "Traceback" not in said.output
    if command != "journal verify":
        assert said.error["code"] == "JOURNAL_TAMPERED"
        assert said.error["next_step"]
        assert "1" in said.error["what"] + said.error["where"].get("path", "")
    same_as_before(planned, before)


# -- foreign writers ---------------------------------------------------------------------------------------------------


def write(cluster: KafkaCluster, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer(cluster.client_config())
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(120) == 0


@pytest.fixture
def two_partitions(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_name: Callable[[str], str], tmp_path: Path
) -> Copying:
    """Half of a copy: both partitions have begun."""
    topic = unique_name("foreign")
    source_cluster.create_topic(topic, 2)
    for partition in (0, 1):
        write(source_cluster, topic, [b"first %d" % n for n in range(50)], partition)
    copy = Copying(source_cluster, target_cluster, tmp_path, [topic], unique_name("m").lower())
    copy.run()
    return copy


def check_foreign(error: dict[str, Any], topic: str) -> None:
    assert error["code"] == "FOREIGN_DATA"
    assert error["where"]["topic"] == topic
    assert error["where"]["partition"] == 0
    assert error["where"]["cluster"] == "target"
    assert "stop" in error["next_step"]
    assert error["details"]["producer_id"] == -1


def test_a_foreign_writer_between_two_runs_of_a_seed(two_partitions: Copying) -> None:
    copy, topic = two_partitions, two_partitions.topics[0]
    write(copy.target, topic, [b"intruder"])
    for partition in (0, 1):
        write(copy.source, topic, [b"second %d" % n for n in range(50)], partition)
    with pytest.raises(CopyFailed, match=r"1 of 2 partitions.*\[FOREIGN_DATA\]") as caught:
        copy.run()
    (failed,) = caught.value.details["partitions"]
    check_foreign(failed["error"], topic)
    ends = copy.clients.wire("target").list_offsets([(topic, 0), (topic, 1)], "latest")
    # Nothing was written behind the intruder; the other partition is complete.
    assert ends == {(topic, 0): 51, (topic, 1): 100}


def test_a_foreign_writer_in_the_middle_of_a_tail(two_partitions: Copying) -> None:
    copy, topic = two_partitions, two_partitions.topics[0]
    stop_key = f"{copy.migration_id}/control/tail-stop.json"
    job = copy.write_job("tail", stop_key=stop_key, slice_seconds=10)
    store = copy.clients.store(copy.journal)
    caught: list[MigrationError] = []

    def follow() -> None:
        try:
            LocalRunner(Clients(copy.references or {}), threads=1).run(job)
        except MigrationError as error:
            caught.append(error)

    tail = threading.Thread(target=follow, daemon=True)
    tail.start()
    wire = copy.clients.wire("target")

    def end(partition: int) -> int:
        return wire.list_offsets([(topic, partition)], "latest")[topic, partition]

    for partition in (0, 1):
        write(copy.source, topic, [b"tailed"], partition)
    wait_for(lambda: end(0) == 51 and end(1) == 51, 200, "tail")
    write(copy.target, topic, [b"intruder"])
    write(copy.source, topic, [b"after"], 0)
    for number in range(10):
        write(copy.source, topic, [b"other %d" % number], 1)
    wait_for(lambda: end(1) == 61, 200, "the other partition goes on")
    stop = StopAt(migration_id=copy.migration_id, offsets={f"{topic}-0": 52, f"{topic}-1": 61})
    store.put(stop_key, stop.canonical())
    tail.join(60)
    assert not tail.is_alive()
    assert isinstance(caught[0], CopyFailed)
    (failed,) = caught[0].details["partitions"]
    check_foreign(failed["error"], topic)
