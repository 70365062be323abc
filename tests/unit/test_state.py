"""States, transitions and the resume rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_kafka_migration.errors import IllegalTransition
from airflow_provider_kafka_migration.state import (
    ABANDON_FROM,
    FORWARD,
    MAX_HOPS,
    MIGRATION,
    MIRROR,
    ROLLBACK_FROM,
    TERMINAL,
    State,
    allowed,
    check_transition,
    following,
    mirror_name,
    position,
    resume_state,
    walk_back,
)

S = State

#: Every transition that is legal without a failure, written out by hand.
LEGAL = {
    "planned": {"precheck", "rolled_back", "failed"},
    "precheck": {"topology_copy", "rolled_back", "failed"},
    "topology_copy": {"seed", "rolled_back", "failed"},
    "seed": {"tail", "rolled_back", "failed"},
    "tail": {"drain_ready", "rolled_back", "failed"},
    "drain_ready": {"cutover", "tail", "rolled_back", "failed"},
    "cutover": {"awaiting_client_switch", "tail", "rolled_back", "failed"},
    "awaiting_client_switch": {"validating", "rolled_back", "failed"},
    "validating": {"finalized", "failed"},
    "finalized": set(),
    "rolled_back": set(),
    "failed": set(),
}


#: The same for a mirror.
LEGAL_OF_MIRRORS = {
    "planned": {"precheck", "ended", "failed"},
    "precheck": {"topology_copy", "ended", "failed"},
    "topology_copy": {"seed", "ended", "failed"},
    "seed": {"tail", "ended", "failed"},
    "tail": {"paused", "promoted", "ended", "failed"},
    "paused": {"tail", "promoted", "ended", "failed"},
    "promoted": {"ended"},
    "ended": set(),
    "failed": set(),
}


def test_serde_names_are_the_seeds() -> None:
    assert {state.value for state in MIGRATION.states} == set(LEGAL)
    assert {state.value for state in MIRROR.states} == set(LEGAL_OF_MIRRORS)
    assert set(State) == MIGRATION.states | MIRROR.states
    assert len(MIGRATION.states) == 12
    assert f"{S.DRAIN_READY}" == "drain_ready"
    assert S("tail") is S.TAIL


@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("to", list(State))
def test_all_pairs(source: State, to: State) -> None:
    expected = to.value in LEGAL.get(source, ()) or (source is to and source not in TERMINAL | {S.PAUSED})
    assert allowed(source, to) is expected
    if expected:
        check_transition(source, to)
    else:
        with pytest.raises(IllegalTransition, match="Next: ") as caught:
            check_transition(source, to, migration_id="m")
        assert f"{source} cannot go to {to}" in str(caught.value)


@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("to", list(State))
def test_all_pairs_of_a_mirror(source: State, to: State) -> None:
    known = {source.value, to.value} <= set(LEGAL_OF_MIRRORS)
    steps = source not in TERMINAL or source is S.PROMOTED  # whose journal a claim may open again
    expected = known and (to.value in LEGAL_OF_MIRRORS[source] or (source is to and steps))
    assert allowed(source, to, course=MIRROR) is expected
    if not expected:
        with pytest.raises(IllegalTransition, match="a mirror in state"):
            check_transition(source, to, course=MIRROR)


@pytest.mark.parametrize("failed_in", [S.PLANNED, S.SEED, S.TAIL, S.PAUSED])
@pytest.mark.parametrize("to", list(State))
def test_a_mirror_after_a_failure(failed_in: State, to: State) -> None:
    """What failed is entered again, or the mirror ends; nothing is skipped."""
    expected = to in (failed_in, S.FAILED, S.ENDED) or (to is S.PROMOTED and failed_in in (S.TAIL, S.PAUSED))
    assert allowed(S.FAILED, to, failed_in=failed_in, course=MIRROR) is expected


def test_a_paused_mirror_waits_where_it_was() -> None:
    assert position(S.PAUSED) == position(S.TAIL)
    resume = resume_state([S.TAIL, S.PAUSED])
    assert (resume.waits, resume.state) == (True, S.PAUSED)
    assert resume_state([S.TAIL, S.PROMOTED]).is_done
    assert [mirror_name(state) for state in (S.PLANNED, S.TOPOLOGY_COPY, S.SEED, S.TAIL, S.PAUSED)] == [
        "planned",
        "topology",
        "seeding",
        "mirroring",
        "paused",
    ]


@pytest.mark.parametrize("failed_in", [state for state in FORWARD if state not in TERMINAL])
@pytest.mark.parametrize("to", list(State))
def test_after_a_failure(failed_in: State, to: State) -> None:
    expected = to in (failed_in, S.FAILED) or (to is S.ROLLED_BACK and failed_in in (*ROLLBACK_FROM, *ABANDON_FROM))
    assert allowed(S.FAILED, to, failed_in=failed_in) is expected


def test_forward_helpers() -> None:
    assert [following(state) for state in FORWARD] == [*FORWARD[1:], None]
    assert following(S.FAILED) is None
    assert position(S.PLANNED) == 0
    assert position(S.ROLLED_BACK) is None
    assert ROLLBACK_FROM == (S.PLANNED, S.PRECHECK, S.TOPOLOGY_COPY, S.SEED, S.TAIL, S.DRAIN_READY)


@pytest.mark.parametrize(
    ("history", "action", "state"),
    [
        ([], "reenter", S.PLANNED),
        ([S.PLANNED], "reenter", S.PLANNED),
        ([S.PLANNED, S.PRECHECK], "reenter", S.PRECHECK),
        ([S.TOPOLOGY_COPY], "reenter", S.TOPOLOGY_COPY),
        ([S.SEED], "reenter", S.SEED),
        ([S.TAIL], "reenter", S.TAIL),
        ([S.TAIL, S.DRAIN_READY], "wait", S.DRAIN_READY),
        ([S.CUTOVER], "reenter", S.CUTOVER),
        ([S.CUTOVER, S.AWAITING_CLIENT_SWITCH], "wait", S.AWAITING_CLIENT_SWITCH),
        ([S.VALIDATING], "reenter", S.VALIDATING),
        ([S.VALIDATING, S.FINALIZED], "done", S.FINALIZED),
        ([S.SEED, S.ROLLED_BACK], "done", S.ROLLED_BACK),
        ([S.SEED, S.FAILED], "reenter", S.SEED),
        ([S.SEED, S.FAILED, S.SEED, S.FAILED], "reenter", S.SEED),
        ([S.CUTOVER, S.FAILED], "reenter", S.CUTOVER),
        ([S.DRAIN_READY, S.FAILED], "reenter", S.DRAIN_READY),
        ([S.TAIL, S.FAILED, S.FAILED, S.FAILED, S.FAILED], "reenter", S.TAIL),
        ([S.TAIL, S.FAILED, S.FAILED, S.FAILED, S.FAILED, S.FAILED], "wait", S.FAILED),
    ],
)
def test_resume_table(history: list[State], action: str, state: State) -> None:
    resume = resume_state(history)
    assert (resume.action.value, resume.state) == (action, state)
    assert (resume.reenters, resume.waits, resume.is_done) == (
        action == "reenter",
        action == "wait",
        action == "done",
    )
    assert resume.reason


@given(st.lists(st.sampled_from(list(State)), max_size=12))
def test_walking_back_never_looks_further_than_4_hops(history: list[State]) -> None:
    found = walk_back(history)
    window = history[-(MAX_HOPS + 1) :]
    if found is None:
        assert all(state is S.FAILED for state in window)
    else:
        hops = window[::-1].index(found)
        assert hops <= MAX_HOPS
        assert all(state is S.FAILED for state in window[len(window) - hops :])
        assert found is not S.FAILED


@given(st.lists(st.sampled_from(list(State)), min_size=1, max_size=30))
def test_what_resume_re_enters_may_be_entered(wishes: list[State]) -> None:
    """Any legal walk: resuming always names something that the state machine allows."""
    history = [S.PLANNED]
    for wish in wishes:
        if wish is not history[-1] and allowed(history[-1], wish, failed_in=walk_back(history)):
            history.append(wish)
    resume = resume_state(history)
    if resume.reenters:
        assert allowed(history[-1], resume.state, failed_in=walk_back(history))
        assert resume.state not in TERMINAL
    assert resume.is_done == (history[-1] in TERMINAL)
    assert not (S.ROLLED_BACK in history and S.AWAITING_CLIENT_SWITCH in history)
