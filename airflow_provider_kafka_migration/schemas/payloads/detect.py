"""Decides from sampled records where the records of each topic carry schema ids.

The first and the last records of some partitions of each topic are sampled. A part (key or value) of a topic carries
ids if all of this is true:

1. At least one id that occurs in the sampled part is known to the source registry, in the topic's context.
2. At most 5 % of the sampled records that have something like an id in this part have one which the registry does not
   know. (Ids that were deleted permanently occur in old records.)
3. Less than 95 % of the payloads that begin like a serialized record are exactly eight bytes long, unless a subject
   named after the topic and the part (``orders-key``) has one of the ids. Eight bytes that begin with 0 are how a
   LongSerializer writes numbers: the key 16,777,216 looks like id 1.
4. A subject is named after the topic and the part. Without one, other bytes that begin with 0 look the same, so the
   payloads decide: at least 95 % of those with a known id decode with its schema (see ``schemas.payloads.decode``). Up
   to 5 %, the part carries none; in between, or if schemas cannot be read, it is *unclear*. An id in a header needs no
   such evidence: only serializers write these headers.

A part without any sampled payload carries ids if the registry has a subject named after it (``decided_by: name``): the
first record may come while the tail runs. Other naming strategies do not show in the names; for such topics the spec
can decide.

The context is the one of the spec. Else it is among those that know the ids of most records: the only one with a
subject named after the topic, or the only one with whose schemas the payloads decode, or might, because nobody can read
them. If that leaves several, it is unclear. Records whose only ids are GUIDs need no context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from airflow_provider_kafka_migration.copy.transform import AbortedTransactions
from airflow_provider_kafka_migration.documents.schemas import DecodedPart, IdParts, TopicIds
from airflow_provider_kafka_migration.errors import BatchMalformed, MigrationError, Where
from airflow_provider_kafka_migration.kafka import error_codes
from airflow_provider_kafka_migration.kafka.batches.api import AnyBatch, LegacyBatch, Record, iter_batches, records
from airflow_provider_kafka_migration.kafka.fetch import READ_COMMITTED, FetchedPartition, FetchRange
from airflow_provider_kafka_migration.kafka.wire import TopicPartition, Wire
from airflow_provider_kafka_migration.registry.model import DEFAULT_CONTEXT
from airflow_provider_kafka_migration.schema_ids.wire_format import FoundId, Part, ids_in_record, prefix_bytes
from airflow_provider_kafka_migration.schemas.payloads.decode import CannotDecode
from airflow_provider_kafka_migration.schemas.payloads.judge import MIN_DECODED_SHARE
from airflow_provider_kafka_migration.schemas.payloads.known_ids import IdValue, KnownIds
from airflow_provider_kafka_migration.schemas.snapshot import (
    ReadsRegistry,
    RegistrySnapshot,
    Report,
    ask_ids,
)
from airflow_provider_kafka_migration.spec import RewriteMode, SchemasSection

#: Records of one part with an unknown id, per record with any id.
MAX_UNKNOWN_SHARE = 0.05
#: Payloads that are kept to be decoded: of one id, and the bytes of all of a part.
DECODED_PER_ID = 50
_DECODED_BYTES = 8 * 1024 * 1024
#: Different ids of one topic that are looked up, the most frequent ones first.
MAX_LOOKED_UP_IDS = 100
MAX_PARTITIONS_PER_TOPIC = 16
#: Records that are sampled at the start, and at the end, of each partition.
RECORDS_PER_PLACE = 100
SAMPLE_BUDGET_BYTES = 256 * 1024 * 1024
#: A broker returns a first batch of any size only for the first partition of a request. So what stays empty is asked
#: for with more bytes, and at last alone.
_FETCH_BYTES = (16 * 1024, 128 * 1024, 1100 * 1024)
_ANSWER_BYTES = 32 * 1024 * 1024
_RANGES_PER_FETCH = 250
_LONG_BYTES = 8
_NAMED_IDS = 20
_PARTS: tuple[Part, ...] = get_args(Part)
_BOTH: Mapping[tuple[bool, bool], IdParts] = {
    (False, False): "none",
    (True, False): "key",
    (False, True): "value",
    (True, True): "both",
}


@dataclass
class PartSample:
    """What the sampled keys, or values, of a topic show.

    :param payloads: records whose part is not null, or has its id in a header.
    :param ids: records per id.
    :param long_payloads: payloads of exactly eight bytes among those that begin with an id.
    :param in_headers: records with an id in a header.
    :param examples: what follows the id in some payloads, by id.
    """

    payloads: int = 0
    ids: Counter[IdValue] = field(default_factory=Counter)
    with_ids: int = 0
    long_payloads: int = 0
    in_headers: int = 0
    examples: dict[int, list[bytes]] = field(default_factory=dict)
    example_bytes: int = 0

    def add(self, payload: bytes | None, ids: Sequence[FoundId]) -> None:
        """Count one record, with the ids of this part."""
        self.payloads += payload is not None or bool(ids)
        self.with_ids += bool(ids)
        self.ids.update({item.value for item in ids})
        self.in_headers += any(item.place == "header" for item in ids)
        for item in ids:
            if item.place == "payload" and payload is not None and isinstance(item.value, int):
                self.long_payloads += len(payload) == _LONG_BYTES
                self._keep(item.value, payload[prefix_bytes(item.kind) :])

    def _keep(self, id_: int, content: bytes) -> None:
        kept = self.examples.setdefault(id_, [])
        if len(kept) < DECODED_PER_ID and self.example_bytes + len(content) <= _DECODED_BYTES:
            kept.append(content)
            self.example_bytes += len(content)


@dataclass
class TopicSample:
    """What the sampled records of a topic show. ``unread`` says why some places could not be read."""

    records: int = 0
    parts: dict[Part, PartSample] = field(default_factory=lambda: {part: PartSample() for part in _PARTS})
    unread: str = ""

    def add(self, record: Record, *, zero_is_id: bool) -> None:
        """Count one record."""
        self.records += 1
        found = ids_in_record(record.key, record.value, record.headers, zero_is_id=zero_is_id)
        for part, payload in (("key", record.key), ("value", record.value)):
            self.parts[part].add(payload, [item for item in found if item.part == part])  # type: ignore[index]


def detect_topic_ids(
    wire: Wire,
    registry: ReadsRegistry,
    section: SchemasSection,
    topics: Iterable[str],
    source: RegistrySnapshot,
    *,
    progress: Report | None = None,
) -> list[TopicIds]:
    """Sample the topics and decide where their records carry ids. Only reads.

    :param wire: the source cluster.
    :param registry: the source registry; it is asked for ids that the snapshot does not have.
    :param topics: source topics of the migration.
    :param source: the snapshot of the source registry.
    :raises MigrationError: the source cluster or the registry does not answer at all.
    """
    names = sorted(set(topics) - {section.topic})
    known = KnownIds(source)
    samples = sample_topics(wire, names, zero_is_id=known.has_zero, progress=progress)
    wanted = {
        (context, id_)
        for name in names
        for context in _contexts(section, name, source)
        for id_ in _most_frequent(samples[name])
        if isinstance(id_, int) and not known.is_shown(context, id_)
    }
    answers = RegistrySnapshot()
    ask_ids(registry, answers, wanted, parallel=section.max_parallel_requests, progress=progress)
    known.add(answers)
    return [
        decide(name, samples[name], known, section.rewrite_of(name), _contexts(section, name, source)) for name in names
    ]


def _contexts(section: SchemasSection, topic: str, source: RegistrySnapshot) -> list[str]:
    context = section.context_of(topic)
    return sorted(source.contexts) if context is None else [context]


def _most_frequent(sample: TopicSample) -> list[IdValue]:
    together = sample.parts["key"].ids + sample.parts["value"].ids
    return [id_ for id_, _ in together.most_common(MAX_LOOKED_UP_IDS)]


# -- decision ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PartDecision:
    carries: bool
    known: int
    unknown_ids: tuple[int, ...] = ()
    by_name: bool = False
    note: str = ""
    decoded: DecodedPart | None = None
    unclear: str = ""


def decide(topic: str, sample: TopicSample, known: KnownIds, wanted: RewriteMode, contexts: Sequence[str]) -> TopicIds:
    """Decide for one topic; see the module's text.

    :param wanted: ``detect``, or what the spec says; then the sample gives figures only.
    :param contexts: candidates.
    """
    context, others = _choose_context(topic, sample, known, contexts)
    parts = {part: _decide_part(topic, part, sample.parts[part], known, context) for part in _PARTS}
    carried = _BOTH[parts["key"].carries, parts["value"].carries] if wanted == "detect" else wanted
    by_spec = wanted != "detect"
    by_name = any(item.by_name for item in parts.values())
    unclear = [] if by_spec else [item.unclear for item in parts.values() if item.unclear]
    if others and carried != "none":
        fits = ", ".join(sorted([context, *others]))
        unclear.append(f"its ids may be those of any of the contexts {fits}: set schemas.by_topic.context")
    unread = known.why_unread(context, _most_frequent(sample))
    return TopicIds(
        topic=topic,
        parts=carried,
        decided_by="spec" if by_spec else "name" if by_name else "sample",
        context=context,
        sampled_records=sample.records,
        key_ids=sample.parts["key"].with_ids,
        key_known_ids=parts["key"].known,
        value_ids=sample.parts["value"].with_ids,
        value_known_ids=parts["value"].known,
        unknown_ids=sorted({*parts["key"].unknown_ids, *parts["value"].unknown_ids})[:_NAMED_IDS],
        unread="; ".join(item for item in (sample.unread, unread) if item),
        note="" if by_spec else "; ".join(item.note for item in parts.values() if item.note),
        by_decoding={} if by_spec else {part: item.decoded for part, item in parts.items() if item.decoded is not None},
        unclear="; ".join(unclear),
    )


def decided_by_decoding(item: TopicIds) -> list[str]:
    """Name the parts of a topic that were decided without a subject, for people."""
    return [
        f"no subject is named {item.topic}-{part}: {found.decoded_records} of {found.tried_records} sampled {part}s "
        f"decode with the schema of their id, so {'they carry ids' if found.carries else 'nothing is rewritten there'}"
        for part, found in sorted(item.by_decoding.items())
    ]


def _choose_context(topic: str, sample: TopicSample, known: KnownIds, contexts: Sequence[str]) -> tuple[str, list[str]]:
    """Return the context of a topic's ids, and others for which there is as much evidence."""
    counts = {
        context: sum(
            count for part in sample.parts.values() for id_, count in part.ids.items() if known.has(context, id_)
        )
        for context in contexts
    }
    most = max(counts.values(), default=0)
    best = [context for context in contexts if counts[context] >= most * (1 - MAX_UNKNOWN_SHARE)]
    named = [context for context in best if any(known.has_subject(context, topic, part) for part in _PARTS)]
    fits = named or best
    numbers = any(part.examples or part.in_headers for part in sample.parts.values()) and _has_numbers(sample)
    if len(fits) > 1 and most and numbers:
        fits = [context for context in fits if _may_fit(sample, known, context)] or fits
    chosen = DEFAULT_CONTEXT if DEFAULT_CONTEXT in fits or not fits else fits[0]
    is_open = bool(named) if not most else numbers
    return chosen, [context for context in fits if context != chosen] if is_open else []


def _has_numbers(sample: TopicSample) -> bool:
    return any(isinstance(id_, int) for part in sample.parts.values() for id_ in part.ids)


def _may_fit(sample: TopicSample, known: KnownIds, context: str) -> bool:
    """Whether the payloads of a part decode with the schemas of a context, or nobody can tell."""
    results = [_decoded(part, known, context) for part in sample.parts.values() if part.examples]
    return any(item.decoded.carries or item.is_open for item in results)


def _decide_part(topic: str, part: Part, sample: PartSample, known: KnownIds, context: str) -> _PartDecision:
    has_subject = known.has_subject(context, topic, part)
    if not sample.payloads:
        return _PartDecision(has_subject, 0, by_name=has_subject)
    answers = {id_: known.has(context, id_) for id_ in sample.ids}
    known_ids = [id_ for id_, answer in answers.items() if answer]
    unknown_ids = tuple(sorted(id_ for id_, answer in answers.items() if answer is False and isinstance(id_, int)))
    in_known = sum(sample.ids[id_] for id_ in known_ids)
    in_unknown = sum(sample.ids[id_] for id_, answer in answers.items() if answer is False)
    if not known_ids:
        note = f"no sampled {part} has a known id, but there is a subject {topic}-{part}" if has_subject else ""
        return _PartDecision(False, in_known, unknown_ids, note=note)
    if in_unknown > MAX_UNKNOWN_SHARE * (in_known + in_unknown):
        note = f"{in_unknown} of {in_known + in_unknown} {part}s with something like an id have an unknown one"
        return _PartDecision(False, in_known, unknown_ids, note=note)
    is_long = sample.long_payloads >= MIN_DECODED_SHARE * sample.with_ids
    if is_long and not known.names_topic(context, topic, part, known_ids):
        note = f"the {part}s look like numbers of eight bytes rather than serialized records"
        return _PartDecision(False, in_known, unknown_ids, note=note)
    if has_subject:
        return _PartDecision(True, in_known, unknown_ids)
    found = _decoded(sample, known, context)
    decoded, unread, why = found
    unclear = ""
    if not decoded.tried_records:
        unclear = f"{in_known} {part}s have a known id, and nobody can tell whether they decode with its schema: {why}"
    elif found.is_open:
        unclear = f"of {unread} sampled {part}s with a known id, nobody can tell whether they decode: {why}"
    elif not decoded.carries and decoded.decoded_records > (1 - MIN_DECODED_SHARE) * decoded.tried_records:
        unclear = f"{decoded.decoded_records} of {decoded.tried_records} {part}s decode with the schema of their id"
    if unclear:
        unclear += ": say whether they carry ids (schemas.by_topic.rewrite)"
    return _PartDecision(decoded.carries, in_known, unknown_ids, decoded=decoded, unclear=unclear)


class _Decoding(NamedTuple):
    """What decoding the kept payloads of a part has shown.

    :param unread: payloads whose schema cannot be read.
    :param why: it cannot, or nothing was tried.
    """

    decoded: DecodedPart
    unread: int
    why: str

    @property
    def is_open(self) -> bool:
        """Whether those that nobody can read might decide otherwise."""
        payloads = self.decoded.tried_records + self.unread
        return not self.decoded.carries and self.unread > (1 - MIN_DECODED_SHARE) * payloads


def _decoded(sample: PartSample, known: KnownIds, context: str) -> _Decoding:
    """Decode the kept payloads whose id a context has."""
    tried = decoded = sample.in_headers
    unread = 0
    ids: list[int] = []
    why = "no payload was kept"
    for id_, payloads in sample.examples.items():
        if not known.has(context, id_):
            continue
        try:
            good = sum(known.decodes(context, id_, payload) for payload in payloads)
        except CannotDecode as error:
            why = f"the schema of id {id_}: {error}"
            unread += len(payloads)
            continue
        tried, decoded = tried + len(payloads), decoded + good
        if payloads and good >= MIN_DECODED_SHARE * len(payloads):
            ids.append(id_)
    carries = bool(tried) and decoded >= MIN_DECODED_SHARE * tried
    found = DecodedPart(carries=carries, tried_records=tried, decoded_records=decoded, ids=sorted(ids))
    return _Decoding(found, unread, why)


# -- sample -----------------------------------------------------------------------------------------------------------

#: (topic, partition, offset)
_Place = tuple[str, int, int]


def sample_topics(
    wire: Wire, topics: Sequence[str], *, zero_is_id: bool = False, progress: Report | None = None
) -> dict[str, TopicSample]:
    """Read the first and the last records of some partitions of each topic, within a budget of bytes."""
    samples = {name: TopicSample() for name in topics}
    per_topic = SAMPLE_BUDGET_BYTES // (max(1, len(topics)) * 2 * _FETCH_BYTES[0])
    places = _places(wire, samples, max(1, min(MAX_PARTITIONS_PER_TOPIC, per_topic)))
    for number, size in enumerate((*_FETCH_BYTES, _FETCH_BYTES[-1])):
        limit = 1 if number == len(_FETCH_BYTES) else min(_RANGES_PER_FETCH, _ANSWER_BYTES // size)
        empty: list[_Place] = []
        for group in _without_repeats(places, limit):
            if progress is not None:
                progress(f"sampling records of {len({place[0] for place in group})} topics for schema ids")
            empty += _read_places(wire, group, size, samples, zero_is_id=zero_is_id)
        places = empty
    for topic, partition, offset in places:
        samples[topic].unread = f"no records of partition {partition} came back from offset {offset}"
    return samples


def _places(wire: Wire, samples: Mapping[str, TopicSample], per_topic: int) -> list[_Place]:
    """Choose partitions, spread evenly, and their first and last offsets. One broken topic does not hide the others."""
    try:
        return list(_places_of(wire, list(samples), per_topic))
    except MigrationError:
        found: list[_Place] = []
        for topic, sample in samples.items():
            try:
                found += _places_of(wire, [topic], per_topic)
            except MigrationError as error:
                sample.unread = error.what
        return found


def _places_of(wire: Wire, topics: Sequence[str], per_topic: int) -> Iterator[_Place]:
    keys: list[TopicPartition] = []
    for topic, facts in sorted(wire.metadata(topics).items()):
        if facts.error_code:
            raise error_codes.error_for(
                facts.error_code, "a topic cannot be described", where=Where(topic=topic), needs="Describe"
            )
        partitions = sorted(facts.leaders)
        step = max(1, -(-len(partitions) // per_topic))
        keys += [(topic, partition) for partition in partitions[::step]]
    starts = wire.list_offsets(keys, "earliest")
    ends = wire.list_offsets(keys, "stable")
    for key in keys:
        start, end = starts[key], ends[key]
        if end > start:
            yield *key, start
            last = max(start + RECORDS_PER_PLACE, end - RECORDS_PER_PLACE)
            if last < end:
                yield *key, last


def _without_repeats(places: Iterable[_Place], limit: int) -> Iterator[list[_Place]]:
    """Split places into requests that name each partition once."""
    rounds: list[dict[TopicPartition, _Place]] = []
    for place in places:
        key = place[:2]
        for requests in rounds:
            if key not in requests:
                requests[key] = place
                break
        else:
            rounds.append({key: place})
    for requests in rounds:
        items = list(requests.values())
        for begin in range(0, len(items), limit):
            yield items[begin : begin + limit]


def _read_places(
    wire: Wire, places: Sequence[_Place], size: int, samples: Mapping[str, TopicSample], *, zero_is_id: bool
) -> list[_Place]:
    """Fetch some places, count their records, and return the places that need more bytes."""
    offsets = {(topic, partition): offset for topic, partition, offset in places}
    try:
        answers = wire.fetch_once([FetchRange(*place, size) for place in places], isolation=READ_COMMITTED)
    except MigrationError as error:
        for topic, _ in offsets:
            samples[topic].unread = error.what
        return []
    unanswered = set(offsets)
    for answer in answers:
        key = (answer.topic, answer.partition)
        unanswered.discard(key)
        sample = samples[answer.topic]
        if answer.error_code:
            sample.unread = error_codes.name(answer.error_code)
            continue
        try:
            if not _count(sample, answer, offsets[key], zero_is_id=zero_is_id):
                unanswered.add(key)
        except BatchMalformed as error:
            sample.unread = error.what
    return sorted((*key, offsets[key]) for key in unanswered)


def _count(sample: TopicSample, answer: FetchedPartition, from_offset: int, *, zero_is_id: bool) -> bool:
    """Count the records of a piece of a log; return False if it has no whole batch.

    Records of aborted transactions are never copied, so they show nothing.
    """
    aborted = AbortedTransactions(answer.aborted)
    left = RECORDS_PER_PLACE
    any_batch = False
    for batch in iter_batches(answer.records):
        any_batch = True
        if not isinstance(batch, LegacyBatch) and aborted.drops(batch):
            continue
        for record in _records(batch):
            if record.offset >= from_offset and left > 0:
                sample.add(record, zero_is_id=zero_is_id)
                left -= 1
        if left <= 0:
            break
    return any_batch


def _records(batch: AnyBatch) -> Iterator[Record]:
    if batch.is_control:
        return iter(())
    return batch.records() if isinstance(batch, LegacyBatch) else records(batch)
