"""The same through Spark: Python workers killed and frozen, drivers killed, connections dropped."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from airflow_provider_kafka_migration.documents.copy import StopAt
from harness.faults.judge import judge
from harness.faults.lab import FaultLab
from harness.faults.writers import Writers
from tests.integration.spark.spark_runs import SparkRun

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

#: All of them in each run, in the seed's order.
KINDS = ["worker"] * 4 + ["driver"] * 2 + ["freeze"] * 2 + ["drop"] * 2


def test_random_faults_through_spark(tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    left = rng.sample(KINDS, len(KINDS))
    made: Counter[str] = Counter()
    with FaultLab(tmp_path / "lab") as lab:
        writers = Writers(lab.source, "spark.", seed)
        writers.create_topics()
        writers.start()
        writers.wait_for_records(300)
        copy = lab.copying(list(writers.names.values()), lanes=2)
        stop_key = f"{copy.migration_id}/control/tail-stop.json"
        copy.write_job("tail", slice_seconds=3, stop_key=stop_key)
        run = SparkRun(copy, "tail", "tail")
        try:
            deadline = time.monotonic() + 400
            while left and time.monotonic() < deadline:
                time.sleep(rng.uniform(0.3, 1.5))
                workers = run.workers()
                if run.process.poll() is not None:
                    run = SparkRun(copy, "tail", "tail")
                if not workers:
                    continue
                kind = left[-1]
                with contextlib.suppress(psutil.NoSuchProcess):
                    if kind == "worker":
                        rng.choice(workers).kill()
                    elif kind == "freeze":
                        frozen = rng.choice(workers)
                        frozen.send_signal(signal.SIGSTOP)
                        time.sleep(4)
                        frozen.send_signal(signal.SIGCONT)
                    elif kind == "driver":
                        run.end()
                        run = SparkRun(copy, "tail", "tail")
                    else:
                        lab.target.proxy.drop()
                        lab.source.proxy.drop()
                    made[kind] += 1
                    left.pop()
            writers.stop()
            offsets = {f"{topic}-{number}": end for (topic, number), end in copy.stable_ends().items()}
            stop = StopAt(migration_id=copy.migration_id, offsets=offsets)
            copy.clients.store(copy.journal).put(stop_key, stop.canonical())
            for _ in range(3):
                if run.wait(200) == 0:
                    break
                run = SparkRun(copy, "tail", "tail")
            assert run.process.returncode == 0, run.text()[-4000:]
        finally:
            run.end()
        damage = judge(copy, [writers.names["compact"]])
        print(f"seed {seed}: {dict(made)}, {damage}")
        assert not left, f"not made: {left}"
        assert not damage.silent, damage
