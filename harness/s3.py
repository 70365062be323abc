"""An S3 server for tests and the demo: moto's, in a separate process, on loopback or on a host of its own."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3

from harness.hosts import Host
from harness.processes import LOOPBACK, Process, free_port, is_listening, release_ports, start, wait_for

#: Bucket with versioning and Object Lock, for evidence.
EVIDENCE_BUCKET = "evidence"
#: Plain bucket, for the journal and archived segments.
DATA_BUCKET = "migration"

#: What a host must be able to read to run the server.
FOLDER = Path(__file__).resolve().parent

_READY_SECONDS = 120.0


class S3Server:
    """S3 from ``start()`` (or ``with``) to ``stop()``; its objects are in memory and are lost when it ends.

    :param folder: for its log.
    :param locked_buckets: created at the start, with Object Lock.
    :param buckets: created at the start, without Object Lock.
    :param host: run there; it must be able to read this folder (:data:`FOLDER`). None: on loopback. Whoever talks to
        the server, this class included, must be on the network of the host's lab.
    """

    def __init__(
        self,
        folder: Path,
        locked_buckets: Sequence[str] = (EVIDENCE_BUCKET,),
        buckets: Sequence[str] = (DATA_BUCKET,),
        host: Host | None = None,
    ) -> None:
        self.folder = folder
        self._host = host
        self._address = LOOPBACK if host is None else host.address
        self._buckets = dict.fromkeys(locked_buckets, True) | dict.fromkeys(buckets, False)
        self._process: Process | None = None
        self._port = 0

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, wait for its answer, create the buckets.

        :raises HarnessError: the server did not answer in time; no process is left running then.
        """
        self._port = free_port()
        command = [sys.executable, "-m", "harness.s3_main", str(self._port), self._address]
        spawn = start if self._host is None else self._host.start
        self._process = spawn("S3 server", command, self.folder / "s3.log", cwd=FOLDER.parent)
        try:
            wait_for("S3 server", self._answers, _READY_SECONDS)
            for name, lock in self._buckets.items():
                self.create_bucket(name, object_lock=lock)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            release_ports([self._port])

    @property
    def endpoint_url(self) -> str:
        return f"http://{self._address}:{self._port}"

    def config(self) -> dict[str, Any]:
        """Keyword arguments of ``boto3.client("s3", ...)``."""
        return {
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": "harness",
            "aws_secret_access_key": "harness-secret",
            "region_name": "us-east-1",
        }

    def client(self) -> Any:
        """A boto3 client."""
        return boto3.client("s3", **self.config())

    def create_bucket(self, name: str, *, object_lock: bool = False) -> str:
        """Create a bucket; return its name."""
        self.client().create_bucket(Bucket=name, ObjectLockEnabledForBucket=object_lock)
        return name

    def bucket(self, stem: str = "bucket", *, object_lock: bool = False) -> str:
        """Create a bucket with a new name; return the name."""
        return self.create_bucket(f"{stem}-{secrets.token_hex(6)}", object_lock=object_lock)

    def _answers(self) -> bool:
        assert self._process is not None
        self._process.check_running()
        return is_listening(self._port, self._address)
