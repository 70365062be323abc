"""Two Kafka clusters, storage and a Spark cluster, each part on a host of its own: they share nothing but a network.

The tests themselves are on the lab's network, too, as one more machine: they load and compare by the brokers'
addresses, and see the disks of all hosts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.provider.job_references import SparkPlace, job_references
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, PrivateKey
from airflow_provider_kafka_migration.spark.launch import build_py_files
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec
from harness.brokers import KafkaCluster
from harness.hosts import CHECKOUT, Host, Lab
from harness.jars import kafka_jars
from harness.load import load, standard_topics
from harness.processes import Process, tail_of
from harness.s3 import FOLDER, S3Server
from tests.integration.copy.copying import Copying, wait_for

#: The passwords of the super users: whatever holds one of them outside of a broker's host has leaked it.
PASSWORDS = {"source": "password-of-the-source-7Qx", "target": "password-of-the-target-4Zk"}
STORAGE_SECRET = "secret-of-the-storage-9Wd"

#: Lost executors are noticed in seconds, not in minutes.
IMPATIENT = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


class Run(Protocol):
    """A job that was submitted, and what its submission has written."""

    @property
    def running(self) -> bool: ...

    @property
    def log(self) -> Path: ...


@dataclass(frozen=True)
class SeenLease:
    """One lease object of a lane.

    :param host: the host of the owner.
    :param ended: whether the owner has said that it sends nothing any more.
    """

    lane: int
    generation: int
    host: str
    ended: bool


@dataclass
class World:
    """All parts; made by :func:`lab_world`."""

    lab: Lab
    source: KafkaCluster
    target: KafkaCluster
    storage: S3Server
    bucket: str
    key: PrivateKey
    driver: Host
    workers: list[Host]
    submissions: list[Process] = field(default_factory=list)

    @property
    def connections(self) -> dict[str, dict[str, Any]]:
        """What copiers need, with secrets."""
        return connections(self.source, self.target, self.storage)

    @property
    def resolver(self) -> Resolver:
        """Resolves the connections of :meth:`spec`, as Airflow does."""
        return Resolver({"airflow": lambda conn_id: json.dumps(self.connections[conn_id.removeprefix("kafka_")])})

    def copying(self, name: str, folder: Path, *, lanes: int = 2, records: int = 12_000) -> Copying:
        """Load topics of three kinds into the source, and make the copy of them; a second try gets its own."""
        migration_id = f"{name}-{uuid.uuid4().hex[:6]}"
        topics = standard_topics(f"{migration_id}.", records=records, total_bytes=400 * records)
        wanted = [topics[0], topics[1], topics[3]]
        load(self.source, wanted, seed=len(name))
        return Copying(
            self.source,
            self.target,
            folder,
            [topic.name for topic in wanted],
            migration_id,
            lanes=lanes,
            references=self.connections,
            location=f"s3://{self.bucket}/{migration_id}",
        )

    @staticmethod
    def spec(copy: Copying, **spark: Any) -> MigrationSpec:
        """A spec with connections of Airflow."""
        return parse_spec(
            {
                "migration_id": copy.migration_id,
                "source": {"conn_id": "kafka_source"},
                "target": {"conn_id": "kafka_target"},
                "storage": {"journal": copy.journal, "conn_id": "kafka_storage"},
                "topics": {"include": [".*"]},
                "spark": spark,
            }
        )

    @contextmanager
    def sealed(self, copy: Copying, job: str, master: str) -> Iterator[str]:
        """Yield the argument ``--references`` as Airflow's task makes it: its connections, encrypted for this job."""
        place = SparkPlace.of_master(master, self.key.public.text)
        # A folder of the machine that submits, which is not the driver's; nothing is in it in this mode.
        folder = copy.folder / "for-references"
        with job_references(
            self.spec(copy), self.resolver, place=place, job=job, token=f"{job}-1", folder=folder
        ) as argument:
            yield argument

    def references(self, document: Mapping[str, Any], name: str = "references.json") -> Path:
        """Write a references file on the driver's disk, and nowhere else."""
        path = self.driver.disk / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(dict(document)))
        return path

    def submit(
        self,
        copy: Copying,
        main: str,
        references: str,
        master: str,
        *,
        conf: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start ``spark-submit`` of a main on the driver's host; the package goes to the executors as a zip."""
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            **(conf or {}),
        }
        command = ["spark-submit", "--master", master, "--py-files", str(build_py_files(self.driver.disk)), *options]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        command += [str(CHECKOUT / "spark_jobs" / f"{main}.py")]
        command += ["--job-location", copy.journal, "--job-key", copy.job_key(main), "--references", references]
        name = f"submission-{len(self.submissions)}-{main}"
        self.submissions.append(self.driver.start(name, command, env=env))
        return self.submissions[-1]

    def wait(self, submission: Process, seconds: float = 400) -> int:
        """The exit status of a submission."""
        wait_for(lambda: not submission.running, seconds, f"the end of {submission.name}:\n{tail_of(submission.log)}")
        assert submission.returncode is not None
        return submission.returncode

    def shares(self, copy: Copying, job_name: str) -> dict[int, float]:
        """The share of each lane's source records that the target has; equal offsets only."""
        job = CopyJob.parse(copy.clients.store(copy.journal).get(copy.job_key(job_name)) or b"")
        ends, copied = copy.stable_ends(), copy.clients.wire("target").list_offsets(list(copy.partitions), "latest")
        keys = {lane.lane: [item.key for item in lane.partitions] for lane in job.lanes}
        return {lane: sum(copied[key] for key in of) / sum(ends[key] for key in of) for lane, of in keys.items()}

    def leases(self, copy: Copying) -> list[SeenLease]:
        """All leases of a copy that writes to the target, by lane and generation."""
        store = copy.clients.store(copy.journal)
        keys = {info.key for info in store.list(f"{copy.migration_id}/leases/target/")}
        found = []
        for key in keys:
            stem, _, kind = key.rpartition(".")
            if kind == "json":
                lane, number = stem.split("/")[-2:]
                host = json.loads(store.get(key) or b"{}")["host"]
                found.append(SeenLease(int(lane), 100_000_000 - int(number), host, f"{stem}.ended" in keys))
        return sorted(found, key=lambda lease: (lease.lane, lease.generation))

    def current_leases(self, copy: Copying) -> list[SeenLease]:
        """The newest lease of each lane, unless it has ended."""
        newest = {lease.lane: lease for lease in self.leases(copy)}
        return [lease for lease in newest.values() if not lease.ended]

    def check_leases(self, copy: Copying) -> None:
        """No generation of a lane was taken twice (the bucket keeps all versions of an object), and none is missing."""
        client = self.storage.client()
        prefix = f"{copy.migration_id}/journal/{copy.migration_id}/leases/"
        pages = client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=prefix)
        written = [item["Key"] for page in pages for item in page.get("Versions", []) if item["Key"].endswith(".json")]
        assert written, f"there are no leases below {prefix}"
        assert len(written) == len(set(written)), "a lease was written twice"
        by_lane: dict[int, list[int]] = {}
        for lease in self.leases(copy):
            by_lane.setdefault(lease.lane, []).append(lease.generation)
        assert sum(map(len, by_lane.values())) == len(written)
        for lane, generations in by_lane.items():
            assert generations == list(range(1, len(generations) + 1)), f"lane {lane}"

    def check_no_secret_leaked(self, but: str = "") -> None:
        """No secret is on a disk but the brokers' own, in an object, or in a command line.

        :param but: name of files that may hold one.
        """
        secrets = [*PASSWORDS.values(), STORAGE_SECRET, self.key.text]
        marks = [secret.encode() for secret in secrets]
        holders = []
        for name, host in self.lab.hosts.items():
            if not name.startswith("kafka-"):
                files = (path for path in _files(host.disk.parent) if path.name != but)
                holders += [str(path) for path in files if _holds(path.read_bytes(), marks)]
        client = self.storage.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            for item in page.get("Contents", []):
                content = client.get_object(Bucket=self.bucket, Key=item["Key"])["Body"].read()
                holders += [item["Key"]] if _holds(content, marks) else []
        holders += [line for line in command_lines() if any(secret in line for secret in secrets)]
        assert holders == []


def connections(source: KafkaCluster, target: KafkaCluster, storage: S3Server) -> dict[str, dict[str, Any]]:
    """Connections with secrets, as copiers need them."""
    return {
        "source": source.client_config("admin"),
        "target": target.client_config("admin"),
        "storage": {
            "endpoint_url": storage.endpoint_url,
            "aws_access_key_id": "lab",
            "aws_secret_access_key": STORAGE_SECRET,
            "region_name": "us-east-1",
        },
    }


@contextmanager
def lab_world(folder: Path, *, workers: int = 2, secrets_in_workers: bool = True) -> Iterator[World]:
    """Start all parts but Spark's, each on its host; the block is on the lab's network.

    :param secrets_in_workers: the workers' environment has the connections and the key of sealed references.
    """
    versions = {"source": "3.9.1", "target": "4.1.1"}
    for version in versions.values():
        kafka_jars.ensure(version)  # before there is no way out
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(folder))
        hosts = [lab.host(name) for name in ("kafka-source", "kafka-target")]
        storage_host = lab.host("storage", readable=[FOLDER])
        stack.enter_context(lab.network())
        source, target = (
            stack.enter_context(
                KafkaCluster(host.disk / "kafka", version, "kraft", users={"admin": PASSWORDS[role]}, host=host)
            )
            for host, (role, version) in zip(hosts, versions.items(), strict=True)
        )
        storage = stack.enter_context(S3Server(folder / "s3", host=storage_host))
        bucket = storage.bucket("lab")
        storage.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        world_connections = connections(source, target, storage)
        environment = {f"LAB_{role.upper()}": json.dumps(value) for role, value in world_connections.items()}
        key = PrivateKey.new()
        environment[KEY_VARIABLE] = key.text
        world = World(
            lab,
            source,
            target,
            storage,
            bucket,
            key,
            driver=lab.host("driver", has_product=True, environment=environment),
            workers=[
                lab.host(f"worker-{number + 1}", environment=environment if secrets_in_workers else {})
                for number in range(workers)
            ],
        )
        yield world
        for submission in world.submissions:
            submission.kill()


def command_lines() -> Iterator[str]:
    """The command lines of all processes of this machine, those on hosts included."""
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder that can be read; they may vanish meanwhile."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def _holds(content: bytes, marks: Sequence[bytes]) -> bool:
    return any(mark in content for mark in marks)
