"""``make demo WAY_BACK=1``: after the switch clients write to the new cluster for a while, and then return."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from demo import access, schemas
from demo.drive import Run
from demo.groups import GROUPS, Groups
from demo.screen import Screen
from demo.world import MIGRATION_ID, World
from harness.airflow import AirflowStandalone
from harness.clients import GroupReader, LiveProducer, TopicPartitionKey, judge_group
from harness.compare import bounds, compare, read
from harness.load import Kind
from harness.processes import wait_for

DAG_ID = "kafka_migration_way_back"
_WRITING_SECONDS = 10.0
_CATCH_UP_SECONDS = 240.0
_BORN = f"{access.PREFIX}born-later"


class WayBack:
    """One way back, from the new cluster to the old one.

    :ivar problems: what was wrong; empty when all is well.
    :ivar lines: the result for people.
    """

    def __init__(self, world: World, groups: Groups, say: Callable[[str], None]) -> None:
        self._world = world
        self._groups = groups
        self._say = say
        self._live: LiveProducer
        #: what each producer of the old cluster had written there before it was stopped
        self._written_before = [producer.count() for producer in world.producers]
        #: ends of the new cluster's partitions when clients may return
        self._ends: dict[TopicPartitionKey, int] = {}
        self.problems: list[str] = []
        self.lines: list[str] = []

    def run(self, airflow: AirflowStandalone, screen: Screen, *, by_hand: bool) -> None:
        """Write on the new cluster, and let the clients return by the DAG of the way back."""
        world = self._world
        access.grant_on_target(world.source)
        access.grant_on_source(world.target)
        with ExitStack() as stack:
            self._write_for_a_while(stack)
            run = Run(
                airflow,
                screen,
                by_hand=by_hand,
                before_switch=self._return_clients,
                in_tail=lambda: self._say("The old cluster receives what is written to the new one"),
                before_cutover=self._stop_writing,
                dag_id=DAG_ID,
                choice="Back",
            )
            run.run_with(self._params())
        self._judge()

    def _params(self) -> dict[str, Any]:
        spec = self._world.spec()
        more = {"spark": spec["spark"], "cutover": {"freeze": "manual"}}
        return {
            "migration_id": MIGRATION_ID,
            "journal": spec["storage"]["journal"],
            "storage": spec["storage"]["conn_id"],
            "more": more,
        }

    def _write_for_a_while(self, stack: ExitStack) -> None:
        """Live records, transactions of which some are aborted, a new topic, and a new partition."""
        target = self._world.target
        target.create_topics({_BORN: (2, {})})
        admin = target.admin()
        [future] = admin.create_partitions([NewPartitions(f"{access.PREFIX}customers", 4)]).values()
        future.result()
        self._live = LiveProducer(
            self._world.client(target, access.PRODUCER),
            {f"{access.PREFIX}orders": range(4), f"{access.PREFIX}customers": range(4), _BORN: range(2)},
            records_per_second=200,
            seed=2,
        )
        stack.enter_context(self._live)
        writer = Producer({**target.client_config(), "transactional.id": "demo-way-back"})
        writer.init_transactions()
        for transaction in range(20):
            writer.begin_transaction()
            for number in range(10):
                writer.produce(f"{access.PREFIX}payments", b"%d/%d" % (transaction, number), partition=number % 3)
            if transaction % 4 == 3:
                writer.abort_transaction()
            else:
                writer.commit_transaction()
        time.sleep(_WRITING_SECONDS)
        self._say(f"Clients have written to the new cluster, among others to a new topic ({_BORN}) and partition")

    def _stop_writing(self) -> None:
        """With ``freeze: manual`` whoever approves confirms that producers are stopped."""
        self._live.freeze()

    def _return_clients(self) -> None:
        """ready_for_client_return: producers write there again, each group continues, up to its end."""
        self._ends = {
            (topic, number): content.end
            for topic, numbers in bounds(self._world.target.client_config(), self._names).items()
            for number, content in numbers.items()
        }
        self._see_producers_return()
        groups, read_again, skipped = self._groups, 0, 0
        on_new, on_old = groups.committed(groups.target), groups.committed(groups.source)
        if on_new != on_old:
            self.problems.append(f"committed offsets differ: {on_new} on the new cluster, {on_old} on the old one")
        for plan in GROUPS:
            reader = GroupReader(groups.on_source, plan.name, plan.topics)
            with reader:
                wait_for(f"group {plan.name} at the old cluster's end", reader.caught_up, _CATCH_UP_SECONDS, 0.3)
            judged = judge_group([reader], on_new[plan.name], read(groups.target, plan.topics))
            read_again, skipped = read_again + judged.reread, skipped + judged.skipped
        if read_again or skipped:
            self.problems.append(f"the groups have read {read_again} records again and skipped {skipped}")
        self.lines.append(f"consumers back on the old cluster: {read_again} records read again, {skipped} skipped")

    def _see_producers_return(self) -> None:
        """Wait until the webhook has let the old cluster's producers write again; then stop them for the comparison."""
        producers = self._world.producers
        for producer, before in zip(producers, self._written_before, strict=True):
            wait_for(
                "producers of the old cluster writing again", partial(_has_more, producer, before), _CATCH_UP_SECONDS
            )
        for producer in producers:
            producer.freeze()
        written = sum(producer.count() for producer in producers) - sum(self._written_before)
        failed = sum(len(producer.failed) for producer in producers)
        if failed:
            self.problems.append(f"the old cluster has refused {failed} records of its producers")
        self.lines.append(f"producers back on the old cluster: {written} records written")

    @property
    def _names(self) -> list[str]:
        return [*(topic.name for topic in self._world.topics), *schemas.TOPICS, _BORN]

    def _judge(self) -> None:
        world = self._world
        compacted = [topic.name for topic in world.topics if topic.kind is Kind.COMPACTED]
        found = compare(
            world.target.client_config(),
            world.source.client_config(),
            self._names,
            # What clients have written since they returned is on the old cluster only.
            until=self._ends,
            compacted=compacted,
        )
        records = sum(topic.source_records for topic in found.topics.values())
        self.lines.append(f"{records} records of both lives compared: {found.difference_count} differences")
        self.problems += [str(item) for item in found.differences]


def _has_more(producer: LiveProducer, before: int) -> bool:
    return producer.count() > before
