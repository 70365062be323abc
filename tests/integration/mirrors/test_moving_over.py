"""The steps of docs/mirrors.md for moving over from MirrorMaker 2, typed as they stand there, beside a real one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException

from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.mirror_maker.formats import Heartbeat
from harness.brokers import KafkaCluster
from harness.clients import GroupReader, LiveProducer, commit_offsets, committed_offsets, positions
from harness.compare import compare, read_records, record_digest
from harness.copiers.mirror_maker import MirrorMaker2
from harness.load import Kind, TopicLoad, load
from harness.mirror_client import Offsets, mirror_client
from harness.processes import HarnessError, wait_for
from tests.integration.mirrors.mirror_support import SECONDS, STARTED, eventually, log_ends

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1500)]

_PAGE = Path(__file__).parents[3] / "docs" / "mirrors.md"
_SECTION = "### In ten minutes, in the same topics"
_LOADS = [
    TopicLoad("orders", Kind.PLAIN, 3, 900, 120, "lz4"),
    TopicLoad("payments", Kind.TRANSACTIONAL, 2, 600, 120, "none"),
    TopicLoad("balances", Kind.COMPACTED, 2, 500, 120, "zstd"),
]
_TOPICS = [item.name for item in _LOADS]
_IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
#: Groups that have read these parts of all topics when MirrorMaker 2 stops.
_FRACTIONS = {"far-behind": 0.05, "half": 0.5, "nearly": 0.9, "at-the-tip": 1.0}
#: What MirrorMaker 2 has by default, but for intervals, which are those of a test, and the brokers that are there.
_PROPERTIES = {
    "east->west.topics": ".*",
    "east->west.groups": ".*",
    "east->west.groups.exclude": "console-consumer-.*, connect-.*, __.*",
    "east->west.emit.heartbeats.enabled": "true",
    "east->west.emit.checkpoints.enabled": "true",
    "east->west.sync.group.offsets.enabled": "true",
    "emit.heartbeats.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.topics.interval.seconds": "5",
    "refresh.groups.interval.seconds": "1",
}


class Steps:
    """The section of the page: its commands in their order, its YAML, and the topics that its last step deletes."""

    def __init__(self) -> None:
        page = _PAGE.read_text(encoding="utf-8")
        section = page.split(_SECTION)[1].split("\n### ")[0]
        blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
        self.commands = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
        self.commands = [line for line in self.commands if line]
        (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
        self.flows: dict[str, Any] = yaml.safe_load(text)["flows"]
        cleaning = " ".join(section.split("**Clean up**")[1].split("Leave ")[0].split())
        self.deleted = {
            cluster: re.findall(r"`([^`]+)`", names)
            for names, cluster in re.findall(r"(?:Delete|and) (`mm2-[^.]+\.[^`]+`.*?) on `(east|west)`", cleaning)
        }

    def take(self, start: str) -> list[str]:
        """The words of the next command, which must be this one."""
        line = self.commands.pop(0)
        assert line.startswith(f"kafka-migration mirror {start}"), line
        return shlex.split(line)[1:]


class Shell:
    """A shell in the folder that has ``mm2.properties``. The journal of the page is a folder here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, words: Sequence[str], log: Path) -> subprocess.Popen[str]:
        with log.open("w", encoding="utf-8") as file:
            return self._popen(words, file, file)

    def __call__(self, words: Sequence[str], *, status: int = 0) -> str:
        process = self._popen(words, subprocess.PIPE, subprocess.PIPE)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == status, f"{words}: {out}{err}"
        return out

    def data(self, words: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self([*words, "--json"]))
        return found

    def end(self, flow: str) -> None:
        """End a mirror with the code that the command shows."""
        asked = json.loads(self(["mirror", "end", flow, "--json"], status=10))
        self(["mirror", "end", flow, "--approve", asked["waiting"]["code"]])

    def _popen(self, words: Sequence[str], out: Any, err: Any) -> subprocess.Popen[str]:
        program = str(Path(sys.executable).with_name("kafka-migration"))
        process = subprocess.Popen(
            [program, *(word.replace("s3://mirrors/journal", f"file://{self.folder}/journal") for word in words)],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )
        STARTED.append(process)
        return process


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Clusters of its own: MirrorMaker 2's topics are named after its aliases, and it copies all topics."""
    with KafkaCluster(tmp_path / "east", "3.9.1") as east, KafkaCluster(tmp_path / "west", "4.1.1", "kraft") as west:
        yield east, west


def _ends(cluster: KafkaCluster, topics: Sequence[str]) -> Offsets:
    """Log ends of the topics that exist; none of one that is being created."""
    there = cluster.admin().list_topics(timeout=30).topics
    try:
        return log_ends(cluster, [topic for topic in topics if topic in there])
    except KafkaException:
        return {}


def _is_mirrored(east: KafkaCluster, west: KafkaCluster, remote: Mapping[str, str]) -> bool:
    """Whether the topic with live clients ends at the same offset on both sides; it has no holes in these tests."""
    ends = [_ends(cluster, [topic]) for cluster, topic in ((east, "orders"), (west, remote["orders"]))]
    source, target = ([found[key] for key in sorted(found)] for found in ends)
    return len(source) == 3 and source == target


def _edit(folder: Path, steps: Steps, naming: str) -> None:
    """Step 2, as a person does it in an editor; and shorter waits, which only a test wants."""
    path = folder / "mirrors.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(document["flows"]) == set(steps.flows)
    for name, sections in steps.flows.items():
        document["flows"][name] = {**(document["flows"][name] or {}), **sections}
        adopt = document["flows"][name]["adopt"]
        adopt["stable_window"] = "2s"
        if naming == "identity":
            adopt["mirrormaker2"]["replication_policy"] = "identity"
    document["defaults"]["tail"] = {"slice_seconds": 2}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _adopted(folder: Path) -> Mapping[tuple[str, int], dict[str, Any]]:
    """Where the mirror began, by (source topic, partition)."""
    plan = json.loads(next((folder / "journal").rglob("plan.json")).read_text(encoding="utf-8"))
    return {
        (topic["name"], item["partition"]): item["adopted"]
        for topic in plan["topics"]
        for item in topic["partitions"]
        if item.get("adopted")
    }


class Both:
    """What plain consumers read of all topics on both sides: partition -> (offset, digest) in order."""

    def __init__(self, east: KafkaCluster, west: KafkaCluster, remote: Mapping[str, str]) -> None:
        self.remote = remote
        self.source = _read(east, dict(zip(_TOPICS, _TOPICS, strict=True)))
        self.target = _read(west, {remote: name for name, remote in remote.items()})

    def check_contents(self, adopted: Mapping[tuple[str, int], dict[str, Any]]) -> None:
        """Behind the place where the mirror began both logs are equal; below it, nothing is missing."""
        assert adopted.keys() == self.source.keys()
        total = 0
        for key, start in adopted.items():
            shift = start["target_offset"] - start["source_offset"]
            behind = [
                (offset + shift, digest) for offset, digest in self.source[key] if offset >= start["source_offset"]
            ]
            assert [item for item in self.target[key] if item[0] >= start["target_offset"]] == behind, key
            everything = [[digest for _, digest in side[key]] for side in (self.source, self.target)]
            assert not Counter(everything[0]) - Counter(everything[1]), f"{key} lacks records"
            if key[0] == "orders":
                assert everything[0] == everything[1], "MirrorMaker 2 was stopped in order, so nothing is twice"
                assert len(behind) > 50
            total += len(behind)
        assert total > 300

    def why_inexact(self, group: str, places: Offsets, found: Offsets) -> list[str]:
        """Why a group would read anything again, or skip anything, if it continued there on the target.

        MirrorMaker 2 has copied records of aborted transactions, which no reader of the source sees. They do not count.

        :param places: the group's offsets on the source, ``found`` those on the target.
        """
        problems = [
            f"{group}: no offset for {key}" for key in {(self.remote[name], at) for name, at in places} ^ found.keys()
        ]
        for (name, number), place in places.items():
            committed = {digest for _, digest in self.source[name, number]}
            wanted = [digest for offset, digest in self.source[name, number] if offset >= place]
            at = found.get((self.remote[name], number), 0)
            reads = [digest for offset, digest in self.target[name, number] if offset >= at and digest in committed]
            if reads != wanted:
                problems.append(f"{group} on {name}-{number}: {len(reads)} records instead of {len(wanted)}")
        return problems

    def wait_exact(self, places: Mapping[str, Offsets], found: Callable[[str], Offsets], what: str) -> None:
        """Wait until every group would continue exactly where it has stopped: 0 again, 0 skipped."""
        last: list[str] = []

        def is_exact() -> bool:
            last[:] = [text for group, at in places.items() for text in self.why_inexact(group, at, found(group))]
            return not last

        try:
            wait_for(what, is_exact, 60.0, 1.0)
        except HarnessError:
            assert last == [], what


def _read(cluster: KafkaCluster, topics: Mapping[str, str]) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    return {
        (name, number): [(item.offset, record_digest(item)) for item in items]
        for topic, name in topics.items()
        for number, items in read_records(cluster.client_config(), topic).items()
    }


def _fail_over(reader: GroupReader, west: KafkaCluster, both: Both) -> None:
    """A group that has read on the source, and has stopped, reads the rest on the target: each record once."""
    before = reader.count()
    with GroupReader(west.client_config(), reader.group, [both.remote["orders"]]) as other:
        eventually(other.caught_up, "the group has read the rest on the target")
    for number in range(3):
        seen = [digest for _, digest in [*reader.seen["orders", number], *other.seen[both.remote["orders"], number]]]
        assert seen == [digest for _, digest in both.source["orders", number]], f"orders-{number}"
    assert 0 < before < reader.count() + other.count()


def _newest_beat(cluster: KafkaCluster, topic: str) -> int:
    records = read_records(cluster.client_config(), topic)[0]
    return max(Heartbeat.decode(item.key or b"", item.value or b"").timestamp_ms for item in records)


@pytest.mark.parametrize("naming", ["default", pytest.param("identity", marks=pytest.mark.soak)])
def test_moving_over_as_the_page_says(naming: str, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path) -> None:
    east, west = clusters
    old, new = east.client_config(), west.client_config()
    folder = tmp_path / "shell"
    steps, shell = Steps(), Shell(folder)
    load(east, _LOADS)
    is_identity = naming == "identity"
    remote = {name: name if is_identity else f"east.{name}" for name in _TOPICS}
    mirror_maker = MirrorMaker2(
        folder,
        east.bootstrap,
        west.bootstrap,
        ".*",
        identity=is_identity,
        aliases=("east", "west"),
        flush_seconds=5,
        settings=_PROPERTIES,
    )
    client = {"bootstrap.servers": west.bootstrap, **({"replication.policy.class": _IDENTITY} if is_identity else {})}
    with (
        mirror_maker,
        LiveProducer(old, {"orders": [0, 1, 2]}, records_per_second=200, record_bytes=120) as producer,
        mirror_client(client) as java,
    ):
        mirror_maker.start()

        # 1. Import, while it runs.
        def copies() -> bool:
            mirror_maker.check_running()
            ends = _ends(west, list(remote.values()))
            return len(ends) == 7 and min(ends.values()) > 0 and sum(ends.values()) >= 1_500

        eventually(copies, "MirrorMaker 2 copies")
        said = shell(steps.take("import mm2.properties"))
        assert "unknown properties" not in said
        assert "to correct" not in said
        assert sorted(path.name for path in (folder / "connections").iterdir()) == ["east.json", "west.json"]
        rows = shell.data(steps.take("topics"))["topics"]
        listed = {row["topic"]: row["remote_topic"] for row in rows if not row["left_out"]}
        assert listed == remote, "the names that MirrorMaker 2 has given, and none of its state topics"

        # 2. and 3. Take its topics over, and stop it.
        _edit(folder, steps, naming)
        for group, fraction in _FRACTIONS.items():
            commit_offsets(old, group, positions(old, _TOPICS, fraction))
        reader = GroupReader(old, "reader", ["orders"], records_per_second=150)
        with reader:
            eventually(lambda: reader.count() > 100, "a group reads on the source")
            mirror_maker.stop()
            stopped_ms = int(time.time() * 1000)

            # 4. Where each partition goes on.
            page = shell(steps.take("plan"))
            assert "adopted (mirrormaker2): 7 partitions" in page
            assert not (folder / "journal").exists(), "it has written nothing"

            # 5. Run.
            process = shell.begin(steps.take("run"), tmp_path / "run.log")
            words = steps.take("status")

            def mirrors() -> bool:
                assert process.poll() is None, (tmp_path / "run.log").read_text(encoding="utf-8")
                return bool(shell.data(words)["state"] == "mirroring")

            eventually(mirrors, "it mirrors")
            written = producer.count()
            eventually(lambda: producer.count() > written + 300, "clients write while it mirrors")
        commit_offsets(old, "later", positions(old, _TOPICS, 0.7))
        producer.freeze()
        eventually(lambda: _is_mirrored(east, west, remote), "everything is mirrored")
        # The status shows what copiers have last reported, which may be some seconds old.
        eventually(lambda: (shell.data(words)["lag"] or {}).get("total") == 0, "the status shows no lag")
        assert "mirroring" in shell(words)
        said = shell(steps.take("verify"))
        assert "equal" in said

        # 6. Fail over: by Kafka's own class, and by the offsets on the target.
        groups = {group: committed_offsets(old, group, _TOPICS) for group in (*_FRACTIONS, "later", "reader")}
        both = Both(east, west, remote)
        both.check_contents(_adopted(folder))
        both.wait_exact(groups, lambda group: java.translate("east", group), "RemoteClusterUtils is exact")
        both.wait_exact(
            groups, lambda group: committed_offsets(new, group, remote.values()), "offsets on the target are exact"
        )
        _fail_over(reader, west, both)

        # 7. Clean up, while it mirrors.
        assert {name: len(topics) for name, topics in steps.deleted.items()} == {"west": 3, "east": 4}
        for name, cluster in {"east": east, "west": west}.items():
            assert set(steps.deleted[name]) <= set(cluster.admin().list_topics(timeout=30).topics)
            cluster.delete_topics(steps.deleted[name])
        producer.unfreeze()
        written = producer.count()
        eventually(lambda: producer.count() > written + 300, "clients write on")
        producer.freeze()
        eventually(lambda: _is_mirrored(east, west, remote), "it mirrors on")
        for topic in ("heartbeats", "east.heartbeats"):
            eventually(lambda topic=topic: _newest_beat(west, topic) > stopped_ms, f"the mirror goes on in {topic}")
        assert steps.commands == [], "all commands of the page were typed"
        assert process.poll() is None
        shell.end("mirrors.yaml#east->west")
        assert process.wait(SECONDS) == ExitCode.OK
        both = Both(east, west, remote)
        for number in range(3):
            sides = [[digest for _, digest in side["orders", number]] for side in (both.source, both.target)]
            assert sides[0] == sides[1], f"orders-{number}"


@pytest.mark.soak
def test_beginning_again_beside_a_mirror_maker_that_goes_on(
    clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    """The other way of the page: the topics of MirrorMaker 2 are kept until consumers have switched."""
    east, west = clusters
    old, new = east.client_config(), west.client_config()
    folder = tmp_path / "shell"
    steps, shell = Steps(), Shell(folder)
    load(east, _LOADS)
    remote = {name: f"east2.{name}" for name in _TOPICS}
    mirror_maker = MirrorMaker2(
        folder, east.bootstrap, west.bootstrap, ".*", aliases=("east", "west"), flush_seconds=5, settings=_PROPERTIES
    )
    flow = "mirrors.yaml#east2->west"
    with (
        mirror_maker,
        LiveProducer(old, {"orders": [0, 1, 2]}, records_per_second=200, record_bytes=120) as producer,
        mirror_client({"bootstrap.servers": west.bootstrap}) as java,
    ):
        mirror_maker.start()
        eventually(lambda: len(_ends(west, [f"east.{name}" for name in _TOPICS])) == 7, "MirrorMaker 2 copies")
        shell(steps.take("import mm2.properties"))
        path = folder / "mirrors.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["clusters"]["east2"] = document["clusters"].pop("east")
        document["flows"]["east2->west"] = document["flows"].pop("east->west")
        (excluded,) = set(re.findall(r"add `'([^']+)'` to each `topics.exclude`", _PAGE.read_text(encoding="utf-8")))
        document["defaults"]["topics"].setdefault("exclude", []).append(excluded)
        document["defaults"]["tail"] = {"slice_seconds": 2}
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        process = shell.begin(["mirror", "run", flow], tmp_path / "run.log")

        def mirrors() -> bool:
            mirror_maker.check_running()
            assert process.poll() is None, (tmp_path / "run.log").read_text(encoding="utf-8")
            return bool(shell.data(["mirror", "status", flow])["state"] == "mirroring")

        eventually(mirrors, "it mirrors")
        for group, fraction in _FRACTIONS.items():
            commit_offsets(old, group, positions(old, _TOPICS, fraction))
        written = producer.count()
        eventually(lambda: producer.count() > written + 300, "clients write while both copy")
        mirror_maker.stop()
        stopped_ms = int(time.time() * 1000)
        producer.freeze()
        eventually(lambda: _is_mirrored(east, west, remote), "everything is mirrored")
        groups = {group: committed_offsets(old, group, _TOPICS) for group in _FRACTIONS}
        both = Both(east, west, remote)
        both.wait_exact(groups, lambda group: java.translate("east2", group), "RemoteClusterUtils is exact")
        both.wait_exact(
            groups, lambda group: committed_offsets(new, group, remote.values()), "offsets on the target are exact"
        )
        west.delete_topics(
            [
                name
                for name in west.admin().list_topics(timeout=30).topics
                if name.startswith("east.") or re.fullmatch(r"mm2-.*\.east\.internal", name)
            ]
        )
        producer.unfreeze()
        written = producer.count()
        eventually(lambda: producer.count() > written + 100, "clients write on")
        producer.freeze()
        eventually(lambda: _is_mirrored(east, west, remote), "everything is mirrored")
        eventually(lambda: _newest_beat(west, "heartbeats") > stopped_ms, "the mirror goes on in heartbeats")
        compare(old, new, remote, compacted=["balances"]).check()
        shell.end(flow)
        assert process.wait(SECONDS) == ExitCode.OK
    there = west.admin().list_topics(timeout=30).topics
    assert not [name for name in there if name.startswith(("east.", "west.", "east2.east", "east2.west"))]
