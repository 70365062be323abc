"""Where a copy by another tool really ends: found by content, since such a tool's own position is not to be trusted.

A tool that reads the source from its last committed position at each start writes *runs*: consecutive records of the
source. Each life of the tool is one run, and begins at or below the end of the one before it. What it had written
beyond its last commit is on the target twice. The rules, seen with MirrorMaker 2 that was killed:

* The last record on the target is a record of the source at or above the committed offset N: a *candidate* for each
  record with equal key, value, headers and timestamp.
* Whatever run a candidate ends, everything between N and it was written in the tool's last life. So the records before
  the target's end must equal those of the source down to N; further equal records only add evidence.
* If several candidates are left, the newest offset sync and a count from there decide; then the longest run of equal
  records, if a comparison of everything shows that the target lacks nothing below it. Else the partition is refused.
* Before a run, the target must continue with a record of the run before it, which ends at or above the beginning of
  this one. Otherwise records are missing, or somebody else has written.
* Compaction on either side takes records away. A record may be missing on one side if its key has a later record, or
  if it is a tombstone. If none of the newest records is left on the source, then nothing that the source has is among
  them.

Pure: two logs go in, a position and a map come out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from airflow_provider_kafka_migration.adoption.contents import NO_KEY, Contents
from airflow_provider_kafka_migration.offset_map.below import BelowRange

#: How many places of a repeated record are tried when a run of an earlier life is looked up.
_MAX_PLACES = 64
_CHUNK_RECORDS = 1024


class OffsetSync(NamedTuple):
    """A pair of offsets that the tool recorded: this source record is at that target offset."""

    source_offset: int
    target_offset: int


class Block(NamedTuple):
    """Consecutive records that are equal on both sides, as indices into the contents."""

    source_index: int
    target_index: int
    length: int


@dataclass(frozen=True)
class Rules:
    """What is known of the two logs and of the tool.

    :param committed: last source offset that the tool has committed as copied; -1: none, so that each of its lives
        began at the log start; None: the tool is unknown, and ``min_records`` equal records are the proof.
    :param syncs: ascending by target offset.
    :param min_records: records before the boundary that are compared, as far as they exist.
    :param down_to: the map must have all source records from this offset on; None: the map is not wanted.
    :param everything: compare all that both sides have.
    :param source_whole: the source's contents begin at its log start.
    :param target_whole: the target's contents begin at its log start.
    :param source_start_offset: log start of the source. Above 0, the target may have records that the source deleted.
    :param target_start_offset: log start of the target. Above 0, the target may have deleted what it had.
    :param source_cleaned: the source's topic is compacted.
    :param target_cleaned: the target's topic is compacted.
    """

    committed: int | None = -1
    syncs: Sequence[OffsetSync] = ()
    min_records: int = 64
    down_to: int | None = None
    everything: bool = False
    source_whole: bool = True
    target_whole: bool = True
    source_start_offset: int = 0
    target_start_offset: int = 0
    source_cleaned: bool = False
    target_cleaned: bool = False


@dataclass(frozen=True)
class NeedsOlder:
    """The contents do not reach back far enough: read older records of these sides, and align again."""

    source: bool = False
    target: bool = False


@dataclass(frozen=True)
class Refusal:
    """No position can be proven; ``reason`` is for people."""

    reason: str


@dataclass(frozen=True)
class Alignment:
    """The position that was found.

    :param source_offset: first source offset that is not on the target.
    :param proof: ``content``, or ``offset_sync`` where content alone could not decide.
    :param compared_records: target records before the boundary that were found on the source, or shown as cleaned.
    :param ranges: map of the compared records, ascending by target offset. A source offset can be in several ranges:
        the last one counts.
    :param duplicates: target records that are there more than once, among those compared, or will be: an earlier life
        of the tool may have come further than its last one.
    :param aborted: target records that belong to aborted transactions of the source, among those compared.
    :param missing: source records below ``source_offset`` that the target lacks, among those compared.
    :param older: target records that the source does not have any more.
    :param whole: all records of the target were compared.
    :param from_source_start: all source records from its log start on are in the ranges or counted as missing. Where
        the target has deleted its first records, nobody knows what it once had.
    :param note: for people.
    :param doubt: why records may be missing, although nothing shows it; empty: there is no such reason.
    """

    source_offset: int
    proof: Literal["content", "offset_sync"]
    compared_records: int
    ranges: Sequence[BelowRange] = ()
    duplicates: int = 0
    aborted: int = 0
    missing: int = 0
    older: int = 0
    whole: bool = False
    from_source_start: bool = False
    note: str = ""
    doubt: str = ""


Outcome = Alignment | NeedsOlder | Refusal


def align(source: Contents, target: Contents, rules: Rules) -> Outcome:
    """Find the first source offset that is not on the target.

    :param source: all records that the tool could have copied, at least from ``rules.committed`` on.
    :param target: the newest records of the target, at least one; up to its log end.
    """
    if rules.source_cleaned or rules.target_cleaned:
        return _align_cleaned(source, target, rules)
    return _align_kept(source, target, rules)


# -- logs that keep all records ---------------------------------------------------------------------------------------


def common_suffixes(source: array[int], target: array[int]) -> array[int]:
    """For each index of ``source``: how many records up to it equal the last records of ``target``. Linear."""
    pattern, text = target[::-1], source[::-1]
    size, total = len(pattern), len(pattern) + len(text)

    def at(index: int) -> int:
        return pattern[index] if index < size else text[index - size]

    # The Z function of the reversed logs, one behind the other; lengths are cut at the pattern's.
    lengths = array("q", bytes(8 * total))
    left = right = 0
    for index in range(1, total):
        length = 0
        if index < right:
            length = min(right - index, lengths[index - left])
        while index + length < total and at(length) == at(index + length):
            length += 1
        lengths[index] = length
        if index + length > right:
            left, right = index, index + length
    found = array("q", (min(lengths[size + index], size) for index in range(len(text))))
    return found[::-1]


def _align_kept(source: Contents, target: Contents, rules: Rules) -> Outcome:
    lengths = common_suffixes(source.bodies, target.bodies)
    beyond = 0 if rules.committed is None else source.index_of(rules.committed + 1)
    possible = _possible(target, rules, lengths, beyond)
    if isinstance(possible, NeedsOlder):
        return possible
    if not possible:
        return _nothing_fits(source, target, rules, lengths, beyond)
    chosen = _choose(source, target, rules, lengths, possible)
    if not isinstance(chosen, _Chosen):
        return chosen
    if chosen.is_only_likely:
        rules = replace(rules, everything=True)
    outcome = _with_runs(source, target, rules, chosen, lengths[chosen.index])
    if chosen.is_only_likely and isinstance(outcome, Alignment) and outcome.missing:
        return _ambiguous(source, possible)
    return outcome


def _possible(target: Contents, rules: Rules, lengths: array[int], beyond: int) -> list[int] | NeedsOlder:
    """Return the indices of all source records that may be the last one on the target.

    :param beyond: index of the first source record above the committed position.
    """
    possible, unsure = [], NeedsOlder()
    for index in range(max(beyond - 1, 0), len(lengths)):
        length = lengths[index]
        if length == 0:
            continue
        required = _required(rules, length, index, beyond, len(target))
        if length < max(required, rules.min_records):
            unsure = NeedsOlder(
                source=unsure.source or (length == index + 1 and not rules.source_whole),
                target=unsure.target or (length == len(target) and not rules.target_whole),
            )
        if length >= required:
            possible.append(index)
    if unsure.source or unsure.target:
        return unsure
    if rules.committed == -1 and len(possible) > 1:
        # A tool that began at the log start explains more than one that began somewhere.
        from_start = [index for index in possible if lengths[index] == index + 1 and rules.source_whole]
        return from_start or possible
    return possible


def _required(rules: Rules, length: int, index: int, beyond: int, target_records: int) -> int:
    """Return how many records before a candidate must be equal: those beyond the committed position."""
    required = min(rules.min_records, index + 1) if rules.committed is None else max(1, index + 1 - beyond)
    has_begun_here = rules.target_start_offset > 0 or rules.committed is None or rules.committed < 0
    if length == target_records and rules.target_whole and has_begun_here:
        return min(required, length)  # all that the target has is equal
    return required


def _nothing_fits(source: Contents, target: Contents, rules: Rules, lengths: array[int], beyond: int) -> Outcome:
    last = target.offsets[-1]
    if rules.committed is None:
        return Refusal(
            f"the records before the target's end (offset {last}) are nowhere on the source: "
            f"{max(lengths, default=0)} consecutive ones at most, and {rules.min_records} are wanted"
        )
    best = max(range(len(lengths)), key=lengths.__getitem__, default=-1)
    if best >= 0 and lengths[best]:
        place = source.offsets[best]
        if best < beyond - 1:
            return Refusal(
                f"the last record of the target (offset {last}) is source record {place}, below the committed position "
                f"{rules.committed}: records between them are not on the target, or others write there"
            )
        return Refusal(
            f"the last {lengths[best]} records of the target equal those of the source up to offset {place}, but not "
            f"down to the committed position {rules.committed}: records are missing, or others write to the target"
        )
    if beyond == 0 and rules.source_whole and rules.source_start_offset > 0:
        return _source_deleted_it(source, target, rules)
    return Refusal(
        f"the last record of the target (offset {last}) is not on the source at or above the committed position "
        f"{rules.committed}: others write to the target, the copier's isolation.level is another one, or the record "
        "belongs to a transaction that is still open on the source"
    )


def _source_deleted_it(source: Contents, target: Contents, rules: Rules) -> Outcome:
    """Everything that the source has is above the committed position, and the target has none of it."""
    start = source.offsets[0] if source.offsets else rules.source_start_offset
    committed = -1 if rules.committed is None else rules.committed
    if not set(source.bodies).isdisjoint(target.bodies):
        return Refusal("the target has records of the source above the committed position, but not at its end")
    doubt = ""
    if start > committed + 1:
        doubt = (
            f"the committed position is {committed}, and the source has deleted all up to offset {start - 1}: nothing "
            "shows that what it deleted was copied before"
        )
    return Alignment(
        max(committed + 1, rules.source_start_offset),
        "offset_sync",
        0,
        doubt=doubt,
        note="the source has deleted all that was copied, and the target has none of what is left there",
    )


@dataclass(frozen=True)
class _Chosen:
    index: int
    proof: Literal["content", "offset_sync"]
    #: the longest of several runs: right only if all that the source has below it is on the target
    is_only_likely: bool = False


def _choose(
    source: Contents, target: Contents, rules: Rules, lengths: array[int], possible: list[int]
) -> _Chosen | NeedsOlder | Refusal:
    """Choose among the candidates: the only one, the one that the offset syncs name, or the longest run."""
    if len(possible) == 1:
        return _Chosen(possible[0], "content")
    if not rules.source_whole and any(lengths[index] == index + 1 for index in possible):
        return NeedsOlder(source=True)  # a run may go on below what was read
    anchored = _anchored(source, target, rules.syncs, set(possible))
    if anchored is not None:
        return _Chosen(anchored, "offset_sync")
    possible.sort(key=lambda index: (lengths[index], index), reverse=True)
    best, second = possible[:2]
    if lengths[best] == lengths[second] == len(target) and not rules.target_whole:
        return NeedsOlder(target=True)
    if lengths[best] > lengths[second] and lengths[best] >= min(rules.min_records, len(target)):
        return _Chosen(best, "content", is_only_likely=True)
    return _ambiguous(source, possible)


def _ambiguous(source: Contents, possible: list[int]) -> Refusal:
    places = ", ".join(str(source.offsets[index]) for index in sorted(possible)[:5])
    return Refusal(
        f"the target's last records are equal to those of the source before {len(possible)} positions ({places}"
        f"{', ...' if len(possible) > 5 else ''}), and no offset sync decides between them"
    )


def _anchored(source: Contents, target: Contents, syncs: Iterable[OffsetSync], possible: set[int]) -> int | None:
    """Count from the newest offset sync whose records are equal on both sides up to the target's end."""
    for sync in reversed(list(syncs)):
        at = target.index_of(sync.target_offset)
        first = source.index_of(sync.source_offset)
        if at >= len(target) or target.offsets[at] != sync.target_offset:
            continue
        if first >= len(source) or source.offsets[first] != sync.source_offset:
            continue
        count = len(target) - at
        equal = source.bodies[first : first + count] == target.bodies[at:]
        return first + count - 1 if equal and first + count - 1 in possible else None
    return None


# -- runs of earlier lives --------------------------------------------------------------------------------------------


def _with_runs(source: Contents, target: Contents, rules: Rules, chosen: _Chosen, length: int) -> Outcome:
    """Complete a position with the runs of earlier lives, as far as they are wanted."""
    if rules.down_to is not None and not rules.source_whole and source.offsets[0] > rules.down_to:
        return NeedsOlder(source=True)
    runs = _Runs(source, target, rules, chosen.index)
    runs.add(Block(chosen.index - length + 1, len(target) - length, length))
    at = len(target) - length - 1
    while at >= 0:
        first = runs.blocks[-1].source_index
        if first == 0 and not runs.wants_more():
            block = runs.earlier_life(at) if rules.source_whole else None
            if block is None:
                break
        elif first == 0 and not rules.source_whole:
            return NeedsOlder(source=True)  # the run may go on below what was read
        else:
            block = _earlier_run(source, target, at, first)
        if block is None:
            refused = runs.pass_over(at, first)
            if refused is not None:
                return refused
            at -= 1
            continue
        runs.add(block)
        at = block.target_index - 1
        if not runs.wants_more():
            break
    # What the target has from its first record on, the source may have before; a record that is seen there is missing.
    may_lack_first = at < 0 and not rules.source_whole and rules.target_start_offset == 0
    may_be_twice = rules.source_whole and len(runs.blocks) == 1 and runs.blocks[0].source_index == 0
    older = NeedsOlder(
        source=may_lack_first and (rules.everything or runs.blocks[-1].source_index == 0),
        target=at < 0 and not rules.target_whole and (runs.wants_more() or may_be_twice),
    )
    if older.source or older.target:
        return older
    return runs.result(chosen.proof, whole=at < 0 and rules.target_whole)


@dataclass
class _Runs:
    """The blocks that were found, newest first, and what was noticed on the way."""

    source: Contents
    target: Contents
    rules: Rules
    #: index of the last source record on the target
    boundary: int
    blocks: list[Block] = field(default_factory=list)
    #: target records that the source has deleted
    older: int = 0
    compared: int = 0
    covered: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.covered = bytearray(len(self.source))
        self._floor = 0 if self.rules.down_to is None else self.source.index_of(self.rules.down_to)

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.compared += block.length
        first = block.source_index
        self.covered[first : first + block.length] = b"\1" * block.length

    def pass_over(self, at: int, first: int) -> NeedsOlder | Refusal | None:
        """Pass over a target record that the source does not have.

        :param first: index of the source record that follows it on the target.
        :returns: why this is not possible; None: the source has deleted it.
        """
        if not self.rules.source_whole:
            return NeedsOlder(source=True)
        if first == 0 and self.rules.source_start_offset > 0:
            self.older += 1
            return None
        return Refusal(
            f"the record at target offset {self.target.offsets[at]} is not on the source, although the source has the "
            f"records around it (before offset {self.source.offsets[first]}): others write to the target, or the "
            "copier's isolation.level is another one"
        )

    def earlier_life(self, at: int) -> Block | None:
        """Find the newest run below a life from the source's log start: what it has copied is there twice.

        Records that the source has deleted are passed over. Any of those may be equal to a record that is left, but not
        many in a row: so there a run counts from ``min_records`` on. A record that the source cannot have had ends the
        look; it is of others, or of a former topic of that name, and the policy for duplicates decides about those.

        :param at: index of the target record below that life.
        """
        has_deleted = self.rules.source_start_offset > 0
        left = set(self.source.bodies) if has_deleted else set()
        while at >= 0:
            while has_deleted and at >= 0 and self.target.bodies[at] not in left:
                self.older += 1
                at -= 1
            block = _earlier_run(self.source, self.target, at, 0) if at >= 0 else None
            if block is None or not has_deleted or block.length >= self.rules.min_records:
                return block
            self.older += block.length
            at = block.target_index - 1
        return None

    def wants_more(self) -> bool:
        """Whether more target records must be found on the source."""
        rules = self.rules
        if rules.everything or self.compared < rules.min_records:
            return True
        if rules.down_to is None:
            return False
        return self.covered.find(0, self._floor, self.boundary + 1) >= 0

    def result(self, proof: Literal["content", "offset_sync"], *, whole: bool) -> Alignment:
        lowest = self.covered.find(1)
        if whole and self.rules.target_start_offset == 0:
            # Nothing was ever deleted from the target: it never had what the source has below.
            lowest = 0
        missing = self.covered.count(0, lowest, self.boundary + 1)
        matched = sum(block.length for block in self.blocks)
        # Of an earlier life that came further than the last one: the migration copies these records again.
        copied_again = self.covered.count(1, self.boundary + 1)
        return Alignment(
            self.source.offsets[self.boundary] + 1,
            proof,
            self.compared,
            ranges_of(self.source, self.target, self.blocks),
            duplicates=matched - self.covered.count(1) + copied_again,
            aborted=sum(
                self.source.is_aborted(index)
                for block in self.blocks
                for index in range(block.source_index, block.source_index + block.length)
            ),
            missing=missing,
            older=self.older,
            whole=whole,
            from_source_start=self.rules.source_whole and lowest == 0,
        )


def _earlier_run(source: Contents, target: Contents, at: int, first: int) -> Block | None:
    """Find the longest run that ends with the target record ``at``.

    :param first: where the run after it begins. A run that ends below it leaves out records, and counts only if there
        is no other.
    """
    body = target.bodies[at]
    found: Block | None = None
    for index in _places(source, body, max(first - 1, 0), len(source)) or _places(source, body, 0, first)[-1:]:
        length = _common_length(source, target, index, at)
        if found is None or length > found.length:
            found = Block(index - length + 1, at - length + 1, length)
    return found


def _places(source: Contents, body: int, start: int, stop: int) -> list[int]:
    """Indices of the records with this content; many, but not all of a record that is repeated all the time."""
    found: list[int] = []
    try:
        while len(found) < _MAX_PLACES or start == 0:
            start = source.bodies.index(body, start, stop) + 1
            found.append(start - 1)
    except ValueError:
        pass
    return found


def _common_length(source: Contents, target: Contents, index: int, at: int) -> int:
    """Return how many records up to ``index`` and ``at`` are equal."""
    length, most = 0, min(index, at) + 1
    while length < most:
        step = min(_CHUNK_RECORDS, most - length)
        here, there = index + 1 - length, at + 1 - length
        if source.bodies[here - step : here] == target.bodies[there - step : there]:
            length += step
            continue
        while source.bodies[index - length] == target.bodies[at - length]:
            length += 1
        break
    return length


def ranges_of(source: Contents, target: Contents, blocks: Iterable[Block]) -> list[BelowRange]:
    """Turn blocks of records into ranges of offsets, ascending by target offset."""
    return _joined(
        (source.offsets[block.source_index + step], target.offsets[block.target_index + step])
        for block in sorted(blocks, key=lambda block: block.target_index)
        for step in range(block.length)
    )


def _joined(pairs: Iterable[tuple[int, int]]) -> list[BelowRange]:
    found: list[BelowRange] = []
    first, there, count = 0, 0, 0
    for source_offset, target_offset in pairs:
        if count and source_offset == first + count and target_offset == there + count:
            count += 1
            continue
        if count:
            found.append(BelowRange(first, there, count))
        first, there, count = source_offset, target_offset, 1
    if count:
        found.append(BelowRange(first, there, count))
    return found


# -- compacted logs ---------------------------------------------------------------------------------------------------


def _align_cleaned(source: Contents, target: Contents, rules: Rules) -> Outcome:
    """Find the position where either side is compacted: every record is looked up, in the order of the target."""
    if not (rules.source_whole and rules.target_whole):
        return NeedsOlder(source=not rules.source_whole, target=not rules.target_whole)
    places: dict[int, list[int]] = {}
    for index, body in enumerate(source.bodies):
        places.setdefault(body, []).append(index)
    pairs, gone = _looked_up(target, places)
    refused = _not_cleaned(source, target, rules, gone)
    if refused is not None:
        return refused
    position, proof = _cleaned_position(source, target, rules, pairs)
    if position < 0:
        return Refusal("none of the target's last records is left on the source, and the copier recorded no position")
    covered = bytearray(len(source))
    for index, _ in pairs:
        covered[index] = 1
    below = source.index_of(position)
    missing = 0 if rules.target_start_offset else _missing(source, covered, below, rules)
    copied_again = covered.count(1, below)
    return Alignment(
        position,
        proof,
        len(target),
        _joined((source.offsets[index], target.offsets[at]) for index, at in reversed(pairs)),
        duplicates=len(pairs) - covered.count(1) + copied_again,
        aborted=sum(source.is_aborted(index) for index, _ in pairs),
        missing=missing,
        older=len(gone),
        whole=True,
        from_source_start=not rules.target_start_offset or covered.find(0, 0, below) < 0,
        note=f"{len(gone)} records of the target were compacted away on the source" if gone else "",
    )


def _cleaned_position(
    source: Contents, target: Contents, rules: Rules, pairs: list[tuple[int, int]]
) -> tuple[int, Literal["content", "offset_sync"]]:
    """(first source offset that is not on the target, proof); -1: nothing is known.

    Each life records an offset sync where it begins. So a pair behind the newest sync belongs to the last life. Records
    that the source has compacted away may follow the newest pair, and then an earlier life may have written the pair.
    """
    found = source.offsets[pairs[0][0]] if pairs else -1
    place = target.offsets[pairs[0][1]] if pairs else -1
    if pairs and pairs[0][1] == len(target) - 1:
        return max(found, -1 if rules.committed is None else rules.committed) + 1, "content"
    known = [] if rules.committed is None else [rules.committed]
    possible = (sync for sync in reversed(rules.syncs) if sync.target_offset <= target.offsets[-1])
    newest = next((sync for sync in possible if not _is_of_others(source, target, sync)), None)
    if newest is not None:
        known.append(newest.source_offset)
        if newest.target_offset <= place:
            known.append(found)
    return max(known, default=-2) + 1, "offset_sync"


def _is_of_others(source: Contents, target: Contents, sync: OffsetSync) -> bool:
    """Whether the records of an offset sync differ: it is that of a former topic of the same name."""
    here, there = source.index_of(sync.source_offset), target.index_of(sync.target_offset)
    if here >= len(source) or source.offsets[here] != sync.source_offset:
        return False
    if there >= len(target) or target.offsets[there] != sync.target_offset:
        return False
    return source.bodies[here] != target.bodies[there]


def _looked_up(target: Contents, places: dict[int, list[int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """(pairs of source and target index, newest first; target records that the source does not have).

    Of equal records the nearest one above the last pair is taken: within a run, order is kept. Where a run begins, the
    lowest one is taken: then equal records of one key are copied again, and nothing is lost.
    """
    pairs: list[tuple[int, int]] = []
    gone: list[int] = []
    before = -1
    for at, body in enumerate(target.bodies):
        found = places.get(body)
        if found is None:
            gone.append(at)
            continue
        upper = bisect_right(found, before)
        before = found[upper] if upper < len(found) else found[0]
        pairs.append((before, at))
    pairs.reverse()
    return pairs, gone


def _not_cleaned(source: Contents, target: Contents, rules: Rules, gone: list[int]) -> Refusal | None:
    """Check that compaction explains each target record that the source does not have."""
    if not gone or rules.source_start_offset > 0:
        return None  # the source also deletes by time or size: then anything old may be gone
    on_source = set(source.keys)
    last: dict[int, int] = {key: at for at, key in enumerate(target.keys)}
    for at in gone:
        key = target.keys[at]
        explained = key != NO_KEY and (key in on_source or target.is_tombstone(at) or last[key] > at)
        if not (rules.source_cleaned and explained):
            return Refusal(
                f"the record at target offset {target.offsets[at]} is not on the source, and no later record of its "
                "key is: a tombstone that is compacted away by now has deleted it (the target would keep it for "
                "ever), others write to the target, or the copier's isolation.level is another one"
            )
    return None


def _missing(source: Contents, covered: bytearray, below: int, rules: Rules) -> int:
    """Count the source records below the position that the target lacks, without those that it has compacted away."""
    if not rules.target_cleaned:
        return covered.count(0, 0, below)
    # An earlier life may have copied records above the position: they compact away what is below it, too. A tombstone
    # among them may be gone from the target by now; it is copied again, so its key ends deleted in any case.
    later = {source.keys[at] for at in range(below, len(source)) if covered[at] or source.is_tombstone(at)}
    missing = 0
    for index in range(below - 1, -1, -1):
        key = source.keys[index]
        if not covered[index] and (key == NO_KEY or (key not in later and not source.is_tombstone(index))):
            missing += 1
        later.add(key)
    return missing
