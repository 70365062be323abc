"""``python -m demo.mirrors``: exit status 0 when nothing was lost, doubled, read again or skipped.

Environment: ``KEEP=1`` leaves clusters, mirrors and producers running until Ctrl-C.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

from rich.console import Console

from demo.mirrors.failover import GroupsOf
from demo.mirrors.verdict import Verdict, judge, show
from demo.mirrors.world import FOLDER, World
from demo.run import DemoRun, exit_status, is_set
from harness.mirror_client import mirror_client
from harness.processes import wait_for

_LIVE_RECORDS = 500
_LIVE_SECONDS = 120.0
#: Columns of the tables in a file or a pipe.
_WIDTH = 140


class MirrorDemo(DemoRun[World, Verdict]):
    """The demo from beginning to end."""

    def _make_world(self, stack: ExitStack) -> World:
        return World(stack)

    def _play(self, stack: ExitStack, world: World) -> Verdict:
        self.say("Starting two clusters, east (Kafka 3.9.1, ZooKeeper mode) and west (4.1.1, KRaft mode) ...")
        world.start_clusters()
        world.start_producers()
        self.say("Both have topics, records and live producers. Starting the two flows of mirrors.yaml ...")
        world.start_flows()
        self.say("Both flows mirror. On each cluster three consumer groups read, and have different positions ...")
        groups = [GroupsOf(flow) for flow in world.flows]
        for item in groups:
            stack.callback(item.stop)
            item.settle()
        self._kill_one(world, groups)
        self._fail_over(groups)
        self.say("Producers stop; both flows copy the rest, and all consumers read up to the end ...")
        for producer in world.producers.values():
            producer.freeze()
        for flow in world.flows:
            flow.wait_for_everything()
        failovers = [failover for item in groups for failover in item.judge()]
        self.say("Comparing both clusters record by record, in both directions ...")
        return judge(world, failovers)

    def _show(self, verdict: Verdict) -> None:
        show(self._console, verdict)

    def _kill_one(self, world: World, groups: list[GroupsOf]) -> None:
        flow = world.flows[0]
        self.say(f"Killing the mirror {flow.name} with SIGKILL while producers write, and starting it again ...")
        flow.kill()
        wait_for(
            "the live groups' records",
            lambda: all(item.has_read(_LIVE_RECORDS) for item in groups),
            _LIVE_SECONDS,
            0.2,
        )

    def _fail_over(self, groups: list[GroupsOf]) -> None:
        """Move the groups while producers write on both clusters."""
        for item in groups:
            self.say(f"The groups of {item.flow.source_alias} fail over to {item.flow.target_alias} ...")
            item.leave()
            with mirror_client({"bootstrap.servers": item.flow.target.bootstrap}) as kafka:
                item.go_over(kafka)

    def _stay(self, world: World) -> None:
        for producer in world.producers.values():
            producer.unfreeze()
        super()._stay(world)

    def _addresses(self, world: World) -> Iterator[str]:
        yield f"KEEP=1: everything keeps running. Journals, logs and mirrors.yaml are in {FOLDER}"
        yield "   ".join(f"{alias}: {cluster.bootstrap}" for alias, cluster in world.clusters.items())


def main() -> int:
    """The exit status."""
    argparse.ArgumentParser(prog="python -m demo.mirrors", description=__doc__).parse_args()
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(soft_wrap=False, width=_WIDTH)
    return exit_status(console, MirrorDemo(console, FOLDER, keep=is_set("KEEP")))


if __name__ == "__main__":
    raise SystemExit(main())
