"""The brokers and the object store of a benchmark, and what the machine is."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.ours import Archive
from harness.brokers import KafkaCluster
from harness.processes import free_port, is_listening, release_ports, start, wait_for
from harness.s3 import DATA_BUCKET, S3Server

SOURCE_VERSION, TARGET_VERSION = "3.9.1", "4.1.1"
#: The full compiler and a heap that is never short, as brokers in service have them.
JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-server")
_BROKER = {
    "log.cleaner.dedupe.buffer.size": "134217728",
    "num.io.threads": "8",
    "num.network.threads": "3",
}
#: `versitygw` on the path is used as S3 server where there is one; moto is too slow to be measured through.
GATEWAY = "versitygw"


def source(folder: Path) -> KafkaCluster:
    """One broker, ZooKeeper mode."""
    return KafkaCluster(folder / "source", SOURCE_VERSION, config=_BROKER, authorizer=False, sasl=False, jvm=JVM)


def target(folder: Path, brokers: int = 1) -> KafkaCluster:
    """One broker in KRaft mode, or three."""
    return KafkaCluster(
        folder / f"target-{brokers}",
        TARGET_VERSION,
        brokers=brokers,
        config=_BROKER,
        authorizer=False,
        sasl=False,
        jvm=JVM if brokers == 1 else ("-Xms512m", "-Xmx512m", *JVM[2:]),
    )


@contextlib.contextmanager
def archive(folder: Path, kind: str) -> Iterator[Archive]:
    """Where our segments go.

    :param kind: ``auto`` (a VersityGW if one is installed, else a folder), ``versitygw``, ``moto`` or ``folder``.
    """
    found = shutil.which(GATEWAY)
    if kind == "auto":
        kind = GATEWAY if found else "folder"
    if kind == "folder":
        yield Archive()
    elif kind == "moto":
        with S3Server(folder / "moto") as server:
            yield Archive(f"s3://{DATA_BUCKET}/archive", server.config(), "S3 (moto)")
    else:
        if found is None:
            raise FileNotFoundError("no versitygw on the path: install it, or choose --archive folder or moto")
        with _gateway(folder / "versitygw", found) as endpoint:
            settings = {
                "endpoint_url": endpoint,
                "aws_access_key_id": "bench",
                "aws_secret_access_key": "bench-secret",
                "region_name": "us-east-1",
            }
            yield Archive("s3://bench/archive", settings, "S3 (VersityGW on the same disk)")


@contextlib.contextmanager
def _gateway(folder: Path, binary: str) -> Iterator[str]:
    (folder / "data" / "bench").mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [binary, "--port", f"127.0.0.1:{port}", "--access", "bench", "--secret", "bench-secret", "--quiet"]
    process = start("VersityGW", [*command, "posix", str(folder / "data")], folder / "log")
    try:
        wait_for("VersityGW", lambda: process.check_running() or is_listening(port), 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        release_ports([port])


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    name = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpus": os.cpu_count(),
        "cpu": name or platform.processor(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
    }
