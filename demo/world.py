"""All running parts: two clusters, two schema registries, S3, Airflow, producers, their webhook. All on loopback."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

from demo import access, schemas
from harness import registries
from harness.airflow import AirflowStandalone
from harness.brokers import KafkaCluster
from harness.clients import LiveProducer
from harness.jars import kafka_jars, spark_kafka_jars
from harness.load import TopicLoad, standard_topics
from harness.registries import ApicurioRegistry
from harness.s3 import DATA_BUCKET, EVIDENCE_BUCKET, S3Server
from harness.webhook import Call, FreezeWebhook

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "demo"

SOURCE_VERSION = "3.9.1"
TARGET_VERSION = "4.1.1"
MIGRATION_ID = "demo"
_MECHANISM = "SCRAM-SHA-512"
_SIGNATURE = "x-kafka-migration-signature"
#: A little more than what remains after heads are deleted and logs are cleaned.
_RECORDS = 240_000
_BYTES = 120_000_000

#: Written to while the migration runs; the other topics do not change.
_LIVE_TOPICS = {f"{access.PREFIX}orders": range(4), f"{access.PREFIX}customers": range(3)}

_LIVE_RECORDS_PER_SECOND = 150
#: In each of the topics whose records have schemas, before the migration; and how many are written meanwhile.
_RECORDS_WITH_SCHEMAS = 2_000
_LIVE_RECORDS_WITH_SCHEMAS_PER_SECOND = 20

Say = Callable[[str], None]


def topics() -> list[TopicLoad]:
    """The topics of the source."""
    return standard_topics(access.PREFIX, _RECORDS, _BYTES)


@dataclass(frozen=True)
class Keys:
    """Secrets of this run."""

    webhook: str
    signing: SigningKey

    @classmethod
    def make(cls) -> Keys:
        """Make new secrets."""
        return cls(secrets.token_urlsafe(24), SigningKey.generate())

    @property
    def public_hex(self) -> str:
        """The public key for checking the evidence, kept outside of it."""
        return bytes(self.signing.verify_key).hex()


class World:
    """The running parts. When the stack closes, they are stopped in reverse order of their start."""

    def __init__(self, stack: ExitStack, say: Say) -> None:
        users = access.users()
        self.keys = Keys.make()
        self.source = KafkaCluster(FOLDER / "source", SOURCE_VERSION, users=users)
        self.target = KafkaCluster(FOLDER / "target", TARGET_VERSION, users=users)
        self.s3 = S3Server(FOLDER / "s3")
        self.source_registry = ApicurioRegistry(FOLDER / "source-registry")
        self.target_registry = ApicurioRegistry(FOLDER / "target-registry")
        self.topics = topics()
        self._stack = stack
        self._say = say
        self.producer: LiveProducer
        self.writer: schemas.Writer
        self.schema_producer: LiveProducer
        self.webhook: FreezeWebhook
        self.airflow: AirflowStandalone

    def start_services(self) -> None:
        """Start clusters, registries and S3 in parallel, grant permissions, then start Airflow in the background.

        :raises HarnessError: one of them did not start.
        """
        for version in (SOURCE_VERSION, TARGET_VERSION):
            self._say(f"Kafka {version}: {kafka_jars.ensure(version)}")
        self._say(f"Spark's Kafka source: {spark_kafka_jars.jars()[0].parent}")
        registry = self.source_registry.version
        self._say(f"Apicurio Registry {registry}: {registries.ensure(registry)}")
        parts = (self.source, self.target, self.s3, self.source_registry, self.target_registry)
        for part in parts:
            self._stack.callback(part.stop)
        with ThreadPoolExecutor(len(parts), thread_name_prefix="start") as pool:
            for future in [pool.submit(part.start) for part in parts]:
                future.result()
        access.grant_on_source(self.source)
        access.grant_on_target(self.target)
        self.producer = LiveProducer(
            self.client(self.source, access.PRODUCER), _LIVE_TOPICS, records_per_second=_LIVE_RECORDS_PER_SECOND
        )
        self.source_registry.seed(schemas.seeds())
        self.writer = schemas.Writer(self.source_registry.url)
        self.schema_producer = LiveProducer(
            self.client(self.source, access.PRODUCER),
            {topic: range(partitions) for topic, partitions in schemas.TOPICS.items()},
            records_per_second=_LIVE_RECORDS_WITH_SCHEMAS_PER_SECOND,
            content=self.writer.record,
        )
        self.webhook = FreezeWebhook(self.producer, self.schema_producer, answer=self._answer_webhook)
        self._stack.callback(self.webhook.stop)
        self.webhook.start()
        self.airflow = AirflowStandalone(
            FOLDER / "airflow", ROOT / "dags", connections=self.connections(), env=self._airflow_env()
        )
        self._stack.callback(self.airflow.stop)
        self._starting = _Background("start-airflow", self.airflow.start)

    def wait_airflow(self) -> None:
        """:raises HarnessError: Airflow did not start."""
        self._starting.result()

    def fill_topics_with_schemas(self) -> None:
        """Create the topics whose records have schemas, and write their first records."""
        self.source.create_topics({topic: (partitions, {}) for topic, partitions in schemas.TOPICS.items()})
        schemas.fill(self.client(self.source, access.PRODUCER), self.writer, _RECORDS_WITH_SCHEMAS)

    @property
    def producers(self) -> tuple[LiveProducer, ...]:
        """The live producers, which the webhook freezes."""
        return self.producer, self.schema_producer

    def start_producers(self) -> None:
        """Start the live producers."""
        for producer in self.producers:
            producer.start()
            self._stack.callback(producer.stop)

    def client(self, cluster: KafkaCluster, user: str) -> dict[str, str]:
        """librdkafka keys of a user on a cluster's SASL listener."""
        return cluster.client_config(user, _MECHANISM)

    def connections(self) -> dict[str, dict[str, Any]]:
        """Airflow's connections: the migration's own user on both sides, S3, Spark, two secrets."""
        s3 = self.s3.config()
        return {
            "kafka_source": {"conn_type": "kafka", "extra": self.client(self.source, access.MIGRATOR)},
            "kafka_target": {"conn_type": "kafka", "extra": self.client(self.target, access.MIGRATOR)},
            "aws_demo": {
                "conn_type": "aws",
                "login": s3["aws_access_key_id"],
                "password": s3["aws_secret_access_key"],
                "extra": {"endpoint_url": s3["endpoint_url"], "region_name": s3["region_name"]},
            },
            "registry_source": {"conn_type": "http", "host": self.source_registry.url},
            "registry_target": {"conn_type": "http", "host": self.target_registry.url},
            "spark_default": {"conn_type": "spark", "host": "local[2,4]"},
            "demo_webhook": {"conn_type": "generic", "password": self.keys.webhook},
            "demo_signing_key": {"conn_type": "generic", "password": self.keys.signing.encode().hex()},
        }

    def spec(self) -> dict[str, Any]:
        """The migration's spec, as a user would write it."""
        return {
            "migration_id": MIGRATION_ID,
            "description": "Kafka 3.9 in ZooKeeper mode to Kafka 4.1 in KRaft mode",
            "source": {"conn_id": "kafka_source", "name": "old cluster"},
            "target": {"conn_id": "kafka_target", "name": "new cluster"},
            "storage": {
                "conn_id": "aws_demo",
                "journal": f"s3://{DATA_BUCKET}/journal",
                "archive": f"s3://{DATA_BUCKET}/segments",
                "evidence": f"s3://{EVIDENCE_BUCKET}/kafka",
            },
            "topics": {"include": [r"shop\..*"]},
            "groups": {"include": ["shop-.*"], "sync_interval": "2s"},
            "schemas": {"source": "registry_source", "target": "registry_target", "interval": "5s"},
            "acls": {"exclude_principals": ["User:ANONYMOUS", f"User:{access.MIGRATOR}"]},
            # The lag grows briefly in the gap between two slices: for seconds, where cores are few and busy.
            "tail": {"drain_stable_window": "5s", "drain_max_partition_lag": 500},
            "cutover": {
                "freeze": "webhook",
                "producer_freeze_webhook": self.webhook.url,
                "webhook_secret": "airflow:demo_webhook",
                "max_producer_freeze": "5m",
            },
            "evidence": {
                "retention": "1d",
                "signing_key": "airflow:demo_signing_key",
                "public_key": self.keys.public_hex,
            },
            "spark": {
                "conf": {"spark.driver.memory": "512m", "spark.ui.enabled": "false"},
                "kafka_connector": ",".join(str(jar) for jar in spark_kafka_jars.jars()),
            },
        }

    def logs(self) -> list[Path]:
        """The logs to check after a failure."""
        return [
            self.airflow.log if hasattr(self, "airflow") else FOLDER / "airflow",
            FOLDER / "airflow" / "logs",
            self.source.broker_log(0),
            self.target.broker_log(0),
            FOLDER / "s3" / "s3.log",
            self.source_registry.log,
            self.target_registry.log,
        ]

    def _airflow_env(self) -> dict[str, str]:
        return {
            "AIRFLOW__KAFKA_MIGRATION__PROGRESS_INTERVAL": "2",
            # The demo's store shows its objects to everybody.
            "AIRFLOW__KAFKA_MIGRATION__OBJECT_URL_TEMPLATE": f"{self.s3.config()['endpoint_url']}/{{bucket}}/{{key}}",
            # Producers are stopped while five tasks start one after the other: docs/airflow.md.
            "AIRFLOW__KAFKA_MIGRATION__PRELOAD": "True",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def _answer_webhook(self, call: Call) -> tuple[int, Any]:
        """Act as a company's switch: check the signature, act, repeat the request's fields."""
        expected = "sha256=" + hmac.new(self.keys.webhook.encode(), call.raw, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, call.headers.get(_SIGNATURE, "")):
            return 403, {"error": "the signature is wrong"}
        if call.action not in ("freeze", "unfreeze"):
            return 422, {"error": f"unknown action {call.action!r}"}
        for producer in self.producers:
            if call.action == "freeze":
                producer.freeze()
            else:
                producer.unfreeze()
        return 200, {"migration_id": call.body["migration_id"], "action": call.action, "status": "done"}


class _Background:
    """A call in a thread; :meth:`result` raises its error."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> None:
        """Wait for the call."""
        self._thread.join()
        if self._error is not None:
            raise self._error
