"""How the connections of a job get to Spark: as a file, as references, or sealed; or a named refusal beforehand."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import (
    ConnectionInvalid,
    ReferencesUnfit,
    SealedReferencesAltered,
    SealedReferencesExpired,
    SealedReferencesForeign,
    SealingKeyMissing,
    SealingKeyWrong,
    SpecInvalid,
)
from airflow_provider_kafka_migration.provider.connections import private_directory
from airflow_provider_kafka_migration.provider.job_references import (
    SparkPlace,
    Travel,
    is_this_machine,
    job_references,
    private_folder,
    remove_directory,
    travel,
)
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.references.argument import MAX_SEALED_CHARS
from airflow_provider_kafka_migration.references.local import this_machine
from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, Binding, PrivateKey
from airflow_provider_kafka_migration.spark import sealed as sealed_module
from airflow_provider_kafka_migration.spark.worker import JobReferences
from airflow_provider_kafka_migration.spec import parse_spec

MARK = "mark-9f2c"
CONNECTIONS = {
    "kafka_source": {"bootstrap.servers": "a:1", "sasl.password": f"{MARK}-source"},
    "kafka_target": {"bootstrap.servers": "b:1", "sasl.password": f"{MARK}-target"},
}
RESOLVER = Resolver({"airflow": lambda conn_id: json.dumps(CONNECTIONS[conn_id])})
PAIR = PrivateKey.new()
HERE = SparkPlace(True, "local")
ELSEWHERE = SparkPlace(False, "yarn")
SEALING = SparkPlace(False, "yarn", PAIR.public.text)


@pytest.fixture
def spec_data(minimal_spec: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A spec whose journal is a folder."""
    minimal_spec["storage"] = {"journal": (tmp_path / "store").as_uri()}
    return minimal_spec


@pytest.fixture(autouse=True)
def no_renewals_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_module, "_RENEWALS", sealed_module._Renewals())
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def given(
    data: dict[str, Any],
    place: SparkPlace,
    folder: Path,
    *,
    job: str = "seed",
    token: str = "t1",
    resolver: Any = None,
    **options: Any,
) -> Any:
    return job_references(
        parse_spec(data), resolver or RESOLVER, place=place, job=job, token=token, folder=folder / "private", **options
    )


def opened(argument: str, data: dict[str, Any], job: str = "seed", token: str | None = None) -> JobReferences:
    binding = Binding(data["migration_id"], job, token)
    return JobReferences.open(argument, location=data["storage"]["journal"], binding=binding)


# --- decision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[4,4]", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://127.0.0.1:7077,127.0.0.1:7078", True),
        ("spark://127.0.0.1:7077,other:7078", False),
        ("spark://localhost.example:7077", False),
        ("spark://master:7077", False),
        ("local-cluster[2,1,1024]", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_a_master_says_whether_all_is_on_this_machine(master: str, here: bool) -> None:
    assert is_this_machine(master) is here


@pytest.mark.parametrize(
    ("wanted", "place", "references", "expected"),
    [
        ("auto", HERE, "airflow", Travel.FILE),
        ("auto", HERE, "self", Travel.FILE),
        ("auto", ELSEWHERE, "self", Travel.REFERENCES),
        ("auto", SEALING, "self", Travel.REFERENCES),
        ("auto", SEALING, "airflow", Travel.SEALED),
        ("auto", ELSEWHERE, "airflow", ReferencesUnfit),
        ("file", HERE, "airflow", Travel.FILE),
        ("file", SEALING, "airflow", ReferencesUnfit),
        ("file", ELSEWHERE, "self", ReferencesUnfit),
        ("env", ELSEWHERE, "airflow", Travel.REFERENCES),
        ("env", HERE, "airflow", Travel.REFERENCES),
        ("sealed", SEALING, "self", Travel.SEALED),
        ("sealed", HERE, "airflow", SealingKeyMissing),
        ("sealed", SparkPlace(True, "local", "secret-of-somebody"), "airflow", SealingKeyMissing),
        ("sealed", SparkPlace(True, "local", PAIR.text), "airflow", SealingKeyMissing),
        ("auto", SparkPlace(False, "yarn", PAIR.text), "airflow", SealingKeyMissing),
    ],
)
def test_what_travels_how(
    wanted: str, place: SparkPlace, references: str, expected: Any, spec_data: dict[str, Any]
) -> None:
    spec_data["spark"] = {"executor_references": wanted}
    if references == "self":
        spec_data["source"] = {"conn_id": "secretsmanager:prod/kafka"}
        spec_data["target"] = {"conn_id": "vault:secret/kafka#target"}
    spec = parse_spec(spec_data)
    if isinstance(expected, Travel):
        assert travel(spec, place) is expected
        return
    with pytest.raises(expected) as caught:
        travel(spec, place)
    assert caught.value.next_step
    assert "secret-of-somebody" not in str(caught.value)
    assert PAIR.text not in str(caught.value)


def test_the_key_of_the_spec_wins(spec_data: dict[str, Any]) -> None:
    other = PrivateKey.new()
    spec_data["spark"] = {"executor_references": "sealed", "sealing_key": other.public.text}
    assert travel(parse_spec(spec_data), SparkPlace(False, "yarn")) is Travel.SEALED


def test_refusals_name_all_connections_that_cannot_travel(spec_data: dict[str, Any]) -> None:
    spec_data["storage"]["conn_id"] = "env:S3"
    with pytest.raises(ReferencesUnfit, match=r"source \(kafka_source\), target \(kafka_target\)\.? ?\("):
        travel(parse_spec(spec_data), ELSEWHERE)


def test_a_job_of_one_side_needs_only_that_one(spec_data: dict[str, Any]) -> None:
    spec_data["source"] = {"conn_id": "env:SOURCE"}
    assert travel(parse_spec(spec_data), ELSEWHERE, "backup") is Travel.REFERENCES
    with pytest.raises(ReferencesUnfit):
        travel(parse_spec(spec_data), ELSEWHERE, "restore")


def test_airflow_is_refused_with_what_to_do(spec_data: dict[str, Any]) -> None:
    spec_data["spark"] = {"executor_references": "airflow"}
    with pytest.raises(SpecInvalid, match="executors have no Airflow") as caught:
        parse_spec(spec_data)
    assert "sealed" in str(caught.value)


def test_a_private_key_in_a_spec_is_refused_and_not_quoted(spec_data: dict[str, Any]) -> None:
    spec_data["spark"] = {"sealing_key": PAIR.text}
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(spec_data)
    assert PAIR.text not in str(caught.value)


# --- file -----------------------------------------------------------------------------------------------------------


def test_a_file_is_private_and_removed(spec_data: dict[str, Any], tmp_path: Path) -> None:
    with given(spec_data, HERE, tmp_path) as argument:
        path = Path(argument)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert json.loads(path.read_text()) == {
            "source": CONNECTIONS["kafka_source"],
            "target": CONNECTIONS["kafka_target"],
            "storage": None,
        }
        assert opened(argument, spec_data).resolve()["source"] == CONNECTIONS["kafka_source"]
    assert not path.parent.exists()


@pytest.mark.parametrize("place", [HERE, SEALING, ELSEWHERE])
def test_the_folder_is_removed_when_the_job_fails(place: SparkPlace, spec_data: dict[str, Any], tmp_path: Path) -> None:
    spec_data["spark"] = {"executor_references": "auto" if place is not ELSEWHERE else "env"}

    def fail() -> None:
        with given(spec_data, place, tmp_path):
            assert (tmp_path / "private").is_dir()
            raise RuntimeError("spark failed")

    with pytest.raises(RuntimeError):
        fail()
    assert not (tmp_path / "private").exists()


def test_a_new_attempt_removes_what_a_killed_one_left(spec_data: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "references.json").write_text("old secret")
    (folder / "more").write_text("old secret")
    with given(spec_data, HERE, tmp_path):
        assert sorted(item.name for item in folder.iterdir()) == ["references.json"]


def test_a_folder_of_somebody_else_is_never_used(tmp_path: Path) -> None:
    """Another user could have made the folder, or a link, to read what is written there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "x"
    link.symlink_to(elsewhere)
    with pytest.raises(ConnectionInvalid, match=f"cannot be used on {this_machine()}"), private_folder(link):
        pass
    remove_directory(link)
    assert elsewhere.exists()
    assert list(elsewhere.iterdir()) == []


def test_the_folder_is_the_same_for_all_attempts_of_a_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_MIGRATION__SECRETS_DIRECTORY", str(tmp_path))
    one = private_directory("dag/run", "seed")
    assert one == private_directory("dag/run", "seed")
    assert one != private_directory("dag/run", "tail")
    assert one != private_directory("dag/run2", "seed")
    assert one.parent == tmp_path
    assert str(os.getuid()) in one.name


def test_a_job_of_one_side_gets_only_that_one(spec_data: dict[str, Any], tmp_path: Path) -> None:
    with given(spec_data, HERE, tmp_path, job="backup") as argument:
        assert f"{MARK}-target" not in Path(argument).read_text()
        assert opened(argument, spec_data).resolve()["target"] is None


# --- references -----------------------------------------------------------------------------------------------------


def test_references_travel_in_the_argument(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec_data |= {"spark": {"executor_references": "env"}, "target": {"conn_id": "file:/run/a,b=c d.json"}}
    with given(spec_data, ELSEWHERE, tmp_path) as argument:
        pass
    assert argument == "inline:source=env:KAFKA_MIGRATION_SOURCE,target=file:/run/a%2Cb%3Dc%20d.json"
    found = opened(argument, spec_data)
    assert json.loads(found.inline or "")["target"] == "file:/run/a,b=c d.json"
    monkeypatch.setenv("KAFKA_MIGRATION_SOURCE", json.dumps(CONNECTIONS["kafka_source"]))
    with pytest.raises(ConnectionInvalid, match=f"No such file or directory, on {this_machine()}"):
        found.resolve()


@pytest.mark.parametrize("argument", ["inline:", "inline:source", "inline:other=env:A", "inline:source=kafka_source"])
def test_malformed_inline_references_are_refused(argument: str, spec_data: dict[str, Any]) -> None:
    with pytest.raises(ConnectionInvalid, match="malformed"):
        opened(argument, spec_data)


def test_a_missing_variable_names_the_machine(spec_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ConnectionInvalid, match=f"NOT_THERE is not set on {this_machine()}"):
        opened("inline:source=env:NOT_THERE", spec_data).resolve()


# --- sealed ---------------------------------------------------------------------------------------------------------


def test_sealed_references_open_where_the_private_key_is(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with given(spec_data, SEALING, tmp_path) as argument:
        assert list((tmp_path / "private").iterdir()) == []
    assert MARK not in argument
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    found = opened(argument, spec_data)
    assert MARK not in repr(found)
    assert found.resolve() == {
        "source": CONNECTIONS["kafka_source"],
        "target": CONNECTIONS["kafka_target"],
        "storage": None,
    }


def test_the_private_key_may_be_a_reference_and_several(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(PAIR.text + "\n")
    file.chmod(0o600)
    monkeypatch.setenv(KEY_VARIABLE, f"{PrivateKey.new().text} file:{file}")
    with given(spec_data, SEALING, tmp_path) as argument:
        assert opened(argument, spec_data).resolve()["target"] == CONNECTIONS["kafka_target"]


def test_a_machine_without_the_key_is_named(spec_data: dict[str, Any], tmp_path: Path) -> None:
    with given(spec_data, SEALING, tmp_path) as argument, pytest.raises(SealingKeyMissing, match=this_machine()):
        opened(argument, spec_data)


@pytest.mark.parametrize("text", ["hunter2", "kmpriv1_hunter2", PAIR.public.text], ids=["text", "cut", "public"])
def test_a_key_that_is_none_is_named_and_not_quoted(
    text: str, spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, text)
    with given(spec_data, SEALING, tmp_path) as argument, pytest.raises(SealingKeyMissing) as caught:
        opened(argument, spec_data)
    assert this_machine() in str(caught.value)
    assert text not in str(caught.value)


def test_a_key_of_another_pair_is_named(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PrivateKey.new()
    monkeypatch.setenv(KEY_VARIABLE, other.text)
    with given(spec_data, SEALING, tmp_path) as argument, pytest.raises(SealingKeyWrong) as caught:
        opened(argument, spec_data)
    assert all(word in str(caught.value) for word in (this_machine(), PAIR.public.id, other.public.id))


@pytest.mark.parametrize("change", ["flip", "cut", "longer", "version", "empty", "unknown character"])
def test_altered_ciphertext_is_refused(
    change: str, spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    with given(spec_data, SEALING, tmp_path) as argument:
        pass
    head, _, box = argument.rpartition(".")
    middle = len(box) // 2
    wrong = {
        "flip": f"{head}.{box[:middle]}{'A' if box[middle] != 'A' else 'B'}{box[middle + 1 :]}",
        "cut": argument[:-8],
        "longer": argument + "AAAA",
        "version": argument.replace("sealed:v1", "sealed:v2"),
        "empty": "sealed:",
        "unknown character": f"{head}.{box[:middle]}!{box[middle:]}",
    }[change]
    with pytest.raises(SealedReferencesAltered, match=this_machine()):
        opened(wrong, spec_data)


@pytest.mark.parametrize(("job", "token"), [("tail", None), ("seed", "t2")])
def test_references_of_another_job_are_refused(
    job: str, token: str | None, spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    with given(spec_data, SEALING, tmp_path) as argument, pytest.raises(SealedReferencesForeign, match="seed"):
        opened(argument, spec_data, job, token)


def test_references_of_another_migration_are_refused(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    with given(spec_data, SEALING, tmp_path) as argument, pytest.raises(SealedReferencesForeign):
        opened(argument, {**spec_data, "migration_id": "other"})


def _no_renewal(data: dict[str, Any]) -> None:
    """Remove the renewals, as if the task had ended at once."""
    for path in Path(data["storage"]["journal"].removeprefix("file://")).rglob("*.renewal"):
        path.unlink()


def test_expired_references_are_refused(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    spec_data["spark"] = {"sealed_for": "0s"}
    with given(spec_data, SEALING, tmp_path) as argument:
        pass
    _no_renewal(spec_data)
    with pytest.raises(SealedReferencesExpired, match=this_machine()):
        opened(argument, spec_data).resolve()


def test_a_renewal_keeps_a_running_job_alive(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process enters again with the same token, with a longer validity, and the old argument works on."""
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    monkeypatch.setattr(sealed_module, "RENEW_SECONDS", 0.0)
    spec_data["spark"] = {"sealed_for": "0s"}
    with given(spec_data, SEALING, tmp_path) as argument:
        found = opened(argument, spec_data)
        with pytest.raises(SealedReferencesExpired):
            found.resolve()
    spec_data["spark"] = {"sealed_for": "1h"}
    with given(spec_data, SEALING, tmp_path):
        assert found.resolve()["source"] == CONNECTIONS["kafka_source"]
        shipped = found.refreshed()
    _no_renewal(spec_data)
    monkeypatch.setattr(sealed_module, "_RENEWALS", sealed_module._Renewals())
    assert shipped.resolve()["source"] == CONNECTIONS["kafka_source"], "a new executor has only what is shipped"


def test_a_renewal_of_another_submission_is_not_used(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    with given(spec_data, SEALING, tmp_path, token="t1") as argument, given(spec_data, SEALING, tmp_path, token="t2"):
        pass
    folder = tmp_path / "store" / spec_data["migration_id"] / "sealed"
    (folder / "seed-t2.renewal").replace(folder / "seed-t1.renewal")
    with pytest.raises(SealedReferencesForeign):
        opened(argument, spec_data).resolve()


def _with_long_certificates(folder: Path) -> tuple[Resolver, dict[str, str]]:
    """A connection that names files of this machine, too long for an argument."""
    texts = {name: f"{name} {MARK} {os.urandom(4000).hex()}" for name in ("ca", "certificate", "key")}
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    settings = {"bootstrap.servers": "a:1", **{f"ssl.{name}.location": str(folder / f"{name}.pem") for name in texts}}
    return Resolver({"airflow": lambda _: json.dumps(settings)}), texts


def test_files_of_this_machine_travel_as_texts_and_long_ones_as_an_object(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver, texts = _with_long_certificates(tmp_path)
    with given(spec_data, SEALING, tmp_path, resolver=resolver) as argument:
        assert len(argument) <= MAX_SEALED_CHARS
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    found = opened(argument, spec_data)
    for name in texts:
        (tmp_path / f"{name}.pem").unlink()
    assert found.resolve()["source"] == {"bootstrap.servers": "a:1"} | {f"ssl.{k}.pem": v for k, v in texts.items()}
    stored = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(stored) == 2
    assert not any(MARK.encode() in data for data in stored)


def test_a_renewal_writes_no_other_object_with_connections(spec_data: dict[str, Any], tmp_path: Path) -> None:
    """A deferred task renews each time it wakes up, for days."""
    resolver, _ = _with_long_certificates(tmp_path)
    with given(spec_data, SEALING, tmp_path, resolver=resolver):
        pass
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    with given(spec_data, SEALING, tmp_path, resolver=resolver, renews=True):
        pass
    after = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert set(after) == set(before)
    assert [path.suffix for path in after if after[path] != before[path]] == [".renewal"]


def test_an_object_that_was_replaced_is_refused(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the storage can encrypt with the public key, but must not name other clusters."""
    resolver, _ = _with_long_certificates(tmp_path)
    other, _ = _with_long_certificates(tmp_path)
    with given(spec_data, SEALING, tmp_path, resolver=resolver) as argument:
        pass
    (first,) = (tmp_path / "store").rglob("*.connections")
    with given(spec_data, SEALING, tmp_path, resolver=other):
        pass
    (second,) = set((tmp_path / "store").rglob("*.connections")) - {first}
    first.write_bytes(second.read_bytes())
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    with pytest.raises(SealedReferencesAltered, match="not the one that the task wrote"):
        opened(argument, spec_data)


def test_a_file_that_only_executors_have_stays_a_path(
    spec_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bootstrap.servers": "a:1", "ssl.ca.location": "/only/on/executors.pem"}
    monkeypatch.setenv(KEY_VARIABLE, PAIR.text)
    resolver = Resolver({"airflow": lambda _: json.dumps(settings)})
    with given(spec_data, SEALING, tmp_path, resolver=resolver) as argument:
        assert opened(argument, spec_data).resolve()["target"] == settings
