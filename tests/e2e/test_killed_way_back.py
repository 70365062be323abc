"""Every task of the way back is SIGKILLed before, in the middle of and after its side effects; and *Keep* in Airflow.

The first migration is made by the command line with Airflow's connections. A live producer writes to the new cluster
until the way back's webhook freezes it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import ConfigResource, ConfigSource

from airflow_provider_kafka_migration.dag import build_way_back_dag
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import compare
from harness.load import Kind, TopicLoad, load
from harness.s3 import EVIDENCE_BUCKET
from harness.webhook import FreezeWebhook
from tests.e2e.migration_lab import WAIT_SECONDS, WEBHOOK_SECRET, DagRun, Lab
from tests.e2e.test_killed_at_effects import (
    SERIES,
    cleared_to_the_end,
    entries,
    moments,
    steps,
    write_summary,
)
from tests.integration.test_cli_migration import Command

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(7200)]

DAG_ID = "killed_way_back"
_KEEP_CODE = re.compile(r"way-back keep FILE --approve ([0-9a-f]{8})")


class Return:
    """A finished migration whose clients write to the new cluster, and the run of its way back.

    :ivar before: settings of the old topics before the way back.
    """

    def __init__(self, lab: Lab, name: str, webhook: FreezeWebhook, producer: LiveProducer, prefix: str) -> None:
        self.lab, self.webhook, self.producer = lab, webhook, producer
        self.names = [f"{prefix}orders", f"{prefix}payments"]
        self.group = f"{prefix}readers"
        spec = lab.spec(f"back-{name}", prefix)
        self.migration_id = str(spec["migration_id"])
        self.file = lab.folder / f"{self.migration_id}.yaml"
        self.file.write_text(yaml.safe_dump(spec), encoding="utf-8")
        self.command = Command(dict(lab.airflow.environment()))
        self._forward()
        self.before = self.settings()
        self.run = self._begin(spec)

    def _forward(self) -> None:
        asked = self._command("run", status=10)
        switch = self._command("resume", "--approve", asked["waiting"]["code"], status=10)
        done = self._command("resume", "--approve", switch["waiting"]["code"], status=0)
        assert done["state"] == "finalized"
        commit_offsets(self.new, self.group, positions(self.new, self.names, 0.7))

    def _command(self, name: str, *arguments: str, status: int) -> dict[str, Any]:
        """The JSON answer of a command."""
        process = self.command.start(name, self.file, *arguments, "--json")
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == status, out + err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def _begin(self, spec: dict[str, Any]) -> DagRun:
        cutover = {"freeze": "webhook", "producer_freeze_webhook": self.webhook.url}
        more = {
            "cutover": {**cutover, "webhook_secret": "airflow:e2e_webhook"},
            "spark": spec["spark"],
            # The step that commits groups has something to commit then.
            "way_back": {"sync_groups": False},
        }
        storage = spec["storage"]
        conf = {
            "migration_id": self.migration_id,
            "journal": storage["journal"],
            "storage": storage["conn_id"],
            "more": more,
        }
        return DagRun(self.lab, DAG_ID, self.lab.airflow.trigger(DAG_ID, conf), f"{self.migration_id}.back")

    @property
    def new(self) -> dict[str, Any]:
        """Connection to the new cluster."""
        return dict(self.lab.target.client_config())

    @property
    def old(self) -> dict[str, Any]:
        """Connection to the old cluster."""
        return dict(self.lab.source.client_config())

    def settings(self) -> dict[str, dict[str, str]]:
        """What the old topics' configs override."""
        admin = self.lab.source.admin()
        resources = [ConfigResource("topic", name) for name in self.names]
        return {
            resource.name: {
                name: entry.value
                for name, entry in future.result().items()
                if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
            }
            for resource, future in admin.describe_configs(resources).items()
        }

    def check_returned(self) -> None:
        """Finalized, all records of both lives equal, nothing twice."""
        compare(self.new, self.old, self.names, fenced=True).check()
        assert self.producer.count() > 0
        assert not self.producer.failed
        assert lost_records(self.old, self.producer.acknowledged) == []
        assert committed_offsets(self.old, self.group, self.names) == committed_offsets(
            self.new, self.group, self.names
        )
        assert entries(self.run)[-1]["to"] == "finalized"
        assert len(steps(self.run, "seed_done")) == 1
        assert len(steps(self.run, "ready_for_client_return")) == 1
        assert steps(self.run, "freeze_lifted") == []
        assert {(call.action, call.body.get("direction")) for call in self.webhook.calls} == {("freeze", "back")}
        assert self.settings() == self.before
        assert self.outcome() == "PASSED"

    def check_kept(self) -> None:
        """The old cluster is released, by signed evidence; the new one's producers write on."""
        found = [entry["to"] for entry in entries(self.run)]
        assert (found.count("rolled_back"), found[-1]) == (1, "rolled_back")
        assert steps(self.run, "old_cluster_released")[-1]["details"]["problems"] == []
        assert self.settings() == self.before
        assert not self.producer.frozen
        assert self.outcome() == "KEPT"

    def outcome(self) -> str:
        """What the signed evidence of the way back says."""
        found = [body for key, body in self.run.objects(EVIDENCE_BUCKET).items() if key.endswith("/evidence.json")]
        [data] = found
        return str(verify_evidence(data).bundle.outcome)


@contextmanager
def _return(lab: Lab, name: str) -> Iterator[Return]:
    prefix = f"b{name}{next(lab.numbers)}."
    load(
        lab.source,
        [
            TopicLoad(f"{prefix}orders", Kind.KEYED, 3, 600, 200, "lz4"),
            TopicLoad(f"{prefix}payments", Kind.TRANSACTIONAL, 2, 300, 200, "none"),
        ],
    )
    # Settings that the way back has to change, and to put back.
    own = {"retention.ms": "8640000000"}
    lab.source.alter_topic_configs({f"{prefix}orders": own, f"{prefix}payments": own})
    producer = LiveProducer(lab.target.client_config(), {f"{prefix}orders": [0, 1]}, records_per_second=20)
    with FreezeWebhook(producer, secret=WEBHOOK_SECRET) as webhook:
        made = Return(lab, name, webhook, producer, prefix)
        with producer:
            yield made


def _keep(run: DagRun, task_id: str) -> None:
    """Answer *Keep* with the code that the present text has for it."""
    run.wait(task_id, "awaiting_input")
    codes = _KEEP_CODE.findall(run.log(task_id))
    assert codes, run.log(task_id)
    run.lab.airflow.answer(run.dag_id, run.run_id, task_id, ["Keep"], {"code": codes[-1]}, WAIT_SECONDS)


def _back(run: DagRun, task_id: str) -> None:
    run.approve(task_id, "Back" if task_id == "approve_cutover" else "Approve")


def _killed(lab: Lab, kills: Path, name: str, tasks: list[str]) -> set[str]:
    """Run a way back in which tasks die, clear them as on-call would, and check its end; which deaths there were."""
    for path in kills.parent.iterdir():
        if path != kills:
            path.unlink()
    kills.write_text(json.dumps(tasks))
    begun = time.monotonic()
    with _return(lab, name) as world:
        cleared = cleared_to_the_end(world.run, answer=_keep if "abort" in name or "kept" in name else _back)
        seconds = round(time.monotonic() - begun)
        deaths = sorted(path.name for path in kills.parent.iterdir() if path != kills)
        write_summary(f"back-{name}", {"deaths": deaths, "cleared": cleared, "seconds": seconds})
        if "abort" in name or "kept" in name:
            world.check_kept()
        else:
            world.check_returned()
    return set(deaths)


def test_the_new_cluster_is_kept_although_its_tasks_die(killing_lab: Lab, kills: Path) -> None:
    """The short one: the old cluster is released, although the task that releases it dies after its first change."""
    dying = ["topology_copy.changed", "rollback.changed"]
    assert _killed(killing_lab, kills, "kept", dying) == set(dying)


def test_each_task_of_the_way_back_is_in_a_series() -> None:
    named = [task_id for tasks in SERIES.values() for task_id in tasks]
    assert sorted(named) == sorted(build_way_back_dag().task_ids)


@pytest.mark.parametrize("name", SERIES)
def test_way_back_killed_three_times_each(killing_lab: Lab, kills: Path, name: str) -> None:
    deaths = _killed(killing_lab, kills, name, SERIES[name])
    assert {moment for task_id in SERIES[name] for moment in moments(task_id)} <= deaths
