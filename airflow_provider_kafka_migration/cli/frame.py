"""How commands answer: text for people or one JSON object on stdout, errors as what / where / next on stderr."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Terminal, Transient, WaitsForOperator

# -- exit codes -------------------------------------------------------------------------------------------------------
#
# What the exit status of ``kafka-migration`` says.


class ExitCode(IntEnum):
    """Stable; scripts may rely on them."""

    #: done, or valid
    OK = 0
    #: failed, invalid, or different: a person has to change something
    FAILED = 1
    #: wrong command line (also an argument that makes no sense)
    USAGE = 2
    #: failed for a reason that may pass: run the same command again later
    TRY_AGAIN = 3
    #: the migration waits for an operator's approval
    WAITS = 10
    #: stopped by Ctrl-C; the same command goes on
    INTERRUPTED = 130
    #: stopped by SIGTERM; the same command goes on
    TERMINATED = 143


#: For the documentation and ``--help``.
MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, or valid",
    ExitCode.FAILED: "failed, invalid or different: something has to be changed first",
    ExitCode.USAGE: "wrong command line",
    ExitCode.TRY_AGAIN: "failed for a reason that may pass (broker unreachable, storage throttled): run it again later",
    ExitCode.WAITS: "the migration waits for an operator: `--approve CODE` answers",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C, in order; the same command goes on where it was",
    ExitCode.TERMINATED: "stopped by SIGTERM, in order; the same command goes on where it was",
}


def exit_code(error: MigrationError) -> ExitCode:
    """The exit status of an error."""
    if isinstance(error, WaitsForOperator):
        return ExitCode.WAITS
    return ExitCode.TRY_AGAIN if isinstance(error, Transient) else ExitCode.FAILED


# -- wording ----------------------------------------------------------------------------------------------------------
#
# Errors of the core advise in the words of Airflow ("clear the task"); a terminal has commands, not tasks.


_PHASES = (
    r"(?:plan|precheck|topology_copy|seed|tail|drain_ready|approve_\w+|cutover(?:\.\w+)?|validate|evidence|sync_groups)"
)
#: What a next step tells to clear: tasks by name, by a pronoun, or by what they did.
_TASKS = (
    r"(?:the (?:red |approval )?tasks?\b(?: that [\w ]+?(?: it)?(?: \([^)]*\))?(?=[,;:.)]|$))?|"
    r"this task\b|its red task\b|"
    rf"the step of the cutover that failed\b|them\b|it\b|this(?: one)?\b|{_PHASES}(?:, then this task)?)"
)
_CLEAR = re.compile(rf"\bclear {_TASKS}(?: and (?:everything below(?: it)?|what follows(?: it)?))?")
_CLEAR_WITH_TAKEOVER = re.compile(r"\bclear the task with takeover=true \(CLI: --takeover\)")
#: Commands that ``resume`` goes on with; others are given again.
_RESUMED = ("run", "resume")


def next_step_for(command: str, text: str) -> str:
    """A next step as somebody at a terminal can follow it.

    :param command: name of the command that has failed.
    """
    again = "run `kafka-migration resume FILE`" if command in _RESUMED else "run the command again"
    text = _CLEAR_WITH_TAKEOVER.sub(f"{again} with --takeover", text)
    text = _CLEAR.sub(again, text)
    text = text.replace("see the task's log", "see the messages above").replace("the task log", "the messages above")
    return _once(text, again)


def _once(text: str, again: str) -> str:
    """Only the last "run it again" stays: an error that was passed on may have got several."""
    clauses = text.split("; ")
    said = [index for index, clause in enumerate(clauses) if _core(clause) == again or _core(clause).startswith(again)]
    for index in reversed(said[:-1]):
        # Only a clause that says nothing else goes.
        if _core(clauses[index]) == again:
            del clauses[index]
    return "; ".join(clauses)


def _core(clause: str) -> str:
    return clause.removeprefix("then ").removeprefix("and ").strip()


# -- ending -----------------------------------------------------------------------------------------------------------
#
# How a command ends that is told to: by Ctrl-C (SIGINT), or by SIGTERM from a supervisor.
#
# The first signal asks for an end in order: copiers finish what is on the wire, connections are closed, the claim and
# all checkpoints stay as they are, and the same command goes on later. A second signal ends the process at once, which
# costs nothing but the time to look where the logs end.


#: A shell's convention: a process that a signal has ended has this status plus the signal's number.
SIGNALED = 128


class Ending:
    """What signals have asked for so far.

    :ivar number: the first signal's number; None while nobody has asked for an end.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        #: Written to stderr when a second signal ends the process, which has no time to look at anything.
        self.parting = ""
        self._heeding = 0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handler of the signals. Takes no lock: the main thread may hold any when it is interrupted."""
        if self.number is not None:
            os.write(2, self.parting.encode())
            os._exit(SIGNALED + number)
        self.number = number
        if not self._heeding:
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While a job runs that looks at its :class:`Stop`, nothing is thrown into it: it ends by itself, and soon.

        :raises KeyboardInterrupt: the job is over, and did not notice that it was asked to end.
        """
        self._heeding += 1
        try:
            yield
        finally:
            self._heeding -= 1
        if self.number is not None:
            raise KeyboardInterrupt


class Stop(threading.Event):
    """Tells a job to stop: set by the one who has made it, or by a signal."""

    def __init__(self, ending: Ending | None = None) -> None:
        super().__init__()
        self._ending = ending if ending is not None else _current

    def is_set(self) -> bool:
        """Whether the job has to stop."""
        return super().is_set() or self._ending.number is not None

    def wait(self, timeout: float | None = None) -> bool:
        """As of an event; but a signal alone is noticed only when the time is over, so wait for short times."""
        super().wait(timeout)
        return self.is_set()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Around a job that looks at this. Signals reach the main thread, so nothing changes in others."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._ending.heeded():
            yield


#: Of the command that runs in this process; signals belong to the process, too.
_current = Ending()


@contextmanager
def listening() -> Iterator[Ending]:
    """Handle signals for a command. In another thread than the main one nothing is handled.

    SIGINT stays ignored where the caller has it ignored (a shell's background jobs). SIGTERM is always for us: there is
    no other way to end process 1 of a container.
    """
    global _current
    former_ending, ending = _current, Ending()
    _current = ending
    former: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    former[number] = signal.signal(number, ending.handle)
        yield ending
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _current = former_ending


# -- frame ------------------------------------------------------------------------------------------------------------


P = ParamSpec("P")

#: Columns that no table needs.
_NO_LIMIT = 1_000_000

JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON object on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class Unexpected(Terminal):
    """An error that nobody foresaw: a mistake in this package, or in a library."""

    code = "UNEXPECTED"


@dataclass
class Answer:
    """What a command has to say.

    :param data: for ``--json``; must be JSON-able and hold no secret.
    :param text: for people, printed one after the other.
    :param code: the exit status.
    :param raw: printed as it is in place of ``text`` (documents that are piped into files).
    """

    data: dict[str, Any]
    text: Sequence[RenderableType] = ()
    code: ExitCode = ExitCode.OK
    raw: str | None = None


@dataclass(frozen=True)
class Notice:
    """What a command has to say at its very end, however it ends: after its answer, or after its error.

    :param data: for ``--json``: keys beside those of the answer or the error.
    :param lines: for people, on stderr.
    """

    data: dict[str, Any]
    lines: Sequence[str]


@dataclass
class _Parting:
    read: Callable[[], Notice | None] | None = None
    ending: Ending | None = None


_parting: ContextVar[_Parting | None] = ContextVar("parting", default=None)


def say_last(read: Callable[[], Notice | None], *, when_killed: str = "") -> None:
    """Have the command that runs end with a notice.

    :param read: makes it; None: there is nothing to say. Called when everything else has ended.
    :param when_killed: a line for a second signal, which leaves no time for ``read``.
    """
    parting = _parting.get()
    if parting is None:
        return
    parting.read = read
    if parting.ending is not None and when_killed:
        parting.ending.parting = f"{when_killed}\n"


def _last_words(parting: _Parting) -> Notice:
    notice = parting.read() if parting.read is not None else None
    return notice or Notice({}, ())


def console() -> Console:
    """For answers."""
    return Console(soft_wrap=True, highlight=False)


def error_console() -> Console:
    """For errors and progress, so that stdout can be piped."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def answering(command: Callable[P, Answer]) -> Callable[P, None]:
    """Make a command function print its answer, turn errors into messages, and set the exit status.

    The function must take ``json_output`` and ``debug`` as keywords.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json, debug = bool(kwargs.get("json_output")), bool(kwargs.get("debug"))
        parting = _Parting()
        token = _parting.set(parting)
        try:
            with listening() as ending:
                parting.ending = ending
                try:
                    answer = command(*args, **kwargs)
                except (MigrationError, KeyboardInterrupt) as error:
                    if debug:
                        error_console().print_exception()
                    _fail(error, ending, as_json=as_json, command=command.__name__, last=_last_words(parting))
                except (typer.Exit, typer.Abort, typer.BadParameter):
                    raise
                except Exception as error:
                    if debug:
                        error_console().print_exception()
                    print_unexpected(error, as_json=as_json, last=_last_words(parting))
                    raise typer.Exit(ExitCode.FAILED) from None
                last = _last_words(parting)
        finally:
            _parting.reset(token)
        print_answer(answer, as_json=as_json, last=last)
        if answer.code:
            raise typer.Exit(answer.code)

    run.__annotations__ = {**command.__annotations__, "return": None}
    return run


def _fail(
    error: MigrationError | KeyboardInterrupt, ending: Ending, *, as_json: bool, command: str, last: Notice
) -> NoReturn:
    """Say why a command ends, and end it with the status that says the same."""
    told = ending.number
    if isinstance(error, KeyboardInterrupt):
        told = told or signal.SIGINT
        error = Interrupted(
            f"told to stop by {'Ctrl-C' if told == signal.SIGINT else 'SIGTERM'}",
            next_step="run the same command again: it goes on where it was",
        )
    print_error(error, as_json=as_json, command=command, last=last)
    if told is not None and isinstance(error, Interrupted):
        raise typer.Exit(SIGNALED + told)
    raise typer.Exit(exit_code(error))


_NOTHING = Notice({}, ())


def print_answer(answer: Answer, *, as_json: bool, last: Notice = _NOTHING) -> None:
    """Print an answer."""
    if as_json:
        print_json({"ok": answer.code == ExitCode.OK, **answer.data, **last.data})
        return
    if answer.raw is not None:
        typer.echo(answer.raw, nl=not answer.raw.endswith("\n"))
    else:
        out = console()
        for line in answer.text:
            _print_whole(out, line)
    _print_last(last)


def _print_last(last: Notice) -> None:
    for number, line in enumerate(last.lines):
        error_console().print(f"[bold yellow]{escape(line)}[/]" if number == 0 else f"  {escape(line)}")


def _print_whole(out: Console, item: RenderableType) -> None:
    """Print; tables that go into a pipe or a file are as wide as they have to be, nothing in them is cut."""
    if isinstance(item, Table) and not out.is_terminal:
        room = out.options.update(width=_NO_LIMIT, max_width=_NO_LIMIT)
        width = Measurement.get(out, room, item).maximum
        out = Console(file=out.file, width=max(width, 1), highlight=False)
    out.print(item)


def print_json(data: dict[str, Any]) -> None:
    """One JSON object on stdout; keys in their order."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_error(error: MigrationError, *, as_json: bool, command: str = "", last: Notice = _NOTHING) -> None:
    """What, where, next: no traceback. Details are data, so they are in the JSON only.

    :param command: the command that has failed; the next step speaks of it.
    """
    next_step = next_step_for(command, error.next_step) if error.next_step else ""
    if as_json:
        print_json({"ok": False, "error": {**error.as_dict(), "next_step": next_step}, **last.data})
        return
    out = error_console()
    out.print(f"[bold red]error[/] [{error.code}] {escape(error.what)}".replace(f"[{error.code}]", rf"\[{error.code}]"))
    place = str(error.where)
    if place:
        out.print(f"  [bold]where[/]  {escape(place)}")
    if next_step:
        out.print(f"  [bold]next[/]   {escape(next_step)}")
    _print_last(last)


def print_unexpected(error: Exception, *, as_json: bool, last: Notice = _NOTHING) -> None:
    """An error nobody foresaw: its text may hold anything, so only its kind and first line are shown."""
    first_line = (str(error).splitlines() or [""])[0][:300]
    wrapped = Unexpected(
        f"unexpected {type(error).__name__}: {first_line}",
        next_step="run the command again with --debug, and report the traceback",
    )
    print_error(wrapped, as_json=as_json, last=last)
