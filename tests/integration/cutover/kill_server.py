"""Runs ``kafka-migration`` again and again, each time in a process of its own that SIGKILLs itself at a fault point.

A *fault point* is a side effect: an object written to a store (each journal entry is one), a request to a broker that
changes something, a call of the freeze webhook. Points are found by running, not listed by hand: a life dies at the
first point that no former life has died at, before the effect is done, or after it (a request: when its answer is
here and nobody has seen it); ``never`` lets it live. So the lives together die at every point once, and the last one
reaches the end.

``python kill_server.py`` reads lines of JSON ``{"arguments", "when", "state", "done", "output"}`` and answers with
``{"status"}``; it forks, because importing the package costs more than most lives.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

#: Requests that change something on a cluster.
WRITING_APIS = {
    0: "produce",
    8: "offset_commit",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    24: "add_partitions_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    30: "create_acls",
    31: "delete_acls",
    33: "alter_configs",
    37: "create_partitions",
    44: "alter_configs",
    49: "alter_client_quotas",
    91: "alter_share_group_offsets",
}
_TIME = r"\d{4}-\d\d-\d\dT[\d:.-]+Z?"
#: Alike requests of one life are told apart up to this number: the first, the second, later ones.
ALIKE = 3


class Points:
    """Decides at each effect whether this life ends there.

    :param done: file with a line per point that a life has ended at.
    :param state: of the migration when this life begins.
    """

    def __init__(self, done: Path, when: str, state: str) -> None:
        self._file = done
        self._when = when
        self._done = set(done.read_text(encoding="utf-8").splitlines()) if done.exists() else set()
        self._lock = threading.Lock()
        self._taken = False
        self._counts: Counter[str] = Counter()
        self.state = state

    def takes(self, name: str) -> bool:
        """Whether this life is to end at this point; then it does, and no other thread takes another one."""
        with self._lock:
            if self._taken or self._when == "never" or name in self._done:
                return False
            self._taken = True
            with self._file.open("a", encoding="utf-8") as file:
                file.write(name + "\n")
            if self._when == "before":
                self.end()
            return True

    def request(self, api_key: int) -> str:
        """Name of a request: the state of the migration, what is asked, and the how manieth of its kind."""
        with self._lock:
            kind = f"{self.state}: {WRITING_APIS[api_key]}"
            self._counts[kind] += 1
            return f"{kind} #{min(self._counts[kind], ALIKE)}"

    @staticmethod
    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def object_name(points: Points, key: str, data: bytes) -> str:
    """Name of an object: for a journal entry what it says."""
    name = key.split("/", 1)[-1]
    if re.fullmatch(r"journal/\d+\.json", name):
        entry = json.loads(data)
        points.state = entry["to"]
        said = f"journal: {entry['to']} {entry.get('step') or 'transition'} {entry.get('step_key') or ''}".strip()
        return re.sub(_TIME, "T", said)
    return "object: " + re.sub(rf"{_TIME}|\d{{3,}}|[0-9a-f]{{8,}}", "N", name)


def install(points: Points) -> None:
    """Watch all side effects of this process."""
    from airflow_provider_kafka_migration.freeze.webhook import FreezeWebhook
    from airflow_provider_kafka_migration.kafka.connection import BrokerConnection
    from airflow_provider_kafka_migration.storage.local import LocalStore

    def watch_store(method: str) -> None:
        original = getattr(LocalStore, method)

        def watched(self: Any, key: str, data: bytes, *args: Any, **kwargs: Any) -> Any:
            dies = points.takes(object_name(points, key, bytes(data)))
            try:
                return original(self, key, data, *args, **kwargs)
            finally:
                if dies:
                    points.end()

        setattr(LocalStore, method, watched)

    for method in ("put", "put_new"):
        watch_store(method)
    submit, call, post = BrokerConnection.submit, BrokerConnection.call, FreezeWebhook._post

    def watched_submit(self: Any, api_key: int, version: int, parts: Any, on_response: Any, **more: Any) -> None:
        if api_key in WRITING_APIS and points.takes(points.request(api_key)):
            on_response = _ends(points)
        submit(self, api_key, version, parts, on_response, **more)

    def watched_call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        api_key = int(request.API_KEY)
        dies = api_key in WRITING_APIS and points.takes(points.request(api_key))
        try:
            return call(self, request, *args, **kwargs)
        finally:
            if dies:
                points.end()

    def watched_post(self: Any, body: bytes, seconds: float) -> Any:
        dies = points.takes(f"webhook: {json.loads(body).get('action')}")
        try:
            return post(self, body, seconds)
        finally:
            if dies:
                points.end()

    BrokerConnection.submit, BrokerConnection.call = watched_submit, watched_call  # type: ignore[method-assign]
    FreezeWebhook._post = watched_post  # type: ignore[method-assign]


def _ends(points: Points) -> Any:
    def on_response(_: memoryview) -> None:
        points.end()

    return on_response


def live(arguments: list[str], points: Points, output: Path) -> None:
    """One life, in a forked process; never returns."""
    status = 70
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        install(points)
        from airflow_provider_kafka_migration.cli.app import app

        try:
            app(args=arguments, prog_name="kafka-migration")
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
    finally:
        os._exit(status)


def serve() -> None:
    """Answer requests until the input ends."""
    from airflow_provider_kafka_migration.cli import app, migrate, runner  # noqa: F401
    from airflow_provider_kafka_migration.phase_table import PHASES

    for row in PHASES.values():
        row.load()
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            points = Points(Path(wanted["done"]), wanted["when"], wanted["state"])
            live(wanted["arguments"], points, Path(wanted["output"]))
        _, result = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(result)}), flush=True)


if __name__ == "__main__":
    serve()
