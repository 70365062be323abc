"""How fast bytes can go from broker to broker through one Python process: what our copier is compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.peers.base import PythonPeer, Task


class RawLimit(PythonPeer):
    """A hand-made loop without checks: fetch, patch each header, produce. For full batches only."""

    name = "raw_limit"
    title = "raw limit (hand-made loop)"
    keeps_offsets = True

    def command(self, task: Task) -> Sequence[str]:
        arguments = {
            "folder": str(task.folder),
            "source": task.source,
            "target": task.target,
            "topic": task.topic,
            "target_topic": task.target_topic,
            "until": {str(number): end for number, end in task.until.items()},
        }
        return self.python("benchmarks.peers.raw_limit_worker", json.dumps(arguments))
