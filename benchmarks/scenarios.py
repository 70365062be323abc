"""What is copied: the scenarios, their sizes and who takes part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What is special about a scenario's topic."""

    PLAIN = "plain"
    COMPACTED = "compacted"
    TRANSACTIONAL = "transactional"


@dataclass(frozen=True)
class Scenario:
    """One topic, copied by each of the peers in turn.

    :param name: also the name of the topic and of the result file.
    :param records: records that a reader sees, about; compacted and aborted ones come on top.
    :param record_bytes: of a JSON value, about.
    :param batch_records: records of a source batch; chosen so that a batch has the size that ``title`` says.
    :param peers: names, in the order of running.
    :param target_brokers: 1, or 3 with replication factor 3.
    :param schema_ids: values begin with one of so many schema ids, as a serializer writes them; 0: with none.
    """

    name: str
    title: str
    records: int
    record_bytes: int
    batch_records: int
    partitions: int
    peers: tuple[str, ...]
    kind: Kind = Kind.PLAIN
    target_brokers: int = 1
    codec: str = "lz4"
    schema_ids: int = 0


_ALL = (
    "raw_limit",
    "ours_direct",
    "ours_s3",
    "ours_transactional",
    "ours_spark",
    "confluent_loop",
    "mm2_tuned",
    "mm2_defaults",
)
_WITH_HOLES = ("ours_direct", "ours_mapped", "ours_s3", "confluent_loop", "mm2_tuned")
_MOST = ("raw_limit", "ours_direct", "ours_s3", "confluent_loop", "mm2_tuned")

#: An lz4 batch of 3,300 JSON records is about 1 MB as it is stored, one of 54 about 16 KB.
SCENARIOS = (
    Scenario("json_1mb", "JSON of 670 B, lz4, 8 partitions, batches of 1 MB", 10_000_000, 670, 3_300, 8, _ALL),
    Scenario("json_16kb", "JSON of 670 B, lz4, 8 partitions, batches of 16 KB", 10_000_000, 670, 54, 8, _ALL),
    Scenario("small_records", "100 B, lz4, 8 partitions, batches of 64 KB", 40_000_000, 100, 1_400, 8, _MOST),
    Scenario(
        "single_records",
        "JSON of 300 B, each a batch of its own, 8 partitions",
        800_000,
        300,
        1,
        8,
        _MOST,
        codec="none",
    ),
    Scenario("partitions_64", "JSON of 670 B, lz4, 64 partitions, batches of 64 KB", 10_000_000, 670, 220, 64, _MOST),
    Scenario(
        "schema_ids",
        "670 B with schema ids, lz4, 8 partitions, batches of 64 KB",
        10_000_000,
        670,
        220,
        8,
        ("raw_limit", "ours_direct", "ours_rewritten", "confluent_loop", "mm2_tuned"),
        schema_ids=5,
    ),
    Scenario(
        "compacted",
        "every second record compacted away, lz4, 8 partitions",
        400_000,
        670,
        54,
        8,
        _WITH_HOLES,
        kind=Kind.COMPACTED,
    ),
    Scenario(
        "compacted_replication_3",
        "every second record compacted away, lz4, 8 partitions, target with 3 brokers, replication factor 3",
        400_000,
        670,
        54,
        8,
        _WITH_HOLES,
        kind=Kind.COMPACTED,
        target_brokers=3,
    ),
    Scenario(
        "transactional",
        "transactions of 400 records over 8 partitions, each tenth aborted, lz4",
        1_600_000,
        670,
        50,
        8,
        _WITH_HOLES,
        kind=Kind.TRANSACTIONAL,
    ),
    Scenario(
        "replication_3",
        "JSON of 670 B, lz4, 8 partitions, batches of 1 MB, target with 3 brokers, replication factor 3",
        5_000_000,
        670,
        3_300,
        8,
        _MOST,
        target_brokers=3,
    ),
)

_QUICK_SHARE = 0.1
_QUICK_LEAST = 100_000


def scenarios(*, quick: bool, only: tuple[str, ...] = (), records: int | None = None) -> list[Scenario]:
    """The scenarios to run, in order.

    :param quick: a tenth of the records: seconds in place of minutes, for development; the figures mean little.
    :param only: names; empty: all.
    :param records: in place of the scenario's own number.
    :raises ValueError: an unknown name.
    """
    unknown = set(only) - {item.name for item in SCENARIOS}
    if unknown:
        known = ", ".join(item.name for item in SCENARIOS)
        raise ValueError(f"no such scenario: {', '.join(sorted(unknown))}; known: {known}")
    chosen = [item for item in SCENARIOS if not only or item.name in only]
    return [replace(item, records=records or _records(item, quick)) for item in chosen]


def _records(scenario: Scenario, quick: bool) -> int:
    if not quick:
        return scenario.records
    return min(scenario.records, max(_QUICK_LEAST, int(scenario.records * _QUICK_SHARE)))
