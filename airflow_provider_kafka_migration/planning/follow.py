"""Add topics and partitions that appear on the source while the tail runs, and report topics that disappear.

A pass compares the source's metadata with the plan. For new topics and partitions it writes a supplement of the plan
and journals it, creates the topics on the target as topology_copy does, and adds the partitions to the tail's job,
which copiers read again in each slice. The next pass completes a pass that was killed: the supplement shows what is
missing.

Nothing is added from the request of a freeze until the freeze is lifted, because the cutover's boundary is set then,
and nothing once a rollback has begun. A pass that meets one takes back what it has just set on the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, halves
from airflow_provider_kafka_migration.documents.plan import LanePlan, Plan, PlanSupplement, TopicPlan, Verdict
from airflow_provider_kafka_migration.errors import FreezeFailed, MigrationError
from airflow_provider_kafka_migration.freeze import words
from airflow_provider_kafka_migration.jobs import copy_jobs
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.assignment import add_to_lanes
from airflow_provider_kafka_migration.planning import source_snapshot, verdicts
from airflow_provider_kafka_migration.planning.growth import why_transactional
from airflow_provider_kafka_migration.planning.make import target_topics
from airflow_provider_kafka_migration.planning.schemas import ids_of_new_topics
from airflow_provider_kafka_migration.record import keys, rolling_back, steps
from airflow_provider_kafka_migration.record.background import BackgroundPasses, own_connections
from airflow_provider_kafka_migration.record.context import Cluster, PhaseContext, Progress
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings
from airflow_provider_kafka_migration.record.partition_names import partition_name
from airflow_provider_kafka_migration.record.record import MigrationRecord
from airflow_provider_kafka_migration.record.schema_id_settings import schema_id_settings
from airflow_provider_kafka_migration.spec import MigrationSpec
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics import copy_settings
from airflow_provider_kafka_migration.topics.bring import make_new_partitions
from airflow_provider_kafka_migration.topics.topics_gone import check_none_gone, confirm, mirrored_again, why_suspect
from airflow_provider_kafka_migration.way_back import guard

log = logging.getLogger(__name__)

PHASE = "tail"

_NO_ANSWER = ItemError(-1, "NO_ANSWER", "the broker did not answer for this topic", retriable=True)


@dataclass(frozen=True)
class News:
    """How the source differs from the plan.

    :param new: selected topics that the plan does not have.
    :param grown: topics of the plan, with only the partitions that the plan does not have.
    :param gone: topics of the plan that one broker reports as deleted or created again, with the reason. All brokers
        must confirm that before it counts.
    :param unknown: topics of the plan that could not be described, with the reason: they may have grown.
    """

    new: Mapping[str, TopicFacts]
    grown: Mapping[str, TopicFacts]
    gone: Mapping[str, str]
    unknown: Mapping[str, ItemError] = field(default_factory=dict)

    @property
    def partitions(self) -> list[TopicPartition]:
        """All new partitions, ascending."""
        found = [
            (name, item.partition)
            for facts in (self.new, self.grown)
            for name in facts
            for item in facts[name].partitions
        ]
        return sorted(found)


def compare(spec: MigrationSpec, source: Cluster, plan: Plan, again: Collection[str] = ()) -> News:
    """Compare the source's metadata with the plan.

    :param again: topics that were dropped, and that are new if the source has them.
    """
    admin = source.admin
    described = admin.describe_topics()
    planned = {topic.name: topic for topic in plan.topics}
    hidden = [name for name in planned if name not in described]
    if hidden:
        # A list of all topics omits those that may not be described; asked for one by name, a broker says which it is.
        described = {**described, **admin.describe_topics(hidden)}
    new, grown, gone = {}, {}, {}
    for name, facts in sorted(described.items()):
        topic = planned.get(name)
        if topic is not None and (why := why_suspect(topic.topic_id, facts)):
            gone[name] = why
        elif facts.error is not None:
            continue
        elif topic is not None:
            known = {item.partition for item in topic.partitions}
            added = tuple(item for item in facts.partitions if item.partition not in known)
            if added:
                grown[name] = replace(facts, partitions=added)
        elif spec.topics.selects(name) and (name not in plan.excluded_topics or name in again):
            new[name] = facts
    unknown: dict[str, ItemError] = {}
    for name in sorted(set(planned) - set(gone)):
        error = described[name].error if name in described else _NO_ANSWER
        if error is not None:
            unknown[name] = error
    return News(new, grown, gone, unknown)


# -- one pass --------------------------------------------------------------------------------------------------------


def follow(context: PhaseContext) -> list[TopicPartition]:
    """Run one pass and return the partitions that were added to the tail's job.

    :raises MigrationError: new topics cannot be created on the target; the next pass tries again.
    """
    context.journal.refresh()
    if _is_closed(context.record) or context.journal.tip_state not in (State.TAIL, State.DRAIN_READY):
        return []
    plan = context.record.plan()
    news = compare(context.spec, context.source, plan, mirrored_again(context.record))
    gone = confirm(context.source.admin, {topic.name: topic.topic_id for topic in plan.topics}, news.gone)
    if gone:
        _name_gone(context.record, gone)
    dropped = gone if context.spec.topology.on_topic_deleted != "stop" else {}
    if news.new or news.grown or dropped:
        _supplement(context, plan, news, dropped)
        plan = context.record.plan()
    return _take_up(context, plan)


def _is_closed(record: MigrationRecord) -> bool:
    """Whether nothing may be added: a freeze has set the boundary, or a rollback has begun."""
    return record.is_frozen() or rolling_back.has_begun(record.journal)


def _name_gone(record: MigrationRecord, gone: Mapping[str, str]) -> None:
    """Journal each topic that is gone, once."""
    policy = record.spec.topology.on_topic_deleted
    for name, why in sorted(gone.items()):
        key = f"{name}: {why}"
        if record.journal.find_step(steps.SOURCE_TOPIC_GONE, key) is None:
            log.warning("%s: %s", name, why)
            details = {"topic": name, "why": why, "policy": policy}
            record.journal.step(steps.SOURCE_TOPIC_GONE, key=key, details=details, reason=f"source topic {name}: {why}")


def _supplement(context: PhaseContext, plan: Plan, news: News, dropped: Mapping[str, str]) -> None:
    """Write and journal what is new before anything is created."""
    number = len(context.journal.steps(steps.PLAN_SUPPLEMENTED)) + 1
    document = PlanSupplement(
        migration_id=context.migration_id,
        number=number,
        topics=_topic_plans(context, plan, news),
        dropped=dict(dropped),
        schema_topics=ids_of_new_topics(context, news.new),
    )
    digest = document.digest()
    name = keys.supplement(number, digest)
    context.journal.check_holds()
    context.journal_store.put(context.key(name), document.canonical())
    parts = [f"{len(news.new)} new topics", f"{len(news.partitions)} new partitions"]
    parts += [f"{len(dropped)} topics dropped"] if dropped else []
    context.journal.step(
        steps.PLAN_SUPPLEMENTED,
        key=str(number),
        details={
            "document": name,
            "digest": digest,
            "new_topics": sorted(news.new),
            "partitions": [partition_name(key) for key in news.partitions],
            "dropped": dict(sorted(dropped.items())),
        },
        reason="the source has changed: " + ", ".join(parts),
    )
    context.progress(Progress(PHASE, "the source has changed: " + ", ".join(parts)))


def _topic_plans(context: PhaseContext, plan: Plan, news: News) -> list[TopicPlan]:
    """Plans of new topics, and of the new partitions of topics that have grown, by the rules of the plan phase."""
    facts = {**news.new, **news.grown}
    if not facts:
        return []
    names = sorted({topic.name for topic in plan.topics} | set(facts))
    verdicts.check_names(context.spec, names, migration_id=context.migration_id)
    found = source_snapshot.read_topics(context, facts, plan.source)
    target = target_topics(context.record, context.target, plan.target, sorted(facts), found.unknown)
    made = {name: verdicts.topic_plan(context.spec, item, found, target) for name, item in sorted(facts.items())}
    for name in news.grown:
        made[name] = _widened(plan.topic(name), made[name])
    return [made[name] for name in sorted(made)]


def _widened(known: TopicPlan, made: TopicPlan) -> TopicPlan:
    """The new partitions of a grown topic, by the rules that its first partitions follow."""
    why = why_transactional(known)
    partitions = [
        item.model_copy(update={"verdict": Verdict.TRANSACTIONAL, "reason": why, "target_start_offset": 0})
        if why
        else item
        for item in made.partitions
    ]
    return known.model_copy(update={"partitions": partitions})


def _take_up(context: PhaseContext, plan: Plan) -> list[TopicPartition]:
    """Create the partitions that the tail's job lacks, then show them to copiers; remove what was dropped."""
    record = context.record
    job = record.job(PHASE)
    if job is None:
        return []
    planned = copy_jobs.planned_partitions(context.spec, plan)
    known = {item.key for item in job.partitions}
    missing = {key: item for key, item in planned.items() if key not in known}
    if missing:
        # Minutes may have passed since this pass has begun.
        context.journal.refresh()
        if _is_closed(record):
            return []
        _bring(context, plan, set(missing))
    if not missing and known <= planned.keys():
        return []
    lanes = lanes_with(job, planned, missing)
    extended = job.model_copy(
        update={
            "lanes": lanes,
            "proof": copy_jobs.proof_settings(record, context.source, plan),
            "tombstones": tombstone_settings(context.spec, context.source, plan, job.tombstones),
            "schema_ids": schema_id_settings(record),
            "target_compacts": copy_jobs.target_compacts(context.spec, plan, job),
        }
    )
    context.journal.refresh()
    if _is_closed(record):
        return []
    context.journal.check_holds()
    context.journal_store.put(copy_jobs.job_key(record, PHASE), extended.canonical())
    context.journal.refresh()
    if _is_closed(record):
        # It has just begun: a freeze's boundary and a rollback's stop are for the partitions that the job had before.
        context.journal_store.put(copy_jobs.job_key(record, PHASE), job.canonical())
        return []
    context.progress(Progress(PHASE, f"{len(missing)} new partitions are copied from now on"))
    return sorted(missing)


def _bring(context: PhaseContext, plan: Plan, missing: set[TopicPartition]) -> None:
    """Create what is missing on the target.

    A rollback that begins meanwhile may have been at these topics before: then they get their own settings here. That
    needs no claim, because the rollback wants the same.
    """
    # The old cluster's producers are kept out of what joins a way back later, too.
    guard.put(context, plan)
    try:
        make_new_partitions(context, plan, missing)
    finally:
        context.journal.refresh()
        if rolling_back.has_begun(context.journal):
            names = {plan.topic(name).target_name for name, _ in missing}
            copy_settings.restore_after_end(context.record, context.target, names)


def lanes_with(
    job: CopyJob,
    planned: Mapping[TopicPartition, CopyPartition],
    missing: Mapping[TopicPartition, CopyPartition],
) -> list[CopyLane]:
    """The lanes of a job, with new partitions in the lightest ones and without those that left the plan."""
    partitions = {item.key: item for item in job.partitions} | dict(missing)
    whole = [lane for lane in job.lanes if lane.half != "backup"]
    before = [
        LanePlan(
            lane=lane.lane,
            partitions=[item.key for item in lane.partitions if item.key in planned],
            size_bytes=sum(max(item.size_bytes, 0) for item in lane.partitions),
        )
        for lane in whole
    ]
    by_number = {lane.lane: lane for lane in whole}
    after = [
        by_number[lane.lane].model_copy(update={"partitions": [partitions[key[0], key[1]] for key in lane.partitions]})
        for lane in add_to_lanes(before, {key: item.size_bytes for key, item in missing.items()})
    ]
    return after if len(whole) == len(job.lanes) else halves(after)


# -- while the tail runs ---------------------------------------------------------------------------------------------


class Follower(BackgroundPasses[PhaseContext]):
    """Runs passes in its own thread, with its own connections, until the ``with`` block ends.

    :param after_topics: another pass, which runs after the one for topics and sees what that one added.
    :param before: passes that run before those, whatever the spec says about drift.
    """

    thread_name = "follow"
    failed_text = "The source's changes could not be followed"
    ended_text = "The source's changes are no longer followed"

    def __init__(
        self,
        context: PhaseContext,
        after_topics: Callable[[PhaseContext], object] | None = None,
        *before: Callable[[PhaseContext], object],
    ) -> None:
        super().__init__(context.spec.topology.refresh_interval.total_seconds(), first_seconds=0.0)
        self._context = context
        self._after_topics = after_topics
        self._before = before
        self._told: set[str] = set()

    def once(self) -> None:
        """Run the passes once in this thread, for a task that wakes up now and then.

        :raises ClaimLost: another owner has taken over.
        """
        journal = self._context.journal
        self._told = {entry.step_key or "" for entry in journal.steps(steps.FOLLOW_FAILED)}
        self._pass(self._context)

    def _passes(self) -> list[Callable[[PhaseContext], object]]:
        """The passes to run, each independent: an error in one does not stop the other."""
        section = self._context.spec.topology
        passes = [*self._before]
        if section.follow_new:
            passes.append(follow)
        if self._after_topics and section.on_source_drift != "note":
            passes.append(self._after_topics)
        return passes

    def _is_wanted(self) -> bool:
        return bool(self._passes())

    def _open(self) -> AbstractContextManager[PhaseContext]:
        return own_connections(self._context)

    def _pass(self, own: PhaseContext) -> None:
        for one_pass in self._passes():
            if self._stop.is_set():
                return
            self._attempt(one_pass, own)

    def _tell(self, error: Exception) -> None:
        """Log an error in each pass, and journal each kind of error once."""
        super()._tell(error)
        why = error.what if isinstance(error, MigrationError) else f"{type(error).__name__}: {error}"
        self._context.progress(Progress(PHASE, f"the source's changes could not be followed: {why}"))
        if not isinstance(error, MigrationError) or error.code in self._told:
            return
        self._told.add(error.code)
        try:
            self._context.journal.step(
                steps.FOLLOW_FAILED, key=error.code, details={"error": error.as_dict()}, reason=error.what
            )
        except MigrationError as second:
            log.warning("The error could not be journaled: %s", second)


# -- at the freeze ---------------------------------------------------------------------------------------------------


def check_all_followed(record: MigrationRecord, source: Cluster) -> None:
    """Check, before producers are stopped, that everything selected is being copied.

    :raises TopicRecreated: a topic of the migration is gone, or was created again (``on_topic_deleted: stop``).
    :raises FreezeFailed: topics or partitions are not copied yet.
    :raises MigrationError: a topic cannot be described, so nobody knows.
    """
    plan = record.plan()
    check_none_gone(record)
    news = compare(record.spec, source, plan, mirrored_again(record))
    for name, error in news.unknown.items():
        raise error.exception(
            f"topic {name} cannot be described, so it is not known whether it has new partitions",
            record.where("cutover", cluster="source", topic=name),
            operation=f"Describe on Topic {name}",
        )
    if not record.spec.topology.follow_new:
        _refuse_grown(record, news)
        return
    job = record.job(PHASE)
    copied = {item.key for item in job.partitions} if job is not None else set()
    left = sorted({*news.partitions, *(set(copy_jobs.planned_partitions(record.spec, plan)) - copied)})
    if left:
        raise FreezeFailed(
            f"{len(left)} partitions appeared on the source and are not copied yet; the first is "
            f"{partition_name(left[0])}",
            where=record.where("cutover", topic=left[0][0], partition=left[0][1]),
            next_step="the tail adds them within topology.refresh_interval (its log says if it cannot); then "
            f"{words.again(record.spec)}",
            details={"partitions": [partition_name(key) for key in left]},
        )


def _refuse_grown(record: MigrationRecord, news: News) -> None:
    """Refuse new partitions of migrated topics; a new topic is not part of the migration if nothing is followed."""
    left = sorted((name, item.partition) for name, facts in news.grown.items() for item in facts.partitions)
    if left:
        raise FreezeFailed(
            f"{len(left)} partitions that migrated topics have gained since the plan are not copied "
            f"(topology.follow_new: false); the first is {partition_name(left[0])}",
            where=record.where("cutover", topic=left[0][0], partition=left[0][1]),
            next_step="set topology.follow_new: true and clear tail, so that they are added; then "
            f"{words.again(record.spec)}",
            details={"partitions": [partition_name(key) for key in left]},
        )


def born_late(record: MigrationRecord) -> set[str]:
    """Partitions (``topic-partition``) that a freeze named as outside the migration, and that still are.

    After a freeze that was lifted, the tail may have added them.
    """
    named = {
        str(name) for entry in record.journal.steps(steps.BORN_AFTER_FREEZE) for name in entry.details["partitions"]
    }
    return named - {partition_name(key) for key in record.partitions()} if named else named


def name_born_late(record: MigrationRecord, source: Cluster, attempt: str) -> list[str]:
    """After producers are stopped, journal by name what appeared in the meantime: it is not part of the migration."""
    plan = record.plan()
    born = [partition_name(key) for key in compare(record.spec, source, plan).partitions]
    if born:
        reason = f"{len(born)} partitions on the source are not part of the migration; the first is {born[0]}"
        log.warning(reason)
        record.journal.step(steps.BORN_AFTER_FREEZE, key=attempt, details={"partitions": born}, reason=reason)
    return born
