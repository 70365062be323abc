"""What came to a plan after it was made: topics and partitions that appeared on the source, topics that went away.

plan.json itself never changes. Supplements are written once each, journaled by number and digest, and everything that
asks for the plan gets it with them (``PhaseContext.load_plan``).
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from airflow_provider_kafka_migration.documents.base import Document, Part
from airflow_provider_kafka_migration.documents.plan import Plan, TopicPlan

#: Journal step; its key is the supplement's number, its details hold ``document`` and ``digest``.
STEP = "plan_supplemented"


class ConfigChange(Part):
    """The configs of a source topic have changed since the plan, and what follows for the target."""

    former_configs: dict[str, str] = Field(description="dynamic configs of the source topic as planned before")
    source_configs: dict[str, str] = Field(description="dynamic configs of the source topic now")
    target_configs: dict[str, str] = Field(description="what the target topic ends with, policy applied")
    dropped_configs: dict[str, str] = Field(default_factory=dict, description="config name to why it is not copied")


class PlanSupplement(Document):
    """``plan-supplements/<number>-<digest>.json``."""

    LATER_FIELDS = ("configs",)

    version: int = 1
    migration_id: str
    number: int = Field(description="1, 2, 3: applied in this order")
    topics: list[TopicPlan] = Field(
        default_factory=list, description="new topics; of topics that have grown: only their new partitions"
    )
    dropped: dict[str, str] = Field(
        default_factory=dict, description="source topic to why it is not part of the migration any more"
    )
    configs: dict[str, ConfigChange] = Field(default_factory=dict, description="by source topic")

    def apply(self, plan: Plan) -> Plan:
        """The plan with this supplement."""
        topics = {topic.name: topic for topic in plan.topics if topic.name not in self.dropped}
        for topic in self.topics:
            known = topics.get(topic.name)
            topics[topic.name] = topic if known is None else _widened(known, topic)
        for name, change in self.configs.items():
            if name in topics:
                update = change.model_dump(include={"source_configs", "target_configs", "dropped_configs"})
                topics[name] = topics[name].model_copy(update=update)
        kept = {(name, item.partition) for name, topic in topics.items() for item in topic.partitions}
        lanes = [
            lane.model_copy(update={"partitions": [key for key in lane.partitions if tuple(key) in kept]})
            for lane in plan.lanes
        ]
        return plan.model_copy(
            update={
                "topics": [topics[name] for name in sorted(topics)],
                "lanes": lanes,
                "excluded_topics": dict(sorted({**plan.excluded_topics, **self.dropped}.items())),
            }
        )


def _widened(known: TopicPlan, added: TopicPlan) -> TopicPlan:
    partitions = {item.partition: item for item in (*added.partitions, *known.partitions)}
    return known.model_copy(update={"partitions": [partitions[number] for number in sorted(partitions)]})


def supplemented(plan: Plan, supplements: Iterable[PlanSupplement]) -> Plan:
    """The plan with all supplements, in the order of their numbers."""
    for supplement in sorted(supplements, key=lambda item: item.number):
        plan = supplement.apply(plan)
    return plan
