"""The three verbs of all ``on_*`` keys, and that the words of earlier versions are read wherever they were recorded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from airflow_provider_kafka_migration.documents.copy import CopyJob, TombstoneSettings
from airflow_provider_kafka_migration.errors import FingerprintChanged, SpecInvalid
from airflow_provider_kafka_migration.journal import Journal, Owner
from airflow_provider_kafka_migration.journal.spec_guard import flatten, guard_spec, last_spec, recorded_spec
from airflow_provider_kafka_migration.spec import MigrationSpec, json_schema, load_spec, parse_spec
from airflow_provider_kafka_migration.storage.local import LocalStore
from airflow_provider_kafka_migration.verbs import VERBS, Choice, former_word, in_former_words

CASES = Path(__file__).parents[1] / "cases" / "former_verbs" / "v1"
CHOICES = get_args(Choice)
WORDS = [(path, word, verb) for path, verbs in VERBS.items() for word, verb in verbs.former.items()]


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """A spec with one ``on_*`` key; recorded, so that no rule about two keys matters."""
    section, _, key = path.partition(".")
    spec: dict[str, Any] = {
        "migration_id": "m1",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/journal"},
        "schemas": {"source": "r1", "target": "r2"},
    }
    if section == "adopt":
        spec["adopt"] = {"from": "mirror", "migration_id": "m0"}
    # What these verbs delete, only a mirror may delete.
    if path in ("topology.on_topic_deleted", "groups.on_deleted"):
        spec |= {"kind": "mirror", "mirror": {"source_alias": "x", "target_alias": "y"}}
    return {**spec, section: {**spec.get(section, {}), key: value}}


def value_of(spec: MigrationSpec, path: str) -> Any:
    section, _, key = path.partition(".")
    return getattr(getattr(spec, section), key)


def keys_with_verbs(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = [item for item in (field.annotation, *get_args(field.annotation)) if isinstance(item, type)]
        for kind in kinds:
            if issubclass(kind, BaseModel):
                yield from keys_with_verbs(kind, f"{above}{name}.")
        if name.startswith("on_"):
            yield f"{above}{name}"


def test_every_key_is_in_the_table_and_takes_what_the_table_says() -> None:
    assert sorted(keys_with_verbs(MigrationSpec)) == sorted(VERBS)
    for path, verbs in VERBS.items():
        section, _, key = path.partition(".")
        model: Any = next(
            item
            for item in (MigrationSpec.model_fields[section].annotation,)
            for item in (item, *get_args(item))
            if isinstance(item, type) and issubclass(item, BaseModel)
        )
        field = model.model_fields[key]
        assert list(get_args(field.annotation)) == list(verbs.means), path
        assert field.default in verbs.means, path
        assert [verb for verb in CHOICES if verb in verbs.means] == list(verbs.means), path
        assert set(verbs.former.values()) == set(verbs.means), "each verb has a former word, for digests"
        assert set(verbs.former).isdisjoint(CHOICES), path


@pytest.mark.parametrize(("path", "word", "verb"), WORDS)
@pytest.mark.parametrize("recorded", [True, False])
def test_each_former_word_is_read_as_its_verb(path: str, word: str, verb: str, recorded: bool) -> None:
    if not recorded and (path, word) in {("adopt.on_duplicates", "report"), ("adopt.on_duplicates", "afresh")}:
        recorded = True
    found = parse_spec(spec_with(path, word), recorded=recorded)
    assert value_of(found, path) == verb
    assert found == parse_spec(spec_with(path, verb), recorded=recorded)
    section, _, key = path.partition(".")
    assert found.model_dump(mode="json", by_alias=True)[section][key] == verb, "only the verb is written"


@pytest.mark.parametrize("path", VERBS)
def test_a_verb_that_a_key_does_not_take_is_named_with_those_that_it_takes(path: str) -> None:
    takes = VERBS[path].means
    for wrong in [*(verb for verb in CHOICES if verb not in takes), "stpo", "", 1, None, ["stop"]]:
        with pytest.raises(SpecInvalid) as caught:
            parse_spec(spec_with(path, wrong))
        (mistake,) = caught.value.details["mistakes"]
        assert mistake["path"] == path
        assert mistake["reason"].startswith(f"{path} takes "), wrong
        assert [verb for verb in CHOICES if re.search(rf"\b{verb} \(", mistake["reason"])] == list(takes)


def test_the_schema_for_editors_takes_former_words_as_deprecated() -> None:
    found = json_schema()["$defs"]["OffsetsSection"]["properties"]["on_source_gap"]["anyOf"]
    assert [item.get("deprecated", False) for item in found] == [False, True]
    assert [item["enum"] for item in found] == [["stop", "note"], ["fail", "record"]]


# -- what earlier versions recorded -----------------------------------------------------------------------------------


@pytest.fixture
def journal(local_store: LocalStore) -> Journal:
    """The journal of a mirror with former words, by an earlier version; its state is ``tail``."""
    for file in sorted(CASES.glob("0*.json")):
        local_store.put(f"m1/journal/{file.name}", file.read_bytes())
    local_store.put("m1/journal.jsonl", (CASES / "journal.jsonl").read_bytes())
    return Journal(local_store, "m1")


def in_new_words(journal: Journal) -> MigrationSpec:
    """The recorded spec as a person has it who has put the verbs into its file."""
    return parse_spec(parse_spec(recorded_spec(journal), recorded=True).model_dump(mode="json"))


def test_the_guard_sees_no_change_between_former_words_and_verbs(journal: Journal) -> None:
    recorded = last_spec(journal)
    assert recorded is not None
    assert recorded.details["fields"]["offsets.on_source_gap"] == "record", "the case has former words"
    before = journal.entries()
    spec = in_new_words(journal).model_dump(mode="json")
    assert flatten(spec)["offsets.on_source_gap"] == "note"
    assert guard_spec(journal, spec) == {}
    assert journal.entries() == before
    file = flatten(load_spec(CASES / "spec.yaml").model_dump(mode="json"))
    assert {path: file[path] for path in VERBS if path in file} == {
        path: flatten(spec)[path] for path in VERBS if path in file
    }


def test_another_verb_is_still_a_change(journal: Journal) -> None:
    spec = in_new_words(journal).model_dump(mode="json")
    spec["topology"]["on_config_drift"] = "repair"
    with pytest.raises(FingerprintChanged, match=r"topology\.on_config_drift: 'note' -> 'repair'"):
        guard_spec(journal, spec)
    spec = in_new_words(journal).model_dump(mode="json")
    spec["offsets"]["on_source_gap"] = "stop"
    journal.claim(Owner("dag_run", "run-2", "bob"), takeover=True)
    assert guard_spec(journal, spec) == {"offsets.on_source_gap": {"old": "note", "new": "stop"}}


def test_a_digest_is_made_of_the_words_that_were_recorded(journal: Journal) -> None:
    """Of all keys that the version of the case had."""
    before = flatten(journal.entries()[0].details["spec"])
    now = flatten(in_former_words(in_new_words(journal).model_dump(mode="json")))
    assert {path: now.get(path) for path in before} == before


def test_a_copy_job_is_read_and_written_as_it_was() -> None:
    """A copier of an earlier version may read it, and the end of a backup has its digest."""
    data = (CASES / "job.json").read_bytes()
    job = CopyJob.parse(data)
    assert (job.on_mismatch, job.on_source_gap) == ("note", "note")
    assert job.tombstones == TombstoneSettings(on_overtaken="note", retention_ms={"users": 86_400_000})
    assert [item.on_mismatch for item in job.lanes[0].partitions] == ["stop", "note", None]
    assert job.canonical() == data


def test_what_is_kept_in_former_words_reads_back() -> None:
    for path, verbs in VERBS.items():
        for verb in verbs.means:
            assert verbs.former[former_word(path, verb)] == verb


# -- what is written now ----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
_FORMER = re.compile(
    r"\b(?:"
    + "|".join(
        rf"{path.rpartition('.')[2]}(?:: | to |=|\": \")(?:{'|'.join(verbs.former)})\b" for path, verbs in VERBS.items()
    )
    + ")"
)


def texts(file: Path) -> Iterator[str]:
    """The text of a file; of code, its strings, each as one."""
    content = file.read_text(encoding="utf-8")
    yield content
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield ast.unparse(node)


@pytest.mark.parametrize("folder", ["airflow_provider_kafka_migration", "docs", "demo", "dags", "harness", "README.md"])
def test_no_text_has_a_former_word(folder: str) -> None:
    place = ROOT / folder
    files = [place] if place.is_file() else sorted(item for item in place.rglob("*") if item.is_file())
    kinds = (".py", ".md", ".j2", ".yaml", ".yml", ".html", ".json")
    read = [item for item in files if item.suffix in kinds and item.name != "0027-three-verbs.md"]
    assert read
    found = {
        f"{item.relative_to(ROOT)}: {match[0]}"
        for item in read
        for text in texts(item)
        for match in _FORMER.finditer(text)
    }
    assert found == set()
