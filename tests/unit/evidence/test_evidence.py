"""Evidence: published with and without Object Lock, verified offline, and what verification notices."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from nacl.signing import SigningKey
from phase_support import SIGNING_SEED, Clock, approval, make_context, ready

from airflow_provider_kafka_migration.approvals import answers, request
from airflow_provider_kafka_migration.copy.archive import write_gap
from airflow_provider_kafka_migration.documents.base import canonical_digest
from airflow_provider_kafka_migration.documents.copy import CopyPartition
from airflow_provider_kafka_migration.documents.journal import content_hash
from airflow_provider_kafka_migration.documents.plan import Verdict
from airflow_provider_kafka_migration.documents.proof import CheckResult, Outcome, ValidationResult
from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    EvidenceInvalid,
    MigrationError,
    StorageUnavailable,
    Terminal,
)
from airflow_provider_kafka_migration.evidence import bundle as evidence_bundle
from airflow_provider_kafka_migration.evidence import publish
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.journal.spec_guard import flatten
from airflow_provider_kafka_migration.phases import evidence
from airflow_provider_kafka_migration.record.context import PhaseContext
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.storage.s3 import S3Store

KEY = SigningKey(bytes.fromhex(SIGNING_SEED))
PUBLIC = bytes(KEY.verify_key)
CASES = Path(__file__).parents[2] / "cases" / "evidence" / "v1"


def validated(folder: Path, outcome: Outcome = Outcome.PASSED, **options: Any) -> PhaseContext:
    """A migration whose validation has ended."""
    context = ready(folder, **options)
    record_spec(context, "spec_recorded")
    answers.answer(context, approval(context, "cutover", request.make_facts(context, "cutover").code))
    for state in (State.CUTOVER, State.AWAITING_CLIENT_SWITCH, State.VALIDATING):
        context.journal.transition(state, "test")
    check = CheckResult(name="content", outcome=outcome, summary="100 records equal", partitions=[])
    result = ValidationResult(migration_id="m1", outcome=outcome, checks=[check], started_at="a", finished_at="b")
    context.record.put_result("validation", result)
    context.journal.step("validated", details={"outcome": outcome.value, "digest": result.digest()})
    return context


def record_spec(context: PhaseContext, step: str, **seed: Any) -> None:
    """The journal's entry about the spec in force."""
    spec = context.spec.model_copy(update={"seed": context.spec.seed.model_copy(update=seed)})
    fields = flatten(spec.model_dump(mode="json"))
    context.journal.step(step, details={"sha256": canonical_digest(fields), "fields": fields})


def attempts(context: PhaseContext) -> list[str]:
    prefix = "m1/evidence-attempts/"
    return [info.key.removeprefix(prefix) for info in context.evidence_store.list(prefix)]


def test_published_evidence_verifies_and_names_what_belongs_to_it(tmp_path: Path) -> None:
    context = validated(tmp_path)
    details = evidence.run(context).details
    data = context.evidence_store.get("m1/evidence.json")
    assert data is not None
    assert context.evidence_store.get(details["key"]) == data
    assert details["sha256"] == hashlib.sha256(data).hexdigest()
    assert details["key"].endswith(f"-PASSED-{details['sha256'][:16]}.json")
    found = verify_evidence(data, PUBLIC)
    assert found.trusted
    assert not verify_evidence(data).trusted
    bundle = found.bundle
    assert found.journal_entries == len(bundle.journal) > 5
    assert bundle.approvals[0]["body_shown"] == "what was shown"
    assert bundle.plan["topics"][0]["name"] == "orders"
    assert {item["kind"] for item in bundle.not_copied} >= {"topic", "note"}
    assert bundle.versions["airflow-provider-kafka-migration"]
    assert bundle.artifacts["plan"]["sha256"] == bundle.plan_digest


def test_the_fingerprint_is_of_the_configuration_in_force(tmp_path: Path) -> None:
    """One that changed under way has another fingerprint, on the same clusters and buckets."""
    found = []
    for lanes in (4, 7):
        context = validated(tmp_path / str(lanes))
        record_spec(context, "spec_changed", lanes=lanes)
        evidence.run(context)
        found.append(verify_evidence(context.evidence_store.get("m1/evidence.json") or b"").bundle)
    assert [bundle.config["seed.lanes"] for bundle in found] == [4, 7]
    assert len({bundle.config_fingerprint for bundle in found}) == 2
    assert found[0].config_fingerprint == canonical_digest(found[0].config)
    began_with = found[0].journal[0]["details"]["fingerprint"]["sha256"]
    assert [bundle.resume_fingerprint for bundle in found] == [began_with, began_with]


def test_every_gap_of_the_source_is_named_whoever_met_it(tmp_path: Path) -> None:
    """In the tail, by a copier that was killed before it told its driver, and by a seed of an earlier version."""
    context = validated(tmp_path)
    spec = CopyPartition(
        topic="orders",
        target_topic="orders",
        partition=1,
        source_start_offset=0,
        target_start_offset=0,
        verdict=Verdict.EQUAL,
    )
    write_gap(context.journal_store, "m1", spec, (100, 155))
    write_gap(context.journal_store, "m1", spec, (100, 180))
    gaps = [{"topic": "orders", "partition": 1, "ranges": [[7, 9]]}]
    context.journal.step("seed_done", details={"gaps": gaps})
    evidence.run(context)
    bundle = verify_evidence(context.evidence_store.get("m1/evidence.json") or b"").bundle
    (named,) = [item for item in bundle.not_copied if item["kind"] == "source_gap"]
    assert (named["name"], named["ranges"]) == ("orders-1", [[7, 9], [100, 180]])


def test_again_is_answered_at_once_and_mends_the_alias(tmp_path: Path) -> None:
    context = validated(tmp_path)
    evidence.run(context)
    before = attempts(context)
    context.evidence_store.put("m1/evidence.json", b"{}")
    assert evidence.run(context).already_done
    assert attempts(context) == before
    data = context.evidence_store.get("m1/evidence.json")
    assert data is not None
    verify_evidence(data, PUBLIC)


def test_a_changed_attempt_is_not_passed_over(tmp_path: Path) -> None:
    context = validated(tmp_path)
    details = evidence.run(context).details
    context.evidence_store.put(details["key"], b"{}")
    with pytest.raises(EvidenceInvalid, match="missing or was changed"):
        evidence.run(context)


def test_nothing_is_signed_without_a_passed_validation(tmp_path: Path) -> None:
    context = validated(tmp_path, Outcome.FAILED)
    with pytest.raises(Terminal, match="no passed validation"):
        evidence.run(context)
    assert attempts(context) == []


def test_a_failed_validation_leaves_an_attempt_that_says_so(tmp_path: Path) -> None:
    context = validated(tmp_path, Outcome.FAILED)
    published = publish.publish_failure(context)
    assert published is not None
    data = context.evidence_store.get(published.key)
    assert data is not None
    assert verify_evidence(data, PUBLIC).bundle.outcome is Outcome.FAILED
    assert "-FAILED-" in published.key


def test_no_key_no_evidence(tmp_path: Path) -> None:
    context = validated(tmp_path, evidence={"signing_key": None})
    with pytest.raises(ConnectionInvalid, match="signing_key"):
        evidence.run(context)


def test_another_key_than_the_expected_one_signs_nothing(tmp_path: Path) -> None:
    context = validated(tmp_path, evidence={"public_key": "22" * 32})
    with pytest.raises(EvidenceInvalid, match="not the expected one"):
        evidence.run(context)
    assert attempts(context) == []


def test_killed_between_two_uploads_another_attempt_is_made(tmp_path: Path) -> None:
    """Each store write fails once, in turn; nothing is ever replaced but the aliases."""
    clock = Clock()
    context = validated(tmp_path, clock=clock)
    original = context.evidence_store.put_locked
    seen: dict[str, bytes] = {}
    for failing in range(1, 8):
        calls = 0

        def put_locked(key: str, data: bytes, *args: Any, failing: int = failing, **kwargs: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise StorageUnavailable("pulled the plug")
            return original(key, data, *args, **kwargs)

        context.evidence_store.put_locked = put_locked  # type: ignore[method-assign]
        try:
            evidence.run(context)
            break
        except StorageUnavailable:
            clock.sleep(0.001)
        for key in attempts(context):
            data = context.evidence_store.get(f"m1/evidence-attempts/{key}")
            assert data is not None
            assert seen.setdefault(key, data) == data
    else:
        pytest.fail("it never ended")
    data = context.evidence_store.get("m1/evidence.json")
    assert data is not None
    verify_evidence(data, PUBLIC)


@pytest.mark.parametrize("lock", [True, False], ids=["object-lock", "no-lock"])
def test_object_lock_is_tried_and_its_absence_is_in_the_evidence(
    tmp_path: Path, s3_in_process: Any, lock: bool
) -> None:
    context = validated(tmp_path)
    bucket = s3_in_process.bucket(object_lock=lock)
    context.evidence_store = S3Store(s3_in_process.config, bucket, "proof")
    details = evidence.run(context).details
    data = context.evidence_store.get("m1/evidence.json")
    assert data is not None
    bundle = verify_evidence(data, PUBLIC).bundle
    assert bundle.object_lock["applied"] is lock
    assert bool(bundle.warnings) is not lock
    assert details["object_lock"] is lock
    if lock:
        client = s3_in_process.client()
        for name in attempts(context):
            held = client.head_object(Bucket=bucket, Key=f"proof/m1/evidence-attempts/{name}")
            assert held["ObjectLockMode"] == "COMPLIANCE"
            assert held["ObjectLockRetainUntilDate"].year == context.now().year + 7
    page = context.evidence_store.get("m1/evidence.html")
    assert page is not None
    assert (b"no Object Lock" in page) is not lock


# -- what verification notices, beyond changed bytes -----------------------------------------------------------------


def resigned(data: bytes, change: Callable[[dict[str, Any]], None], key: SigningKey = KEY) -> bytes:
    """Evidence with another content, signed anew by somebody who has the key."""
    content = json.loads(json.loads(data)["bundle_json"])
    change(content)
    payload = rfc8785.dumps(content)
    return rfc8785.dumps(
        {
            "bundle_json": payload.decode(),
            "signature_b64": base64.b64encode(key.sign(payload).signature).decode(),
            "public_key_b64": base64.b64encode(bytes(key.verify_key)).decode(),
        }
    )


def drop_entry(content: dict[str, Any]) -> None:
    del content["journal"][3]


def alter_reason(content: dict[str, Any]) -> None:
    content["journal"][3]["reason"] = "nothing happened"


def alter_reason_and_hash(content: dict[str, Any]) -> None:
    content["journal"][3]["reason"] = "nothing happened"
    content["journal"][3]["hash"] = content_hash(content["journal"][3])


def no_journal(content: dict[str, Any]) -> None:
    content["journal"] = []


def other_plan(content: dict[str, Any]) -> None:
    content["plan"]["topics"][0]["name"] = "invoices"


def other_fingerprint(content: dict[str, Any]) -> None:
    content["config_fingerprint"] = "0" * 64


def other_resume_fingerprint(content: dict[str, Any]) -> None:
    content["resume_fingerprint"] = "0" * 64


def other_config(content: dict[str, Any]) -> None:
    content["config"]["seed.lanes"] = 99


def config_that_was_never_recorded(content: dict[str, Any]) -> None:
    content["config"]["seed.lanes"] = 99
    content["config_fingerprint"] = canonical_digest(content["config"])


def better_outcome(content: dict[str, Any]) -> None:
    content["validation"]["outcome"] = "FAILED"


def later_version(content: dict[str, Any]) -> None:
    content["version"] = 2


@pytest.mark.parametrize(
    "change",
    [
        drop_entry,
        alter_reason,
        alter_reason_and_hash,
        no_journal,
        other_plan,
        other_fingerprint,
        other_resume_fingerprint,
        other_config,
        config_that_was_never_recorded,
        better_outcome,
        later_version,
    ],
)
def test_a_content_that_contradicts_itself_does_not_verify_even_when_signed(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    context = validated(tmp_path)
    evidence.run(context)
    data = context.evidence_store.get("m1/evidence.json")
    assert data is not None
    verify_evidence(resigned(data, lambda _: None), PUBLIC)
    with pytest.raises(EvidenceInvalid):
        verify_evidence(resigned(data, change), PUBLIC)


def test_the_report_is_self_contained_and_escaped(tmp_path: Path) -> None:
    context = validated(tmp_path)
    evil = "<script>alert('x')</script>&\""
    context.journal.step("note", details={}, reason=evil)
    context.record.put_result(
        "validation",
        ValidationResult(
            migration_id="m1",
            outcome=Outcome.WARNING,
            checks=[CheckResult(name="content", outcome=Outcome.WARNING, summary=evil, findings=[evil])],
            started_at="a",
            finished_at="b",
        ),
    )
    publish.publish(context, Outcome.WARNING)
    page = (context.evidence_store.get("m1/evidence.html") or b"").decode()
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;") == 3
    assert "src=" not in page
    assert "href=" not in page
    assert "default-src 'none'" in page


def test_no_secret_is_in_the_evidence(tmp_path: Path) -> None:
    context = validated(tmp_path)
    evidence.run(context)
    for info in context.evidence_store.list("m1/"):
        assert SIGNING_SEED.encode() not in (context.evidence_store.get(info.key) or b"")


def test_the_bundle_is_the_same_for_the_same_state(tmp_path: Path) -> None:
    context = validated(tmp_path)
    made = [
        evidence_bundle.build(
            context.record, Outcome.PASSED, signed_at=context.now(), object_lock={}, warnings=[]
        ).canonical()
        for _ in range(2)
    ]
    assert made[0] == made[1]


def test_evidence_of_version_1_stays_readable() -> None:
    data = (CASES / "evidence.json").read_bytes()
    key = bytes.fromhex((CASES / "public-key.txt").read_text().split()[-1])
    found = verify_evidence(data, key)
    assert found.bundle.migration_id == "m1"
    assert found.bundle.outcome is Outcome.PASSED
    altered = data.replace(b"2026", b"2025", 1)
    assert altered != data
    with pytest.raises(MigrationError):
        verify_evidence(altered, key)


def test_a_context_without_a_plan_says_so(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    (tmp_path / "store" / "m1" / "plan.json").unlink()
    with pytest.raises(Terminal, match="no plan"):
        publish.publish(context, Outcome.FAILED)
