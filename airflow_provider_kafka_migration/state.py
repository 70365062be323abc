"""The states of a migration and of a mirror, the transitions between them, and the rule for resuming. No I/O.

docs/decisions/0014 explains the choice of states, 0020 those of a mirror. A *history* is the sequence of states
that a journal went through, one element per transition; steps inside a state do not appear in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_kafka_migration.errors import IllegalTransition, Where


class State(StrEnum):
    """Where a migration or a mirror is. The journal stores these values; :class:`Course` says which belong to which."""

    PLANNED = "planned"
    PRECHECK = "precheck"
    TOPOLOGY_COPY = "topology_copy"
    SEED = "seed"
    TAIL = "tail"
    DRAIN_READY = "drain_ready"
    CUTOVER = "cutover"
    AWAITING_CLIENT_SWITCH = "awaiting_client_switch"
    VALIDATING = "validating"
    FINALIZED = "finalized"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ENDED = "ended"

    @property
    def is_terminal(self) -> bool:
        """No state follows: finalized and rolled_back; of a mirror, promoted and ended."""
        return self in TERMINAL


#: The forward path, in order. Nothing on it may be skipped.
FORWARD: tuple[State, ...] = (
    State.PLANNED,
    State.PRECHECK,
    State.TOPOLOGY_COPY,
    State.SEED,
    State.TAIL,
    State.DRAIN_READY,
    State.CUTOVER,
    State.AWAITING_CLIENT_SWITCH,
    State.VALIDATING,
    State.FINALIZED,
)

#: States that no other state follows.
TERMINAL: frozenset[State] = frozenset({State.FINALIZED, State.ROLLED_BACK, State.PROMOTED, State.ENDED})

#: Of these, the states whose journal may be opened again, so that people can abandon what was promoted.
REOPENED: frozenset[State] = frozenset({State.PROMOTED})

#: States in which the migration waits for a person (CLI exit code 10).
WAITING: frozenset[State] = frozenset({State.DRAIN_READY, State.AWAITING_CLIENT_SWITCH, State.PAUSED})

#: States from which a migration can be rolled back: the six before the cutover.
ROLLBACK_FROM: tuple[State, ...] = FORWARD[:6]

#: States in which it can be abandoned, which ends it as rolled back, too: clients were told to switch, and none has.
#: A mirror is abandoned once the step ``promoted`` is journaled, and ends as ended.
ABANDON_FROM: tuple[State, ...] = (State.CUTOVER, State.AWAITING_CLIENT_SWITCH)
ABANDON_MIRROR_FROM: tuple[State, ...] = (State.TAIL, State.PAUSED, State.PROMOTED)

#: Deliberate backward transitions: "not yet" at the approval, and a freeze that lasted too long and was lifted.
BACKWARD: frozenset[tuple[State, State]] = frozenset({(State.DRAIN_READY, State.TAIL), (State.CUTOVER, State.TAIL)})


@dataclass(frozen=True)
class Course:
    """The states and transitions of one kind of journal.

    :param kind: ``kind`` of the spec.
    :param forward: the path of this kind: a part of :data:`FORWARD`, from its beginning.
    :param sideways: transitions off the path that somebody has to ask for.
    :param endings: states that end it off the path, with the states from which they can be reached.
    """

    kind: str
    forward: tuple[State, ...]
    sideways: frozenset[tuple[State, State]]
    endings: Mapping[State, tuple[State, ...]]

    @property
    def states(self) -> frozenset[State]:
        """All states of this kind."""
        return frozenset({*self.forward, *self.endings, *(to for _, to in self.sideways), State.FAILED})

    def following(self, state: State) -> State | None:
        """Return the next state of the path, or ``None`` at its end and for states off the path."""
        if state not in self.forward:
            return None
        index = self.forward.index(state) + 1
        return self.forward[index] if index < len(self.forward) else None

    def allows(self, source: State, to: State) -> bool:
        """Return whether ``source -> to`` is a transition of this kind; failures and steps aside."""
        if to in self.endings:
            return source in self.endings[to]
        return self.following(source) is to or (source, to) in self.sideways


#: From an empty target to clients that have switched.
MIGRATION = Course("migration", FORWARD, BACKWARD, {State.ROLLED_BACK: (*ROLLBACK_FROM, *ABANDON_FROM)})

#: The path of a mirror ends in ``tail``, where it stays until somebody pauses, promotes or ends it.
_MIRROR_PATH = FORWARD[: FORWARD.index(State.TAIL) + 1]

#: From an empty target to a copy that goes on until somebody stops it.
MIRROR = Course(
    "mirror",
    _MIRROR_PATH,
    frozenset({(State.TAIL, State.PAUSED), (State.PAUSED, State.TAIL)}),
    {State.PROMOTED: (State.TAIL, State.PAUSED), State.ENDED: (*_MIRROR_PATH, State.PAUSED, State.PROMOTED)},
)

COURSES: Mapping[str, Course] = {course.kind: course for course in (MIGRATION, MIRROR)}

#: What people call the states of a mirror.
_MIRROR_NAMES = {State.TOPOLOGY_COPY: "topology", State.SEED: "seeding", State.TAIL: "mirroring"}


def mirror_name(state: State) -> str:
    """Return what people call a state of a mirror; the journal keeps the value that the state has in migrations."""
    return _MIRROR_NAMES.get(state, state.value)


#: How far resuming walks back over ``failed`` (so that it cannot go back and forth forever).
MAX_HOPS = 4


class ResumeAction(StrEnum):
    """What to do when resuming a migration."""

    REENTER = "reenter"
    WAIT = "wait"
    DONE = "done"


@dataclass(frozen=True)
class Resume:
    """What to do with a migration in a given state.

    :param action: re-enter ``state``, wait for a person, or do nothing.
    :param state: the state to re-enter; for the other actions the state that the migration is in.
    :param reason: one sentence for people.
    """

    action: ResumeAction
    state: State
    reason: str

    @property
    def reenters(self) -> bool:
        """``state`` has to be entered again."""
        return self.action is ResumeAction.REENTER

    @property
    def waits(self) -> bool:
        """A person has to act first."""
        return self.action is ResumeAction.WAIT

    @property
    def is_done(self) -> bool:
        """The migration has ended; resuming changes nothing."""
        return self.action is ResumeAction.DONE


def position(state: State) -> int | None:
    """Return the index of a state on the forward path, or ``None`` for failed, rolled_back and the ends of a mirror.

    A paused mirror is where it was: all work before ``tail`` is done.
    """
    state = State.TAIL if state is State.PAUSED else state
    return FORWARD.index(state) if state in FORWARD else None


def following(state: State) -> State | None:
    """Return the next state of the forward path, or ``None`` at its end and for states off the path."""
    return MIGRATION.following(state)


def preceding(state: State) -> State | None:
    """Return the state before this one on the forward path, or ``None`` at its start and for states off the path."""
    index = position(state)
    return FORWARD[index - 1] if index else None


def allowed(source: State, to: State, *, failed_in: State | None = None, course: Course = MIGRATION) -> bool:
    """Return whether an entry ``source -> to`` may be written.

    ``source == to`` is a step inside a state: allowed everywhere except in a terminal state. Of these, only a promoted
    mirror may go on, to be abandoned: a claim made for that opens its journal again (:meth:`Journal.claim`).

    :param failed_in: for ``source == failed``: the state that failed, as :func:`walk_back` returns it.
        Without it only steps may follow ``failed``.
    :param course: the states of a migration, or of a mirror.
    """
    if source in TERMINAL - REOPENED or not {source, to} <= course.states:
        return False
    if source in REOPENED and to is State.FAILED:
        return False
    if source is to or to is State.FAILED:
        return True
    if source is State.FAILED:
        return failed_in is not None and (to is failed_in or failed_in in course.endings.get(to, ()))
    return course.allows(source, to)


def check_transition(
    source: State,
    to: State,
    *,
    failed_in: State | None = None,
    migration_id: str | None = None,
    course: Course = MIGRATION,
) -> None:
    """Raise :class:`IllegalTransition` with the reason, unless ``source -> to`` is :func:`allowed`."""
    if allowed(source, to, failed_in=failed_in, course=course):
        return
    raise illegal_transition(source, to, failed_in=failed_in, migration_id=migration_id, course=course)


def illegal_transition(
    source: State,
    to: State,
    *,
    failed_in: State | None = None,
    migration_id: str | None = None,
    course: Course = MIGRATION,
) -> IllegalTransition:
    """Return the error for an entry ``source -> to``, with the reason and what is possible instead."""
    return IllegalTransition(
        f"a {course.kind} in state {source} cannot go to {to}",
        where=Where(migration_id=migration_id, phase=source.value),
        next_step=_why_not(source, to, failed_in, course),
        details={"from": source.value, "to": to.value, "failed_in": failed_in.value if failed_in else None},
    )


def no_rollback_from(place: State) -> str:
    """Say why a migration at this place cannot be rolled back, and what is possible."""
    return (
        f"a rollback is possible up to {ROLLBACK_FROM[-1]}, but this migration is at {place}: go forward, or lift the "
        "freeze so that it returns to tail; once clients were told to switch, it can be abandoned until one has"
    )


def _why_not(source: State, to: State, failed_in: State | None, course: Course) -> str:
    if source in TERMINAL:
        return f"{source} is final; start a new {course.kind} with another migration_id"
    if not {source, to} <= course.states:
        return f"a {course.kind} has no such state; check `kind` in the spec"
    if to is State.ROLLED_BACK:
        place = failed_in if source is State.FAILED else source
        return no_rollback_from(place or source)
    if source is State.FAILED:
        return f"resume enters {failed_in} again" if failed_in else "inspect the failures in the journal"
    if to in course.endings:
        return f"possible from {', '.join(course.endings[to])}; resume the {course.kind} until it is there"
    step = course.following(source)
    return f"the next state is {step}" if step else "resume the migration"


def walk_back(history: Sequence[State]) -> State | None:
    """Return the last state that is not ``failed``, at most :data:`MAX_HOPS` before the tip.

    ``None`` for an empty history, and when the whole window is ``failed``.
    """
    for state in reversed(history[-(MAX_HOPS + 1) :]):
        if state is not State.FAILED:
            return state
    return None


def resume_state(history: Sequence[State]) -> Resume:
    """Return what to do when a migration with this history is resumed.

    planned..tail, cutover and validating are entered again; drain_ready and awaiting_client_switch wait
    for a person; finalized and rolled_back are no-ops; failed walks back at most 4 hops to the last
    state that isn't failed and re-enters it. (A waiting state that failed is also entered again, and
    then waits.)
    """
    if not history:
        return Resume(ResumeAction.REENTER, State.PLANNED, "nothing was written yet")
    tip = history[-1]
    if tip in TERMINAL:
        return Resume(ResumeAction.DONE, tip, f"the migration is {tip}")
    if tip in WAITING:
        reason = "it is paused until somebody resumes it" if tip is State.PAUSED else f"{tip} waits for the operator"
        return Resume(ResumeAction.WAIT, tip, reason)
    if tip is not State.FAILED:
        return Resume(ResumeAction.REENTER, tip, f"{tip} is entered again")
    last = walk_back(history)
    if last is None:
        return Resume(
            ResumeAction.WAIT, State.FAILED, f"failed more than {MAX_HOPS} times in a row: a person has to investigate"
        )
    return Resume(ResumeAction.REENTER, last, f"{last} failed and is entered again")
