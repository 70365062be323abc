"""No text of the product advises a change of the spec that the journal's guard refuses where the text appears."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_support import OpenJournal, go_to
from test_spec_guard import SPEC, changed

import airflow_provider_kafka_migration
from airflow_provider_kafka_migration.documents.copy import CopyJob
from airflow_provider_kafka_migration.errors import FingerprintChanged
from airflow_provider_kafka_migration.journal.spec_guard import flatten, guard_spec
from airflow_provider_kafka_migration.spec.advice import JOB_FIELDS, may_change, may_grow
from airflow_provider_kafka_migration.state import FORWARD, ROLLBACK_FROM, State

PACKAGE = Path(airflow_provider_kafka_migration.__file__).parent

#: The last state in which the texts of a file or folder appear; the longest path applies. Before the end of the
#: precheck everything may change. All other files: until the end.
LAST_STATE = {
    # before a plan is made, or by it
    **dict.fromkeys(("spec/", "checks/", "adoption/", "mirror_maker/", "provider/params.py"), State.PRECHECK),
    **dict.fromkeys(("record/finding_codes.py", "cli/schemas.py", "way_back/derived_spec.py"), State.PRECHECK),
    **dict.fromkeys(("planning/make.py", "planning/verdicts.py", "schemas/payloads/detect.py"), State.PRECHECK),
    **dict.fromkeys(("planning/source_snapshot.py", "internal_topics.py"), State.PRECHECK),
    **dict.fromkeys(("schemas/plan_schemas.py", "schemas/plan_topic.py", "planning/estimate.py"), State.PRECHECK),
    "mirrors/hand_over.py": State.PRECHECK,
    "access/apply.py": State.TOPOLOGY_COPY,
    # the copy, what follows it, and what a lifted freeze goes back to
    **dict.fromkeys(("access/", "copy/", "drift/", "jobs/", "lanes/", "planning/"), State.DRAIN_READY),
    **dict.fromkeys(("phases/sentinels.py", "freeze/", "topics/", "schema_ids/"), State.DRAIN_READY),
    # no migration runs
    **dict.fromkeys(("split.py", "references/", "benchmarks/"), State.PRECHECK),
}
#: A text with one of these does not advise to change the spec of this migration.
BEGINS_AGAIN = re.compile(r"another migration_id|begin_again\(|start a new mi|new one with another|\{again\}")
_ADVISES = re.compile(r"(?i)\b(set|raise|lower|use|change|correct|add|exclude|rename|allow)\b")
#: Keys of the top level are ordinary words; a task has the same name as a key, which is followed by a value.
_KEYS = sorted((key for key in flatten(SPEC) if "." in key and key != "cutover.freeze"), key=len, reverse=True)
_KEYS.append("cutover.freeze:")
_KEY = re.compile(rf"(?<![\w./])({'|'.join(re.escape(key) for key in _KEYS)})(?![\w(/]|\.\w)")


def last_state(path: str) -> State:
    found = [name for name in LAST_STATE if path == name or (name.endswith("/") and path.startswith(name))]
    return LAST_STATE[max(found, key=len)] if found else State.VALIDATING


def advice(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, source) of each expression with text that is no docstring."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    seen = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        whole: ast.AST = node
        while isinstance(parents[whole], ast.BinOp | ast.IfExp | ast.JoinedStr | ast.FormattedValue | ast.BoolOp):
            whole = parents[whole]
        if isinstance(parents[whole], ast.Expr) or whole in seen:
            continue
        seen.add(whole)
        text = ast.unparse(whole)
        # ast.unparse joins what is written on several lines
        yield node.lineno, text


def test_no_text_advises_what_the_guard_refuses_there() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = str(file.relative_to(PACKAGE))
        state = last_state(path)
        for line, text in advice(ast.parse(file.read_text(encoding="utf-8"))):
            words = re.sub(r"\w+(\.\w+)+", "", text)
            if BEGINS_AGAIN.search(text) or not _ADVISES.search(words) or len(text.split()) < 4:
                continue
            keys = [key.rstrip(":") for key in _KEY.findall(text)]
            late = [key for key in keys if not may_change(key, state) and not may_grow(key, state)]
            if late:
                wrong.append(f"{path}:{line} {late} in {state}: {text[:150]}")
    assert wrong == []


CASES = [
    (State.SEED, "offsets.max_markers", 60_000_000),
    (State.SEED, "offsets.on_mismatch", "stop"),
    (State.TAIL, "offsets.max_fill_time", "2h"),
    (State.AWAITING_CLIENT_SWITCH, "groups.on_active_source", "stop"),
    (State.AWAITING_CLIENT_SWITCH, "groups.sync_interval", "1s"),
    (State.TOPOLOGY_COPY, "acls.policy", "replace"),
    (State.TOPOLOGY_COPY, "acls.quotas", "skip"),
    (State.DRAIN_READY, "acls.exclude_principals", ["User:gone"]),
    (State.DRAIN_READY, "acls.users", {"ann": "env:ANN"}),
    (State.SEED, "seed.segment_max_bytes", 64 * 1024 * 1024),
]


@pytest.mark.parametrize(("state", "path", "value"), CASES)
def test_what_errors_advise_is_accepted(open_local: OpenJournal, state: State, path: str, value: Any) -> None:
    guard_spec(open_local(), SPEC)
    go_to(open_local(), state)
    assert list(guard_spec(open_local(), changed(path, value))) == [path]


@pytest.mark.parametrize("state", FORWARD[2:-1])
def test_the_guard_itself_advises_only_what_is_possible(open_local: OpenJournal, state: State) -> None:
    guard_spec(open_local(), SPEC)
    go_to(open_local(), state)
    with pytest.raises(FingerprintChanged) as caught:
        guard_spec(open_local(), changed("topics.include", ["a"]))
    assert caught.value.next_step.startswith("put the old values back")
    assert ("roll back" in caught.value.next_step) == (state in ROLLBACK_FROM)


def test_a_job_has_every_field_that_a_key_is_carried_by() -> None:
    assert set(CopyJob.model_fields) >= JOB_FIELDS


def test_a_paused_mirror_has_the_rules_of_a_running_one() -> None:
    """It is paused so that a person can change something."""
    for key in (
        "tail.drain_max_partition_lag",
        "mirror.target_retention",
        "topology.on_topic_deleted",
        "topics.include",
    ):
        assert may_change(key, State.PAUSED) == may_change(key, State.TAIL)
    assert may_change("tail.slice_seconds", State.PAUSED)
    assert not may_change("topics.include", State.PAUSED)
