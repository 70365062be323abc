"""Our data plane, each variant in a process of its own; and through Spark, as users run it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from airflow_provider_kafka_migration.documents.plan import Verdict
from benchmarks.jobs import JobFiles, write_job
from benchmarks.peers.base import ROOT, PythonPeer, Task
from harness.processes import HarnessError


@dataclass(frozen=True)
class Archive:
    """Where segments go.

    :param location: prefix below which each copy gets a prefix of its own; None: a folder of the copy.
    :param storage: S3 settings of the product.
    :param title: for the results.
    """

    location: str | None = None
    storage: dict[str, Any] | None = None
    title: str = "a local folder"


class Ours(PythonPeer):
    """One process, one thread: the lane's loop as an executor runs it.

    :param archive: where segments go, for ``via: s3``.
    """

    name = "ours_direct"
    title = "ours, direct"
    keeps_offsets = True
    via: Literal["direct", "s3"] = "direct"
    verdict = Verdict.EQUAL
    lanes = 1
    rewrites_ids = False

    def __init__(self, archive: Archive | None = None) -> None:
        super().__init__()
        self.archive = archive or Archive()

    def job(self, task: Task) -> JobFiles:
        """The copy job."""
        location = self.archive.location
        return write_job(
            task,
            via=self.via,
            lanes=self.lanes,
            verdict=self.verdict,
            archive=f"{location}/{task.folder.name}" if location else None,
            storage=self.archive.storage,
            rewrites_ids=self.rewrites_ids,
        )

    def stop(self) -> None:
        if os.environ.get("BENCH_PROFILE") and self._process is not None and self._process.running:
            # The profile is written when the slice has ended by itself.
            with contextlib.suppress(HarnessError):
                self._process.wait(60)
        super().stop()

    def command(self, task: Task) -> Sequence[str]:
        job = self.job(task)
        folder = str(task.folder)
        return self.python("benchmarks.peers.ours_worker", folder, job.references, job.journal, job.key)


class OursRewritten(Ours):
    """Schema ids are translated: every batch is unpacked, changed and packed again."""

    name = "ours_rewritten"
    title = "ours, direct, ids rewritten"
    rewrites_ids = True


class OursMapped(Ours):
    """Holes are not filled: the verdict that the plan gives to heavily compacted partitions."""

    name = "ours_mapped"
    title = "ours, direct, mapped"
    keeps_offsets = False
    verdict = Verdict.MAPPED


class OursTransactional(Ours):
    """Records, map and source position in one transaction: for partitions that are not ours alone."""

    name = "ours_transactional"
    title = "ours, in transactions"
    keeps_offsets = False
    verdict = Verdict.TRANSACTIONAL


class OursS3(Ours):
    """Write-through: a segment is durable in the archive before the target sees it."""

    name = "ours_s3"
    title = "ours, via S3"
    via = "s3"


class OursSpark(Ours):
    """``spark-submit seed.py`` on local[2,4], via: direct: JVM, driver and Python workers are all counted."""

    name = "ours_spark"
    title = "ours, through Spark"
    lanes = 2

    def command(self, task: Task) -> Sequence[str]:
        job = self.job(task)
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        return [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[2,4]"),
            *options,
            str(ROOT / "spark_jobs" / "seed.py"),
            *("--job-location", job.journal, "--job-key", job.key, "--references", job.references),
        ]

    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def is_worker(self, process: psutil.Process) -> bool:
        return "pyspark.daemon" in " ".join(process.cmdline())
