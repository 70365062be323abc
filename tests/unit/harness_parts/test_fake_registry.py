"""The fake registry beyond the recorded calls: modes, deletion, contexts, compatibility, hooks, other habits."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from harness.fake_registry import CONFLUENT_WITH_RULES, DropConnection, FakeRegistry, Reply, Request
from harness.fake_registry.texts import avro_names, canonical, incompatibilities

pytestmark = pytest.mark.slow

INT, LONG, STRING = '"int"', '"long"', '"string"'


def ask(registry: FakeRegistry, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(registry.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.loads(reply.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def code(answer: tuple[int, Any]) -> tuple[int, int]:
    return answer[0], answer[1]["error_code"]


def record(*fields: str) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [json.loads(each) for each in fields]})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


class TestImport:
    def test_a_mode_of_a_subject_allows_fixed_ids_there_only(self, registry: FakeRegistry) -> None:
        assert ask(registry, "PUT", "/mode/a", {"mode": "IMPORT"}) == (200, {"mode": "IMPORT"})
        status, answer = ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 7, "version": 4})
        assert (status, answer["id"], answer["version"]) == (200, 7, 4)
        refused = ask(registry, "POST", "/subjects/b/versions", {"schema": INT, "id": 8, "version": 1})
        assert code(refused) == (422, 42205)

    def test_force_imports_over_live_subjects_and_without_it_soft_deleted_ones_are_removed(
        self, registry: FakeRegistry
    ) -> None:
        registry.seed("live", INT, id=1)
        registry.seed("gone", LONG, id=2, deleted=True)
        assert code(ask(registry, "PUT", "/mode/live", {"mode": "IMPORT"})) == (422, 42205)
        assert ask(registry, "PUT", "/mode/live?force=true", {"mode": "IMPORT"})[0] == 200
        assert ask(registry, "PUT", "/mode/gone", {"mode": "IMPORT"})[0] == 200
        assert list(registry.state()["subjects"]) == ["live"]

    def test_the_same_registration_twice_changes_nothing(self, registry: FakeRegistry) -> None:
        ask(registry, "PUT", "/mode", {"mode": "IMPORT"})
        first = ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 7, "version": 4})
        before = registry.state()
        assert ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 7, "version": 4}) == first
        assert registry.state() == before

    def test_a_version_that_is_there_is_replaced(self, registry: FakeRegistry) -> None:
        ask(registry, "PUT", "/mode", {"mode": "IMPORT"})
        ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 7, "version": 4})
        ask(registry, "POST", "/subjects/a/versions", {"schema": LONG, "id": 8, "version": 4})
        assert registry.state()["subjects"]["a"][4]["id"] == 8
        assert code(ask(registry, "GET", "/schemas/ids/7")) == (404, 40403)

    def test_deleting_the_last_version_takes_the_mode_of_the_subject_along(self, registry: FakeRegistry) -> None:
        ask(registry, "PUT", "/mode/a", {"mode": "IMPORT"})
        ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 7, "version": 4})
        assert ask(registry, "DELETE", "/subjects/a/versions/4") == (200, 4)
        assert code(ask(registry, "GET", "/mode/a")) == (404, 40409)

    def test_nothing_is_written_or_deleted_in_readonly(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=1)
        ask(registry, "PUT", "/mode/a", {"mode": "READONLY"})
        before = registry.state()
        assert code(ask(registry, "POST", "/subjects/a/versions", {"schema": LONG})) == (422, 42205)
        assert code(ask(registry, "DELETE", "/subjects/a")) == (422, 42205)
        assert code(ask(registry, "PUT", "/config/a", {"compatibility": "NONE"})) == (422, 42205)
        assert registry.state() == before


class TestContexts:
    def test_ids_and_modes_are_those_of_the_context(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=5)
        assert ask(registry, "POST", "/contexts/.x/subjects/a/versions", {"schema": LONG})[1]["id"] == 1
        assert ask(registry, "POST", "/subjects/:.x:b/versions", {"schema": INT})[1]["id"] == 2
        ask(registry, "PUT", "/mode", {"mode": "READONLY"})
        assert ask(registry, "POST", "/subjects/:.x:c/versions", {"schema": STRING})[1]["id"] == 3
        ask(registry, "PUT", "/contexts/.x/mode", {"mode": "READONLY"})
        assert code(ask(registry, "POST", "/subjects/:.x:d/versions", {"schema": '"bytes"'})) == (422, 42205)

    def test_an_id_is_found_in_the_context_that_the_subject_names(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=1)
        registry.seed(":.x:b", LONG, id=1)
        assert ask(registry, "GET", "/schemas/ids/1")[1]["schema"] == INT
        assert ask(registry, "GET", "/schemas/ids/1?subject=:.x:")[1]["schema"] == LONG
        assert ask(registry, "GET", "/schemas/ids/1?subject=b")[1]["schema"] == LONG
        assert code(ask(registry, "GET", "/schemas/ids/1?subject=:.x:a")) == (404, 40403)

    def test_references_without_a_context_mean_the_own_one(self, registry: FakeRegistry) -> None:
        registry.seed(":.x:a", '{"type":"record","name":"A","fields":[]}', id=1)
        body = {
            "schema": '{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}',
            "references": [{"name": "A", "subject": "a", "version": 1}],
        }
        assert ask(registry, "POST", "/subjects/:.x:b/versions", body)[0] == 200
        assert code(ask(registry, "POST", "/subjects/b/versions", body)) == (422, 42201)
        assert code(ask(registry, "DELETE", "/subjects/:.x:a")) == (422, 42206)
        assert ask(registry, "DELETE", "/subjects/:.x:b")[0] == 200
        assert ask(registry, "DELETE", "/subjects/:.x:a")[0] == 200


class TestDeletion:
    def test_versions_go_in_two_steps(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=1)
        registry.seed("a", LONG, id=2, version=3)
        assert code(ask(registry, "DELETE", "/subjects/a/versions/3?permanent=true")) == (404, 40407)
        assert ask(registry, "DELETE", "/subjects/a/versions/3") == (200, 3)
        assert code(ask(registry, "DELETE", "/subjects/a/versions/3")) == (404, 40406)
        assert ask(registry, "GET", "/subjects/a/versions?deleted=true") == (200, [1, 3])
        assert ask(registry, "GET", "/subjects/a/versions?deletedOnly=true") == (200, [3])
        assert ask(registry, "GET", "/schemas/ids/2")[1]["deleted"] is True
        assert ask(registry, "DELETE", "/subjects/a/versions/3?permanent=true") == (200, 3)
        assert code(ask(registry, "GET", "/schemas/ids/2")) == (404, 40403)

    def test_an_id_is_not_used_again(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=9)
        ask(registry, "DELETE", "/subjects/a")
        assert ask(registry, "DELETE", "/subjects/a?permanent=true") == (200, [1])
        assert ask(registry, "POST", "/subjects/a/versions", {"schema": LONG})[1]["id"] == 10


class TestConfig:
    def test_fields_are_kept_and_changed_one_by_one(self, registry: FakeRegistry) -> None:
        ask(registry, "PUT", "/config/a", {"compatibility": "full", "normalize": True})
        ask(registry, "PUT", "/config/a", {"compatibilityGroup": "g"})
        assert ask(registry, "GET", "/config/a") == (
            200,
            {"normalize": True, "compatibilityLevel": "FULL", "compatibilityGroup": "g"},
        )

    def test_an_alias_stands_for_the_subject_it_names(self, registry: FakeRegistry) -> None:
        registry.seed("real", INT, id=3)
        ask(registry, "PUT", "/config/other", {"alias": "real"})
        assert ask(registry, "GET", "/subjects/other/versions/1")[1]["subject"] == "real"

    @pytest.mark.parametrize(
        ("level", "fits"),
        [
            ("BACKWARD", True),
            ("BACKWARD_TRANSITIVE", False),
            ("FORWARD", True),
            ("FULL", True),
            ("FULL_TRANSITIVE", False),
            ("NONE", True),
        ],
    )
    def test_levels(self, registry: FakeRegistry, level: str, fits: bool) -> None:
        ask(registry, "PUT", "/config", {"compatibility": level})
        registry.seed("a", record('{"name":"y","type":"string","default":""}'), id=1)
        registry.seed("a", record(), id=2, version=2)
        body = {"schema": record('{"name":"y","type":"int","default":0}')}
        answer = ask(registry, "POST", "/compatibility/subjects/a/versions", body)
        assert answer == (200, {"is_compatible": fits})
        answer = ask(registry, "POST", "/subjects/a/versions", body)
        assert answer[0] == 200 if fits else code(answer) == (409, 40901)


class TestTexts:
    def test_protobuf_is_normalized_on_demand(self) -> None:
        base = 'syntax = "proto3";\npackage b;\nmessage Addr { string city = 1; }'
        text = (
            'syntax = "proto3";\npackage t;\nimport "z.proto";\nimport "a.proto";\nmessage M {\n'
            "  message In { int32 n = 1; }\n  repeated In list = 1;\n"
            "  b.Addr addr = 2;\n  map<string, In> by = 3;\n  string s = 4;\n}"
        )
        referenced = {"a.proto": base, "z.proto": 'syntax = "proto3";'}
        assert canonical("PROTOBUF", text, referenced, normalize=True) == (
            'syntax = "proto3";\npackage t;\n\nimport "a.proto";\nimport "z.proto";\n\nmessage M {\n'
            "  message In {\n    int32 n = 1;\n  }\n"
            "  repeated .t.M.In list = 1;\n  .b.Addr addr = 2;\n  map<string, .t.M.In> by = 3;\n  string s = 4;\n}\n"
        )
        plain = canonical("PROTOBUF", text, referenced)
        assert "repeated In list" in plain
        assert canonical("PROTOBUF", plain, referenced, normalize=True) == canonical(
            "PROTOBUF", text, referenced, normalize=True
        )

    @pytest.mark.parametrize(
        ("reader", "writer", "fits"),
        [
            ('"long"', '"int"', True),
            ('"int"', '"long"', False),
            ('["null","string"]', '"string"', True),
            ('"string"', '["null","string"]', False),
            ('{"type":"array","items":"double"}', '{"type":"array","items":"float"}', True),
            (record('{"name":"x","type":"int"}'), record(), False),
            (record('{"name":"x","type":"int","default":0}'), record(), True),
            ('{"type":"enum","name":"E","symbols":["A"]}', '{"type":"enum","name":"E","symbols":["A","B"]}', False),
            ('{"type":"fixed","name":"F","size":4}', '{"type":"fixed","name":"F","size":5}', False),
        ],
    )
    def test_who_reads_whom(self, reader: str, writer: str, fits: bool) -> None:
        assert (incompatibilities(avro_names(reader, []), avro_names(writer, [])) == []) is fits

    def test_a_recursive_type_ends(self) -> None:
        text = record('{"name":"next","type":["null","R"],"default":null}')
        assert incompatibilities(avro_names(text, []), avro_names(text, [])) == []

    def test_protobuf_is_reformatted(self) -> None:
        sent = (
            'syntax="proto3"; // c\nimport "a.proto";message M{map<string,A> a=1;reserved 2,3 to 5;oneof o{int32 i=6;}}'
        )
        kept = (
            'syntax = "proto3";\n\nimport "a.proto";\n\n'
            "message M {\n  map<string, A> a = 1;\n  reserved 2, 3 to 5;\n  oneof o {\n    int32 i = 6;\n  }\n}\n"
        )
        assert canonical("PROTOBUF", sent, {"a.proto": ""}) == kept
        assert canonical("PROTOBUF", kept, {"a.proto": ""}) == kept

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("AVRO", "nothing"),
            ("AVRO", '{"type":"record","name":"A","fields":[{"name":"x","type":"Missing"}]}'),
            ("JSON", "{"),
            ("PROTOBUF", "message M {"),
            ("PROTOBUF", 'import "missing.proto";'),
        ],
    )
    def test_what_is_no_schema_is_refused(self, registry: FakeRegistry, kind: str, text: str) -> None:
        answer = ask(registry, "POST", "/subjects/a/versions", {"schemaType": kind, "schema": text})
        assert code(answer) == (422, 42201)
        assert registry.state()["subjects"] == {}


class TestHooks:
    def test_a_write_can_be_killed_before_and_after_it_happened(self, registry: FakeRegistry) -> None:
        def drop(request: Request, reply: Reply | None = None) -> None:
            if request.writes:
                raise DropConnection

        registry.before = drop
        with pytest.raises(OSError):
            ask(registry, "POST", "/subjects/a/versions", {"schema": INT})
        assert registry.state()["subjects"] == {}
        registry.before, registry.after = None, drop
        with pytest.raises(OSError):
            ask(registry, "POST", "/subjects/a/versions", {"schema": INT})
        assert list(registry.state()["subjects"]) == ["a"]
        assert [request.path for request in registry.writes] == ["/subjects/a/versions"] * 2

    def test_lookups_and_checks_of_compatibility_are_no_writes(self, registry: FakeRegistry) -> None:
        registry.seed("a", INT, id=1)
        ask(registry, "POST", "/subjects/a", {"schema": INT})
        ask(registry, "POST", "/compatibility/subjects/a/versions/latest", {"schema": INT})
        ask(registry, "POST", "/compatibility/subjects/a/versions", {"schema": INT})
        assert registry.writes == []
        assert len(registry.requests) == 3

    def test_an_answer_can_be_replaced(self, registry: FakeRegistry) -> None:
        registry.before = lambda request: Reply.error(429, 429, "slow down")
        assert code(ask(registry, "GET", "/subjects")) == (429, 429)

    def test_it_asks_for_authorization_and_has_a_base_path(self) -> None:
        with FakeRegistry(base_path="/apis/ccompat/v7", authorization="Bearer abc") as registry:
            assert ask(registry, "GET", "/subjects", Authorization="Bearer abc") == (200, [])
            assert code(ask(registry, "GET", "/subjects")) == (401, 40101)

    def test_a_stopped_registry_answers_on_no_connection(self, registry: FakeRegistry) -> None:
        connection = http.client.HTTPConnection(registry.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/subjects")
        assert connection.getresponse().read() == b"[]"
        registry.stop()

        def again() -> int:
            connection.request("GET", "/subjects")
            return connection.getresponse().status

        with pytest.raises(OSError):
            again()


class TestHabits:
    def test_karapace(self) -> None:
        with FakeRegistry("karapace") as registry:
            assert ask(registry, "PUT", "/mode", {"mode": "IMPORT"})[0] == 405
            assert ask(registry, "GET", "/contexts")[0] == 404
            assert ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 9}) == (200, {"id": 1})
            assert code(ask(registry, "GET", "/config/a")) == (404, 40408)

    def test_apicurio(self) -> None:
        with FakeRegistry("apicurio") as registry:
            assert ask(registry, "GET", "/config/a") == (200, {"compatibilityLevel": "NONE"})
            assert ask(registry, "GET", "/mode/a") == (200, {"mode": "READWRITE"})
            assert ask(registry, "GET", "/contexts") == (200, [":.:"])
            ask(registry, "PUT", "/mode", {"mode": "READONLY"})
            assert ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "id": 9}) == (200, {"id": 1})
            assert code(ask(registry, "DELETE", "/subjects/a?permanent=true")) == (409, 40405)
            ask(registry, "DELETE", "/subjects/a")
            assert code(ask(registry, "GET", "/subjects/a/versions/1?deleted=true")) == (404, 40401)

    def test_redpanda(self) -> None:
        with FakeRegistry("redpanda") as registry:
            body = {"schema": INT, "id": 9, "version": 3}
            answer = ask(registry, "POST", "/subjects/a/versions", body)
            assert answer == (422, {"error_code": 42205, "message": "Subject a is not in import mode"})
            ask(registry, "PUT", "/mode/a", {"mode": "IMPORT"})
            assert ask(registry, "POST", "/subjects/a/versions", body) == (200, {"id": 9})
            assert ask(registry, "GET", "/schemas/ids/9") == (200, {"schema": INT})

    @pytest.mark.parametrize("keeps", [False, True])
    def test_rule_sets_are_kept_by_a_build_that_has_them(self, keeps: bool) -> None:
        rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]}
        with FakeRegistry(CONFLUENT_WITH_RULES if keeps else "confluent") as registry:
            plain = ask(registry, "POST", "/subjects/a/versions", {"schema": INT})[1]
            ruled = ask(registry, "POST", "/subjects/a/versions", {"schema": INT, "ruleSet": rules})[1]
            # What is dropped makes no other schema.
            assert (ruled["id"] != plain["id"], ruled["guid"] != plain["guid"]) == (keeps, keeps)
            assert ask(registry, "GET", "/subjects/a/versions/latest")[1].get("ruleSet") == (rules if keeps else None)

    @pytest.mark.parametrize("kind", ["confluent", "karapace", "apicurio", "redpanda"])
    def test_each_kind_can_be_recognized(self, kind: str) -> None:
        with FakeRegistry(kind) as registry:
            assert (ask(registry, "GET", "/v1/metadata/id")[0] == 200) is (kind == "confluent")
            assert (ask(registry, "GET", "/_health")[0] == 200) is (kind == "karapace")
            with urllib.request.urlopen(f"{registry.url}/subjects", timeout=20) as reply:
                assert reply.headers["Server"] == ("Seastar httpd" if kind == "redpanda" else None)


def test_thousands_of_subjects(registry: FakeRegistry) -> None:
    for number in range(5000):
        registry.seed(f"s{number:04}", record(f'{{"name":"f{number}","type":"int"}}'), id=number + 1)
    status, subjects = ask(registry, "GET", "/subjects")
    assert (status, len(subjects)) == (200, 5000)
    assert ask(registry, "GET", "/schemas/ids/4321/versions") == (200, [{"subject": "s4320", "version": 1}])
    assert ask(registry, "POST", "/subjects/new/versions", {"schema": INT})[1]["id"] == 5001
