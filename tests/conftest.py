"""Fixtures for all suites. Brokers and S3 start when the first test asks for them, once per run."""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from harness.brokers import KafkaCluster
from harness.registries import RegistryPair, start_pair, stop_pair
from harness.s3 import S3Server

pytest_plugins = ["tests.second_tries", "tests.slowest_files"]

#: Users of both clusters besides the super user `admin`: they may do nothing until a test allows it.
USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}

#: Versions of the two clusters of the session. Other ones are for a person's own runs: a few tests ask for these.
SOURCE_VERSION = os.environ.get("KAFKA_MIGRATION_SOURCE", "3.9.1")
TARGET_VERSION = os.environ.get("KAFKA_MIGRATION_TARGET", "4.1.1")

# Property tests: a short search by default, a quick one in `make test-fast`, and a long one with
# `--hypothesis-profile=thorough` (part of `make soak`).
# A test that needs more or fewer examples than others takes a multiple of `settings.default.max_examples`. There are
# no deadlines, because the machine may be busy.
settings.register_profile("quick", deadline=None, max_examples=15)
settings.register_profile("lean", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("lean")

# Airflow takes its home when it is first imported; tests must never touch the user's own.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="kafka-migration-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

# A shell starts its background jobs with Ctrl-C ignored, and what these start ignores it, too. Commands that tests end
# by SIGINT must not depend on how the run itself was started.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def source_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Kafka 3.9.1 in ZooKeeper mode, one broker, ACLs enforced, SASL listener."""
    with KafkaCluster(tmp_path_factory.mktemp("source"), SOURCE_VERSION, users=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def target_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Kafka 4.1.1 in KRaft mode, one broker, ACLs enforced, SASL listener."""
    with KafkaCluster(tmp_path_factory.mktemp("target"), TARGET_VERSION, users=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """S3 in a process of its own; buckets `evidence` (Object Lock) and `migration`, more by `.bucket()`."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryPair]:
    """Two empty Apicurio registries; one pair for each module, because what they hold cannot be removed completely."""
    pair = start_pair(tmp_path_factory.mktemp("registries"))
    yield pair
    stop_pair(pair)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names of topics and groups that no other test of the run uses: ``unique_name("orders")``."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]

    def make(stem: str = "t") -> str:
        return f"{stem}.{test}.{next(_numbers)}"

    return make


@pytest.fixture
def topic(unique_name: Callable[[str], str]) -> str:
    """A topic name of this test's own; the test creates the topic."""
    return unique_name("topic")


#: Where the long runs are: they start first, so that no worker is left with one at the end.
_LONGEST_FIRST = ("tests/e2e/", "tests/integration/spark/", "tests/integration/cutover/", "tests/integration/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long runs first; the order within a folder stays."""

    def rank(item: pytest.Item) -> int:
        starts = (number for number, start in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(start))
        return next(starts, len(_LONGEST_FIRST))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers a file stays on one of them, and all that needs Airflow, too: it is started only once."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "e2e" if nodeid.startswith("tests/e2e/") else str(nodeid.split("::", 1)[0])

    return Scheduling(config, log)
