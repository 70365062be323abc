"""What a person asks of a mirror: read, written, and turned into stop offsets for its copiers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from airflow_provider_kafka_migration.approvals.code import code_of
from airflow_provider_kafka_migration.documents.copy import StopAt
from airflow_provider_kafka_migration.documents.mirror import MirrorRequest, Want
from airflow_provider_kafka_migration.errors import ObjectExists
from airflow_provider_kafka_migration.record import keys, steps
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord, last_request
from airflow_provider_kafka_migration.record.times import iso, parse_iso
from airflow_provider_kafka_migration.storage.base import ObjectStore

#: How often a running mirror looks for a request.
POLL_SECONDS = 1.0


#: The last request: see :func:`~.record.record.last_request`.
read = last_request


def write(
    store: ObjectStore,
    migration_id: str,
    want: Want,
    *,
    by: str,
    at: str,
    reason: str = "",
    source_gone: bool = False,
    valid_until: str = "",
) -> MirrorRequest:
    """Write a request behind all others. It needs no claim: the mirror's holder acts on it.

    :param valid_until: as in :class:`MirrorRequest`.
    """
    while True:
        request = MirrorRequest(
            migration_id=migration_id,
            number=read(store, migration_id).number + 1,
            want=want,
            source_gone=source_gone,
            reason=reason,
            requested_by=by,
            requested_at=at,
            valid_until=valid_until,
        )
        if _append(store, request):
            return request


def code(store: ObjectStore, migration_id: str, command: str) -> str:
    """Return the code that a command needs which cannot be undone; another one after each request."""
    number = read(store, migration_id).number
    return code_of({"kind": command, "migration_id": migration_id, "request": number})


def withdraw(store: ObjectStore, request: MirrorRequest, former: MirrorRequest, *, by: str, at: str) -> bool:
    """Take a request back: what was asked for before it counts again. False: another one has come since.

    :param former: the last request before it.
    """
    want = former.want if former.want in ("run", "paused") else "run"
    withdrawal = MirrorRequest(
        migration_id=request.migration_id,
        number=request.number + 1,
        want=want,
        reason=f"request {request.number} ({request.want}) is withdrawn",
        requested_by=by,
        requested_at=at,
    )
    return read(store, request.migration_id).number == request.number and _append(store, withdrawal)


def in_time(context: PhaseContext, *, by: str) -> MirrorRequest:
    """Return the last request, after one was turned down that nobody has begun to carry out in time.

    Whoever asked for a promotion or an end did so for that moment: hours later producers may be at their peak. One
    that has stopped producers already has a limit of its own, and one that copies the rest is refused at its end if the
    source has moved since.
    """
    request = read(context.journal_store, context.migration_id)
    is_late = bool(request.valid_until) and context.now() > parse_iso(request.valid_until)
    if not is_late or _has_begun(context.record, request):
        return request
    before = _asked_before(context.journal_store, request)
    turn_down(context, request, _why_late(context, request, before), by=by, want=before)
    return read(context.journal_store, context.migration_id)


def _why_late(context: PhaseContext, request: MirrorRequest, before: Want) -> str:
    """Say why nobody had begun with a request, and how to ask again."""
    verb = "end" if request.want == "ended" else "promote"
    waits = is_planned_promotion(request) and context.spec.freezes_promotion
    limit = context.spec.tail.drain_max_partition_lag
    behind = f", or a partition lagged by more than {limit} offsets (tail.drain_max_partition_lag)" if waits else ""
    return (
        f"the request to {verb} of {request.requested_at} by {request.requested_by or 'somebody'} was valid until "
        f"{request.valid_until}, and had not begun by then: nobody ran the mirror{behind}. It "
        f"{'stays paused' if before == 'paused' else 'goes on mirroring'}; once `kafka-migration mirror status FILE` "
        f"shows that it copies, ask again: `kafka-migration mirror {verb} FILE`"
    )


def _asked_before(store: ObjectStore, request: MirrorRequest) -> Want:
    """Return what a mirror does without a request: nobody has asked a paused one to go on."""
    for number in range(request.number - 1, 0, -1):
        data = store.get(f"{request.migration_id}/{keys.mirror_request(number)}")
        want = None if data is None else MirrorRequest.parse(data).want
        if want in ("run", "paused"):
            return want
    return "run"


def _has_begun(record: MigrationRecord, request: MirrorRequest) -> bool:
    """Whether producers are stopped for a request, or its copiers have the ends up to which they copy the rest."""
    attempt, stop = record.freeze(), record.tail_stop()
    is_freezing = attempt is not None and attempt.request == request.number
    is_ending = stop is not None and stop.request == request.number
    return is_freezing or is_ending or record.journal.find_step(steps.PROMOTED) is not None


def refuse(store: ObjectStore, request: MirrorRequest, why: str, *, by: str, at: str, want: Want = "run") -> bool:
    """Turn a request down. False: another one has come since, which counts instead.

    :param want: what the mirror does then.
    """
    refusal = MirrorRequest(
        migration_id=request.migration_id,
        number=request.number + 1,
        want=want,
        requested_by=by,
        requested_at=at,
        refused=why,
    )
    return _append(store, refusal)


def turn_down(context: PhaseContext, request: MirrorRequest, why: str, *, by: str, want: Want = "run") -> None:
    """Turn a request down and journal why; another one that has come since counts instead. Idempotent.

    :param want: as in :func:`refuse`.
    """
    refuse(context.journal_store, request, why, by=by, at=iso(context.now()), want=want)
    context.journal.step_once(steps.REQUEST_REFUSED, key=str(request.number), details={"why": why}, reason=why)


def is_planned_promotion(request: MirrorRequest) -> bool:
    """Whether the mirror is to be promoted once it has everything that the source has."""
    return request.want == "promoted" and not request.source_gone


def _append(store: ObjectStore, request: MirrorRequest) -> bool:
    """Store a request under its number; False: somebody else has this number."""
    try:
        store.put_new(f"{request.migration_id}/{keys.mirror_request(request.number)}", request.canonical())
    except ObjectExists:
        return False
    store.put(f"{request.migration_id}/{keys.MIRROR_REQUEST}", request.canonical())
    return True


# -- stopping copiers -------------------------------------------------------------------------------------------------


def stop_where_they_are(record: MigrationRecord) -> None:
    """Stop the copiers where they are: a stop offset that they have already passed stops them at once."""
    _put_stop(record, {partition_name(key): 0 for key in record.partitions()})


def stop_at_the_end(record: MigrationRecord, source: Cluster, request: int) -> None:
    """Stop the copiers at the source's present ends. A partition keeps the stop that it has for the same request.

    That of an earlier request says nothing: the mirror may have gone on since, and so have producers.

    :param request: the number of the request.
    """
    partitions = record.partitions()
    former = record.tail_stop()
    known = dict(former.offsets) if former is not None and former.request == request else {}
    missing = [key for key in partitions if not known.get(partition_name(key))]
    ends = source.wire.list_offsets(missing, "stable") if missing else {}
    _put_stop(record, {**known, **{partition_name(key): end for key, end in ends.items()}}, request)


def stop_at_frozen_ends(record: MigrationRecord, request: int) -> None:
    """Stop the copiers where producers have stopped; nothing as long as no freeze in force is verified."""
    attempt = record.freeze()
    if attempt is not None and attempt.is_in_force and attempt.verified is not None:
        _put_stop(record, dict(attempt.verified.ends), request)


def withdraw_stop(record: MigrationRecord) -> None:
    """Let the copiers go on."""
    if record.tail_stop() is not None:
        _put_stop(record, {})


def _put_stop(record: MigrationRecord, offsets: dict[str, int], request: int = 0) -> None:
    key = record.key(keys.TAIL_STOP)
    data = StopAt(migration_id=record.migration_id, offsets=offsets, request=request).canonical()
    if record.journal_store.get(key) == data:
        return
    record.journal.check_holds()
    record.journal_store.put(key, data)


def stop_if_asked(record: MigrationRecord, source: Cluster) -> MirrorRequest:
    """Give the copiers the stop offsets that the last request amounts to, and return the request.

    Partitions that appear after a stop was written get theirs in the next pass. A mirror that stops the producers
    itself (:mod:`~.mirrors.promotion_freeze`) copies on until they have stopped.
    """
    request = read(record.journal_store, record.migration_id)
    if is_planned_promotion(request):
        if record.spec.freezes_promotion:
            stop_at_frozen_ends(record, request.number)
        else:
            stop_at_the_end(record, source, request.number)
    elif request.want != "run":
        stop_where_they_are(record)
    return request


class RequestWatch(BackgroundPasses[PhaseContext]):
    """Looks for requests in a thread with its own connections, until the ``with`` block ends.

    :param act: does what a request needs besides stops, with the last request.
    """

    thread_name = "mirror-requests"
    failed_text = "The last request could not be carried out yet"
    ended_text = "Requests are no longer looked for"

    def __init__(
        self,
        context: PhaseContext,
        act: Callable[[PhaseContext, MirrorRequest], object] = lambda _context, _request: None,
    ) -> None:
        super().__init__(POLL_SECONDS)
        self._context = context
        self._act = act

    def once(self) -> None:
        """Look once in this thread, for a task that wakes up now and then.

        A failure is only logged: the next look follows.

        :raises ClaimLost: another owner has taken over; the other errors of ``HANDS_OFF`` are raised, too.
        """
        self._attempt(self._pass, self._context)

    def _open(self) -> AbstractContextManager[PhaseContext]:
        return own_connections(self._context)

    def _pass(self, own: PhaseContext) -> None:
        in_time(own, by="mirror")
        self._act(own, stop_if_asked(own.record, own.source))
