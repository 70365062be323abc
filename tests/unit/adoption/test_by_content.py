"""One partition whose boundary is looked for: windows, empty targets, policies; the logs are in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_kafka_migration.adoption import by_content
from airflow_provider_kafka_migration.adoption.alignment import OffsetSync
from airflow_provider_kafka_migration.adoption.by_content import Recorded, Topics, _Partition
from airflow_provider_kafka_migration.adoption.contents import Contents
from airflow_provider_kafka_migration.adoption.last_records import LogEnd
from airflow_provider_kafka_migration.adoption.starts import Candidate, FoundStarts
from airflow_provider_kafka_migration.offset_map.below import BelowRange, ranges_of
from airflow_provider_kafka_migration.spec import AdoptSection

KEY = ("orders", 0)
CANDIDATE = Candidate("orders", 0, "a.orders", "s-id", "t-id", 0, 0)


class Log:
    """A log whose reads are counted: offset to (digest, aborted)."""

    def __init__(self, records: dict[int, tuple[int, bool]], start: int = 0, end: int | None = None) -> None:
        self.records = records
        self.end = LogEnd(start, *[end if end is not None else max(records, default=start - 1) + 1] * 3)
        self.read_records = 0

    def read(self, start: int, stop: int, with_aborted: bool) -> Contents:
        found = Contents()
        for offset in range(start, stop):
            if offset in self.records and (with_aborted or not self.records[offset][1]):
                body, aborted = self.records[offset]
                found.add(offset, body, aborted=aborted)
        self.read_records += len(found)
        return found


def plain(count: int, start: int = 0, aborted: range = range(0)) -> dict[int, tuple[int, bool]]:
    return {offset: (1_000 + offset, offset in aborted) for offset in range(start, start + count)}


def copied(source: Log, *runs: range) -> Log:
    """A target with runs of source offsets."""
    offsets = [offset for run in runs for offset in run if offset in source.records]
    return Log({place: (source.records[offset][0], False) for place, offset in enumerate(offsets)})


def find(
    monkeypatch: pytest.MonkeyPatch,
    source: Log,
    target: Log,
    recorded: Recorded,
    *,
    copies_aborted: bool | None = True,
    down_to: int | None = None,
    target_cleaned: bool = False,
    **adopt: Any,
) -> FoundStarts:
    logs = {"orders": source, "a.orders": target}

    def read(
        _: object, key: tuple[str, int], start: int, stop: int, *, with_aborted: bool, with_times: bool
    ) -> Contents:
        assert with_times
        return logs[key[0]].read(start, stop, with_aborted)

    monkeypatch.setattr(by_content, "read_contents", read)
    side = SimpleNamespace(wire=None)
    found = FoundStarts()
    partition = _Partition(
        context=cast("Any", SimpleNamespace(source=side, target=side, migration_id="m")),
        candidate=CANDIDATE,
        adopt=AdoptSection.model_validate({"from": "mirrormaker2", **adopt}),
        recorded=recorded,
        source_end=source.end,
        target_end=target.end,
        topics=Topics(False, target_cleaned, False),
        down_to=down_to,
    )
    partition.find(found, copies_aborted)
    return found


def test_only_the_newest_records_are_read_if_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(100_000))
    target = copied(source, range(90_050))
    start = find(monkeypatch, source, target, Recorded(89_999)).starts[KEY]
    assert (start.source_offset, start.target_offset, start.proof) == (90_050, 90_050, "content")
    assert (start.source_topic_id, start.target_topic_id) == ("s-id", "t-id")
    assert start.earlier.duplicates == -1, "only a part was compared"
    assert "committed source offset 89999, 50 below" in start.note
    assert target.read_records < 1_000
    assert source.read_records < 11_000


def test_a_target_that_has_had_more_records_than_the_source_is_not_taken_for_a_clean_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tool began again at the log start and has committed since: the newest records alone show no flaw."""
    source = Log(plain(10_000))
    target = copied(source, range(9_000), range(9_500))
    refused = find(monkeypatch, source, target, Recorded(9_499)).refused[KEY]
    assert "the target has used 9000 more offsets than the source below source offset 9500" in refused
    assert "adopt.compare: all counts them" in refused
    assert target.read_records < 1_000
    start = find(monkeypatch, source, target, Recorded(9_499), on_duplicates="note").starts[KEY]
    assert start.earlier.duplicates == -1
    assert "used 9000 more offsets" in start.note
    exact = find(monkeypatch, source, target, Recorded(9_499), on_duplicates="note", compare="all").starts[KEY]
    assert exact.earlier.duplicates == 9_000


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_records_of_a_former_topic_are_a_matter_of_policy(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """The source topic was created again, and the tool has copied all of it behind 50 records of the former one."""
    source = Log(plain(200))
    target = Log({place: (7_000 + place if place < 50 else 950 + place, False) for place in range(250)})
    got = find(monkeypatch, source, target, Recorded(-1), on_duplicates=policy)
    if policy == "stop":
        assert "the target has used 50 more offsets than the source below source offset 200" in got.refused[KEY]
    else:
        assert (got.starts[KEY].source_offset, got.starts[KEY].target_offset) == (200, 250)
        assert "used 50 more offsets" in got.starts[KEY].note


NOT_KNOWN = "whether older ones are twice or missing is not known"


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_records_that_may_be_missing_below_what_was_compared_are_named(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    source = Log(plain(9_500))
    target = copied(source, range(5_000), range(7_000, 9_500))
    start = find(monkeypatch, source, target, Recorded(9_499), on_duplicates=policy).starts[KEY]
    assert (start.source_offset, start.target_offset, start.earlier.missing) == (9_500, 7_500, -1)
    assert f"only the newest {start.compared_records} records were compared" in start.note
    assert "the source has used 2000 more offsets than the target" in start.note
    assert NOT_KNOWN in start.note


def test_holes_of_the_source_hide_records_that_are_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker behind each record: the target has used fewer offsets although 2,000 records are twice."""
    source = Log({offset: item for offset, item in plain(9_499).items() if offset % 2 == 0}, end=9_500)
    target = copied(source, range(9_500), range(5_500, 9_500))
    start = find(monkeypatch, source, target, Recorded(9_499)).starts[KEY]
    assert (start.target_offset, start.earlier.duplicates) == (6_750, -1)
    assert "the source has used" in start.note
    assert NOT_KNOWN in start.note
    exact = find(monkeypatch, source, target, Recorded(9_499), compare="all", on_duplicates="note").starts[KEY]
    assert exact.earlier.duplicates == 2_000
    assert NOT_KNOWN not in exact.note


def test_a_suffix_is_never_called_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(9_500))
    start = find(monkeypatch, source, copied(source, range(9_500)), Recorded(9_499)).starts[KEY]
    assert NOT_KNOWN in start.note
    assert "more offsets" not in start.note
    whole = find(monkeypatch, source, copied(source, range(9_500)), Recorded(9_499), compare="all").starts[KEY]
    assert whole.note == ""


def test_everything_is_compared_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(3_000))
    target = copied(source, range(2_000), range(1_500, 2_500))
    found = find(monkeypatch, source, target, Recorded(1_499), compare="all", on_duplicates="note")
    start = found.starts[KEY]
    assert (start.source_offset, start.target_offset, start.earlier.duplicates) == (2_500, 3_000, 500)
    below = found.below[KEY]
    assert below.is_exact
    assert start.below_digest == below.digest()
    assert ranges_of(below.ranges) == [BelowRange(0, 0, 1_500), BelowRange(1_500, 2_000, 1_000)]


def test_the_map_goes_down_to_the_lowest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(5_000))
    found = find(monkeypatch, source, copied(source, range(4_000)), Recorded(3_999), down_to=1_000)
    below = found.below[KEY]
    assert not below.is_exact
    assert ranges_of(below.ranges)[0].source_first <= 1_000


def test_flaws_are_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(3_000, aborted=range(100, 110)))
    target = copied(source, range(2_000), range(1_500, 2_500))
    found = find(monkeypatch, source, target, Recorded(1_499), compare="all")
    assert not found.starts
    assert "500 records written twice or more, 10 records of aborted transactions" in found.refused[KEY]
    assert "topics.rename.topics" in found.refused[KEY]


def test_whether_aborted_records_were_copied_is_tried_if_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(1_000, aborted=range(500, 550)))
    committed = Log({offset: item for offset, item in source.records.items() if not item[1]}, end=1_000)
    target = copied(committed, range(800))
    start = find(monkeypatch, source, target, Recorded(None), copies_aborted=None, compare="all").starts[KEY]
    assert (start.source_offset, start.earlier.aborted_records) == (800, 0)
    everything = copied(source, range(800))
    again = find(
        monkeypatch,
        source,
        everything,
        Recorded(None),
        copies_aborted=None,
        compare="all",
        on_duplicates="note",
    ).starts[KEY]
    assert (again.source_offset, again.earlier.aborted_records) == (800, 50)


def test_a_partition_that_was_never_copied_is_copied_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(monkeypatch, Log(plain(10)), Log({}), Recorded(-1))
    assert not found.starts
    assert not found.refused


def test_an_emptied_target_is_adopted_only_if_the_source_has_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied = Log({}, start=500, end=500)
    start = find(monkeypatch, Log({}, start=700, end=700), emptied, Recorded(699)).starts[KEY]
    assert (start.source_offset, start.target_offset) == (700, 500)
    refused = find(monkeypatch, Log(plain(10, 700), start=700), emptied, Recorded(699)).refused[KEY]
    assert "nothing shows which of them were copied" in refused


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 7)], ids=["a new log", "aborted records only"])
@pytest.mark.parametrize("count", [10, 5_000], ids=["read whole", "read in part"])
def test_a_target_that_was_created_again_lacks_everything(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, count: int
) -> None:
    source, target = Log(plain(count)), Log({}, start=start, end=end)
    refused = find(monkeypatch, source, target, Recorded(count - 1)).refused[KEY]
    assert f"committed source offset {count - 1}, but the target never had a record" in refused
    adopted = find(monkeypatch, source, target, Recorded(count - 1), on_duplicates="note").starts[KEY]
    assert (adopted.source_offset, adopted.target_offset) == (count, end)
    assert "its topic was created again since" in adopted.note
    # The source has deleted what was copied, too: nothing is lacking.
    gone = find(monkeypatch, Log({}, start=count, end=count), target, Recorded(count - 1))
    assert gone.starts[KEY].source_offset == count


def test_a_target_that_has_aborted_transactions_only_is_continued_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exactly-once copier was killed in its first transaction: its records and the marker keep their offsets."""
    source, aborted = Log(plain(10, 700), start=700), Log({}, start=0, end=11)
    start = find(monkeypatch, source, aborted, Recorded(-1)).starts[KEY]
    assert (start.source_offset, start.target_offset, start.compared_records) == (700, 11, 0)
    assert "nothing was copied" in start.note
    assert find(monkeypatch, source, aborted, Recorded(None)).starts[KEY].source_offset == 700


@pytest.mark.parametrize(
    ("target", "committed", "cleaned"),
    [
        (Log({}, start=0, end=11), 702, False),
        (Log({}, start=0, end=11), -1, True),
        (Log({}, start=5, end=11), -1, False),
    ],
    ids=["it has committed", "the cleaner may have removed all", "its head is deleted"],
)
def test_an_empty_target_that_may_have_had_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: Log, committed: int, cleaned: bool
) -> None:
    found = find(monkeypatch, Log(plain(10, 700), start=700), target, Recorded(committed), target_cleaned=cleaned)
    assert "nothing shows which of them were copied" in found.refused[KEY]


def test_a_source_that_ends_below_the_position_is_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log({}, start=10, end=10)
    target = Log(plain(100))
    assert "it was truncated" in find(monkeypatch, source, target, Recorded(99)).refused[KEY]


def test_a_doubt_is_accepted_only_by_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(50, 1_000), start=1_000)
    target = Log(plain(100, 100))
    refused = find(monkeypatch, source, target, Recorded(199))
    assert "nothing shows that what it deleted was copied" in refused.refused[KEY]
    start = find(monkeypatch, source, target, Recorded(199), on_duplicates="note").starts[KEY]
    assert start.source_offset == 1_000
    assert "deleted all up to offset 999" in start.note


def test_offset_syncs_are_the_map_where_the_spec_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Log(plain(500))
    syncs = (OffsetSync(0, 0), OffsetSync(101, 101), OffsetSync(202, 202))
    found = find(monkeypatch, source, copied(source, range(300)), Recorded(250, syncs), map_below="offset_syncs")
    below = found.below[KEY]
    assert not below.is_exact
    assert ranges_of(below.ranges) == [BelowRange(0, 0, 1), BelowRange(101, 101, 1), BelowRange(202, 202, 1)]
