"""Apicurio's own API: what it sends is checked, and its archives hold what is asked for."""

from __future__ import annotations

import io
import json
import socket
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from http_script import HttpScript, answer

from airflow_provider_kafka_migration.errors import (
    MigrationError,
    RegistryAnswerInvalid,
    RegistryForbidden,
    RegistryRefused,
)
from airflow_provider_kafka_migration.registry.access import RegistryAccess
from airflow_provider_kafka_migration.registry.apicurio import Apicurio
from airflow_provider_kafka_migration.registry.apicurio_zip import archive, content_hash
from airflow_provider_kafka_migration.registry.client import Registry
from airflow_provider_kafka_migration.registry.model import Reference, RegisteredSchema, Schema

INFO = {"name": "Apicurio Registry (SQL)", "version": "3.3.3"}
ARTIFACT = "/prefix/apis/registry/v3/groups/default/artifacts/s"
VERSION = {"version": "2", "contentId": 7, "state": "ENABLED"}
ROW = RegisteredSchema("s", 2, 7, Schema("AVRO", '"string"'))


@contextmanager
def apicurio(answers: Mapping[str, bytes]) -> Iterator[tuple[Registry, Apicurio, HttpScript]]:
    """A server that answers by path; the key may have the method in front."""

    def handler(connection: socket.socket, head: str, body: bytes) -> None:
        method, target, _ = head.split(" ", 2)
        path = target.partition("?")[0]
        missing = answer('{"title": "nothing here"}', "404 Not Found")
        known = {"/prefix/apis/registry/v3/system/info": answer(json.dumps(INFO)), **answers}
        connection.sendall(known.get(f"{method} {path}", known.get(path, missing)))

    with HttpScript(handler) as script:
        access = RegistryAccess.from_dict({"url": f"{script.url}/prefix/apis/ccompat/v7"}, retry_seconds=0)
        with Registry(access, "target") as registry:
            own_api = registry.apicurio()
            assert own_api is not None
            yield registry, own_api, script


def as_json(value: Any) -> bytes:
    whole: bytes = answer(json.dumps(value))
    return whole


SHOWN = {"/prefix/apis/ccompat/v7/subjects/s/versions": as_json([2])}


@pytest.mark.parametrize(
    ("answers", "call", "kind"),
    [
        ({f"{ARTIFACT}/rules": as_json({})}, lambda api: api.has_compatibility_rule("s"), RegistryAnswerInvalid),
        ({f"{ARTIFACT}/rules": answer("<html>")}, lambda api: api.has_compatibility_rule("s"), RegistryAnswerInvalid),
        ({f"{ARTIFACT}/versions": as_json([])}, lambda api: api.version("s", 2), RegistryAnswerInvalid),
        (
            {f"{ARTIFACT}/versions": as_json({"versions": [{"version": 2}]})},
            lambda api: api.version("s", 2),
            RegistryAnswerInvalid,
        ),
        (
            {**SHOWN, f"{ARTIFACT}/versions": as_json({"versions": [{**VERSION, "version": "1.0"}]})},
            lambda api: api.version("s", 2),
            RegistryRefused,
        ),
        (
            {**SHOWN, f"{ARTIFACT}/versions": as_json({"versions": [{**VERSION, "version": "3"}]})},
            lambda api: api.version("s", 2),
            RegistryRefused,
        ),
        (
            {
                **SHOWN,
                f"{ARTIFACT}/versions": as_json({"versions": [VERSION]}),
                ARTIFACT: as_json({"artifactType": "AVRO"}),
            },
            lambda api: api.version("s", 2),
            RegistryAnswerInvalid,
        ),
        (
            {"/prefix/apis/registry/v3/search/artifacts": as_json({"count": 2, "artifacts": [{"artifactId": "s"}]})},
            lambda api: api.subjects(),
            RegistryAnswerInvalid,
        ),
        ({"/prefix/apis/registry/v3/admin/export": answer("<html>")}, lambda api: api.export(), RegistryAnswerInvalid),
        ({"/prefix/apis/registry/v3/admin/export": answer("", "403 No")}, lambda api: api.export(), RegistryForbidden),
        ({}, lambda api: api.export(), RegistryRefused),
    ],
    ids=range(11),
)
def test_wrong_answers_are_named(
    answers: dict[str, bytes], call: Callable[[Apicurio], Any], kind: type[MigrationError]
) -> None:
    with apicurio(answers) as (_, own_api, _), pytest.raises(kind) as caught:
        call(own_api)
    assert caught.value.where.path


def test_a_refusal_has_the_servers_words_and_no_secret() -> None:
    refusal = answer('{"title": "Import is disabled"}', "405 No")
    found = {
        "/prefix/apis/registry/v3/search/artifacts": as_json({"count": 0, "artifacts": []}),
        "POST /prefix/apis/registry/v3/admin/import": refusal,
    }
    with apicurio(found) as (_, own_api, script):
        with pytest.raises(RegistryRefused, match="HTTP 405: Import is disabled"):
            own_api.import_schemas([ROW])
        sent = [head for head, _ in script.requests if "admin/import" in head]
    assert len(sent) == 1
    assert "requireEmptyRegistry=false" in sent[0]
    assert "x-registry-preserve-contentid: true" in sent[0].lower()
    assert "x-registry-preserve-globalid: false" in sent[0].lower()


def test_a_version_that_the_compatible_api_hides() -> None:
    base = "/prefix/apis/registry/v3/ids/contentIds/7"
    listed = {"versions": [{"version": "2", "contentId": 7, "state": "DISABLED"}]}
    found = {
        **SHOWN,
        f"{ARTIFACT}/versions": as_json(listed),
        ARTIFACT: as_json({"artifactType": "JSON"}),
        base: answer('{"type": "object"}'),
        f"{base}/references": as_json([{"name": "n", "artifactId": "o", "version": "3"}]),
        "/prefix/apis/ccompat/v7/subjects/s/versions/2": answer('{"error_code": 40401}', "404 Not Found"),
    }
    with apicurio(found) as (registry, _, _):
        made = registry.schema("s", 2, deleted=True)
    schema = Schema("JSON", '{"type": "object"}', (Reference("n", "o", 3),))
    assert made == RegisteredSchema("s", 2, 7, schema, deleted=True)


def test_another_product_at_that_place_is_no_apicurio() -> None:
    with HttpScript(answer('{"name": "Something else"}')) as script:
        access = RegistryAccess.from_dict({"url": f"{script.url}/apis/ccompat/v7"}, retry_seconds=0)
        with Registry(access, "target") as registry:
            assert registry.apicurio() is None


# -- archives ---------------------------------------------------------------------------------------------------------


def entries(raw: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        return {
            name: json.loads(file.read(name)) if name.endswith(".json") else file.read(name) for name in file.namelist()
        }


def test_versions_above_the_highest_are_drafts_and_their_subject_has_no_branch() -> None:
    rows = [
        RegisteredSchema("s", version, version, Schema("AVRO", f'"string{version}"'), deleted=version == 6)
        for version in (1, 5, 6)
    ]
    rows.append(RegisteredSchema("new", 4, 6, rows[2].schema, deleted=True))
    found = entries(archive(rows, highest={"s": 3, "new": 0}))
    versions = [value for name, value in found.items() if name.endswith(".ArtifactVersion.json")]
    assert {(each["artifactId"], each["versionOrder"], each["contentId"], each["state"]) for each in versions} == {
        ("s", 1, 1, "ENABLED"),
        ("s", 5, 5, "DRAFT"),
        ("s", 6, 6, "DRAFT"),
        ("new", 4, 6, "DISABLED"),
    }
    branches = [value for name, value in found.items() if name.endswith(".Branch.json")]
    assert [(each["artifactId"], each["versions"]) for each in branches] == [("new", ["4"])]
    assert len([name for name in found if name.endswith(".Content.data")]) == 3
    assert len({each["globalId"] for each in versions}) == 4


def test_references_are_part_of_a_contents_hash() -> None:
    plain = Schema("AVRO", '"string"')
    with_reference = Schema("AVRO", '"string"', (Reference("n", "s", 1),))
    assert content_hash(plain) == "e9e5c1c9e4f6277339d1bcde0733a59bd42f8731f449da6dc13010a916930d48"
    assert content_hash(plain) != content_hash(with_reference)
