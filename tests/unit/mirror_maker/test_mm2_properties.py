"""Properties of a MirrorMaker 2 become flows; nothing is dropped without a word, and no secret gets into them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.cli.mirrors.import_properties import import_properties
from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.mirror_maker.properties import (
    COVERED,
    NO_EQUIVALENT,
    NOT_NEEDED,
    meant,
    read_properties,
)
from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec.mirrors_file import load_mirrors, parse_mirrors

ACTIVE_ACTIVE = r"""
# two data centres
clusters = east, west
east.bootstrap.servers = east-1:9093, \
    east-2:9093
west.bootstrap.servers = west-1:9092
east.security.protocol = SASL_SSL
east.sasl.mechanism = SCRAM-SHA-512
east.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="mirror" password="s3cr\\"et";
east.ssl.truststore.location = /etc/kafka/trust.jks
west.sasl.jaas.config = ${file:/secrets/west:jaas}
east->west.enabled = true
west->east.enabled = true
east->west.topics = orders.*, refunds
west->east.topics = stock
topics.exclude = .*\.tmp
sync.group.offsets.enabled = true
east->west.sync.group.offsets.interval.seconds = 10
replication.factor = 3
offset.lag.max = 100
tasks.max = 8
topic.filter.class = com.example.Ours
west.producer.linger.ms = 5
sync.topics.acls.enabled = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "mm2.properties"
    made.write_text(ACTIVE_ACTIVE, encoding="utf-8")
    return made


def run(*arguments: object) -> Any:
    import typer

    app = typer.Typer()
    app.command()(import_properties)
    return CliRunner().invoke(app, [str(item) for item in arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def test_flows_have_their_own_properties_over_the_common_ones() -> None:
    found = read_properties(ACTIVE_ACTIVE)
    there, back = found.flows
    assert (there.name, back.name) == ("east->west", "west->east")
    assert there.spec["topics"] == {"include": ["orders.*", "refunds"], "exclude": [r".*.tmp"]}
    assert there.spec["mirror"]["sync_interval"] == "10s"
    assert back.spec["topics"]["include"] == ["stock"]
    assert "sync_interval" not in back.spec["mirror"]
    assert there.spec["topology"]["replication_factor"] == 3
    assert there.spec["groups"]["exclude"] == ["console-consumer-.*", "connect-.*", "__.*"], "MirrorMaker 2's default"
    assert r"min\.insync\.replicas" in there.spec["topology"]["config_exclude"], "likewise"
    assert there.spec["acls"] == {"write_grants": "at_cutover"}, "nobody else writes to remote topics"


def test_state_topics_are_written_as_mirror_maker_does() -> None:
    """By default it writes them; but a mirror writes to the source only where the file asks for it."""
    plain = "clusters = a, b\na->b.enabled = true\n"

    def section(more: str = "") -> Any:
        return read_properties(plain + more).flows[0].spec["mirror"]["state_topics"]

    assert section() == {"checkpoints": True, "heartbeats": True}
    assert section(
        "emit.checkpoints.interval.seconds = 5\nemit.heartbeats.interval.seconds = 2\n"
        "offset-syncs.topic.location = source\nreplication.policy.internal.topic.separator.enabled = false"
    ) == {
        "checkpoints": True,
        "checkpoints_interval": "5s",
        "heartbeats": True,
        "heartbeats_interval": "2s",
        "offset_syncs": "source",
        "internal_separator": ".",
    }
    off = "emit.checkpoints.enabled = false\nemit.heartbeats.enabled = False\noffset-syncs.topic.location = source"
    assert section(off) == {"checkpoints": False, "heartbeats": False}
    note = read_properties(f"{plain}heartbeats.replication.enabled = false").flows[0].notes
    assert "whenever heartbeats are written" in note["heartbeats.replication.enabled"]


def test_every_property_is_taken_or_named() -> None:
    found = read_properties(ACTIVE_ACTIVE)
    notes = found.flows[0].notes
    assert "a class of your own" in notes["topic.filter.class"]
    assert {"offset.lag.max", "tasks.max"} <= set(notes)
    assert found.unknown == ["sync.topics.acls.enabled"], "a misspelled property must not look as if it had worked"
    assert "a Java key store" in found.connection_notes["east"]["ssl.truststore.location"]
    assert "config provider" in found.connection_notes["west"]["sasl.jaas.config"]
    assert "own clients" in found.connection_notes["west"]["producer.linger.ms"]


def test_connections_are_librdkafka_s_keys() -> None:
    assert read_properties(ACTIVE_ACTIVE).connections["east"] == {
        "bootstrap.servers": "east-1:9093, east-2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "mirror",
        "sasl.password": 's3cr"et',
    }


@pytest.mark.parametrize("key", sorted([*COVERED, *NOT_NEEDED, *NO_EQUIVALENT]))
def test_each_property_of_the_tables_is_known(key: str) -> None:
    name = f"{key}x" if key.endswith(".") else key
    value = "3" if "factor" in key or "seconds" in key else "true"
    text = f"clusters = a, b\na->b.enabled = true\na->b.{name} = {value}\n"
    found = read_properties(text)
    assert found.unknown == []
    odd = ("replication.policy.class", "consumer.auto.offset.reset")
    assert (name in found.flows[0].notes) == (key not in COVERED or key in odd)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.bootstrap.servers = x:1", "clusters is missing"),
        ("clusters = a, b\na.bootstrap.servers = x:1", "no flow is enabled"),
        ("clusters = a, b\na->b.enabled = false", "no flow is enabled"),
    ],
)
def test_a_file_that_says_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        read_properties(text)


def test_a_flow_between_unknown_clusters_is_named() -> None:
    found = read_properties("clusters = a, b\na->b.enabled = true\na->c.enabled = true")
    assert found.unknown == ["a->c.*"]


def test_the_command_writes_flows_that_can_be_loaded(file: Path, tmp_path: Path) -> None:
    output, folder = tmp_path / "mirrors.yaml", tmp_path / "connections"
    result = run(file, "--journal", "s3://mirrors/journal", "--output", output, "--connections", folder)
    assert result.exit_code == ExitCode.OK, result.output
    flows = load_mirrors(output)
    assert sorted(flows) == ["east->west", "west->east"]
    there = flows["east->west"]
    assert (there.kind, there.migration_id, there.mirror.naming) == ("mirror", "east-to-west", "default")
    assert there.mirror.two_way
    assert there.topics.target_name("orders") == "east.orders"
    assert there.storage.journal == "s3://mirrors/journal"
    assert "defaults" in yaml.safe_load(output.read_text())
    for text in (output.read_text(), result.output):
        assert 's3cr"et' not in text
    secret = folder / "east.json"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert json.loads(secret.read_text())["sasl.password"] == 's3cr"et'
    assert "unknown properties: sync.topics.acls.enabled" in result.output
    assert "topic.filter.class" in result.output
    assert there.seed.via == "direct", "the journal's bucket is no place for all records"
    assert there.source.conn_id == f"file:{secret}"
    assert Resolver().mapping(there.source.conn_id)["bootstrap.servers"] == "east-1:9093, east-2:9093"


def test_flows_under_another_alias_copy_nothing_of_mirror_maker(file: Path, tmp_path: Path) -> None:
    """The steps of docs/mirrors.md beside the remote topics of a MirrorMaker 2 that are kept."""
    output = tmp_path / "mirrors.yaml"
    assert run(file, "--journal", "s3://mirrors/journal", "--output", output).exit_code == ExitCode.OK
    document = yaml.safe_load(output.read_text())
    assert document["clusters"]["east"] == {"conn_id": "kafka_east"}
    document["clusters"] = {f"{alias}2": cluster for alias, cluster in document["clusters"].items()}
    document["flows"] = {"east2->west2": {}, "west2->east2": {}}
    document["defaults"]["topics"] = {"exclude": [r"(east|west)\..*"]}
    flows = parse_mirrors(document)
    assert flows["east2->west2"].topics.target_name("orders") == "east2.orders"
    for flow in flows.values():
        assert flow.topics.why_left_out("east.orders"), "of MirrorMaker 2"
        assert flow.topics.why_left_out("west.stock")
        assert not flow.topics.why_left_out("orders")
        assert flow.seed.via == "direct"


def test_a_reverse_flow_that_is_added_later_has_its_own_aliases(tmp_path: Path) -> None:
    file, output = tmp_path / "mm2.properties", tmp_path / "mirrors.yaml"
    one_way = ACTIVE_ACTIVE.replace("west->east.enabled = true", "west->east.enabled = false")
    file.write_text(one_way, encoding="utf-8")
    assert run(file, "--journal", "s3://mirrors/journal", "--output", output).exit_code == ExitCode.OK
    document = yaml.safe_load(output.read_text())
    document["flows"]["west->east"] = {}
    output.write_text(yaml.safe_dump(document), encoding="utf-8")
    back = load_mirrors(output)["west->east"]
    assert (back.mirror.source_alias, back.mirror.target_alias, back.mirror.two_way) == ("west", "east", True)
    assert back.topics.why_left_out("east.orders"), "it has come from there"


def test_aliases_of_clusters_whose_flows_run_elsewhere_stay_known(tmp_path: Path) -> None:
    """One file for each data centre: topics come round through clusters that no flow of this file names."""
    file, output = tmp_path / "mm2.properties", tmp_path / "mirrors.yaml"
    one_way = ACTIVE_ACTIVE.replace("west->east.enabled = true", "west->east.enabled = false")
    lines = ["clusters = east, west, north" if line.startswith("clusters") else line for line in one_way.splitlines()]
    file.write_text("\n".join([*lines, "north.bootstrap.servers = n1:9092"]), encoding="utf-8")
    assert run(file, "--journal", "s3://mirrors/journal", "--output", output).exit_code == ExitCode.OK
    document = yaml.safe_load(output.read_text())
    document["clusters"]["south"] = {"conn_id": "kafka_south"}
    document["flows"]["south->east"] = {}
    output.write_text(yaml.safe_dump(document), encoding="utf-8")
    found = load_mirrors(output)
    assert found["east->west"].mirror.known_aliases == ["north", "south"]
    assert found["south->east"].mirror.known_aliases == ["north", "west"]
    names = found["east->west"].mirror.names(found["east->west"].topics.rename)
    assert names.why_not("north.west.orders").startswith("cycle")


@pytest.mark.parametrize("text", ["abc", "${env:FACTOR}", "0", "-2", "", "source code"])
def test_a_replication_factor_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    """The file is written all the same, with everything else; a person corrects this one."""
    file, output = tmp_path / "mm2.properties", tmp_path / "mirrors.yaml"
    file.write_text(ACTIVE_ACTIVE.replace("replication.factor = 3", f"replication.factor = {text}"), encoding="utf-8")
    result = run(file, "--journal", "s3://mirrors/journal", "--output", output, "--json")
    assert result.exit_code == ExitCode.OK, result.output
    paths = {
        item["path"].partition(".topology.replication_factor")[:2] for item in json.loads(result.stdout)["to_correct"]
    }
    assert paths == {(f"flows.{name}", ".topology.replication_factor") for name in ("east->west", "west->east")}
    assert yaml.safe_load(output.read_text())["flows"]["west->east"]["topics"]["include"] == ["stock"]


def test_the_brokers_default_of_the_replication_factor() -> None:
    found = read_properties(ACTIVE_ACTIVE.replace("replication.factor = 3", "replication.factor = -1"))
    assert {flow.spec["topology"]["replication_factor"] for flow in found.flows} == {"target_default"}


def test_the_command_overwrites_nothing(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "mirrors.yaml"
    output.write_text("mine", encoding="utf-8")
    result = run(file, "--journal", "s3://mirrors/journal", "--output", output)
    assert result.exit_code == ExitCode.FAILED
    assert output.read_text() == "mine"


def test_what_a_person_has_to_correct_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    identity = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
    text = f"{ACTIVE_ACTIVE}\nreplication.policy.class = {identity}\n"
    file.write_text(text, encoding="utf-8")
    result = run(file, "--journal", "s3://mirrors/journal", "--output", tmp_path / "mirrors.yaml", "--json")
    answer = json.loads(result.stdout)
    (item,) = answer["to_correct"]
    assert item["path"] == "flows.west->east.mirror.two_way"
    assert item["reason"].endswith("(it does not go together with east->west)")


@pytest.mark.parametrize(
    ("value", "start", "note"),
    [
        ("latest", "latest", "from their beginning"),
        ("LATEST", "latest", "from their beginning"),
        ("earliest", "earliest", ""),
        ("none", "earliest", "it begins at their starts now"),
        ("by_duration:PT1H", "earliest", "it begins at their starts now"),
    ],
)
def test_where_a_flow_begins(value: str, start: str, note: str) -> None:
    text = f"clusters = a, b\na->b.enabled = true\na->b.consumer.auto.offset.reset = {value}\n"
    flow = read_properties(text).flows[0]
    assert flow.spec["mirror"].get("start", "earliest") == start
    assert note in flow.notes.get("consumer.auto.offset.reset", "")
    assert bool(note) == ("consumer.auto.offset.reset" in flow.notes)


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        ("a->b.source.consumer.auto.offset.reset = latest", "latest"),
        ("a.consumer.auto.offset.reset = latest", "latest"),
        ("a.consumer.auto.offset.reset = latest\na->b.consumer.auto.offset.reset = earliest", "latest"),
        ("a->b.source.consumer.auto.offset.reset = earliest\na.consumer.auto.offset.reset = latest", "earliest"),
        ("b.consumer.auto.offset.reset = latest", "earliest"),
        ("consumer.auto.offset.reset = latest", "earliest"),
        ("source.consumer.auto.offset.reset = latest", "earliest"),
    ],
)
def test_a_flow_begins_where_mirror_maker_s_would(lines: str, start: str) -> None:
    """As ``MirrorMakerConfig`` and ``MirrorSourceConfig`` of 4.1.1 answer."""
    found = read_properties(f"clusters = a, b\na->b.enabled = true\n{lines}\n")
    flow = found.flows[0]
    assert flow.spec["mirror"].get("start", "earliest") == start
    assert found.unknown == []
    is_ignored = lines.startswith(("consumer", "source"))
    assert is_ignored == any("MirrorMaker 2 ignores it" in note for note in flow.notes.values())
    assert "consumer.auto.offset.reset" not in found.connection_notes["a"]


def test_what_secures_connections_counts_for_all_clusters() -> None:
    text = (
        "clusters = a, b\na->b.enabled = true\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\n"
        "security.protocol = SASL_SSL\nb.security.protocol = SASL_PLAINTEXT\nsasl.mechanism = PLAIN\n"
        'sasl.jaas.config = org.Plain required username="ann" password="secret";\nssl.truststore.location = /t\n'
    )
    found = read_properties(text)
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "secret"}
    assert found.connections == {
        "a": {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", **login},
        "b": {"bootstrap.servers": "b:1", "security.protocol": "SASL_PLAINTEXT", **login},
    }
    assert found.unknown == []
    assert "a Java key store" in found.connection_notes["a"]["ssl.truststore.location"]
    assert "secret" not in str(found.flows)


def test_former_names_exclude_as_well() -> None:
    """Records of a topic that was excluded must not be copied because of an old spelling."""
    text = (
        "clusters = a, b\na->b.enabled = true\na->b.topics.blacklist = payroll\ngroups.blacklist = g\n"
        "config.properties.blacklist = retention.ms\n"
    )
    found = read_properties(text)
    spec, notes = found.flows[0].spec, found.flows[0].notes
    assert (spec["topics"]["exclude"], spec["groups"]["exclude"]) == (["payroll"], ["g"])
    assert spec["topology"]["config_exclude"] == ["retention.ms"]
    assert found.unknown == []
    assert "from 4.0 on ignores it" in notes["topics.blacklist"]
    both = read_properties(f"{text}a->b.topics.exclude = others\n").flows[0].spec
    assert both["topics"]["exclude"] == ["others"]


def test_a_forwarding_admin_is_not_taken_over() -> None:
    text = "clusters = a, b\na->b.enabled = true\nforwarding.admin.class = com.example.GitOpsAdmin\n"
    assert "the brokers do" in read_properties(text).flows[0].notes["forwarding.admin.class"]


# -- names of topics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        # The answer of many guides until there was IdentityReplicationPolicy (Kafka 3.0).
        "clusters = a, b\na->b.enabled = true\nsource.cluster.alias =\nreplication.policy.separator =\n",
        "clusters = source, target\nsource->target.enabled = true\nsource.cluster.alias=\ntarget.cluster.alias=\n"
        "replication.policy.separator=\n",
        "clusters = a, b\na->b.enabled = true\na->b.source.cluster.alias =\na->b.replication.policy.separator =\n",
    ],
)
def test_an_empty_alias_and_separator_keep_the_names_of_topics(text: str, tmp_path: Path) -> None:
    found = read_properties(text)
    (flow,) = found.flows
    assert flow.spec["mirror"]["naming"] == "identity"
    assert "separator" not in flow.spec["mirror"]
    assert "topics keep their names" in flow.notes["source.cluster.alias"]
    assert found.unknown == []
    notes = found.connection_notes.get(flow.source_alias, {})
    assert not any("alias" in key for key in notes), "it is no key of the connection"
    file = tmp_path / "mm2.properties"
    file.write_text(text, encoding="utf-8")
    answer = json.loads(run(file, "--journal", "s3://m1/journal", "--output", tmp_path / "m.yaml", "--json").stdout)
    assert answer["to_correct"] == []
    parsed = load_mirrors(tmp_path / "m.yaml")
    assert [spec.mirror.naming for spec in parsed.values()] == ["identity"]


@pytest.mark.parametrize(
    ("lines", "key", "named"),
    [
        ("source.cluster.alias = eu", "mirror.source_alias", "eu.TOPIC"),
        ("source.cluster.alias =", "mirror.naming", " .TOPIC"),
        ("replication.policy.separator =", "mirror.naming", " aTOPIC"),
    ],
)
def test_names_that_a_mirror_would_not_give_are_to_be_corrected(
    lines: str, key: str, named: str, tmp_path: Path
) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(f"clusters = a, b\na->b.enabled = true\n{lines}\n", encoding="utf-8")
    answer = json.loads(run(file, "--journal", "s3://m1/journal", "--output", tmp_path / "m.yaml", "--json").stdout)
    first = answer["to_correct"][0]
    assert first["path"] == f"flows.a->b.{key}"
    assert named in first["reason"]


def test_the_import_checks_its_connections_as_a_migration_does() -> None:
    found = read_properties(
        "clusters = a, b\na->b.enabled = true\na.bootstrap.servers = b1:9092;b2:9092\n"
        "a.security.protocol = SASL_SSL\na.sasl.mechanism = AWS_MSK_IAM\n"
        "b.bootstrap.servers = b3:9092\nb.ssl.endpoint.identification.algorithm =\n"
    )
    assert found.connections["b"]["ssl.endpoint.identification.algorithm"] == "none"
    assert "b" not in found.connection_notes
    note = found.connection_notes["a"]["to correct"]
    assert "separates addresses by ';'" in note
    assert '"msk": {"region"' in note


TWO = "clusters = a, b\na.bootstrap.servers = a1:9092\nb.bootstrap.servers = b1:9092\n"


@pytest.mark.parametrize(
    ("flow", "named"), [("a->c", "between two of the clusters (a->c: not both in clusters)"), ("a->a", "(a->a: not")]
)
def test_a_file_whose_only_flow_is_between_other_clusters_says_so(flow: str, named: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        read_properties(f"{TWO}{flow}.enabled = true\n", path="mm2.properties")
    assert named in caught.value.what


def test_a_switch_that_is_neither_on_nor_off_is_named() -> None:
    (flow,) = read_properties(f"{TWO}a->b.enabled = true\nsync.topic.acls.enabled = maybe\n", path="mm2").flows
    assert flow.notes["sync.topic.acls.enabled"].startswith("neither true nor false")
    (flow,) = read_properties(f"{TWO}a->b.enabled = true\nsync.topic.acls.enabled = FALSE\n", path="mm2").flows
    assert "sync.topic.acls.enabled" not in flow.notes


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("topcs", "topics"),
        ("replication.polcy.class", "replication.policy.class"),
        ("sync.topics.acls.enabled", "sync.topic.acls.enabled"),
        ("my.own.thing", ""),
    ],
)
def test_a_misspelt_property_is_named_with_the_one_that_was_meant(key: str, known: str) -> None:
    assert meant(key) == known


def test_a_file_of_an_editor_that_marks_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(f"\ufeff{TWO}a->b.enabled = true\ntopcs = orders\n", encoding="utf-8")
    app = typer.Typer()
    app.command()(import_properties)
    output = tmp_path / "mirrors.yaml"
    result = CliRunner().invoke(app, [str(file), "--journal", "s3://bucket/j", "--output", str(output)])
    assert result.exit_code == ExitCode.OK, result.output
    assert list(load_mirrors(output)) == ["a->b"]
    assert "topcs (did you mean topics?)" in " ".join(result.output.split())
