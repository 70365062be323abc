"""Where another tool's copy ends: generated logs and lives, with kills, repeated records, retention and compaction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_kafka_migration.adoption.alignment import (
    Alignment,
    NeedsOlder,
    OffsetSync,
    Outcome,
    Refusal,
    Rules,
    align,
    common_suffixes,
)
from airflow_provider_kafka_migration.adoption.contents import Contents
from airflow_provider_kafka_migration.adoption.map_below import below_map, last_copies
from airflow_provider_kafka_migration.adoption.starts import Candidate
from airflow_provider_kafka_migration.offset_map.below import BelowRange, BelowTranslator, ranges_of

CANDIDATE = Candidate("t", 0, "a.t", "", "", 0, 0)


@dataclass(frozen=True)
class Item:
    """A record: its offset on the source, what it contains, its key."""

    offset: int
    body: int
    key: int = 0
    tombstone: bool = False
    aborted: bool = False


@dataclass
class World:
    """A source, what a tool made of it, and what the tool remembers."""

    source: list[Item]
    target: list[Item] = field(default_factory=list)
    committed: int = -1
    #: index of the last source record of the last life
    last: int = -1
    syncs: list[OffsetSync] = field(default_factory=list)

    def live(self, records: int, committed: int | None) -> None:
        """One life: copies ``records`` from the committed position on, and commits some of them or nothing."""
        first = next((n for n, item in enumerate(self.source) if item.offset > self.committed), len(self.source))
        copied = self.source[first : first + records]
        if not copied:
            return
        self.syncs.append(OffsetSync(copied[0].offset, len(self.target)))
        self.target += copied
        self.last = first + len(copied) - 1
        if committed is not None:
            self.committed = copied[min(committed, len(copied) - 1)].offset

    @property
    def position(self) -> int:
        return self.source[self.last].offset + 1


def contents(items: list[Item], offsets: list[int] | None = None) -> Contents:
    found = Contents()
    for number, item in enumerate(items):
        offset = item.offset if offsets is None else offsets[number]
        found.add(offset, item.body, item.key, tombstone=item.tombstone, aborted=item.aborted)
    return found


def aligned(source: list[Item], target: list[Item], target_start: int = 0, **known: object) -> Outcome:
    """Align whole logs; the target's offsets count from its log start."""
    rules = Rules(target_start_offset=target_start, **known)  # type: ignore[arg-type]
    offsets = list(range(target_start, target_start + len(target)))
    return align(contents(source), contents(target, offsets), rules)


def found(outcome: Outcome) -> Alignment:
    assert isinstance(outcome, Alignment), outcome
    return outcome


def plain(count: int, start: int = 0) -> list[Item]:
    """Records that differ from each other."""
    return [Item(offset, 1_000 + offset) for offset in range(start, start + count)]


def by_windows(world: World, window: int, **known: object) -> Outcome:
    """Align with small windows that grow when they are too small, as the reader of live logs does."""
    source_from = max(0, next((n for n, i in enumerate(world.source) if i.offset > world.committed), 0) - window)
    target_from = max(0, len(world.target) - window)
    for _ in range(64):
        rules = Rules(
            committed=world.committed,
            source_whole=source_from == 0,
            target_whole=target_from == 0,
            **known,  # type: ignore[arg-type]
        )
        target = contents(world.target[target_from:], list(range(target_from, len(world.target))))
        outcome = align(contents(world.source[source_from:]), target, rules)
        if not isinstance(outcome, NeedsOlder):
            return outcome
        assert outcome.source or outcome.target
        assert not (outcome.source and source_from == 0)
        assert not (outcome.target and target_from == 0)
        window *= 2
        source_from = max(0, source_from - window) if outcome.source else source_from
        target_from = max(0, target_from - window) if outcome.target else target_from
    raise AssertionError("the windows grow for ever")


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_after_a_graceful_stop_the_committed_position_is_right() -> None:
    source = plain(500)
    got = found(aligned(source, source[:300], committed=299))
    assert (got.source_offset, got.proof, got.duplicates, got.missing) == (300, "content", 0, 0)
    assert list(got.ranges) == [BelowRange(0, 0, 300)]


def test_records_beyond_the_committed_position_are_found() -> None:
    source = plain(500)
    got = found(aligned(source, source[:450], committed=99))
    assert got.source_offset == 450
    assert got.compared_records == 450


def test_lives_without_any_commit_leave_the_whole_log_again() -> None:
    world = World(plain(300))
    for records in (80, 120, 200):
        world.live(records, None)
    got = found(aligned(world.source, world.target, committed=-1, everything=True))
    assert (got.source_offset, got.duplicates, got.missing) == (200, 200, 0)
    assert last_copies(got.ranges) == [BelowRange(0, 200, 200)]


def test_one_look_below_the_last_run_shows_duplicates() -> None:
    world = World(plain(2_000))
    world.live(1_000, 499)
    world.live(700, None)
    got = found(aligned(world.source, world.target, committed=499))
    assert (got.source_offset, got.duplicates) == (1_200, 500)


@pytest.mark.parametrize("window", [64, 5_000])
def test_a_life_that_began_at_the_log_start_again_shows_duplicates(window: int) -> None:
    """The tool has lost its positions: everything is on the target twice, although the last run alone is evidence."""
    world = World(plain(300))
    world.live(250, None)
    world.live(200, None)
    got = found(by_windows(world, window, min_records=64))
    assert (got.source_offset, got.missing) == (200, 0)
    assert 200 < got.duplicates <= 250, "200 of them twice, and 50 are copied again, as far as they were read"


def test_older_records_below_a_life_from_the_log_start_are_no_duplicates() -> None:
    source = plain(200, start=1_000)
    older = [Item(offset, 1_000 + offset) for offset in range(900, 1_000)]
    got = found(aligned(source, older + source, committed=-1, source_start_offset=1_000))
    assert (got.source_offset, got.duplicates, got.older) == (1_200, 0, 100)


@pytest.mark.parametrize("window", [64, 5_000])
def test_records_of_a_former_topic_below_a_life_from_the_log_start_end_the_look(window: int) -> None:
    """The source topic was created again, and the tool went on into the same target topic."""
    world = World(plain(200))
    world.target += [Item(0, 7_000 + number) for number in range(50)]
    world.live(200, None)
    got = found(by_windows(world, window, min_records=64))
    assert (got.source_offset, got.duplicates, got.missing, got.whole) == (200, 0, 0, False)


@pytest.mark.parametrize("place", [0, 40, 99])
@pytest.mark.parametrize("like", [0, 100, 199])
def test_an_older_record_that_repeats_is_no_duplicate(place: int, like: int) -> None:
    source = plain(200, start=1_000)
    older = [Item(offset, 1_000 + offset) for offset in range(900, 1_000)]
    older[place] = Item(900 + place, source[like].body)
    got = found(aligned(source, older + source, committed=-1, source_start_offset=1_000))
    assert (got.source_offset, got.duplicates, got.older) == (1_200, 0, 100)


def test_a_repeated_record_does_not_hide_what_an_earlier_life_has_copied() -> None:
    """The earlier life came to 1,100; the last one began at 950, and the source has deleted up to 1,000 since."""
    history = plain(400, start=800)
    history[170] = Item(970, history[250].body)
    target = history[:300] + history[150:]
    got = found(aligned(history[200:], target, committed=-1, source_start_offset=1_000))
    assert (got.source_offset, got.duplicates) == (1_200, 100)


def test_what_an_earlier_life_has_copied_above_the_position_is_there_twice_soon() -> None:
    source = plain(500)
    got = found(aligned(source, source[:400] + source[:300], committed=-1, everything=True))
    assert (got.source_offset, got.duplicates) == (300, 400)


def test_a_sync_of_a_former_topic_is_no_position() -> None:
    """Compacted: what follows the newest pair is gone from the source, so that the sync decides; its records differ."""
    source = [Item(offset, 1_000 + offset, key=offset) for offset in range(60)]
    gone = [Item(60, 5_000, key=3), Item(61, 5_001, key=4)]
    later = [Item(62, 6_000, key=3), Item(63, 6_001, key=4)]
    syncs = [OffsetSync(0, 0), OffsetSync(50, 20)]
    got = found(aligned([*source, *later], source[:40] + gone, committed=-1, syncs=syncs, source_cleaned=True))
    assert got.source_offset == 40, "not behind the sync, whose records are others"


def test_identical_records_are_decided_by_the_offset_sync() -> None:
    source = [Item(offset, 7) for offset in range(100)]
    target = source[:60]
    refused = aligned(source, target, committed=49)
    assert isinstance(refused, Refusal)
    assert "no offset sync" in refused.reason
    got = found(aligned(source, target, committed=49, syncs=[OffsetSync(0, 0), OffsetSync(40, 40)]))
    assert (got.source_offset, got.proof) == (60, "offset_sync")


def test_a_sync_beyond_the_targets_end_does_not_count() -> None:
    source = [Item(offset, 7) for offset in range(100)]
    got = aligned(source, source[:60], committed=49, syncs=[OffsetSync(70, 60), OffsetSync(71, 61)])
    assert isinstance(got, Refusal)


def test_the_walk_goes_past_the_committed_position_where_records_repeat() -> None:
    # A burst of equal records around the end: stopping at N would leave several candidates.
    source = [*plain(100), *[Item(offset, 7) for offset in range(100, 140)], *plain(50, 140)]
    got = found(aligned(source, source[:120], committed=110, min_records=8))
    assert (got.source_offset, got.proof) == (120, "content")


def test_a_missing_record_in_the_last_life_is_no_position() -> None:
    source = plain(300)
    got = aligned(source, [*source[:150], *source[151:250]], committed=99)
    assert isinstance(got, Refusal)
    assert "down to the committed position 99" in got.reason


def test_a_missing_record_below_the_last_life_is_named() -> None:
    source = plain(300)
    got = found(aligned(source, [*source[:50], *source[51:250]], committed=99, everything=True))
    assert (got.source_offset, got.missing) == (250, 1)


def test_a_record_of_others_at_the_end_is_refused() -> None:
    source = plain(300)
    got = aligned(source, [*source[:150], Item(0, 5)], committed=99)
    assert isinstance(got, Refusal)
    assert "others write to the target" in got.reason


def test_a_record_of_others_before_the_last_run_is_refused() -> None:
    source = plain(300)
    got = aligned(source, [*source[:50], Item(0, 5), *source[50:250]], committed=99)
    assert isinstance(got, Refusal)
    assert "offset 50 is not on the source" in got.reason


def test_a_tool_that_began_in_the_middle_lacks_the_beginning() -> None:
    source = plain(300)
    got = found(aligned(source, source[100:250], committed=-1))
    assert (got.source_offset, got.missing) == (250, 100)


@pytest.mark.parametrize(("first", "window"), [(200, 80), (210, 31), (210, 41), (100, 64)])
def test_the_beginning_is_missing_also_where_the_source_is_not_read_to_its_start(first: int, window: int) -> None:
    """The remote topic was created again, or the tool began at the end: groups that lag further would skip records."""
    source = plain(300)
    world = World(source, source[first:250], committed=240, last=249)
    got = found(by_windows(world, window, min_records=40))
    assert got.source_offset == 250
    assert got.missing > 0 or not got.whole
    check_map(world, got)
    reaching_down = found(by_windows(world, window, min_records=4, down_to=first - 50))
    assert reaching_down.missing >= 50
    check_map(world, reaching_down)


def test_what_the_target_has_deleted_is_no_exact_position() -> None:
    """Retention has deleted its first records, or the tool began late: nobody knows."""
    source = plain(300)
    got = found(aligned(source, source[100:250], 100, committed=240, everything=True))
    assert (got.missing, got.whole, got.from_source_start) == (0, True, False)
    document = below_map("m", CANDIDATE, got, 250, "exact")
    assert document is not None
    places = [BelowTranslator(document).translate(offset) for offset in (0, 99, 100, 249)]
    assert [None if place is None else place.target_offset for place in places] == [None, None, 100, 249]
    # What the source has deleted as well, no consumer can miss.
    alike = found(aligned(source[100:], source[100:250], 100, committed=240, source_start_offset=100, everything=True))
    assert alike.from_source_start
    known = below_map("m", CANDIDATE, alike, 250, "exact")
    assert known is not None
    place = BelowTranslator(known).translate(50)
    assert place is not None
    assert place.target_offset == 100


def test_the_source_has_deleted_what_was_copied() -> None:
    source = plain(50, 1_000)
    got = found(aligned(source, plain(100, 900), committed=999, source_start_offset=1_000))
    assert (got.source_offset, got.proof) == (1_000, "offset_sync")
    assert not got.doubt
    gap = found(aligned(source, plain(100, 800), committed=899, source_start_offset=1_000))
    assert gap.source_offset == 1_000
    assert "deleted all up to offset 999" in gap.doubt
    empty = found(aligned([], plain(100, 900), committed=999, source_start_offset=1_000))
    assert (empty.source_offset, empty.doubt) == (1_000, "")


def test_older_records_that_the_source_deleted_are_counted() -> None:
    source = plain(200, 100)
    target = plain(250)
    got = found(aligned(source, target, committed=200, source_start_offset=100, everything=True))
    assert (got.source_offset, got.older, got.missing, got.whole) == (250, 100, 0, True)


def test_aborted_records_that_were_copied_are_counted() -> None:
    source = [Item(offset, 1_000 + offset, aborted=40 <= offset < 50) for offset in range(100)]
    got = found(aligned(source, source[:80], committed=10, everything=True))
    assert (got.source_offset, got.aborted) == (80, 10)


def test_an_unknown_tool_needs_enough_equal_records() -> None:
    source = plain(500)
    assert found(aligned(source, source[300:400], committed=None)).source_offset == 400
    refused = aligned(source, [*plain(100, 9_000), *source[390:400]], committed=None, min_records=64)
    assert isinstance(refused, Refusal)
    assert "10 consecutive ones" in refused.reason


def test_compaction_on_the_source_hides_the_last_records() -> None:
    # keys 1..4; the source has kept only the last record of each, all of them later than what the target has
    target = [Item(offset, 100 + offset, 1 + offset % 4) for offset in range(40)]
    source = [Item(offset, 100 + offset, 1 + offset % 4) for offset in range(60, 64)]
    got = found(aligned(source, target, committed=35, syncs=[OffsetSync(39, 39)], source_cleaned=True))
    assert (got.source_offset, got.proof, got.missing) == (40, "offset_sync", 0)


def test_a_record_that_compaction_does_not_explain_is_refused() -> None:
    target = [Item(offset, 100 + offset, 1 + offset % 4) for offset in range(40)]
    source = [item for item in target if item.key != 2]
    got = aligned(source, target, committed=35, source_cleaned=True)
    assert isinstance(got, Refusal)
    assert "no later record" in got.reason


def test_a_lost_record_of_a_compacted_topic_is_missing_though_an_older_one_is_there() -> None:
    source = [Item(0, 10, 1), Item(1, 11, 1), Item(2, 12, 2)]
    got = found(aligned(source, [source[0], source[2]], committed=2, source_cleaned=True, target_cleaned=True))
    assert (got.source_offset, got.missing) == (3, 1)


# -- properties -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_suffixes_are_those_of_the_slow_way(source: list[int], target: list[int]) -> None:
    from array import array

    slow = []
    for index in range(len(source)):
        length = 0
        while length < min(index + 1, len(target)) and source[index - length] == target[-1 - length]:
            length += 1
        slow.append(length)
    assert list(common_suffixes(array("Q", source), array("Q", target))) == slow


@st.composite
def sources(draw: st.DrawFn, *, alphabet: int) -> list[Item]:
    """A log with holes and, for a small alphabet, repeated records."""
    items: list[Item] = []
    offset = draw(st.integers(0, 5))
    for number in range(draw(st.integers(2, 60))):
        body = draw(st.integers(1, alphabet)) if alphabet else 1_000 + number
        items.append(Item(offset, body, aborted=draw(st.integers(0, 9)) == 0))
        offset += draw(st.sampled_from([1, 1, 1, 2, 4]))
    return items


@st.composite
def worlds(draw: st.DrawFn, *, alphabet: int) -> World:
    """A source and some lives, each killed somewhere."""
    world = World(draw(sources(alphabet=alphabet)))
    for _ in range(draw(st.integers(1, 4))):
        records = draw(st.integers(1, len(world.source)))
        world.live(records, draw(st.none() | st.integers(0, records - 1)))
    return world


def check_nothing_is_lost(world: World, got: Alignment) -> None:
    """All contents below the position are on the target, as often as on the source."""
    below = Counter(item.body for item in world.source if item.offset < got.source_offset)
    lost = below - Counter(item.body for item in world.target)
    assert sum(lost.values()) <= got.missing


def check_map(world: World, got: Alignment) -> None:
    """A consumer that goes on at any position reads everything from there on, first the record that it wants."""
    document = below_map("m", CANDIDATE, got, len(world.target), "exact")
    assert document is not None
    translator = BelowTranslator(document)
    covered = {item.source_first + step for item in ranges_of(document.ranges) for step in range(item.count)}
    for committed in range(world.source[0].offset, got.source_offset):
        place = translator.translate(committed)
        wanted = [item.body for item in world.source if committed <= item.offset < got.source_offset]
        if place is None:
            assert not document.is_exact
            assert committed < min(covered)
            continue
        reads = [item.body for item in world.target[place.target_offset :]]
        if document.is_exact:
            assert not Counter(wanted) - Counter(reads)
            assert reads[:1] == wanted[:1] or not wanted
        elif committed >= min(covered):
            assert not Counter(wanted) - Counter(reads)


@settings(max_examples=6 * settings.default.max_examples)
@given(worlds(alphabet=0), st.booleans(), st.integers(1, 80))
def test_different_records_give_the_true_position(world: World, everything: bool, window: int) -> None:
    got = found(by_windows(world, window, everything=everything, min_records=8))
    assert (got.source_offset, got.proof, got.missing) == (world.position, "content", 0)
    check_map(world, got)
    if everything:
        assert got.whole
        again = {item.offset for item in world.target if item.offset >= world.position}
        assert got.duplicates == len(world.target) - len({item.offset for item in world.target}) + len(again)
        assert got.aborted == sum(item.aborted for item in world.target)


@settings(max_examples=6 * settings.default.max_examples)
@given(worlds(alphabet=0), st.integers(0, 200), st.integers(1, 80))
def test_the_map_reaches_down_to_where_it_is_wanted(world: World, down_to: int, window: int) -> None:
    got = found(by_windows(world, window, down_to=down_to, min_records=4))
    assert got.source_offset == world.position
    covered = {item.source_first + step for item in got.ranges for step in range(item.count)}
    wanted = {item.offset for item in world.source if down_to <= item.offset < got.source_offset}
    assert wanted <= covered
    check_map(world, got)


@settings(max_examples=8 * settings.default.max_examples)
@given(worlds(alphabet=2), st.booleans(), st.booleans(), st.integers(1, 80))
def test_repeated_records_lose_nothing(world: World, everything: bool, with_syncs: bool, window: int) -> None:
    syncs = world.syncs if with_syncs else []
    outcome = by_windows(world, window, everything=everything, syncs=syncs, min_records=4)
    if isinstance(outcome, Refusal):
        assert "no offset sync" in outcome.reason
        return
    got = found(outcome)
    if got.proof == "offset_sync":
        assert got.source_offset == world.position
    check_nothing_is_lost(world, got)
    if everything:
        check_map(world, got)


@st.composite
def compacted(draw: st.DrawFn) -> tuple[World, list[Item], list[Item], bool, bool]:
    """A keyed log whose sides are compacted at some moments: (world, source now, target now, cleaned flags)."""
    count = draw(st.integers(2, 25))
    items = [
        Item(offset, 1_000 + offset, draw(st.integers(1, 6)), tombstone=draw(st.integers(0, 7)) == 0)
        for offset in range(count)
    ]
    world = World(items)
    for _ in range(draw(st.integers(1, 3))):
        records = draw(st.integers(1, count))
        world.live(records, draw(st.none() | st.integers(0, records - 1)))
    on_source, on_target = draw(st.booleans()), draw(st.booleans())
    source = cleaned(draw, items) if on_source else items
    target = list(enumerate(world.target))
    if on_target:
        kept = set(map(id, cleaned(draw, [item for _, item in target])))
        target = [(at, item) for at, item in target if id(item) in kept]
    return world, source, target, on_source, on_target  # type: ignore[return-value]


def cleaned(draw: st.DrawFn, items: list[Item]) -> list[Item]:
    """Compacted up to some record: the last record of each key stays, but a tombstone may go."""
    until = draw(st.integers(0, len(items) - 1))  # the active segment is never compacted
    last = {item.key: number for number, item in enumerate(items[:until])}
    gone = draw(st.booleans())
    return [
        item
        for number, item in enumerate(items)
        if number >= until or (last[item.key] == number and not (gone and item.tombstone))
    ]


@settings(max_examples=10 * settings.default.max_examples)
@given(compacted())
def test_compacted_logs_lose_no_key(made: tuple[World, list[Item], list[tuple[int, Item]], bool, bool]) -> None:
    world, source, target, on_source, on_target = made
    if not target or not (on_source or on_target):
        return
    outcome = align(
        contents(source),
        contents([item for _, item in target], [at for at, _ in target]),
        Rules(committed=world.committed, syncs=world.syncs, source_cleaned=on_source, target_cleaned=on_target),
    )
    if isinstance(outcome, Refusal):
        # A key that was deleted on the source, with its tombstone, before the target learned of it.
        assert latest([item for _, item in target]).keys() - {item.key for item in source}
        return
    got = found(outcome)
    assert got.missing == 0
    # Whatever was copied is behind the position or on the source above it, and nothing is skipped.
    assert not [item for item in source if world.position <= item.offset < got.source_offset]
    state = latest([item for _, item in target] + [item for item in source if item.offset >= got.source_offset])
    assert state == latest([*world.source])


def latest(items: list[Item]) -> dict[int, int]:
    """The last value of each key, without deleted keys."""
    found: dict[int, Item] = {item.key: item for item in items}
    return {key: item.body for key, item in found.items() if not item.tombstone}


@example([])
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8))
def test_last_copies_are_ascending_on_both_sides(pieces: list[tuple[int, int]]) -> None:
    ranges, end = [], 0
    for first, count in pieces:
        ranges.append(BelowRange(first, end, count))
        end += count
    got = last_copies(ranges)
    for one, other in pairwise(got):
        assert one.source_first + one.count <= other.source_first
        assert one.target_first + one.count <= other.target_first


def test_syncs_give_positions_that_skip_nothing() -> None:
    alignment = Alignment(200, "content", 64)
    syncs = [OffsetSync(0, 0), OffsetSync(101, 101), OffsetSync(202, 202), OffsetSync(101, 300), OffsetSync(180, 379)]
    document = below_map("m", CANDIDATE, alignment, 399, "offset_syncs", syncs)
    assert document is not None
    assert not document.is_exact
    # The sync of 202 is of an earlier life: the last one began again at 101.
    assert ranges_of(document.ranges) == [BelowRange(0, 0, 1), BelowRange(101, 300, 1), BelowRange(180, 379, 1)]
    translated = BelowTranslator(document).translate(150)
    assert translated is not None
    assert translated.target_offset <= 300 + 49
    assert below_map("m", CANDIDATE, alignment, 399, "none", syncs) is None


@pytest.mark.parametrize("everything", [False, True])
def test_large_logs_are_aligned_quickly(everything: bool) -> None:
    source = [Item(offset, offset % 3) for offset in range(100_000)]
    world = World(source)
    world.live(60_000, 30_000)
    world.live(50_000, None)
    outcome = aligned(source, world.target, committed=world.committed, everything=everything, syncs=world.syncs)
    assert found(outcome).source_offset == world.position
