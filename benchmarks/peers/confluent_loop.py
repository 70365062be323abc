"""The plain consume-produce loop that everybody writes first, with confluent-kafka."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.peers.base import PythonPeer, Task


class ConfluentLoop(PythonPeer):
    """consume() many, produce() each, poll(); lz4, batches of 64 KiB, linger as told, idempotent."""

    name = "confluent_loop"
    title = "confluent-kafka loop"

    def command(self, task: Task) -> Sequence[str]:
        arguments = {
            "folder": str(task.folder),
            "source": task.source,
            "target": task.target,
            "topic": task.topic,
            "target_topic": task.target_topic,
            "partitions": task.partitions,
            "tail": task.is_tail,
            "linger_ms": task.linger_ms,
            "isolation": "read_committed" if task.read_committed else "read_uncommitted",
            "until": {str(number): end for number, end in task.until.items()},
        }
        return self.python("benchmarks.peers.confluent_loop_worker", json.dumps(arguments))
