"""journal, offset-map and verify-evidence on real documents in folders."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from nacl.signing import SigningKey

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle, parse_public_key, sign_bundle
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.journal.journal import Journal
from airflow_provider_kafka_migration.lanes.assignment import rates_key
from airflow_provider_kafka_migration.offset_map.runs import (
    MapEntry,
    OffsetRange,
    PartitionMap,
    build_offset_map_document,
)

KEY = SigningKey(bytes(range(32)))


def answer_of(result: Any) -> dict[str, Any]:
    """The JSON object that a command printed."""
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# -- journal ----------------------------------------------------------------------------------------------------------


def test_journal_show_has_every_entry_in_order(invoke: Any, spec_file: Path, journal: Journal) -> None:
    answer = answer_of(invoke("journal", "show", spec_file, "--json"))
    assert [entry["seq"] for entry in answer["entries"]] == list(range(len(journal.entries())))
    assert answer["entries"][-1]["step"] == "seed_job"
    shown = invoke("journal", "show", spec_file).stdout
    assert "topology_copy -> seed" in shown
    assert "seed_job seed" in shown


def test_journal_show_can_be_cut(invoke: Any, spec_file: Path, journal: Journal) -> None:
    changes = answer_of(invoke("journal", "show", spec_file, "--transitions", "--json"))["entries"]
    assert [entry["to"] for entry in changes][-3:] == ["precheck", "topology_copy", "seed"]
    last = answer_of(invoke("journal", "show", spec_file, "--last", "1", "--json"))["entries"]
    assert [entry["step"] for entry in last] == ["seed_job"]


def test_journal_verify_is_quiet_about_a_good_one(invoke: Any, spec_file: Path, journal: Journal) -> None:
    answer = answer_of(invoke("journal", "verify", spec_file, "--json"))
    assert answer["ok"]
    assert answer["entries"] == len(journal.entries())
    assert answer["problems"] == []


def test_journal_verify_finds_one_changed_byte(invoke: Any, spec_file: Path, journal: Journal, tmp_path: Path) -> None:
    file = sorted((tmp_path / "journal" / "orders-1" / "journal").glob("*.json"))[2]
    file.write_bytes(file.read_bytes().replace(b"precheck starts", b"precheck Starts"))
    result = invoke("journal", "verify", spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "JOURNAL_TAMPERED" in result.stderr


@pytest.mark.parametrize("command", [("journal", "show"), ("journal", "verify")], ids=" ".join)
def test_a_migration_that_never_ran_has_no_journal(invoke: Any, spec_file: Path, command: tuple[str, str]) -> None:
    result = invoke(*command, spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "there is no journal" in result.stderr
    assert "kafka-migration run" in result.stderr


# -- offset map -------------------------------------------------------------------------------------------------------


@pytest.fixture
def offset_map(tmp_path: Path) -> Path:
    """One partition equal, one shifted, one mapped."""
    entries = [
        MapEntry("a", 0, PartitionMap([OffsetRange(0, 0)], source_end_offset=100, target_end_offset=100)),
        MapEntry("a", 1, PartitionMap([OffsetRange(1000, 0)], source_end_offset=1100, target_end_offset=100)),
        MapEntry(
            "b", 0, PartitionMap([OffsetRange(0, 0), OffsetRange(50, 10)], source_end_offset=60, target_end_offset=20)
        ),
    ]
    file = tmp_path / "evidence" / "orders-1" / "offset-map.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(build_offset_map_document("orders-1", entries).canonical())
    return file


def test_offset_map_show(invoke: Any, offset_map: Path) -> None:
    partitions = answer_of(invoke("offset-map", "show", offset_map, "--json"))["partitions"]
    assert [(item["topic"], item["partition"], item["verdict"], item["runs"]) for item in partitions] == [
        ("a", 0, "equal", 1),
        ("a", 1, "shifted", 1),
        ("b", 0, "mapped", 2),
    ]
    assert "[1000, 1100)" in invoke("offset-map", "show", offset_map).stdout


def test_offset_map_show_takes_a_spec_and_narrows(invoke: Any, spec_file: Path, offset_map: Path) -> None:
    only_b = answer_of(invoke("offset-map", "show", spec_file, "--topic", "b", "--json"))["partitions"]
    assert [item["topic"] for item in only_b] == ["b"]
    runs = answer_of(invoke("offset-map", "show", spec_file, "--topic", "b", "--partition", "0", "--json"))["runs"]
    assert runs == [
        {"source_start": 0, "target_start": 0, "count": 10},
        {"source_start": 50, "target_start": 10, "count": 10},
    ]
    assert invoke("offset-map", "show", spec_file, "--partition", "0").exit_code == ExitCode.USAGE


def test_offset_map_translate(invoke: Any, offset_map: Path) -> None:
    result = invoke("offset-map", "translate", offset_map, "b", "0", "5", "30", "55", "999", "--json")
    assert [(item["target_offset"], item["how"]) for item in answer_of(result)["translations"]] == [
        (5, "equal"),
        (10, "hole_forward"),
        (15, "exact"),
        (20, "clamped"),
    ]


def test_offset_map_translate_names_what_is_not_there(invoke: Any, offset_map: Path) -> None:
    result = invoke("offset-map", "translate", offset_map, "c", "7", "1")
    assert result.exit_code == ExitCode.FAILED
    assert "topic-partition c-7" in result.stderr
    assert "choose one of its topics: a, b" in result.stderr


def test_offset_map_check(invoke: Any, offset_map: Path) -> None:
    assert invoke("offset-map", "check", offset_map).exit_code == ExitCode.OK
    document = json.loads(offset_map.read_bytes())
    document["partitions"][1]["verdict"] = "equal"
    document["partitions"][2]["runs"] = document["partitions"][2]["runs"][:-1]
    offset_map.write_text(json.dumps(document), encoding="utf-8")
    answer = answer_of(result := invoke("offset-map", "check", offset_map, "--json"))
    assert result.exit_code == ExitCode.FAILED
    assert answer["ok"] is False
    assert [item["partition"] for item in answer["problems"]] == ["a-1", "b-0"]


def test_offset_map_of_a_migration_that_has_none(invoke: Any, spec_file: Path, tmp_path: Path) -> None:
    result = invoke("offset-map", "show", spec_file)
    assert result.exit_code == ExitCode.FAILED
    assert "wait for the end of the seed" in result.stderr
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}', encoding="utf-8")
    assert "not an offset map" in invoke("offset-map", "show", other).stderr


# -- evidence ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path: Path, journal: Journal) -> Path:
    """A signed bundle over the journal."""
    entries = [entry.model_dump(mode="json", by_alias=True) for entry in journal.entries()]
    plan = {"migration_id": "orders-1"}
    bundle = EvidenceBundle(
        migration_id="orders-1",
        tool_version="0.1.0",
        signed_at="2026-01-01T00:00:00Z",
        outcome=Outcome.PASSED,
        config_fingerprint=entries[0]["details"]["fingerprint"]["sha256"],
        journal=entries,
        plan=plan,
        plan_digest=canonical_digest(plan),
        validation={"outcome": "PASSED"},
        warnings=["the bucket has no Object Lock"],
        **{name: {} for name in ("source", "target", "topology", "acls", "seed", "tail", "drain_final", "cutover")},
    )
    file = tmp_path / "evidence.json"
    file.write_bytes(sign_bundle(bundle, KEY))
    return file


@pytest.fixture
def public_key(tmp_path: Path) -> Path:
    """The key's public half, in a file."""
    file = tmp_path / "evidence.pub"
    file.write_text(KEY.verify_key.encode().hex() + "\n", encoding="utf-8")
    return file


def test_verify_evidence_with_a_key_from_outside(invoke: Any, evidence: Path, public_key: Path) -> None:
    result = invoke("verify-evidence", evidence, "--public-key", public_key, "--json")
    answer = answer_of(result)
    assert result.exit_code == ExitCode.OK
    assert (answer["verified"], answer["trusted"], answer["outcome"]) == (True, True, "PASSED")
    shown = invoke("verify-evidence", f"file://{evidence}", "--public-key", public_key).stdout
    assert "(as expected)" in shown
    assert "the bucket has no Object Lock" in shown


@pytest.mark.parametrize("form", ["hex", "upper", "base64", "file of base64", "file of bytes"])
def test_verify_evidence_takes_the_key_in_each_form_that_its_help_names(
    invoke: Any, evidence: Path, public_key: Path, tmp_path: Path, form: str
) -> None:
    raw = parse_public_key(public_key.read_bytes())
    text = {"hex": raw.hex(), "upper": raw.hex().upper()}.get(form, base64.b64encode(raw).decode())
    if form.startswith("file"):
        file = tmp_path / "another.pub"
        file.write_bytes(raw if form == "file of bytes" else text.encode() + b"\n")
        text = str(file)
    result = invoke("verify-evidence", evidence, "--public-key", text, "--json")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert json.loads(result.stdout)["trusted"] is True


def test_verify_evidence_says_what_a_key_is(invoke: Any, evidence: Path) -> None:
    result = invoke("verify-evidence", evidence, "--public-key", "c0724")
    assert result.exit_code == ExitCode.FAILED
    assert "neither a key (64 hex digits or the base64 of 32 bytes) nor a file" in " ".join(result.stderr.split())


def test_verify_evidence_without_a_key_says_what_that_is_worth(invoke: Any, evidence: Path) -> None:
    result = invoke("verify-evidence", evidence)
    assert result.exit_code == ExitCode.OK
    assert "integrity only" in result.stdout


def test_verify_evidence_fails_on_another_key(invoke: Any, evidence: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pub"
    other.write_bytes(bytes(SigningKey(bytes(32)).verify_key))
    result = invoke("verify-evidence", evidence, "--public-key", other)
    assert result.exit_code == ExitCode.FAILED
    assert "EVIDENCE_INVALID" in result.stderr
    assert "another key" in result.stderr


def test_verify_evidence_fails_on_any_changed_byte(invoke: Any, evidence: Path, public_key: Path) -> None:
    good = evidence.read_bytes()
    for position in range(0, len(good), max(1, len(good) // 60)):
        evidence.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        result = invoke("verify-evidence", evidence, "--public-key", public_key, "--json")
        assert result.exit_code == ExitCode.FAILED, position
        assert answer_of(result)["error"]["code"] == "EVIDENCE_INVALID"


def test_verify_evidence_fails_on_a_forged_bundle(invoke: Any, evidence: Path, public_key: Path) -> None:
    """Somebody signs other content with a key of their own and puts that key into the file."""
    forger = SigningKey(bytes([7] * 32))
    payload = json.loads(evidence.read_bytes())["bundle_json"].encode()
    forged = {
        "bundle_json": payload.decode(),
        "signature_b64": base64.b64encode(forger.sign(payload).signature).decode(),
        "public_key_b64": base64.b64encode(bytes(forger.verify_key)).decode(),
    }
    evidence.write_bytes(rfc8785.dumps(forged))
    assert invoke("verify-evidence", evidence).exit_code == ExitCode.OK
    assert invoke("verify-evidence", evidence, "--public-key", public_key).exit_code == ExitCode.FAILED


def test_verify_evidence_of_a_missing_file(invoke: Any, tmp_path: Path) -> None:
    result = invoke("verify-evidence", tmp_path / "absent.json")
    assert result.exit_code == ExitCode.FAILED
    assert "the file cannot be read" in result.stderr


def test_verify_evidence_from_s3(
    invoke: Any, evidence: Path, public_key: Path, s3_in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_in_process.bucket()
    s3_in_process.client().put_object(Bucket=bucket, Key="orders/evidence.json", Body=evidence.read_bytes())
    monkeypatch.setenv("S3_SETTINGS", json.dumps(s3_in_process.config.to_dict()))
    place = f"s3://{bucket}/orders/evidence.json"
    result = invoke("verify-evidence", place, "--public-key", public_key, "--storage", "env:S3_SETTINGS")
    assert result.exit_code == ExitCode.OK, result.stderr
    missing = invoke("verify-evidence", place + "x", "--storage", "env:S3_SETTINGS")
    assert missing.exit_code == ExitCode.FAILED
    assert "the object does not exist" in missing.stderr


def test_tables_in_a_pipe_are_not_cut(invoke: Any, spec_file: Path, journal: Journal) -> None:
    reason = "because " + "it was so, " * 60 + "all of it"
    journal.step("noted", reason=reason)
    lines = invoke("journal", "show", spec_file).stdout.splitlines()
    assert any(reason in line for line in lines), "one entry, one line, nothing left out"
    assert any(entry.at in line for entry in journal.entries() for line in lines)
    assert len(lines) == 1 + len(journal.entries())


def test_status_says_why_a_check_has_warned(invoke: Any, spec_file: Path, journal: Journal) -> None:
    reason = "validation WARNING: counts_and_offsets PASSED, groups WARNING (billing: left alone: it is active)"
    journal.step("validated", details={"outcome": "WARNING"}, reason=reason)
    journal.step("noted", reason="something later")
    assert reason in invoke("status", spec_file).stdout
    assert answer_of(invoke("status", spec_file, "--json"))["validation"] == reason


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"migration_id": "orders-1", "rates": {"seed": "hunter2"}}', b"\xff"]
)
def test_damaged_rates_are_named_with_what_to_do(
    invoke: Any, spec_file: Path, journal: Journal, content: bytes
) -> None:
    journal.store.put(rates_key("orders-1"), content)
    shown = invoke("throttle", spec_file, "--json")
    assert shown.exit_code == ExitCode.FAILED
    error = json.loads(shown.stdout)["error"]
    assert error["code"] == "DOCUMENT_UNREADABLE"
    assert error["where"]["path"] == "orders-1/control/rates.json"
    assert f"kafka-migration throttle {spec_file} --seed RATE --tail RATE" in error["next_step"]
    assert "hunter2" not in shown.output
    assert answer_of(invoke("throttle", spec_file, "--seed", "10MB", "--tail", "spec", "--json"))["set"] == {
        "seed": 10_000_000
    }
    assert invoke("throttle", spec_file).exit_code == ExitCode.OK


def test_throttle_sets_shows_and_takes_back(invoke: Any, spec_file: Path, journal: Journal) -> None:
    entries = len(journal.entries())
    answer = answer_of(invoke("throttle", spec_file, "--seed", "10MB", "--tail", "none", "--json"))
    assert answer["max_bytes_per_second"] == {"seed": 10_000_000, "tail": None}
    assert answer["set"] == {"seed": 10_000_000, "tail": 0}
    assert "seed: 10,000,000 bytes per second and lane (set while it runs)" in invoke("throttle", spec_file).stdout
    assert answer_of(invoke("throttle", spec_file, "--seed", "spec", "--json"))["set"] == {"tail": 0}
    for wrong in ("0", "fast"):
        assert invoke("throttle", spec_file, "--seed", wrong).exit_code == ExitCode.USAGE
    journal.refresh()
    assert len(journal.entries()) == entries, "nothing is claimed"


# -- one flow of several ----------------------------------------------------------------------------------------------


@pytest.fixture
def mirrors_file(tmp_path: Path) -> Path:
    """Two flows between two clusters."""
    file = tmp_path / "mirrors.yaml"
    flows = {
        "clusters": {"east": {"conn_id": "env:EAST"}, "west": {"conn_id": "env:WEST"}},
        "storage": {"journal": f"file://{tmp_path}/journal"},
        "flows": {"east->west": {}, "west->east": {"enabled": False}},
    }
    file.write_text(json.dumps(flows), encoding="utf-8")
    return file


def test_a_flow_of_a_file_of_several_is_named_behind_a_hash(invoke: Any, mirrors_file: Path) -> None:
    answer = answer_of(invoke("mirror", "status", f"{mirrors_file}#east->west", "--json"))
    assert answer["migration_id"] == "east-to-west"


@pytest.mark.parametrize("name", ["west->east", "east->north", ""])
def test_a_flow_that_is_not_there_is_named_with_the_others(invoke: Any, mirrors_file: Path, name: str) -> None:
    result = invoke("mirror", "status", f"{mirrors_file}#{name}")
    assert result.exit_code == ExitCode.FAILED
    assert "choose one of: east->west" in result.stderr
