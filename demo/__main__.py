"""``python -m demo``: exit status 0 when the migration was correct.

Environment: ``APPROVE=manual`` leaves the two approvals to a person; ``KEEP=1`` leaves everything running until Ctrl-C;
``WAY_BACK=1`` lets clients write to the target for a while afterwards, and return.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from rich.console import Console

from demo import access, schemas
from demo.drive import Run
from demo.groups import Groups, Switched
from demo.run import DemoRun, exit_status, is_set
from demo.screen import Screen
from demo.verdict import Verdict, judge, show
from demo.way_back import WayBack
from demo.world import FOLDER, World
from harness.clients import LiveProducer
from harness.load import load
from harness.processes import wait_for

_SYNC_SECONDS = 60.0


class Demo(DemoRun[World, Verdict]):
    """A migration from beginning to end."""

    def __init__(self, console: Console, *, by_hand: bool, keep: bool, way_back: bool = False) -> None:
        super().__init__(console, FOLDER, keep=keep)
        self._by_hand = by_hand
        self._way_back = way_back
        self._groups: Groups
        self._switched: list[Switched] = []

    def _make_world(self, stack: ExitStack) -> World:
        return World(stack, self.say)

    def _play(self, stack: ExitStack, world: World) -> Verdict:
        self.say("Starting the source (ZooKeeper mode), the target (KRaft mode), two schema registries, S3 ...")
        world.start_services()
        self.say("Starting Airflow; meanwhile the source gets its topics, records and consumer groups ...")
        self._make_life(stack, world)
        world.wait_airflow()
        self.say(f"Airflow: {world.airflow.url} (no login is needed: everyone is admin)")
        with Screen(self._console) as screen:
            self._screen = screen
            run = Run(
                world.airflow,
                screen,
                by_hand=self._by_hand,
                before_switch=self._switch_clients,
                in_tail=self._change_a_schema,
            )
            run.run(world.spec())
        self.say("The run has ended. Comparing both clusters record by record ...")
        verdict = judge(world, self._switched)
        self._write_on_the_target(world, verdict)
        if self._way_back:
            self._go_back(world, verdict)
        return verdict

    def _show(self, verdict: Verdict) -> None:
        show(self._console, verdict)

    def _make_life(self, stack: ExitStack, world: World) -> None:
        load(world.source, world.topics)
        world.fill_topics_with_schemas()
        self._groups = Groups(
            world.source.client_config(),
            world.target.client_config(),
            world.client(world.source, access.CONSUMER),
            world.client(world.target, access.CONSUMER),
        )
        self._groups.settle()
        stack.callback(self._groups.stop)
        world.start_producers()
        names = ", ".join([*(topic.name for topic in world.topics), *schemas.TOPICS])
        self.say(f"The source has {names}; two producers write, three groups have different offsets, one keeps reading")

    def _change_a_schema(self) -> None:
        """Register a new version on the source while the migration follows it; the producer uses it from then on."""
        if self.world is not None:
            changed_id = self.world.writer.change()
            self._screen.say(f"The schema of {schemas.INVOICES} has changed: its producer now writes id {changed_id}")

    def _switch_clients(self) -> None:
        """READY_FOR_CLIENT_SWITCH: consumers stop, their offsets soon follow, they continue on the target."""
        groups = self._groups
        groups.leave_source()
        source = groups.committed(groups.source)
        wait_for(
            "the groups' last offsets on the target",
            lambda: groups.committed(groups.target) == source,
            _SYNC_SECONDS,
            0.5,
        )
        self._switched = groups.switch()
        self._screen.say("The consumers have left the source and read on the target, up to its end")

    def _write_on_the_target(self, world: World, verdict: Verdict) -> None:
        """Check that the producer's own principal may write there, because its ACLs were copied."""
        topic = f"{access.PREFIX}orders"
        producer = LiveProducer(world.client(world.target, access.PRODUCER), {topic: range(4)})
        with producer:
            wait_for("a record of the producer on the target", lambda: producer.count() or producer.failed, 30)
            producer.freeze()
        if producer.failed:
            verdict.problems.append(f"the producer cannot write on the target: {producer.failed[0][2]}")

    def _go_back(self, world: World, verdict: Verdict) -> None:
        """Let the clients write to the target for a while and return to the source."""
        self.say("The way back: clients write to the new cluster for a while, and then return to the old one ...")
        with Screen(self._console) as screen:
            back = WayBack(world, self._groups, screen.say)
            back.run(world.airflow, screen, by_hand=self._by_hand)
        verdict.problems += back.problems
        for line in back.lines:
            self.say(f"Way back: {line}")

    def _addresses(self, world: World) -> Iterator[str]:
        yield f"KEEP=1: everything keeps running. Airflow: {world.airflow.url}   S3: {world.s3.endpoint_url}"
        yield f"source: {world.source.bootstrap}   target: {world.target.bootstrap}"
        yield f"registries: {world.source_registry.url}   {world.target_registry.url}"


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(prog="python -m demo", description=__doc__).parse_args()
    approve = os.environ.get("APPROVE", "auto")
    if approve not in ("auto", "manual"):
        print(f"APPROVE={approve} is neither auto nor manual", file=sys.stderr)
        return 2
    console = Console(soft_wrap=False)
    demo = Demo(console, by_hand=approve == "manual", keep=is_set("KEEP"), way_back=is_set("WAY_BACK"))
    return exit_status(console, demo)


if __name__ == "__main__":
    raise SystemExit(main())
