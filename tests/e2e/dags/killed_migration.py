"""The generic DAG and that of the way back: tasks SIGKILL themselves before, in the middle of and after their work.

Which tasks, is in the file ``KILLS``: a list of task ids, or of ``<task id>.<when>``. Each death leaves a file
``<task id>.<when>`` beside it, first, and happens once.

* *before*: the task has opened the migration and done nothing.
* *middle*: an object was written (a journal entry, a job, a result), and nobody was told.
* *changed*: a cluster was changed, or the webhook has frozen the producers, and the journal does not know.
* *working*: Spark's driver copies or compares.
* *after*: everything is done, and Airflow does not know.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import DownstreamTasksSkipped
from confluent_kafka.admin import AdminClient

from airflow_provider_kafka_migration.dag import build_migration_dag, build_way_back_dag
from airflow_provider_kafka_migration.engines.run import EngineRunner
from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook
from airflow_provider_kafka_migration.kafka.admin.base import AdminBase
from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.operators.approval import MigrationApprovalOperator
from airflow_provider_kafka_migration.storage.s3 import S3Store

KILLS = Path(os.environ["KILLS"])
#: The first effect of a task that has just got the migration is the claim's.
MIDDLE = 2
WRITING_CALLS = ("create_topics", "delete_topics", "create_partitions", "incremental_alter_configs")
WRITING_APIS = {0, 8, 19, 20, 21, 22, 24, 26, 27, 30, 31, 33, 37, 44, 49, 91}


def die(task_id: str, when: str) -> None:
    """Once for each task and moment, if the file names it."""
    if not {task_id, f"{task_id}.{when}"} & set(json.loads(KILLS.read_text())):
        return
    try:
        (KILLS.parent / f"{task_id}.{when}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_the_end(task_id: str) -> None:
    """Those that had nothing to write die here twice."""
    die(task_id, "middle")
    die(task_id, "after")


class Effects:
    """Counts what this process writes, and dies after some of it."""

    task_id = ""
    count = 0
    lock = threading.Lock()
    #: Whether this thread has asked the AdminClient for a change.
    asked = threading.local()

    @classmethod
    def done(cls, *, changes: bool) -> None:
        with cls.lock:
            cls.count += 1
            if cls.task_id and changes:
                die(cls.task_id, "changed")
            if cls.task_id and cls.count >= MIDDLE:
                die(cls.task_id, "middle")


def _after(kind: Any, name: str, counts: Callable[..., bool], *, changes: bool) -> None:
    original = getattr(kind, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if counts(*args):
            Effects.done(changes=changes)
        return result

    setattr(kind, name, wrapped)


def _after_changes_by_the_admin_client() -> None:
    """Die when the brokers have answered, not when the request is sent."""

    def noticing(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            Effects.asked.change = not kwargs.get("validate_only")
            return original(self, *args, **kwargs)

        return wrapped

    def has_changed(*_: Any) -> bool:
        changed = getattr(Effects.asked, "change", False)
        Effects.asked.change = False
        return changed

    for name in WRITING_CALLS:
        setattr(AdminClient, name, noticing(getattr(AdminClient, name)))
    _after(AdminBase, "by_client", has_changed, changes=True)


def _around(kind: Any, name: str, task_id_of: Callable[..., str]) -> None:
    original = getattr(kind, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        task_id = task_id_of(self, *args)
        die(task_id, "before")
        Effects.task_id = task_id
        try:
            result = original(self, *args, **kwargs)
        except DownstreamTasksSkipped:  # how an approval ends well
            die_at_the_end(task_id)
            raise
        die_at_the_end(task_id)
        return result

    setattr(kind, name, wrapped)


def _while_spark_works() -> None:
    """Die when the driver has written progress; or when it has ended, if it was too quick to be looked at."""
    original = EngineRunner.run

    def wrapped(self: EngineRunner, record: Any, job: Any, read_progress: Callable[[], Any]) -> None:
        former = read_progress()

        def look() -> Any:
            progress = read_progress()
            # The first document only says that there is a driver; the middle is when something was done.
            if progress is not None and progress != former and (progress.done_bytes > 0 or progress.done > 0):
                die(Effects.task_id, "working")
            return progress

        original(self, record, job, look)
        die(Effects.task_id, "working")

    EngineRunner.run = wrapped  # type: ignore[method-assign]


_after(S3Store, "put", lambda *_: True, changes=False)
_after(S3Store, "put_new", lambda *_: True, changes=False)
_after(BrokerConnection, "call", lambda request, *_: int(request.API_KEY) in WRITING_APIS, changes=True)
_after(BrokerConnection, "call_raw", lambda api_key, *_: api_key in WRITING_APIS, changes=True)
_after_changes_by_the_admin_client()
_after(FreezeWebhook, "_post", lambda *_: True, changes=True)
_around(Migration, "run", lambda _self, phase: str(phase))
# An approval dies when the answer has come: before it is taken, in the middle, and after.
_around(MigrationApprovalOperator, "execute_complete", lambda self, *_: str(self.task_id))
_while_spark_works()

dag = build_migration_dag(dag_id="killed_migration")
#: A step of the cutover that dies stays dead until somebody clears it.
unretried = build_migration_dag(
    dag_id="killed_migration_unretried",
    task_args={f"cutover.{step}": {"retries": 0} for step in ("freeze", "sentinels", "final_drain")},
)
#: The same tasks, from the new cluster to the old one.
way_back = build_way_back_dag(dag_id="killed_way_back")
