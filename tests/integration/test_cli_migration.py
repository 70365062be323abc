"""A whole migration by the command line alone: no Airflow, no Spark, stores in folders."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from nacl.signing import SigningKey

from harness.brokers import KafkaCluster
from harness.clients import LiveProducer, commit_offsets, committed_offsets, lost_records, positions
from harness.compare import compare
from harness.load import Kind, TopicLoad, load, tiny_topics
from harness.webhook import FreezeWebhook

pytestmark = pytest.mark.integration

_KEY = SigningKey(bytes(range(32)))
_SECONDS = 240


@dataclass
class Command:
    """``kafka-migration`` as people call it, with connections in the environment."""

    environment: dict[str, str]

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """In the background."""
        program = str(Path(sys.executable).with_name("kafka-migration"))
        return subprocess.Popen(
            [program, *map(str, arguments)],
            env={**os.environ, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str | Path, status: int) -> dict[str, Any]:
        """Its JSON answer; the exit status must be this one."""
        process = self.start(*arguments, "--json")
        out, err = process.communicate(timeout=_SECONDS)
        assert process.returncode == status, out + err
        answer: dict[str, Any] = json.loads(out)
        assert answer["ok"] is (status == 0)
        return answer


@dataclass
class Trial:
    """A source with all kinds of topics, a spec file, and the command."""

    command: Command
    spec: Path
    folder: Path
    topics: list[TopicLoad]
    group: str


@pytest.fixture
def trial(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Trial:
    """Everything that a migration needs."""
    prefix = f"{unique_name('cli')}."
    topics = tiny_topics(prefix)
    load(source_cluster, topics)
    group = f"{prefix}readers"
    offsets = positions(source_cluster.client_config(), [f"{prefix}orders", f"{prefix}payments"], 0.5)
    commit_offsets(source_cluster.client_config(), group, offsets)
    spec = tmp_path / "migration.yaml"
    pattern = prefix.replace(".", r"\.") + ".*"
    content = {
        "migration_id": prefix.strip(".").lower().replace("_", "-"),
        "source": {"conn_id": "env:CLI_SOURCE"},
        "target": {"conn_id": "env:CLI_TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal", "evidence": f"file://{tmp_path}/evidence"},
        "topics": {"include": [pattern]},
        "groups": {"include": [pattern]},
        "tail": {"drain_stable_window": "2s", "slice_seconds": 2},
        "cutover": {"freeze": "manual", "freeze_stable_window": "1s", "max_producer_freeze": "5m"},
        "evidence": {"signing_key": "env:CLI_KEY"},
    }
    spec.write_text(yaml.safe_dump(content), encoding="utf-8")
    environment = {
        "CLI_SOURCE": json.dumps(source_cluster.client_config()),
        "CLI_TARGET": json.dumps(target_cluster.client_config()),
        "CLI_KEY": _KEY.encode().hex(),
    }
    return Trial(Command(environment), spec, tmp_path, topics, group)


def _leave_while_the_target_is_away(trial: Trial) -> None:
    """In a freeze the command waits for a cluster that is away; ended by a signal, its last lines say what to do."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = {"CLI_TARGET": json.dumps({"bootstrap.servers": f"127.0.0.1:{unused.getsockname()[1]}"})}
        process = Command({**trial.command.environment, **away}).start("resume", trial.spec)
        lines: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "trying again" in line:
                process.send_signal(signal.SIGTERM)
                break
        _, err = process.communicate(timeout=_SECONDS)
    text = "".join(lines) + err
    assert process.returncode == 128 + signal.SIGTERM, text
    assert text.index("stopped by SIGTERM") < text.index("producers are frozen (stopped by hand) since"), text
    assert f"kafka-migration rollback {trial.spec}`; then tell the producers' owners" in text.splitlines()[-1], text


def test_a_migration_by_the_command_line(
    trial: Trial, source_cluster: KafkaCluster, target_cluster: KafkaCluster
) -> None:
    command, spec = trial.command, trial.spec
    planned = command("plan", spec, status=0)["plan"]
    assert {topic["name"] for topic in planned["topics"]} == {topic.name for topic in trial.topics}
    assert not (trial.folder / "journal").exists(), "plan writes nothing"
    assert command("precheck", spec, status=0)["passed"]

    asked = command("run", spec, status=10)
    assert asked["state"] == "drain_ready"
    code = asked["waiting"]["code"]
    assert code in asked["waiting"]["body"]
    assert command("status", spec, status=10)["state"] == "drain_ready"

    refused = command("resume", spec, "--approve", "00000000", status=1)
    assert refused["error"]["code"] == "APPROVAL_REFUSED"

    left = command("resume", spec, "--approve", code, "--until", "cutover.freeze", status=0)
    assert left["freeze"]["standing"] == "frozen", "the command ends with producers stopped, and says so"
    assert command("status", spec, status=0)["freeze"]["deadline"] == left["freeze"]["deadline"]
    _leave_while_the_target_is_away(trial)

    switch = command("resume", spec, status=10)
    frozen = switch["freeze"]
    assert (frozen["standing"], frozen["overdue"]) == ("switching", False), "producers wait until clients have switched"
    assert frozen["lift"] == f"kafka-migration abandon {spec}", "no limit frees them any more"
    assert switch["state"] == "awaiting_client_switch"
    assert switch["waiting"]["approval"] == "client_switch"
    topics = sorted({topic.name for topic in trial.topics})
    on_source = committed_offsets(source_cluster.client_config(), trial.group, topics)
    assert on_source
    assert committed_offsets(target_cluster.client_config(), trial.group, topics) == on_source

    moved = {place: offset + 1 for place, offset in on_source.items()}
    commit_offsets(source_cluster.client_config(), trial.group, moved)
    command("resume", spec, status=10)
    assert committed_offsets(target_cluster.client_config(), trial.group, topics) == moved

    done = command("resume", spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    assert "freeze" not in done, "clients are on the target, so nobody is held back from it"
    compacted = [topic.name for topic in trial.topics if topic.kind is Kind.COMPACTED]
    compare(
        source_cluster.client_config(), target_cluster.client_config(), topics, compacted=compacted, fenced=True
    ).check()

    _check_documents(trial)
    _check_runbook(trial)
    again = command("resume", spec, status=0)
    assert all(phase["already_done"] for phase in again["phases"])


def _check_documents(trial: Trial) -> None:
    """The evidence verifies with an outside key, journal and offset map are whole, nothing holds the signing key."""
    key = trial.folder / "evidence.pub"
    key.write_bytes(bytes(_KEY.verify_key))
    evidence = next((trial.folder / "evidence").rglob("evidence.json"))
    verified = trial.command("verify-evidence", evidence, "--public-key", key, status=0)
    assert (verified["trusted"], verified["outcome"]) == (True, "PASSED")
    assert trial.command("journal", "verify", trial.spec, status=0)["problems"] == []
    assert trial.command("offset-map", "check", trial.spec, status=0)["problems"] == []
    verdicts = {item["verdict"] for item in trial.command("offset-map", "show", trial.spec, status=0)["partitions"]}
    assert verdicts == {"equal"}
    secret = _KEY.encode().hex().encode()
    for path in trial.folder.rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes(), path


#: Commands of the runbook -> their exit status once the migration is finalized. All of them are run.
_RUNBOOK = {
    "kafka-migration status migration.yaml": 0,
    "kafka-migration journal show migration.yaml": 0,
    "kafka-migration journal show migration.yaml --json": 0,
    "kafka-migration resume migration.yaml": 0,
    # The code of the page's example; nothing waits for one any more.
    "kafka-migration resume migration.yaml --approve 1a2b3c4d": 0,
    "kafka-migration resume migration.yaml --takeover": 0,
    "kafka-migration release migration.yaml": 0,
    "kafka-migration throttle migration.yaml --seed 20MB --tail none": 0,
    'kafka-migration rollback migration.yaml --reason "postponed to next week"': 1,
    "kafka-migration rollback migration.yaml": 1,
    # Clients are on the target.
    "kafka-migration abandon migration.yaml": 1,
    "kafka-migration verify-evidence s3://evidence/orders/orders-2026/evidence.json --public-key evidence.pub": 0,
    "kafka-migration journal verify migration.yaml": 0,
    # This migration has no way back, and both say so.
    "kafka-migration way-back status migration.yaml": 0,
    "kafka-migration way-back leave-out migration.yaml TOPIC": 1,
}


def _check_runbook(trial: Trial) -> None:
    """What the runbook tells people to type works as it stands there; what it prints is kept for the page."""
    page = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    told = {line for line in lines if line.startswith("kafka-migration ")}
    told |= set(re.findall(r"`(kafka-migration [^`]+)`", page))
    # Those of mirrors need the spec of a mirror: tests/integration/mirrors runs them.
    told = {line for line in told if not line.startswith("kafka-migration mirror ")}
    assert told == set(_RUNBOOK)
    evidence = next((trial.folder / "evidence").rglob("evidence.json"))
    folder = Path(__file__).parents[2] / "build" / "runbook"
    folder.mkdir(parents=True, exist_ok=True)
    wrong = []
    for number, (line, status) in enumerate(_RUNBOOK.items()):
        places = {"migration.yaml": str(trial.spec), "evidence.pub": str(trial.folder / "evidence.pub")}
        words = [places.get(word, word) for word in shlex.split(line)[1:]]
        words = [str(evidence) if word.startswith("s3://") else word for word in words]
        process = trial.command.start(*words)
        out, err = process.communicate("y\n", timeout=_SECONDS)
        (folder / f"{number}.txt").write_text(f"$ {line}\n{out}{err}", encoding="utf-8")
        if process.returncode != status:
            wrong.append(f"{line}: {process.returncode}: {out}{err}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("number", "ended"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_an_interruption_is_no_failure_and_resume_goes_on(trial: Trial, number: signal.Signals, ended: int) -> None:
    command, spec = trial.command, trial.spec
    process = command.start("run", spec)
    deadline = time.monotonic() + _SECONDS
    while _state(trial) not in ("tail", "drain_ready"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode in (ended, 10), err
    assert "Traceback" not in err
    assert process.returncode == 10 or "INTERRUPTED" in err
    assert _state(trial) in ("tail", "drain_ready"), "an interruption is no failure of the migration"
    assert command("resume", spec, status=10)["state"] == "drain_ready"


def test_kill_and_resume_ends_well_and_rollback_leaves_the_target(trial: Trial, target_cluster: KafkaCluster) -> None:
    command, spec = trial.command, trial.spec
    process = command.start("run", spec)
    deadline = time.monotonic() + _SECONDS
    while _state(trial) != "seed":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)
    held = command("resume", spec, status=1)["error"]
    assert held["code"] == "CLAIM_HELD", "two commands of one user are two owners"
    assert (held["details"]["process"]["pid"], held["details"]["process"]["life"]) == (process.pid, "still runs")
    process.kill()
    process.communicate(timeout=240)
    command("resume", spec, "--until", "seed", status=0)
    answer = command("rollback", spec, "--yes", "--reason", "only a trial", status=0)
    assert answer["already_done"] is False
    assert command("rollback", spec, "--yes", status=0)["already_done"] is True
    assert command("status", spec, status=0)["state"] == "rolled_back"
    assert set(target_cluster.admin().list_topics(timeout=60).topics) >= {topic.name for topic in trial.topics}


@pytest.mark.soak
@pytest.mark.parametrize("end", ["forward", "rollback"])
def test_a_cutover_that_fails_is_back_in_the_tail(
    trial: Trial, source_cluster: KafkaCluster, target_cluster: KafkaCluster, end: str
) -> None:
    """The rules for failures: failed, from tail; resumed from there with a new approval, or rolled back."""
    command, spec = trial.command, trial.spec
    topics = [topic.name for topic in trial.topics]
    orders = next(name for name in topics if name.endswith("orders"))
    content = yaml.safe_load(spec.read_text(encoding="utf-8"))
    with FreezeWebhook() as webhook:  # it says "done" and stops nobody
        content["cutover"] |= {"freeze": "webhook", "producer_freeze_webhook": webhook.url}
        spec.write_text(yaml.safe_dump(content), encoding="utf-8")
        asked = command("run", spec, status=10)
        with LiveProducer(source_cluster.client_config(), {orders: [0]}, records_per_second=50) as producer:
            refused = command("resume", spec, "--approve", asked["waiting"]["code"], status=1)
        assert refused["error"]["code"] == "FREEZE_FAILED"
        assert f"{orders}-0" in refused["error"]["what"]
        assert [call.action for call in webhook.calls] == ["freeze", "unfreeze"]
        found = command("status", spec, status=0)
        assert (found["state"], found["working_state"]) == ("failed", "tail")
        assert found["resume"]["action"] == "reenter"
        assert _states(trial)[-3:] == ["cutover", "tail", "failed"]
        if end == "rollback":
            command("rollback", spec, "--yes", status=0)
            assert _states(trial)[-1] == "rolled_back"
            return
        again = command("resume", spec, status=10)
        assert again["waiting"]["approval"] == "cutover", "the first approval is used up"
        switch = command("resume", spec, "--approve", again["waiting"]["code"], status=10)
        done = command("resume", spec, "--approve", switch["waiting"]["code"], status=0)
    assert done["state"] == "finalized"
    compacted = [topic.name for topic in trial.topics if topic.kind is Kind.COMPACTED]
    compare(
        source_cluster.client_config(), target_cluster.client_config(), topics, compacted=compacted, fenced=True
    ).check()
    assert lost_records(target_cluster.client_config(), producer.acknowledged) == []


def _states(trial: Trial) -> list[str]:
    """The states that the migration has gone through, from the journal's view."""
    view = next((trial.folder / "journal").glob("*/journal.jsonl"))
    entries = [json.loads(line) for line in view.read_text(encoding="utf-8").splitlines()]
    return [entry["to"] for entry in entries if entry["from"] != entry["to"]]


def _state(trial: Trial) -> str | None:
    """The state in the journal's view, without the command's start-up time."""
    for view in (trial.folder / "journal").glob("*/journal.jsonl"):
        lines = view.read_text(encoding="utf-8").splitlines()
        return str(json.loads(lines[-1])["to"]) if lines else None
    return None
