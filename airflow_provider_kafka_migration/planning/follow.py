"""Topics and partitions that appear on the source while the tail runs are taken up; topics that go away are named.

A pass looks at the source's metadata and, for what is new: writes a supplement of the plan and journals it, makes the
topics on the target as topology_copy does, and adds the partitions to the tail's job, which copiers read again in each
slice. A pass that is killed anywhere is completed by the next one: the supplement tells what is still to be done.

Nothing is taken up from the moment a freeze is requested until it is lifted: the boundary of the cutover is drawn then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_kafka_migration.documents.copy import CopyJob, CopyLane, CopyPartition, halves
from airflow_provider_kafka_migration.documents.plan import STEP, LanePlan, Plan, PlanSupplement, TopicPlan, Verdict
from airflow_provider_kafka_migration.errors import (
    ClaimHeld,
    ClaimLost,
    FreezeFailed,
    JournalTampered,
    MigrationError,
)
from airflow_provider_kafka_migration.kafka.admin.topics import TopicFacts
from airflow_provider_kafka_migration.kafka.wire import TopicPartition
from airflow_provider_kafka_migration.lanes.assignment import add_to_lanes
from airflow_provider_kafka_migration.planning import source_snapshot, verdicts
from airflow_provider_kafka_migration.planning.growth import why_transactional
from airflow_provider_kafka_migration.planning.make import target_topics
from airflow_provider_kafka_migration.record import jobs
from airflow_provider_kafka_migration.record.context import PhaseContext, Progress
from airflow_provider_kafka_migration.record.facts import load_job, migrated_partitions, partition_name
from airflow_provider_kafka_migration.record.freeze_attempt import is_frozen
from airflow_provider_kafka_migration.record.overtaken import tombstone_settings
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.topics.bring import make_new_partitions
from airflow_provider_kafka_migration.topics.topics_gone import GONE, check_none_gone, confirm, why_suspect

log = logging.getLogger(__name__)

PHASE = "tail"
BORN_LATE = "born_after_freeze"
FAILED = "follow_failed"

_FINAL = (ClaimHeld, ClaimLost, JournalTampered)


@dataclass(frozen=True)
class News:
    """How the source differs from the plan.

    :param new: selected topics that the plan does not have.
    :param grown: topics of the plan, with the partitions that it does not have alone.
    :param gone: topics of the plan that one broker takes for deleted, or created again, with the reason. All brokers
        have to be asked before that is believed.
    """

    new: Mapping[str, TopicFacts]
    grown: Mapping[str, TopicFacts]
    gone: Mapping[str, str]

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


def compare(context: PhaseContext, plan: Plan) -> News:
    """Compare the source's metadata with the plan."""
    admin = context.source.admin
    described = admin.describe_topics()
    planned = {topic.name: topic for topic in plan.topics}
    hidden = [name for name in planned if name not in described]
    if hidden:
        # A list of all topics leaves out what may not be described; asked for by name, a broker says which it is.
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
        elif context.spec.topics.selects(name) and name not in plan.excluded_topics:
            new[name] = facts
    return News(new, grown, gone)


# -- one pass --------------------------------------------------------------------------------------------------------


def follow(context: PhaseContext) -> list[TopicPartition]:
    """One pass; the partitions that were added to the tail's job.

    :raises MigrationError: new topics cannot be made on the target; the next pass tries again.
    """
    context.journal.refresh()
    if is_frozen(context) or context.journal.tip_state not in (State.TAIL, State.DRAIN_READY):
        return []
    plan = context.load_plan()
    news = compare(context, plan)
    gone = confirm(context.source.admin, {topic.name: topic.topic_id for topic in plan.topics}, news.gone)
    if gone:
        _name_gone(context, gone)
    dropped = gone if context.spec.topology.on_topic_deleted == "drop" else {}
    if news.new or news.grown or dropped:
        _supplement(context, plan, news, dropped)
        plan = context.load_plan()
    return _take_up(context, plan)


def _name_gone(context: PhaseContext, gone: Mapping[str, str]) -> None:
    """A line in the journal for each, once."""
    policy = context.spec.topology.on_topic_deleted
    for name, why in sorted(gone.items()):
        key = f"{name}: {why}"
        if context.journal.find_step(GONE, key) is None:
            log.warning("%s: %s", name, why)
            details = {"topic": name, "why": why, "policy": policy}
            context.journal.step(GONE, key=key, details=details, reason=f"source topic {name}: {why}")


def _supplement(context: PhaseContext, plan: Plan, news: News, dropped: Mapping[str, str]) -> None:
    """Write and journal what is new before anything is made."""
    number = len(context.journal.steps(STEP)) + 1
    document = PlanSupplement(
        migration_id=context.migration_id,
        number=number,
        topics=_topic_plans(context, plan, news),
        dropped=dict(dropped),
    )
    digest = document.digest()
    name = f"plan-supplements/{number:04d}-{digest[:16]}.json"
    context.journal.check_holds()
    context.journal_store.put(context.key(name), document.canonical())
    parts = [f"{len(news.new)} new topics", f"{len(news.partitions)} new partitions"]
    parts += [f"{len(dropped)} topics dropped"] if dropped else []
    context.journal.step(
        STEP,
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
    target = target_topics(context, plan.target, sorted(facts), found.unknown)
    made = {name: verdicts.topic_plan(context.spec, item, found, target) for name, item in sorted(facts.items())}
    for name in news.grown:
        made[name] = _widened(plan.topic(name), made[name])
    return [made[name] for name in sorted(made)]


def _widened(known: TopicPlan, made: TopicPlan) -> TopicPlan:
    """The new partitions of a topic that has grown, by the rules that the topic has had from the start."""
    why = why_transactional(known)
    partitions = [
        item.model_copy(update={"verdict": Verdict.TRANSACTIONAL, "reason": why, "target_start_offset": 0})
        if why
        else item
        for item in made.partitions
    ]
    return known.model_copy(update={"partitions": partitions})


def _take_up(context: PhaseContext, plan: Plan) -> list[TopicPartition]:
    """Make what the tail's job does not have yet, then let copiers see it; and take out what was dropped."""
    job = load_job(context, PHASE)
    if job is None:
        return []
    planned = jobs.planned_partitions(context, plan)
    known = {item.key for item in job.partitions}
    missing = {key: item for key, item in planned.items() if key not in known}
    if missing:
        make_new_partitions(context, plan, set(missing))
    if not missing and known <= planned.keys():
        return []
    lanes = lanes_with(job, planned, missing)
    extended = job.model_copy(
        update={
            "lanes": lanes,
            "proof": jobs.proof_settings(context, plan),
            "tombstones": tombstone_settings(context, plan, job.tombstones),
        }
    )
    context.journal.refresh()
    if is_frozen(context):
        return []
    context.journal.check_holds()
    context.journal_store.put(jobs.job_key(context, PHASE), extended.canonical())
    context.journal.refresh()
    if is_frozen(context):
        # The freeze has begun at this very moment: its boundary is drawn from what the job had before.
        context.journal_store.put(jobs.job_key(context, PHASE), job.canonical())
        return []
    context.progress(Progress(PHASE, f"{len(missing)} new partitions are copied from now on"))
    return sorted(missing)


def lanes_with(
    job: CopyJob,
    planned: Mapping[TopicPartition, CopyPartition],
    missing: Mapping[TopicPartition, CopyPartition],
) -> list[CopyLane]:
    """The lanes of a job with new partitions in the lightest ones, and without those that the plan has no more."""
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


class Follower:
    """Passes in a thread of its own, with connections of its own, for as long as the block runs.

    :param after_topics: another pass, after that for topics, which sees what it has taken up.
    """

    def __init__(self, context: PhaseContext, after_topics: Callable[[PhaseContext], object] | None = None) -> None:
        self._context = context
        self._after_topics = after_topics
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def __enter__(self) -> Follower:
        if self._passes():
            self._thread = threading.Thread(target=self._run, name="follow", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _passes(self) -> list[Callable[[PhaseContext], object]]:
        """What is looked for, each on its own: what stops one of them does not stop the other."""
        section = self._context.spec.topology
        passes: list[Callable[[PhaseContext], object]] = [follow] if section.follow_new else []
        return passes + ([self._after_topics] if self._after_topics and section.on_source_drift != "ignore" else [])

    def _run(self) -> None:
        own = replace(self._context, source=self._context.source.clone(), target=self._context.target.clone())
        seconds = self._context.spec.topology.refresh_interval.total_seconds()
        try:
            while True:
                for one_pass in self._passes():
                    try:
                        one_pass(own)
                    except _FINAL as error:
                        log.warning("The source's changes are not followed any more: %s", error)
                        return
                    except MigrationError as error:
                        self._tell(own, error)
                if self._stop.wait(seconds):
                    return
        except Exception:
            log.exception("The source's changes are not followed any more")
        finally:
            own.source.close()
            own.target.close()

    def _tell(self, context: PhaseContext, error: MigrationError) -> None:
        """What stands in the way is said in each pass, and journaled once."""
        log.warning("The source's changes could not be followed: %s", error)
        context.progress(Progress(PHASE, f"the source's changes could not be followed: {error.what}"))
        if error.code in self._told:
            return
        self._told.add(error.code)
        try:
            context.journal.step(FAILED, key=error.code, details={"error": error.as_dict()}, reason=error.what)
        except MigrationError as second:
            log.warning("It could not be journaled: %s", second)


# -- at the freeze ---------------------------------------------------------------------------------------------------


def check_all_followed(context: PhaseContext) -> None:
    """Before producers are stopped: everything that is selected is being copied.

    :raises TopicRecreated: a topic of the migration is gone, or another one by now (``on_topic_deleted: fail``).
    :raises FreezeFailed: topics or partitions are not taken up yet.
    """
    plan = context.load_plan()
    check_none_gone(context)
    news = compare(context, plan)
    if not context.spec.topology.follow_new:
        _refuse_grown(context, news)
        return
    job = load_job(context, PHASE)
    copied = {item.key for item in job.partitions} if job is not None else set()
    left = sorted({*news.partitions, *(set(jobs.planned_partitions(context, plan)) - copied)})
    if left:
        raise FreezeFailed(
            f"{len(left)} partitions appeared on the source and are not copied yet; the first is "
            f"{partition_name(left[0])}",
            where=context.where("cutover", topic=left[0][0], partition=left[0][1]),
            next_step="the tail takes them up within topology.refresh_interval (its log says if it cannot); then "
            "approve again",
            details={"partitions": [partition_name(key) for key in left]},
        )


def _refuse_grown(context: PhaseContext, news: News) -> None:
    """Topics that nobody takes up are no part of the migration; a migrated topic is, with all of its partitions."""
    left = sorted((name, item.partition) for name, facts in news.grown.items() for item in facts.partitions)
    if left:
        raise FreezeFailed(
            f"{len(left)} partitions that migrated topics have got since the plan are not copied "
            f"(topology.follow_new: false); the first is {partition_name(left[0])}",
            where=context.where("cutover", topic=left[0][0], partition=left[0][1]),
            next_step="set topology.follow_new: true and clear tail, so that they are taken up; then approve again",
            details={"partitions": [partition_name(key) for key in left]},
        )


def born_late(context: PhaseContext) -> set[str]:
    """Partitions (``topic-partition``) that a freeze has named as not part of the migration, and that are none yet.

    After a freeze that was lifted the tail may have taken them up.
    """
    named = {str(name) for entry in context.journal.steps(BORN_LATE) for name in entry.details["partitions"]}
    return named - {partition_name(key) for key in migrated_partitions(context)} if named else named


def name_born_late(context: PhaseContext, attempt: str) -> list[str]:
    """After producers are stopped: what appeared meanwhile is not part of the migration, and is journaled by name."""
    plan = context.load_plan()
    born = [partition_name(key) for key in compare(context, plan).partitions]
    if born:
        reason = f"{len(born)} partitions on the source are not part of the migration; the first is {born[0]}"
        log.warning(reason)
        context.journal.step(BORN_LATE, key=attempt, details={"partitions": born}, reason=reason)
    return born
