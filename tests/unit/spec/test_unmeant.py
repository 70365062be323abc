"""Values that are valid by themselves, and that nobody means, are mistakes in a spec that somebody writes."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import SpecInvalid
from airflow_provider_kafka_migration.spec import parse_spec


def minimal(**sections: Any) -> dict[str, Any]:
    return {
        "migration_id": "m",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "storage": {"journal": "s3://bucket/m"},
        **sections,
    }


def mistakes(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecInvalid) as caught:
        parse_spec(data)
    return {item["path"]: item["reason"] for item in caught.value.details["mistakes"]}


@pytest.mark.parametrize(
    ("sections", "path", "reason"),
    [
        ({"seed": {"lanes": 1_000_000}}, "seed.lanes", "at most 10000: each lane is a task of Spark"),
        ({"seed": {"max_concurrent_partitions": 10**9}}, "seed.max_concurrent_partitions", "at most 10000"),
        ({"tail": {"slice_seconds": 10**6}}, "tail.slice_seconds", "at most 86400"),
        ({"seed": {"segment_max_bytes": "500GiB"}}, "seed.segment_max_bytes", "at most 1073741824"),
        ({"seed": {"max_bytes_per_second": -5}}, "seed.max_bytes_per_second", "0 would stop the copy"),
        ({"validation": {"max_bytes_per_second": 0}}, "validation.max_bytes_per_second", "at least 1"),
        ({"cutover": {"max_producer_freeze": "0s"}}, "cutover.max_producer_freeze", "longer than 0"),
        ({"cutover": {"freeze_stable_window": "60s"}}, "cutover.freeze_stable_window", "shorter than cutover.max_pr"),
        ({"approvals": {"max_age": 0}}, "approvals.max_age", "longer than 0"),
        ({"groups": {"sync_interval": "0s"}}, "groups.sync_interval", "longer than 0"),
        ({"evidence": {"retention": "200y"}}, "evidence.retention", "at most 100y"),
        ({"tail": {"drain_ready_timeout": "9000y"}}, "tail.drain_ready_timeout", "at most 100y"),
        ({"topics": {"include": ["\u201corders.*\u201d"]}}, "topics.include[0]", "typographic quote"),
        ({"topics": {"include": ["orders", "payments\u2019"]}}, "topics.include[1]", "typographic quote"),
        ({"source": {"conn_id": "\u2018kafka_source\u2019"}}, "source.conn_id", "typographic quote"),
        ({"acls": {"users": {"\u201cann\u201d": "env:ANN"}}}, "acls.users", "typographic quote"),
        ({"approvals": {"assigned_users": ["\u201cann\u201d"]}}, "approvals.assigned_users[0]", "typographic quote"),
        ({"topics": {"exclude": ["orders.*\n"]}}, "topics.exclude[0]", "white space"),
        ({"target": {"conn_id": "kafka "}}, "target.conn_id", "white space"),
        ({"spark": {"conf": {"a.b": "\u00a0x"}}}, "spark.conf.a.b", "white space"),
        ({"spark": {"engine": "x", "engine_args": {"a": "x\n\u200b"}}}, "spark.engine_args.a", "cannot be seen"),
        ({"groups": {"include": ["or\u00a0ders"]}}, "groups.include[0]", "cannot be seen"),
        ({"groups": {"include": ["orders\u200b.*"]}}, "groups.include[0]", "cannot be seen"),
    ],
)
def test_what_nobody_means_is_named_and_was_taken_before(sections: dict[str, Any], path: str, reason: str) -> None:
    assert reason in mistakes(minimal(**sections))[path]
    assert parse_spec(minimal(**sections), recorded=True)


def test_they_come_with_all_other_mistakes() -> None:
    found = mistakes(minimal(seed={"lanes": 10**6, "via": "ftp"}, evidence={"retention": "200y"}))
    assert set(found) == {"seed.lanes", "seed.via", "evidence.retention"}


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": {"lanes": 10_000, "segment_max_bytes": "1GiB"}, "evidence": {"retention": "100y"}},
        {"cutover": {"freeze_stable_window": "59s", "max_open_transaction_wait": 0}, "tail": {"segment_linger": 0}},
        {"description": "\u201cOrders\u201d to KRaft\n", "source": {"conn_id": "a", "name": "\u201cold\u201d"}},
        {"acls": {"exclude_principals": ["User:CN=O\u2019Brien,O=\u201cx\u201d Ltd"]}},
        {"groups": {"include": ["Bob\u2019s app", "a b"]}},
        {"spark": {"conf": {"spark.driver.extraJavaOptions": "-XX:+UseG1GC\n-Dx=y\n"}}},
        {"spark": {"engine": "x", "engine_args": {"init": "#!/bin/sh\n\tset -e\n", "keys": ["ssh-rsa A\n"]}}},
        {"waive": {"W016": "\u201cagreed\u201d "}},
        {"notifications": {"notifier": "a.B", "kwargs": {"text": "\u201c{{ run_id }}\u201d "}}},
    ],
)
def test_what_may_be_meant_is_taken(sections: dict[str, Any]) -> None:
    assert parse_spec(minimal(**sections))


@pytest.mark.parametrize("pattern", ["[a-z&&[^b]]+", "[[:alpha:]]+", "[a-z--b]"])
def test_a_pattern_of_java_is_refused_each_time(pattern: str) -> None:
    """Whatever the process has compiled before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        re.compile(pattern)
    for _ in range(2):
        assert "is Java's" in mistakes(minimal(topics={"include": [pattern]}))["topics.include[0]"]
        assert parse_spec(minimal(topics={"include": [pattern]}), recorded=True)
