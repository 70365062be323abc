"""A migration that is all right, of which each test spoils one thing; and what its clusters and stores hold."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from airflow_provider_kafka_migration.cli import migrate
from airflow_provider_kafka_migration.cli.app import app
from harness.brokers import KafkaCluster
from harness.s3 import DATA_BUCKET, EVIDENCE_BUCKET, S3Server

#: Commands end within this time, whatever is wrong: it is far beyond all bounded waits, so only what hangs exceeds it.
BOUND_SECONDS = 240.0
_ANY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    error: dict[str, Any]
    output: str
    seconds: float

    def check(
        self, code: str, *, what: str, next_step: str, status: int = 1, freeze: str | None = None
    ) -> dict[str, Any]:
        """The error is this one, says what and what next, came soon, and nothing else was printed.

        :param freeze: how producers stand by what the command says last; None: it says nothing of them.
        """
        assert self.error.get("code") == code, self.output
        assert self.code == status, self.output
        assert what in self.error["what"], self.error["what"]
        assert next_step in self.error["next_step"], self.error["next_step"]
        assert self.seconds < BOUND_SECONDS, self.seconds
        assert "Traceback" not in self.output
        answer = json.loads(self.output)
        assert (answer.pop("freeze", None) or {}).get("standing") == freeze, self.output
        assert answer == {"ok": False, "error": self.error}
        return self.error


class World:
    """One migration between the clusters of the run, through S3, as the command line sees it."""

    def __init__(self, folder: Path, source: KafkaCluster, target: KafkaCluster, s3: S3Server, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix
        self.source_cluster, self.target_cluster, self.s3 = source, target, s3
        self.migration_id = f"bad-{secrets.token_hex(4)}"
        self.source_keys: dict[str, Any] = source.client_config("admin", "SCRAM-SHA-512")
        self.target_keys: dict[str, Any] = target.client_config("admin", "SCRAM-SHA-512")
        self.journal_bucket, self.archive_bucket, self.evidence_bucket = DATA_BUCKET, DATA_BUCKET, EVIDENCE_BUCKET
        self.more: dict[str, Any] = {}

    @property
    def topic(self) -> str:
        return f"{self.prefix}.orders"

    def fill(self, records: int = 40, partitions: int = 2) -> None:
        """The topic on the source."""
        self.source_cluster.create_topic(self.topic, partitions)
        self.produce(self.source_cluster, records, partitions)

    def produce(self, cluster: KafkaCluster, records: int, partitions: int = 2, *, text: str = "record") -> None:
        producer = Producer({**cluster.client_config(), "linger.ms": 5})
        for number in range(records):
            producer.produce(self.topic, f"{text} {number}".encode(), b"k%d" % number, partition=number % partitions)
        assert producer.flush(120) == 0

    def _secret(self, name: str, content: Any) -> str:
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        file.chmod(0o600)
        return f"file:{file}"

    def write_spec(self, **sections: Any) -> Path:
        """The spec file with these sections laid over the good ones."""
        spec: dict[str, Any] = {
            "migration_id": self.migration_id,
            "source": {"conn_id": self._secret("source.json", self.source_keys)},
            "target": {"conn_id": self._secret("target.json", self.target_keys)},
            "storage": {
                "conn_id": self._secret("s3.json", self.s3.config()),
                "journal": f"s3://{self.journal_bucket}/{self.prefix}/j",
                "archive": f"s3://{self.archive_bucket}/{self.prefix}/a",
                "evidence": f"s3://{self.evidence_bucket}/{self.prefix}/e",
            },
            "topics": {"include": [self.prefix.replace(".", "[.]") + ".*"]},
            "groups": {"include": [f"{self.prefix}.*"]},
            "tail": {"drain_stable_window": "1s", "slice_seconds": 5},
            "evidence": {"signing_key": self._secret("signing.key", secrets.token_hex(32))},
        }
        for name, value in {**self.more, **sections}.items():
            spec[name] = {**spec.get(name, {}), **value} if isinstance(value, Mapping) else value
        file = self.folder / "migration.yaml"
        file.write_text(yaml.safe_dump(spec))
        return file

    def run(self, *arguments: str, command: str = "run", as_user: str | None = None, **sections: Any) -> Said:
        """``kafka-migration run FILE ...`` with JSON as its answer."""
        file = self.write_spec(**sections)
        began = time.monotonic()
        identity = migrate.identity
        try:
            if as_user is not None:
                migrate.identity = lambda: f"{as_user}@elsewhere"
            words = [*command.split(), str(file), *arguments, "--json"]
            result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
        finally:
            migrate.identity = identity
        seconds = time.monotonic() - began
        try:
            answer = json.loads(result.stdout)
        except json.JSONDecodeError:
            answer = {}
        return Said(result.exit_code, answer.get("error") or answer, result.output, seconds)

    # -- what is there ------------------------------------------------------------------------------------------------

    def holdings(self, cluster: KafkaCluster | None = None) -> dict[str, Any]:
        """Topics, ACLs and groups of a cluster, the target if not said otherwise; log ends of this world's topics."""
        admin = (cluster or self.target_cluster).admin()
        topics = admin.list_topics(timeout=60).topics
        groups = admin.list_consumer_groups(request_timeout=60).result().valid
        return {
            "topics": sorted(name for name in topics if not name.startswith("__")),
            "acls": sorted(str(acl) for acl in admin.describe_acls(_ANY_ACL, request_timeout=60).result()),
            "groups": sorted(group.group_id for group in groups),
        }

    def objects(self, bucket: str | None = None) -> list[str]:
        """Keys of this world in a bucket."""
        found = self.s3.client().list_objects_v2(Bucket=bucket or self.journal_bucket, Prefix=f"{self.prefix}/")
        return sorted(item["Key"] for item in found.get("Contents", []))

    def journal_entries(self) -> list[str]:
        return [key for key in self.objects() if "/journal/" in key]
