"""*Keep*: only with its code, alone once it has begun, and tried again where the old cluster did not take it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.admin import BUSY, REFUSED, SimAdmin
from phase_world.outside import Killed
from phase_world.returning import Returns, keep
from phase_world.world import KEYS, ORDER, SIGNING_KEY, World, Worlds, without_probes

from airflow_provider_kafka_migration.approvals import way_back
from airflow_provider_kafka_migration.approvals.check import check_approval
from airflow_provider_kafka_migration.cli.frame import ExitCode
from airflow_provider_kafka_migration.cli.migrate import rollback_answer
from airflow_provider_kafka_migration.documents.cutover import ApprovalAnswer, Responder
from airflow_provider_kafka_migration.errors import (
    ApprovalRefused,
    BrokerBusy,
    BrokerUnreachable,
    IllegalTransition,
    StorageUnavailable,
)
from airflow_provider_kafka_migration.kafka.admin.wire_admin import ItemError
from airflow_provider_kafka_migration.phase_table import PHASES
from airflow_provider_kafka_migration.planning import leave_out
from airflow_provider_kafka_migration.record import rolling_back, steps
from airflow_provider_kafka_migration.state import State

SECTION: dict[str, Any] = {"freeze_old": "acl"}


@pytest.fixture(scope="module")
def shared_returns() -> Returns:
    """Ways back that the tests of this file share."""
    return Returns(Worlds())


@pytest.fixture
def returns(shared_returns: Returns, monkeypatch: pytest.MonkeyPatch) -> Returns:
    """Copies of ways back at the beginning of any phase."""
    monkeypatch.setenv(SIGNING_KEY, SIGNING_SEED)
    without_probes(monkeypatch)
    return shared_returns


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[ItemError | None], None]:
    """Let the old cluster refuse new settings of ``orders``; None: it takes them again."""
    real, errors = SimAdmin.alter_topic_configs, dict[str, ItemError | None]()

    def alter(self: SimAdmin, changes: Mapping[str, Any], **options: Any) -> dict[str, ItemError | None]:
        taken = {name: change for name, change in changes.items() if not errors.get(name)}
        return real(self, taken, **options) | {name: errors[name] for name in changes.keys() - taken.keys()}

    monkeypatch.setattr(SimAdmin, "alter_topic_configs", alter)
    return lambda error: errors.update(orders=error)


def _alive(world: World) -> World:
    world.context()
    world.outside.revive()
    return world


def _answer(world: World, decision: Any, code: str = "") -> None:
    check_approval(
        world.context(),
        ApprovalAnswer(
            migration_id=world.migration_id,
            kind="cutover",
            decision=decision,
            code=code,
            responders=[Responder(user_id="ann", user_name="ann")],
            answered_at=world.clock.now().isoformat(),
            body_shown="",
            facts_digest="",
        ),
    )


@pytest.mark.parametrize("code", ["", "00000000"])
def test_a_way_back_does_not_end_without_the_code(returns: Returns, code: str) -> None:
    """``rollback`` and its DAG know nothing of *keep*, and must not end what a person has to decide."""
    world = _alive(returns.at("drain_ready", way_back=SECTION))
    with pytest.raises(ApprovalRefused) as refused:
        world.run("rollback", code=code)
    assert "way-back keep FILE` shows" in refused.value.next_step
    assert world.outside.changes == []
    assert not rolling_back.has_begun(world.context().journal)


def test_the_answer_of_the_approval_is_a_decision_until_another_one(returns: Returns) -> None:
    world = returns.at("approve_cutover", way_back=SECTION)
    _answer(world, "abort", way_back.keep_code(world.context().record))
    _answer(world, "not_yet")
    with pytest.raises(ApprovalRefused):
        world.run("rollback")
    _answer(world, "abort", way_back.keep_code(world.context().record))
    world.run("rollback")
    assert world.state is State.ROLLED_BACK


#: All phases and other tasks, except those that end a way back and its freeze.
OTHERS = sorted(PHASES.keys() - {"rollback", "abandon", "cutover.freeze_limit"})


@pytest.fixture(scope="module")
def shared_half_kept(shared_returns: Returns) -> World:
    """A way back whose *keep* has died after its first changes, with the tail still to be copied."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SIGNING_KEY, SIGNING_SEED)
        without_probes(patched)
        world = _alive(shared_returns.at("drain_ready", way_back=SECTION))
    world.outside.dies_after = 2
    with pytest.raises(Killed):
        keep(world)
    world.restart()
    world.source.log(*KEYS[0]).write(b"after keep")
    return world


@pytest.fixture
def half_kept(shared_half_kept: World, returns: Returns) -> World:
    """A copy of it for one test."""
    assert returns
    return _alive(shared_half_kept.fork())


@pytest.mark.parametrize("phase", OTHERS)
def test_once_it_has_begun_no_phase_runs(half_kept: World, phase: str) -> None:
    submitted, end = len(half_kept.copiers.submitted), half_kept.target.log(*KEYS[0]).end
    with pytest.raises(IllegalTransition, match=rf"\] {re.escape(phase)} cannot run: .* ended by \*keep\* since"):
        half_kept.migration().run(phase)
    assert half_kept.outside.changes == []
    assert (len(half_kept.copiers.submitted), half_kept.target.log(*KEYS[0]).end) == (submitted, end)


@pytest.mark.parametrize("phase", ["seed", "tail", "validate"])
def test_once_it_has_begun_no_job_is_submitted(half_kept: World, phase: str) -> None:
    """Tasks that do not wait for Spark come in by another door."""
    with pytest.raises(IllegalTransition, match="is ended by"):
        half_kept.migration().start_job(phase)
    assert half_kept.outside.changes == []


def test_once_it_has_begun_nothing_else_is_decided(half_kept: World) -> None:
    world, record = half_kept, half_kept.context().record
    assert rolling_back.has_begun(record.journal)
    for act in (
        lambda: _answer(world, "approve", "12345678"),
        lambda: leave_out.check_allowed(record),
    ):
        with pytest.raises(IllegalTransition, match=r"is ended by \*keep\* since") as refused:
            act()
        assert "way-back keep FILE`, without a code" in refused.value.next_step
    world.run("rollback")
    assert world.state is State.ROLLED_BACK


def test_it_can_end_before_there_is_a_plan(returns: Returns) -> None:
    world = returns.at(ORDER[0], way_back=SECTION)
    record = world.context().record
    assert not record.has_plan()
    shown = way_back.facts(record)
    assert (shown["adopted_partitions"], shown["new_partitions"]) == (0, 0)
    world.run("rollback", code=shown["keep_code"])
    assert world.state is State.ROLLED_BACK


@pytest.mark.parametrize("error", [BUSY, REFUSED], ids=["busy", "refused"])
def test_settings_that_the_old_cluster_did_not_take_are_tried_again(
    returns: Returns, refuse: Callable[[ItemError | None], None], error: ItemError
) -> None:
    configs = {name: dict(topic.configs) for name, topic in returns.at(ORDER[0]).target.topics.items()}
    world = returns.at("drain_ready", way_back=SECTION)
    refuse(error)
    result = keep(world)
    assert [item["part"] for item in result.details["problems"]] == ["topics"]
    assert "tries these topics again" in result.details["problems"][0]["next_step"]
    assert world.state is State.ROLLED_BACK
    world.restart()
    again = world.run("rollback")
    assert [item["part"] for item in again.details["problems"]] == ["topics"], "still refused"
    assert "1 parts could NOT be restored" in again.summary
    refuse(None)
    again = world.run("rollback")
    assert again.details["restored_now"] == {"topics": 1}
    assert again.details["problems"] == []
    assert world.target.topics["orders"].configs == configs["orders"]
    assert world.run("rollback").already_done


def test_settings_that_an_owner_has_changed_since_are_left_alone(
    returns: Returns, refuse: Callable[[ItemError | None], None]
) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    refuse(REFUSED)
    keep(world)
    refuse(None)
    world.target.topics["orders"].configs["retention.ms"] = "12345"
    own = dict(world.target.topics["orders"].configs)
    assert world.run("rollback").already_done
    assert world.target.topics["orders"].configs == own


@pytest.mark.parametrize("named", [True, False], ids=["named", "cluster-down"])
def test_settings_that_an_owner_has_added_since_stay(
    returns: Returns, refuse: Callable[[ItemError | None], None], named: bool
) -> None:
    """Also of topics that the error did not name, because it named none: the cluster was down."""
    before = {name: dict(topic.configs) for name, topic in returns.at(ORDER[0]).target.topics.items()}
    added = {"min.insync.replicas": "2", "segment.ms": "777"}
    world = returns.at("drain_ready", way_back=SECTION)
    if named:
        refuse(REFUSED)
        keep(world)
        refuse(None)
    else:
        world.outside.fail("target.admin.alter_topic_configs", BrokerUnreachable("away"))
        keep(world)
        world.outside.heal()
        assert "topics" not in world.steps(steps.ROLLED_BACK)[-1].details["problems"][0]["details"]
    for name in before:
        world.target.topics[name].configs |= added
    again = world.run("rollback")
    assert again.details["restored_now"]["topics"] >= 1
    assert {name: topic.configs for name, topic in world.target.topics.items()} == {
        name: configs | added for name, configs in before.items()
    }
    assert world.run("rollback").already_done


def test_a_list_of_what_stays_that_could_not_be_read_is_no_reason_to_run_it_again(returns: Returns) -> None:
    world = _alive(returns.at("drain_ready", way_back=SECTION))
    world.outside.fail("target.wire.list_offsets.latest", BrokerBusy("not now"))
    result = keep(world)
    assert [item["part"] for item in result.details["problems"]] == ["inventory"]
    assert "1 lists of what stays are not complete" in result.summary
    assert rollback_answer(world.spec, result).code == ExitCode.OK
    world.outside.heal()
    again = world.run("rollback")
    assert (again.details["problems"], again.already_done) == ([], True)
    assert rollback_answer(world.spec, again).code == ExitCode.OK


def test_what_could_not_be_put_back_is_a_reason_to_run_it_again(
    returns: Returns, refuse: Callable[[ItemError | None], None]
) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    refuse(REFUSED)
    assert rollback_answer(world.spec, keep(world)).code == ExitCode.FAILED
    assert rollback_answer(world.spec, world.run("rollback")).code == ExitCode.FAILED
    refuse(None)
    assert rollback_answer(world.spec, world.run("rollback")).code == ExitCode.OK


def test_a_tail_that_could_not_be_stopped_is_stopped_by_the_next_run(returns: Returns) -> None:
    world = _alive(returns.at("drain_ready", way_back=SECTION))
    world.outside.fail("journal_store.put.tail-stop.json", StorageUnavailable("not now"), times=1)
    assert [item["part"] for item in keep(world).details["problems"]] == ["tail"]
    assert world.stored("control/tail-stop.json") is None
    assert world.run("rollback").details["problems"] == []
    assert world.stored("control/tail-stop.json") is not None


def test_the_report_has_what_could_not_be_put_back(
    returns: Returns, refuse: Callable[[ItemError | None], None]
) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    refuse(REFUSED)
    keep(world)
    data = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert data is not None
    [problem] = json.loads(data)["problems"]
    assert list(problem["details"]["topics"]) == ["orders"]
    released = world.steps(steps.OLD_CLUSTER_RELEASED)[-1].details
    assert [item["part"] for item in released["problems"]] == ["topics"]
    assert released["reason"] == "kept"
