"""The generic DAG, whose tasks SIGKILL themselves three times each: before, in the middle of and after what they do.

Which tasks, is in the file ``KILLS``: a list of task ids. Each death leaves a file ``<task id>.<when>`` beside it,
first, and happens once. *Before*: the task has opened the migration and done nothing. *Middle*: an object was written
or a cluster was changed, and nobody was told. *After*: everything is done, and Airflow does not know.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.dag import build_migration_dag
from airflow_provider_kafka_migration.kafka.broker_connection import BrokerConnection
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.operators.approval import MigrationApprovalOperator
from airflow_provider_kafka_migration.storage.s3 import S3Store

KILLS = Path(os.environ["KILLS"])
#: The first effect is the claim's, which every task makes.
MIDDLE = 2
WRITING_APIS = {0, 8, 19, 20, 21, 22, 24, 26, 27, 30, 31, 33, 37, 44, 49, 91}


def die(task_id: str, when: str) -> None:
    """Once for each task and moment, if the task is named in the file."""
    if task_id not in json.loads(KILLS.read_text()):
        return
    try:
        (KILLS.parent / f"{task_id}.{when}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Effects:
    """Counts what this process writes, and dies after some of it."""

    task_id = ""
    count = 0
    lock = threading.Lock()

    @classmethod
    def done(cls) -> None:
        with cls.lock:
            cls.count += 1
            if cls.task_id and cls.count >= MIDDLE:
                die(cls.task_id, "middle")


def _after(kind: Any, name: str, counts: Callable[..., bool]) -> None:
    original = getattr(kind, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if counts(*args):
            Effects.done()
        return result

    setattr(kind, name, wrapped)


def _around(kind: Any, name: str, task_id_of: Callable[..., str]) -> None:
    original = getattr(kind, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        task_id = task_id_of(self, *args)
        die(task_id, "before")
        Effects.task_id = task_id
        result = original(self, *args, **kwargs)
        # Those that had nothing to write die here twice.
        die(task_id, "middle")
        die(task_id, "after")
        return result

    setattr(kind, name, wrapped)


_after(S3Store, "put", lambda *_: True)
_after(S3Store, "put_new", lambda *_: True)
_after(BrokerConnection, "call", lambda request, *_: int(request.API_KEY) in WRITING_APIS)
_after(BrokerConnection, "call_raw", lambda api_key, *_: api_key in WRITING_APIS)
_around(Migration, "run", lambda _self, phase: str(phase))
# An approval dies before it asks, and when the answer has come: before it is taken, in the middle, and after.
_around(MigrationApprovalOperator, "execute_complete", lambda self, *_: str(self.task_id))

dag = build_migration_dag(dag_id="killed_migration")
