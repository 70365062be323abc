"""A schema registry in this process that answers as Confluent Schema Registry 8.1.5 did, or with others' habits.

>>> with FakeRegistry() as registry:
...     registry.url
'http://127.0.0.1:...'
"""

from harness.fake_registry.habits import APICURIO, CONFLUENT, CONFLUENT_WITH_RULES, KARAPACE, REDPANDA, Habits
from harness.fake_registry.server import DropConnection, FakeRegistry, Reply, Request
from harness.fake_registry.store import Refused

__all__ = [
    "APICURIO",
    "CONFLUENT",
    "CONFLUENT_WITH_RULES",
    "KARAPACE",
    "REDPANDA",
    "DropConnection",
    "FakeRegistry",
    "Habits",
    "Refused",
    "Reply",
    "Request",
]
