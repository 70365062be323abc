"""``kafka-migration mirror``: what it shows of a mirror in a folder, and what it stores for its holder."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import Result

from airflow_provider_kafka_migration.cli import mirror
from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.documents.mirror import (
    MirrorVerification,
    RemoteTopic,
    TopicDeletions,
    Verified,
    VerifiedPartition,
)
from airflow_provider_kafka_migration.documents.proof import ContentDifference
from airflow_provider_kafka_migration.errors import BrokerUnreachable
from airflow_provider_kafka_migration.jobs import tail_health
from airflow_provider_kafka_migration.journal.entries import Fingerprint, Owner, utc_now
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.migration import Migration
from airflow_provider_kafka_migration.mirrors import deletions, requests, verification
from airflow_provider_kafka_migration.record.context import Cluster
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.local import LocalStore

Invoke = Callable[..., Result]

_TROUBLES = [
    {
        "topic": "orders",
        "partition": 1,
        "state": "failed",
        "seconds": 61.0,
        "code": "SOURCE_GAP",
        "what": "records are missing",
        "next_step": "find them",
    },
    {"topic": "refunds", "partition": 0, "state": "stuck", "seconds": 7.0, "code": "BROKER_BUSY", "what": "no answer"},
]


@pytest.fixture(autouse=True)
def _one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copier that does not run is looked at twice, since a clock may be wrong; here without the pause."""
    monkeypatch.setattr(tail_health, "_LOOK_AGAIN_SECONDS", 0.0)


@pytest.fixture
def mirror_file(tmp_path: Path) -> Path:
    """A mirror that mirrors, and whose copiers have reported two partitions in trouble."""
    store = LocalStore(str(tmp_path / "journal"))
    journal = Journal.create_or_open(
        store,
        "a-to-b",
        Fingerprint("source-id", "target-id"),
        owner=Owner("cli", "ann@desk", "ann"),
        details={"kind": "mirror"},
    )
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED, State.TAIL):
        journal.transition(state, f"{state} starts")
    progress = {
        "migration_id": "a-to-b",
        "job": "tail",
        "generation": journal.generation,
        "at": "2026-04-24T10:40:00Z",
        "partitions_failed": 1,
        "partitions_stuck": 1,
        "stuck_seconds": 7.0,
        "troubles": _TROUBLES,
        "partitions": [],
    }
    store.put("a-to-b/progress/tail.json", json.dumps(progress).encode())
    file = tmp_path / "a-to-b.yaml"
    spec = {
        "kind": "mirror",
        "migration_id": "a-to-b",
        "mirror": {"source_alias": "A", "target_alias": "B"},
        "source": {"conn_id": "env:SOURCE"},
        "target": {"conn_id": "env:TARGET"},
        "storage": {"journal": f"file://{tmp_path}/journal"},
    }
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file


def test_status_shows_partitions_that_are_not_copied(invoke: Invoke, mirror_file: Path) -> None:
    result = invoke("mirror", "status", mirror_file)
    assert result.exit_code == ExitCode.OK, result.output
    shown = " ".join(result.output.split())
    assert "tail orders-1 FAILED for 61 s: [SOURCE_GAP] records are missing. Next: find them" in shown
    assert "tail refunds-0 stuck, retrying for 7 s: [BROKER_BUSY] no answer" in shown


def test_status_says_since_when_and_what_to_type_next(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    shown = " ".join(invoke("mirror", "status", mirror_file).output.split())
    assert "state mirroring, since 20" in shown
    assert f"next nothing, while it runs; if nobody runs it: `kafka-migration mirror run {mirror_file}`" in shown
    assert "stuck_seconds 7.0" not in shown
    assert "stuck_seconds 7.0" in " ".join(invoke("mirror", "status", mirror_file, "-v").output.split())
    journal = Journal(LocalStore(str(tmp_path / "journal")), "a-to-b")
    journal.claim(Owner("cli", "ann@desk", "ann"), takeover=True)
    journal.transition(State.PAUSED, "a night off", from_states={State.TAIL})
    result = invoke("mirror", "status", mirror_file, "--json")
    assert result.exit_code == ExitCode.WAITS
    assert json.loads(result.output)["next"] == [f"to let it go on: `kafka-migration mirror resume {mirror_file}`"]


def test_status_shows_what_the_target_keeps(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    def shown() -> str:
        result = invoke("mirror", "status", mirror_file)
        assert result.exit_code == ExitCode.OK, result.output
        return " ".join(result.output.split())

    assert "the target keeps" not in shown()
    case = Path(__file__).parents[2] / "cases" / "mirror" / "v1" / "target-retention.json"
    results = tmp_path / "journal" / "a-to-b" / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "target-retention.json").write_bytes(case.read_bytes())
    text = "the target keeps what the source has deleted, 2 problems, the first is orders-1: the partition has no"
    assert text in shown()


def test_status_shows_heartbeats_and_their_problem(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    assert json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)["state_topics"] == {}
    case = Path(__file__).parents[2] / "cases" / "mirror" / "v1" / "mirror-maker-heartbeats.json"
    results = tmp_path / "journal" / "a-to-b" / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "mirror-maker-heartbeats.json").write_bytes(case.read_bytes())
    assert "\nheartbeat " not in invoke("mirror", "status", mirror_file).output, "they are switched off"
    spec = yaml.safe_load(mirror_file.read_text(encoding="utf-8"))
    spec["mirror"]["state_topics"] = {"heartbeats": True}
    mirror_file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    shown = " ".join(invoke("mirror", "status", mirror_file).output.split())
    assert "heartbeat the newest of the source on the target is of 2026-04-24T10:40:00Z" in shown
    assert "2026-04-24T10:41:00Z: heartbeats of MirrorMaker 2: no broker answers" in shown


def test_publish_does_not_write_beside_a_mirror_that_writes(invoke: Invoke, mirror_file: Path) -> None:
    """Two writers would undo each other's records. It is refused before a cluster is asked for anything."""
    environment = {name: json.dumps({"bootstrap.servers": "127.0.0.1:1"}) for name in ("SOURCE", "TARGET")}
    spec = yaml.safe_load(mirror_file.read_text(encoding="utf-8"))
    spec["mirror"]["state_topics"] = {"checkpoints": True}
    mirror_file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        result = invoke("translate", "publish", mirror_file, "--once")
    assert result.exit_code == ExitCode.FAILED
    assert "the mirror writes the state topics by itself" in " ".join(result.output.split())


def test_status_shows_groups_that_the_source_no_longer_has(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    case = Path(__file__).parents[2] / "cases" / "mirror" / "v1" / "groups-missing.json"
    results = tmp_path / "journal" / "a-to-b" / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "groups-missing.json").write_bytes(case.read_bytes())
    result = invoke("mirror", "status", mirror_file)
    assert result.exit_code == ExitCode.OK, result.output
    shown = " ".join(result.output.split())
    text = "group billing: gone from the source since 2026-11-23T10:00:00.000Z; kept on the target: it has members on"
    assert text in shown
    assert "group late: not listed by the source; kept on the target: the source lists no group at all" in shown
    data = json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)
    assert [item["group"] for item in data["groups_missing"]] == ["billing", "late"]
    assert data["groups_deleted"] == []


def test_status_shows_that_groups_are_not_brought_up_to_date(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    assert json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)["group_sync"] is None
    case = Path(__file__).parents[2] / "cases" / "mirror" / "v1" / "group-sync.json"
    results = tmp_path / "journal" / "a-to-b" / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "group-sync.json").write_bytes(case.read_bytes())
    shown = " ".join(invoke("mirror", "status", mirror_file).output.split())
    text = "groups are NOT brought up to date since 2026-04-24T10:12:00Z: Describe on the groups is missing"
    assert text in shown
    data = json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)
    assert data["group_sync"]["failing_since"] == "2026-04-24T10:12:00Z"


def test_status_shows_the_last_comparison(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    assert "compared never" in " ".join(invoke("mirror", "status", mirror_file).output.split())
    assert json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)["verification"] is None
    case = Path(__file__).parents[2] / "cases" / "mirror" / "v1" / "verification.json"
    results = tmp_path / "journal" / "a-to-b" / "results"
    results.mkdir(parents=True, exist_ok=True)
    (results / "verification.json").write_bytes(case.read_bytes())
    shown = " ".join(invoke("mirror", "status", mirror_file).output.split())
    text = (
        "compared the last 1000 offsets of the topics orders at 2026-04-24T10:41:30Z: 0 partitions equal, 1 DIFFERENT"
    )
    assert f"{text}, 1 not checked; 998 equal records" in shown
    found = json.loads(invoke("mirror", "status", mirror_file, "--json").stdout)["verification"]
    assert found["equal"] is False


# -- failing back, and topics that are gone ---------------------------------------------------------------------------


def test_a_mirror_that_mirrors_does_not_fail_back(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "back.json"
    result = invoke("mirror", "fail-back", mirror_file, "--spec-output", output)
    assert result.exit_code == ExitCode.FAILED
    shown = " ".join(result.output.split())
    assert "there is nothing to fail back from: the mirror is mirroring" in shown
    assert "kafka-migration mirror promote FILE" in shown
    assert not output.exists()


@pytest.fixture
def deletable(monkeypatch: pytest.MonkeyPatch) -> list[RemoteTopic]:
    """What the target's brokers would answer."""
    found = [
        RemoteTopic(
            topic="orders",
            remote_topic="A.orders",
            topic_id="an-id",
            why="it was deleted on the source",
            log_end_offsets=[120, 7],
        )
    ]
    monkeypatch.setattr(deletions, "waiting", lambda _record, _target: found)
    monkeypatch.setattr(Migration, "_context_of", _without_clusters)
    return found


def _without_clusters(migration: Migration, journal: Journal) -> SimpleNamespace:
    store = migration.journal_store
    record = MigrationRecord(migration.spec, journal, store, store, store, now=utc_now)
    return SimpleNamespace(record=record, target=None)


def test_a_deletion_is_approved_by_its_code(invoke: Invoke, mirror_file: Path, deletable: list[RemoteTopic]) -> None:
    text = mirror_file.read_text(encoding="utf-8")
    mirror_file.write_text(f"{text}\ntopology: {{on_topic_deleted: repair}}\n", encoding="utf-8")
    asked = invoke("mirror", "topics", mirror_file, "--delete")
    assert asked.exit_code == ExitCode.WAITS
    code = deletions.code("a-to-b", deletable)
    assert f"--delete --approve {code}" in " ".join(asked.output.split())
    assert "A.orders" in asked.output
    store = LocalStore(str(mirror_file.parent / "journal"))
    key = "a-to-b/control/topic-deletions.json"
    refused = invoke("mirror", "topics", mirror_file, "--delete", "--approve", "00000000")
    assert (refused.exit_code, store.get(key)) == (ExitCode.FAILED, None)
    assert invoke("mirror", "topics", mirror_file, "--delete", "--approve", code).exit_code == ExitCode.OK
    data = store.get(key)
    assert data is not None
    assert TopicDeletions.parse(data).topics == deletable
    deletable[0] = deletable[0].model_copy(update={"log_end_offsets": [121, 7]})
    late = invoke("mirror", "topics", mirror_file, "--delete", "--approve", code)
    assert late.exit_code == ExitCode.FAILED, "the code is of what was shown"


def test_nothing_is_to_be_deleted(invoke: Invoke, mirror_file: Path, deletable: list[RemoteTopic]) -> None:
    deletable.clear()
    result = invoke("mirror", "topics", mirror_file, "--delete")
    assert result.exit_code == ExitCode.OK, result.output
    assert "no remote topic has lost its source topic" in result.output


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(mirror_file: Path) -> Journal:
    """A paused mirror that a run of Airflow holds; nothing of that run is alive."""
    store = LocalStore(str(mirror_file.parent / "journal"))
    journal = Journal(store, "a-to-b")
    requests.write(store, "a-to-b", "paused", by="ann", at="2026-04-24T10:40:00Z")
    journal.claim(Owner("dag_run", "dag/run", "mirror"), takeover=True)
    journal.transition(State.PAUSED, "paused by ann", from_states={State.TAIL})
    return journal


def test_resuming_waits_for_the_holder(invoke: Invoke, mirror_file: Path, held: Journal) -> None:
    """A holder that is dead lets nothing go on, so the command must not say so."""
    result = invoke("mirror", "resume", mirror_file, "--json", "--timeout", "0")
    assert result.exit_code == ExitCode.TRY_AGAIN, result.output
    error = json.loads(result.output)["error"]
    assert error["code"] == "REQUEST_UNANSWERED"
    assert "dag/run" in error["what"]
    assert "--takeover" in error["next_step"]
    assert requests.read(held.store, "a-to-b").want == "run", "the request stays"
    held.transition(State.TAIL, "resumed by ann", from_states={State.PAUSED})
    again = invoke("mirror", "resume", mirror_file, "--json", "--timeout", "0")
    assert again.exit_code == ExitCode.OK, again.output
    assert json.loads(again.output)["state"] == "mirroring"


def test_a_pause_behind_a_resume_that_nobody_has_answered_is_recorded(
    invoke: Invoke, mirror_file: Path, held: Journal
) -> None:
    """The mirror is still paused then; without a request of its own it would go on."""
    invoke("mirror", "resume", mirror_file, "--json", "--timeout", "0")
    result = invoke("mirror", "pause", mirror_file, "--json", "--timeout", "0")
    assert result.exit_code == ExitCode.OK, result.output
    last = requests.read(held.store, "a-to-b")
    assert (last.want, last.number) == ("paused", 3)
    assert invoke("mirror", "pause", mirror_file, "--json", "--timeout", "0").exit_code == ExitCode.OK
    assert requests.read(held.store, "a-to-b").number == 3, "nothing is left to ask"


def test_ending_a_mirror_that_still_seeds_says_what_to_do(invoke: Invoke, mirror_file: Path, tmp_path: Path) -> None:
    """A seed does not look for requests while it runs."""
    store = LocalStore(str(tmp_path / "seeding"))
    owner = Owner("dag_run", "dag/run", "seed")
    journal = Journal.create_or_open(store, "a-to-b", Fingerprint("s", "t"), owner=owner, details={"kind": "mirror"})
    for state in (State.PRECHECK, State.TOPOLOGY_COPY, State.SEED):
        journal.transition(state, f"{state} starts")
    spec = yaml.safe_load(mirror_file.read_text(encoding="utf-8"))
    spec["storage"] = {"journal": f"file://{tmp_path}/seeding"}
    mirror_file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    code = ("--approve", requests.code(store, "a-to-b", "end"))
    result = invoke("mirror", "end", mirror_file, *code, "--json", "--timeout", "0", "--leave-request")
    assert result.exit_code == ExitCode.TRY_AGAIN, result.output
    assert "let the task that runs in Airflow (seed) start again" in json.loads(result.output)["error"]["next_step"]
    assert requests.read(store, "a-to-b").want == "ended"


@pytest.mark.parametrize("want", ["promote", "end", "pause"])
def test_a_request_that_nobody_waits_for_any_more_is_withdrawn(
    invoke: Invoke, mirror_file: Path, held: Journal, want: str
) -> None:
    """Asked for at night, a promotion must not be carried out at the next day's peak."""
    held.transition(State.TAIL, "resumed by ann", from_states={State.PAUSED})
    requests.write(held.store, "a-to-b", "run", by="ann", at="2026-04-24T10:40:00Z")
    code = ("--approve", requests.code(held.store, "a-to-b", "end")) if want == "end" else ()
    result = invoke("mirror", want, mirror_file, *code, "--json", "--timeout", "0")
    assert result.exit_code == ExitCode.TRY_AGAIN, result.output
    assert "withdrawn" in json.loads(result.output)["error"]["next_step"]
    last = requests.read(held.store, "a-to-b")
    assert (last.want, last.number) == ("run", 4)
    assert "is withdrawn" in last.reason
    code = ("--approve", requests.code(held.store, "a-to-b", "end")) if want == "end" else ()
    invoke("mirror", want, mirror_file, *code, "--json", "--timeout", "0", "--leave-request")
    last = requests.read(held.store, "a-to-b")
    assert last.want != "run"
    assert bool(last.valid_until) is (want != "pause")


def test_a_withdrawn_promotion_leaves_a_paused_mirror_paused(invoke: Invoke, mirror_file: Path, held: Journal) -> None:
    assert invoke("mirror", "promote", mirror_file, "--json", "--timeout", "0").exit_code == ExitCode.TRY_AGAIN
    assert requests.read(held.store, "a-to-b").want == "paused"


def test_an_end_needs_its_code(invoke: Invoke, mirror_file: Path, held: Journal) -> None:
    shown = invoke("mirror", "end", mirror_file, "--json")
    assert shown.exit_code == ExitCode.WAITS, shown.output
    code = json.loads(shown.output)["waiting"]["code"]
    assert code in invoke("mirror", "end", mirror_file).output
    refused = invoke("mirror", "end", mirror_file, "--approve", "00000000", "--json")
    assert json.loads(refused.output)["error"]["code"] == "APPROVAL_REFUSED"
    assert requests.read(held.store, "a-to-b").number == 1, "nothing was asked for"
    assert invoke("mirror", "end", mirror_file, "--approve", code, "--timeout", "0").exit_code == ExitCode.TRY_AGAIN
    refused = invoke("mirror", "end", mirror_file, "--approve", code, "--json", "--timeout", "0")
    assert json.loads(refused.output)["error"]["code"] == "APPROVAL_REFUSED", "of an earlier request"


def test_a_source_that_answers_is_not_gone(
    invoke: Invoke, mirror_file: Path, held: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True]
    monkeypatch.setattr("airflow_provider_kafka_migration.cli.mirror._source_answers", lambda _spec: answers[0])
    shown = invoke("mirror", "promote", mirror_file, "--source-gone", "--json")
    assert shown.exit_code == ExitCode.WAITS, shown.output
    assert requests.read(held.store, "a-to-b").number == 1, "nothing was asked for"
    text = " ".join(invoke("mirror", "promote", mirror_file, "--source-gone").output.split())
    assert "the source answers" in text
    code = json.loads(shown.output)["waiting"]["code"]
    asked = invoke("mirror", "promote", mirror_file, "--source-gone", "--approve", code, "--json", "--timeout", "0")
    assert json.loads(asked.output)["error"]["code"] == "REQUEST_UNANSWERED"
    answers[0] = False
    asked = invoke("mirror", "promote", mirror_file, "--source-gone", "--json", "--timeout", "0")
    assert json.loads(asked.output)["error"]["code"] == "REQUEST_UNANSWERED", "one that is gone needs no code"


@pytest.mark.parametrize("answers", [True, False])
def test_looking_up_the_connection_is_not_on_the_clock(
    mirror_file: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """To load Airflow for a connection may take longer than the source is asked."""
    looked_up_in: list[threading.Thread] = []

    class Source:
        @property
        def cluster_id(self) -> str:
            if not answers:
                raise BrokerUnreachable("no broker answered")
            return "source-id"

        def close(self) -> None:
            return None

    def of(*_: object) -> Source:
        looked_up_in.append(threading.current_thread())
        return Source()

    monkeypatch.setattr(Cluster, "of", of)
    assert mirror._source_answers(load_spec(mirror_file)) is answers
    assert looked_up_in == [threading.main_thread()]


# -- comparing contents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "code", "text"),
    [
        ([], ExitCode.UNCHECKED, "nothing was compared, which proves nothing"),
        (["nothing"], ExitCode.UNCHECKED, "nothing was compared, which proves nothing"),
        (["equal", "nothing"], ExitCode.OK, "a-to-b: equal; 1 of 2 partitions are equal, 7 records compared"),
        (["equal", "unchecked"], ExitCode.UNCHECKED, "1 partitions could not be checked"),
        (["equal", "unchecked", "different"], ExitCode.FAILED, "1 partitions DIFFER"),
    ],
)
def test_the_exit_status_of_a_comparison(
    invoke: Invoke, mirror_file: Path, monkeypatch: pytest.MonkeyPatch, kept: list[Verified], code: int, text: str
) -> None:
    scopes = []

    def found(_context: object, scope: verification.Scope, **_: object) -> MirrorVerification:
        scopes.append(scope)
        parts = [
            VerifiedPartition(
                topic="orders",
                target_topic="A.orders",
                partition=number,
                outcome=outcome,
                reason="" if outcome in ("equal", "different") else "the reason",
                compared=7 if outcome == "equal" else 0,
                difference_count=int(outcome == "different"),
                differences=[ContentDifference(kind="missing", source_offset=4, target_offset=4)]
                if outcome == "different"
                else [],
            )
            for number, outcome in enumerate(kept)
        ]
        return MirrorVerification(
            migration_id="a-to-b", state="mirroring", started_at="", finished_at="", partitions=parts
        )

    monkeypatch.setattr(verification, "verify", found)
    monkeypatch.setattr(Migration, "_context_of", _without_clusters)
    result = invoke("mirror", "verify", mirror_file, "--topic", "or.*", "--topic", "x", "--last", "9")
    assert result.exit_code == code, result.output
    shown = " ".join(result.output.split())
    assert text in shown
    assert ("the reason" in shown) is bool({"unchecked", "nothing"} & set(kept))
    assert ("missing at source offset 4, target offset 4" in shown) is ("different" in kept)
    assert scopes == [verification.Scope(("or.*", "x"), 9)]
    answer = json.loads(invoke("mirror", "verify", mirror_file, "--json").output)
    assert (answer["ok"], answer["equal"]) == (code == ExitCode.OK, code == ExitCode.OK)


def test_what_prevents_a_comparison_is_no_difference(invoke: Invoke, mirror_file: Path) -> None:
    """Exit status 1 is for contents that differ; here a connection has no settings."""
    result = invoke("mirror", "verify", mirror_file, "--json")
    assert result.exit_code == ExitCode.UNCHECKED, result.output
    assert json.loads(result.output)["ok"] is False
    mirror_file.write_text("kind: migration", encoding="utf-8")
    assert invoke("mirror", "verify", mirror_file).exit_code == ExitCode.UNCHECKED


_UNFORESEEN = """
from airflow_provider_kafka_migration.cli.mirrors import verify
def unforeseen(*_, **__):
    raise KeyError("a bug")
verify._verify = unforeseen
"""


@pytest.mark.parametrize(("before", "code"), [("", "SPEC_INVALID"), (_UNFORESEEN, "UNEXPECTED")])
def test_a_comparison_that_fails_says_so_on_stdout_and_never_that_contents_differ(
    tmp_path: Path, before: str, code: str
) -> None:
    """In a process of its own: inside of one, nobody sees which file descriptor gets what."""
    spec = tmp_path / "spec.json"
    spec.write_text('{"kind": "mirror", "migration_id": "m1", "nonsense": 1}')
    program = before + "import sys; from airflow_provider_kafka_migration.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "mirror", "verify", str(spec), "--json", "--debug"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == ExitCode.UNCHECKED
    answer = json.loads(found.stdout)
    assert (answer["ok"], answer["error"]["code"]) == (False, code)
    assert "Traceback" in found.stderr


def test_a_pattern_that_is_none_is_a_wrong_command_line(invoke: Invoke, mirror_file: Path) -> None:
    assert invoke("mirror", "verify", mirror_file, "--topic", "(").exit_code == ExitCode.USAGE
