"""Every task of a way back, killed after any change that it makes: the next process ends where it would have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from phase_support import SIGNING_SEED
from phase_world.logs import Log
from phase_world.outside import Killed
from phase_world.returning import Returns, keep
from phase_world.world import KEYS, ORDER, SIGNING_KEY, World, Worlds, without_probes
from test_killed_anywhere import PHASES, changes_of, kill_everywhere, outcome

from airflow_provider_kafka_migration.documents.evidence import parse_seed, sign_bundle
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.errors import EvidenceInvalid, IllegalTransition, MigrationError
from airflow_provider_kafka_migration.evidence.verify import verify_evidence
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.planning import follow
from airflow_provider_kafka_migration.record import steps
from airflow_provider_kafka_migration.state import State
from airflow_provider_kafka_migration.way_back import guard

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

SECTION = {"freeze_old": "acl"}


@pytest.fixture(scope="session")
def all_returns(all_worlds: Worlds) -> Returns:
    """Ways back that all tests of a process share; only :func:`returns` uses them directly."""
    return Returns(all_worlds)


@pytest.fixture
def returns(all_returns: Returns, worlds: Worlds) -> Returns:
    """Copies of ways back at the beginning of any phase."""
    assert worlds is not None
    return all_returns


@pytest.mark.parametrize("phase", PHASES)
def test_the_next_process_ends_where_the_killed_one_would_have(returns: Returns, phase: str) -> None:
    kill_everywhere(returns, phase, way_back=SECTION)


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_is_done_changes_nothing_when_it_runs_again(returns: Returns, phase: str) -> None:
    world = returns.at(phase, way_back=SECTION)
    world.run(phase)
    expected = outcome(world)
    world.restart()
    world.context()
    world.outside.revive()
    world.run(phase)
    assert outcome(world) == expected
    done = [change for change in world.outside.changes if change.startswith(("source.", "target.", "copiers."))]
    assert done == []


@pytest.mark.parametrize("place", [0.3, 0.8])
def test_a_way_back_that_is_killed_once_in_each_phase_is_finalized(returns: Returns, place: float) -> None:
    counts = {phase: changes_of(returns, phase, way_back=SECTION)[0] for phase in PHASES}
    world = returns.at(ORDER[0], way_back=SECTION)
    configs = {name: dict(topic.configs) for name, topic in world.target.topics.items()}
    for phase in ORDER:
        if phase in counts:
            world.context()
            world.outside.revive()
            world.outside.dies_after = int(counts[phase] * place)
            with pytest.raises(Killed):
                world.run(phase)
            world.restart()
        world.run(phase)
    assert world.state is State.FINALIZED
    for key in KEYS:
        new, old = world.source.log(*key), world.target.log(*key)
        assert old.values() == new.values(), "all records of both lives, at equal offsets"
        assert b"newest" in new.values().values()
    assert {name: topic.configs for name, topic in world.target.topics.items()} == configs
    assert not [acl for acl in world.target.acls or () if acl.permission == "DENY"], "clients are let in again"


def _denied(world: World) -> set[str]:
    return {acl.principal for acl in world.target.acls or () if acl.permission == "DENY"}


def test_producers_of_the_old_cluster_are_denied_from_the_first_change_to_the_return(returns: Returns) -> None:
    before = returns.at("topology_copy", way_back=SECTION)
    frozen_by_the_first = _denied(before)
    assert returns.at("seed", way_back=SECTION).steps(steps.OLD_CLUSTER_GUARDED)
    during = _denied(returns.at("cutover.floor_guard", way_back=SECTION))
    assert during == {"User:shop", "User:app"} >= frozen_by_the_first
    after = returns.at("approve_switch", way_back=SECTION)
    assert _denied(after) == set()
    assert after.steps(steps.READY_FOR_CLIENT_RETURN)[-1].details["returns_to"] == "m1"


def test_producers_are_denied_on_topics_that_join_later(news: World) -> None:
    world = news.fork()
    assert follow.follow(world.context()) == [("late", 0), ("state", 1)]
    denied = Acl("TOPIC", "late", "LITERAL", "User:app", "*", "WRITE", "DENY")
    assert "late" in world.target.topics
    assert denied in (world.target.acls or ())
    keep(world)
    assert denied not in (world.target.acls or ())


# -- what the tail brings while a keep runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def news(all_returns: Returns) -> Iterator[World]:
    """A tail, and on the new cluster a topic and a partition that have not been brought to the old one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SIGNING_KEY, SIGNING_SEED)
        without_probes(patch)
        yield _with_news(all_returns)


def _with_news(returns: Returns) -> World:
    world = returns.at("tail", way_back=SECTION)
    world.run("tail")
    world.source.create("late", 1).logs[0].write(b"new")
    grown = Log()
    grown.write(b"new")
    world.source.topics["state"].logs.append(grown)
    assert world.target.acls is not None
    world.target.acls.add(Acl("TOPIC", "la", "PREFIXED", "User:app", "*", "WRITE", "ALLOW"))
    topology = world.context().spec.topology.model_copy(update={"follow_new": True})
    world.change_spec(spec=world.spec.model_copy(update={"topology": topology}))
    return world


def _fresh(news: World) -> World:
    world = news.fork()
    world.context()
    world.outside.revive()
    return world


def _points(world: World) -> list[int]:
    """Numbers of a process's calls that administer the old cluster, or write to the journal's store."""
    names = enumerate(world.outside.calls)
    return [number for number, name in names if name.startswith(("target.admin.", "journal_store.put"))]


def _pass(world: World) -> None:
    """A pass of the tail's process; what it refuses is for its log."""
    with suppress(MigrationError):
        follow.follow(world.context())


def _kept(world: World) -> tuple[Any, Any, Any, Any]:
    """What a keep must leave on the old cluster, whatever ran beside it: state, ACLs, and settings."""
    configs = {name: dict(topic.configs) for name, topic in world.target.topics.items() if name != "late"}
    late = world.target.topics.get("late")
    return world.state, world.target.acls, configs, None if late is None else late.configs.get("retention.ms")


def _expected(returns: Returns, news: World) -> tuple[Any, Any, Any, Any]:
    first = _fresh(news)
    before = returns.at(ORDER[0], way_back=SECTION)
    acls = {*(before.target.acls or ()), Acl("TOPIC", "la", "PREFIXED", "User:app", "*", "WRITE", "ALLOW")}
    keep(first)
    kept = _kept(first)
    assert kept == (State.ROLLED_BACK, acls, kept[2], None)
    assert kept[2] == {name: dict(topic.configs) for name, topic in before.target.topics.items()}
    return kept


def test_a_pass_at_any_point_of_a_keep_leaves_nothing(returns: Returns, news: World) -> None:
    expected = _expected(returns, news)
    whole = _fresh(news)
    keep(whole)
    for number in _points(whole):
        world = _fresh(news)
        keeping = world.context()

        def run_pass(answer: Any, world: World = world, keeping: Any = keeping) -> Any:
            world.use(None)
            _pass(world)
            world.use(keeping)
            return answer

        world.outside.fail("*", run_pass, times=1, skip=number)
        keep(world)
        assert _kept(world) == expected, f"a pass after call {number}, {world.outside.calls[number]}"


@pytest.mark.parametrize("dies", [False, True], ids=["goes-on", "dies"])
def test_a_keep_at_any_point_of_a_pass_leaves_nothing(returns: Returns, news: World, dies: bool) -> None:
    """The pass was slow; then it goes on, or its process dies."""
    expected = _expected(returns, news)
    whole = _fresh(news)
    _pass(whole)
    for number in _points(whole):
        world = _fresh(news)
        following = world.context()

        def run_keep(answer: Any, world: World = world, following: Any = following) -> Any:
            world.use(None)
            keep(world)
            world.use(following)
            if dies:
                raise Killed
            return answer

        world.outside.fail("*", run_keep, times=1, skip=number)
        with suppress(Killed):
            _pass(world)
        assert _kept(world) == expected, f"a keep after call {number}, {whole.outside.calls[number]}"


def test_a_keep_that_is_killed_while_a_pass_is_slow_ends_like_any_other(returns: Returns, news: World) -> None:
    """The pass stops before it creates the ACLs that it has journaled; the keep is killed anywhere; both go on."""
    expected = _expected(returns, news)
    whole = _fresh(news)
    keep(whole)
    create = _calls_of_a_pass(news).index("target.admin.create_acls")
    for number in range(len(whole.outside.changes)):
        world = _fresh(news)
        following = world.context()

        def die(answer: Any, world: World = world, following: Any = following, number: int = number) -> Any:
            world.use(None)
            world.context()
            world.outside.revive()
            world.outside.dies_after = number
            with pytest.raises(Killed):
                keep(world)
            world.outside.revive()
            world.use(following)
            return answer

        world.outside.fail("*", die, times=1, skip=create - 1)
        _pass(world)
        world.restart()
        keep(world)
        assert _kept(world) == expected, f"killed after change {number}"


@pytest.mark.parametrize(
    "call", ["target.admin.alter_topic_configs", "target.wire.list_offsets.latest", "evidence_store.put.evidence.json"]
)
def test_an_acl_that_is_created_during_a_keep_by_a_process_that_dies_of_it_is_removed(
    returns: Returns, news: World, call: str
) -> None:
    """The pass has sent its request; it takes effect after the keep has removed the ACLs once."""
    expected = _expected(returns, news)
    world = _fresh(news)
    create = _calls_of_a_pass(news).index("target.admin.create_acls")

    def run_keep(answer: Any) -> Any:
        world.use(None)
        denied = guard.bindings(world.context().journal)
        assert denied

        def take_effect(found: Any) -> Any:
            assert world.target.acls is not None
            assert not denied & world.target.acls
            world.target.acls |= denied
            return found

        world.outside.fail(call, take_effect, times=1)
        keep(world)
        raise Killed

    world.outside.fail("*", run_keep, times=1, skip=create - 1)
    with pytest.raises(Killed):
        _pass(world)
    world.restart()
    assert _kept(world) == expected


def _calls_of_a_pass(news: World) -> list[str]:
    world = _fresh(news)
    _pass(world)
    return list(world.outside.calls)


@pytest.mark.parametrize("phase", ["topology_copy", "seed", "drain_ready", "approve_cutover"])
def test_keeping_after_any_phase_puts_everything_back(returns: Returns, phase: str) -> None:
    first = returns.at(ORDER[0], way_back=SECTION)
    configs = {name: dict(topic.configs) for name, topic in first.target.topics.items()}
    acls = set(first.target.acls or ())
    world = returns.at(phase, way_back=SECTION)
    count, expected = _keep_everywhere(world)
    assert count > 1
    assert expected["configs"] == configs
    assert world.fork().target.acls != acls or phase == "topology_copy"
    for number in range(count):
        killed = world.fork()
        killed.context()
        killed.outside.revive()
        killed.outside.dies_after = number
        with pytest.raises(Killed):
            keep(killed)
        killed.restart()
        keep(killed)
        assert outcome(killed) == expected, f"killed after change {number}"
        assert killed.target.acls == acls
        assert killed.steps(steps.OLD_CLUSTER_RELEASED)


def _keep_everywhere(world: World) -> tuple[int, dict[str, Any]]:
    kept = world.fork()
    kept.context()
    kept.outside.revive()
    keep(kept)
    assert kept.state is State.ROLLED_BACK
    return len(kept.outside.changes), outcome(kept)


def test_keeping_is_signed_and_one_changed_byte_is_noticed(returns: Returns) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    result = keep(world, "all is well")
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    verified = verify_evidence(data)
    assert verified.bundle.outcome is Outcome.KEPT
    assert verified.fingerprint in result.summary
    shown = verified.bundle.way_back
    assert shown["reverses"] == "m1"
    assert shown["old_cluster_released"]["reason"] == "all is well"
    report = world.evidence_store.get(f"{world.migration_id}/rollback-report.json")
    assert report is not None
    assert shown["report"] == json.loads(report)
    assert shown["evidence"]["sha256"], "that of the first migration"
    page = world.evidence_store.get(f"{world.migration_id}/evidence.html")
    assert page is not None
    assert b"The old cluster is released" in page
    for place in (b"all is well", b"old_cluster_released", b"KEPT"):
        changed = data.replace(place, place[:-1] + b"_", 1)
        with pytest.raises(EvidenceInvalid):
            verify_evidence(changed)


@pytest.mark.parametrize("part", ["report", "old_cluster_released", "outcome"])
def test_a_report_that_is_not_the_journals_does_not_verify_although_it_is_signed(returns: Returns, part: str) -> None:
    """Whoever holds the key cannot put another report next to the journal either."""
    world = returns.at("drain_ready", way_back=SECTION)
    keep(world, "all is well")
    data = world.evidence_store.get(f"{world.migration_id}/evidence.json")
    assert data is not None
    bundle = verify_evidence(data).bundle
    if part == "outcome":
        forged = bundle.model_copy(update={"outcome": Outcome.PASSED})
    else:
        altered = {**bundle.way_back, part: {**bundle.way_back[part], "problems": ["none"]}}
        forged = bundle.model_copy(update={"way_back": altered})
    with pytest.raises(EvidenceInvalid):
        verify_evidence(sign_bundle(forged, parse_seed(SIGNING_SEED)))


def test_without_a_key_the_old_cluster_is_released_all_the_same(
    returns: Returns, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = returns.at("drain_ready", way_back=SECTION)
    monkeypatch.delenv(SIGNING_KEY)
    result = keep(world)
    assert "this is NOT signed" in result.summary
    assert result.details["not_signed"]["code"] == "CONNECTION_INVALID"
    assert world.state is State.ROLLED_BACK
    assert world.evidence_store.get(f"{world.migration_id}/evidence.json") is None


def test_a_rollback_before_the_switch_is_not_called_a_keep(worlds: Worlds) -> None:
    world = worlds.at("drain_ready")
    world.run("rollback")
    assert world.evidence_store.get(f"{world.migration_id}/evidence.json") is None


def test_it_is_too_late_to_keep_once_clients_may_return(returns: Returns) -> None:
    with pytest.raises(IllegalTransition):
        returns.at("approve_switch", way_back=SECTION).run("rollback", reason="kept")
