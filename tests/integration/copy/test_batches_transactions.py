"""Transactions on the source: only committed records are copied, and every other offset is a hole."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_provider_kafka_migration.copy import read_ahead
from harness.brokers import KafkaCluster
from harness.compare import bounds, read_records
from harness.copiers.copying import results_of
from harness.raw_writer import RawTransactions, RawWriter, plain
from tests.integration.copy.conftest import MakeCopying, kept_topic

pytestmark = pytest.mark.integration


def numbered(mark: str, count: int) -> list[bytes]:
    return [f"{mark}-{number}".encode() for number in range(count)]


class Writers:
    """Some transactional producers over one partition."""

    def __init__(self, writer: RawWriter, topic: str, name: Callable[[str], str], count: int = 3) -> None:
        self.topic = topic
        self.writer = writer
        self.producers = [RawTransactions(writer, name(f"tx{number}")) for number in range(count)]

    def play(self, score: str) -> None:
        """``w0`` writes, ``n0`` writes outside of a transaction, ``c0`` commits, ``a0`` aborts, ``p`` is plain."""
        for position, word in enumerate(score.split()):
            if word == "p":
                self.writer.write(self.topic, 0, plain(*numbered(f"{position}-plain", 3)))
                continue
            producer = self.producers[int(word[1])]
            if word[0] in "wn":
                values = numbered(f"{position}-{word}", 2 + position % 3)
                producer.write(self.topic, 0, plain(*values), transactional=word[0] == "w")
            else:
                producer.end(commit=word[0] == "c")


#: What is written, as :meth:`Writers.play` reads it.
SCORES = (
    "w0 a0 p w0 c0",  # aborted at the head, a marker at the tail
    "p w0 a0 p",  # in the middle
    "p w0 c0 p w0 a0",  # at the tail
    "w0 w1 w2 w0 w1 a1 w2 c0 w0 c2 a0 p",  # interleaved
    "w0 w1 a0 w0 c1 w1 c0 a1",
    "w0 a0 w0 a0 w0 a0",  # nothing is committed at all
    "w0 a0 n0 w0 a0 n0 n0 w0 c0 n0",  # the same producer id outside of transactions
    "w0 a0 n0 w1 n0 a1 w0 c0 p",
    "w0 c0 w0 c0 w0 c0 w0 c0",  # trailing markers
)


def test_every_placement(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
) -> None:
    """One copy of a topic for each score."""
    topics = {unique_name("tx"): score for score in SCORES}
    for topic, score in topics.items():
        kept_topic(source_cluster, topic)
        Writers(raw_writer, topic, unique_name).play(score)
    copy = copying(list(topics))
    copy.run()
    copy.compare().check()
    for topic, score in topics.items():
        committed = [word for word in score.split() if word[0] in "pn"]
        records = read_records(copy.target.client_config(), topic)[0]
        assert len(records) >= len(committed) * 2, score
        assert len(records) < bounds(copy.target.client_config(), [topic])[topic][0].end, score


def test_random_interleavings_by_small_fetches(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fetches end within transactions, and begin within them: nothing is remembered from one to the next."""
    monkeypatch.setattr(read_ahead, "PARTITION_FETCH_BYTES", 300)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic = unique_name("tx")
    kept_topic(source_cluster, topic)
    score: list[str] = []
    open_ones: set[int] = set()
    for _ in range(150):
        number = rng.randrange(3)
        kind = rng.choice("wwwcanp")
        if kind == "p" or (kind == "n" and number in open_ones) or (kind in "ca" and number not in open_ones):
            score.append("p")
        else:
            score.append(f"{kind}{number}")
            if kind == "w":
                open_ones.add(number)
            elif kind != "n":
                open_ones.discard(number)
    score += [f"a{number}" for number in sorted(open_ones)]
    Writers(raw_writer, topic, unique_name).play(" ".join(score))
    copy = copying([topic])
    copy.run()
    copy.compare().check()


def test_an_open_transaction_is_waited_for_and_named(
    copying: MakeCopying,
    source_cluster: KafkaCluster,
    raw_writer: RawWriter,
    unique_name: Callable[[str], str],
) -> None:
    topic = unique_name("open")
    kept_topic(source_cluster, topic)
    writers = Writers(raw_writer, topic, unique_name)
    writers.play("p p w0 p p w1 c1 p")
    before = bounds(source_cluster.client_config(), [topic])[topic][0]
    high_watermark = raw_writer.wire.list_offsets([(topic, 0)], "latest")[topic, 0]
    assert before.end == 6 < high_watermark
    copy = copying([topic])
    progress = copy.run()
    # Nothing above the open transaction may be copied: it is not known yet what becomes of it.
    assert progress["partitions"][0]["source_offset"] == 6
    copy.compare().check()
    # A job that is to go further waits, and says how much is held back, and since when.
    copy.write_job("tail", until={(topic, 0): high_watermark})
    worker = copy.worker(0, "tail", "--slices", "1", "--slice-seconds", "5")
    out, err = worker.communicate(timeout=240)
    (result,) = results_of(out)
    assert not result.done, err
    assert result.held_back == high_watermark - 6
    assert "open transaction" in err
    writers.play("c0")
    copy.run()
    copy.compare().check()
