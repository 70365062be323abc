"""Output of commands: text for people or one JSON object on stdout, errors as what / where / next on stderr."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from types import FrameType
from typing import Annotated, Any, ClassVar, NoReturn, get_type_hints

import typer
from rich import markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Terminal, Transient, WaitsForOperator
from airflow_provider_kafka_migration.phase_table import TASKS

# -- exit codes -------------------------------------------------------------------------------------------------------
#
# The meaning of the exit status of ``kafka-migration``.


class ExitCode(IntEnum):
    """Exit codes. They are stable: scripts may rely on them."""

    #: done, or valid
    OK = 0
    #: failed, invalid, or different: a person has to change something
    FAILED = 1
    #: wrong command line (or an argument that makes no sense)
    USAGE = 2
    #: failed for a reason that may pass: run the same command again later
    TRY_AGAIN = 3
    #: nothing is known to differ, but not everything could be compared
    UNCHECKED = 4
    #: the migration waits for an operator's approval
    WAITS = 10
    #: stopped by Ctrl-C; the same command continues
    INTERRUPTED = 130
    #: stopped by SIGTERM; the same command continues
    TERMINATED = 143


#: For the documentation and ``--help``.
MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, or valid",
    ExitCode.FAILED: "failed, invalid or different: something must be changed first",
    ExitCode.USAGE: "wrong command line",
    ExitCode.TRY_AGAIN: "failed for a reason that may pass (broker unreachable, storage throttled): run it again later",
    ExitCode.UNCHECKED: "not everything could be compared, so equality is not known (`mirror verify`)",
    ExitCode.WAITS: "the migration waits for an operator: answer with `--approve CODE`",
    ExitCode.INTERRUPTED: "stopped cleanly by Ctrl-C; the same command continues where it stopped",
    ExitCode.TERMINATED: "stopped cleanly by SIGTERM; the same command continues where it stopped",
}


def exit_code(error: MigrationError) -> ExitCode:
    """Return the exit status of an error."""
    if isinstance(error, WaitsForOperator):
        return ExitCode.WAITS
    return ExitCode.TRY_AGAIN if isinstance(error, Transient) else ExitCode.FAILED


# -- wording ----------------------------------------------------------------------------------------------------------
#
# Errors of the core give advice in Airflow's terms ("clear the task"); a terminal has commands, not tasks.


_PHASES = rf"(?:approve_\w+|cutover(?:\.\w+)?|{'|'.join(row.id for row in TASKS)})"
#: What a next step asks to clear: tasks by name, by a pronoun, or by what they did.
_TASKS = (
    r"(?:the (?:red |approval )?tasks?\b(?: that [\w ]+?(?: it)?(?: \([^)]*\))?(?=[,;:.)]|$))?|"
    r"this task\b|its red task\b|"
    rf"the step of the cutover that failed\b|them\b|it\b|this(?: one)?\b|{_PHASES}(?:, then this task)?)"
)
_CLEAR = re.compile(
    rf"\bclear {_TASKS}(?: and (?:everything below(?: it)?|what follows(?: it)?))?(?: \(tail, too, if it has ended\))?"
)
_RUN_WITH_TAKEOVER = re.compile(r"\bstart a new run with takeover \(CLI: --takeover\)")
#: Commands that ``resume`` continues; others are run again.
_RESUMED = ("run", "resume")


def next_step_for(command: str, text: str) -> str:
    """Rephrase a next step for a person at a terminal.

    :param command: name of the failed command.
    """
    again = "run `kafka-migration resume FILE`" if command in _RESUMED else "run the command again"
    text = _RUN_WITH_TAKEOVER.sub(f"{again} with --takeover", text)
    text = _CLEAR.sub(again, text)
    text = text.replace("see the task's log", "see the messages above").replace("the task log", "the messages above")
    return commands_in(_once(text, again))


_COMMANDS_OF_WAY_BACK = {
    "run": "run",
    "resume": "resume",
    "status": "status",
    "rollback": "keep",
    "abandon": "abandon",
}
#: ``mirror resume`` ends a pause, which is something else.
_COMMANDS_OF_MIRROR = {"run": "run", "resume": "run", "status": "status"}
#: The group of the current command, and its commands that do the same as those of a migration; None: of a migration.
_spoken_of: ContextVar[tuple[str, Mapping[str, str]] | None] = ContextVar("spoken_of", default=None)


#: Path of the spec that was given to the current command; empty: none.
_spec_path: ContextVar[str] = ContextVar("spec_path", default="")


def speak_of_way_back() -> None:
    """Make all texts of the current command name the commands of ``way-back`` that do the same."""
    _spoken_of.set(("way-back", _COMMANDS_OF_WAY_BACK))


def speak_of_mirror() -> None:
    """Make all texts of the current command name the commands of ``mirror`` that do the same."""
    _spoken_of.set(("mirror", _COMMANDS_OF_MIRROR))


def commands_in(text: str, *, markup: bool = False) -> str:
    """Return a text with the commands that a person can type here: of the current group, with the path of the spec.

    :param markup: the text is rich's markup.
    """
    spoken_of = _spoken_of.get()
    if spoken_of is None:
        return _with_path(text, "", markup=markup)
    group, commands = spoken_of
    names = "|".join(commands)
    text = re.sub(rf"kafka-migration ({names})\b", lambda item: f"kafka-migration {group} {commands[item[1]]}", text)
    return _with_path(text, f"{group} ", markup=markup)


#: Their FILE is not the spec of the current command.
_OF_OTHER_FILES = ("way-back", "mirror", "sealing-key", "executor-package")


def _with_path(text: str, group: str, *, markup: bool) -> str:
    """Write the spec's path instead of FILE, except where a text explains FILE or names a command for another file."""
    path = _spec_path.get()
    if not path or "where FILE is" in text:
        return text
    shown = escape(shlex.quote(path)) if markup else shlex.quote(path)
    others = "" if group else f"(?!(?:{'|'.join(_OF_OTHER_FILES)}) )"
    return re.sub(rf"(kafka-migration {group}{others}(?:[a-z-]+ ){{1,2}})FILE\b", lambda item: item[1] + shown, text)


def _once(text: str, again: str) -> str:
    """Keep only the last "run it again": an error that was passed on may have collected several."""
    clauses = text.split("; ")
    said = [index for index, clause in enumerate(clauses) if _core(clause) == again or _core(clause).startswith(again)]
    for index in reversed(said[:-1]):
        # Remove a clause only if it contains nothing else.
        if _core(clauses[index]) == again:
            del clauses[index]
    return "; ".join(clauses)


def _core(clause: str) -> str:
    return clause.removeprefix("then ").removeprefix("and ").strip()


# -- ending -----------------------------------------------------------------------------------------------------------
#
# How a command ends after a signal: Ctrl-C (SIGINT), or SIGTERM from a supervisor.
#
# The first signal requests a clean end: copiers finish what is on the wire, connections are closed, the claim and all
# checkpoints stay unchanged, and the same command can continue later. A second signal ends the process immediately,
# which costs only the time to find the ends of the logs again.


#: Shell convention: a process ended by a signal has this status plus the signal's number.
SIGNALED = 128


class Ending:
    """The signals received so far.

    :ivar number: the first signal's number; None while no signal has arrived.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        #: Written to stderr when a second signal ends the process, which leaves no time to check anything.
        self.parting = ""
        self._heeding = 0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. It takes no lock: the main thread may hold any lock when it is interrupted."""
        if self.number is not None:
            os.write(2, self.parting.encode())
            os._exit(SIGNALED + number)
        self.number = number
        if not self._heeding:
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Suppress interrupts while a job runs that checks its :class:`Stop`: it soon ends by itself.

        :raises KeyboardInterrupt: the job has ended without noticing the signal.
        """
        self._heeding += 1
        try:
            yield
        finally:
            self._heeding -= 1
        if self.number is not None:
            raise KeyboardInterrupt


class Stop(threading.Event):
    """Stops a job: set by its creator, or by a signal."""

    def __init__(self, ending: Ending | None = None) -> None:
        super().__init__()
        self._ending = ending if ending is not None else _current

    def is_set(self) -> bool:
        """Return whether the job has to stop."""
        return super().is_set() or self._ending.number is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait like an event, but notice a signal only after the timeout, so use short timeouts."""
        super().wait(timeout)
        return self.is_set()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Wrap a job that checks this. Signals reach only the main thread, so other threads need no wrapping."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._ending.heeded():
            yield


#: The state of the command that runs in this process; signals also belong to the process.
_current = Ending()


@contextmanager
def listening() -> Iterator[Ending]:
    """Handle signals for a command. Outside the main thread nothing is handled.

    SIGINT stays ignored if the caller ignores it (a shell's background jobs). SIGTERM is always handled: there is
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


#: Narrower terminals fold the lines of Markdown themselves: its tables need some room.
_LEAST_COLUMNS = 60
#: Longer cells of a table in a pipe are not padded for.
_PADDED_TO = 60

JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON object on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
#: Options that every command has.
_COMMON: dict[str, Any] = {"json_output": JsonOption, "debug": DebugOption}


class Unexpected(Terminal):
    """An unforeseen error: a bug in this package or in a library."""

    code = "UNEXPECTED"


@dataclass
class Answer:
    """The result of a command.

    :param data: for ``--json``; must be JSON-serializable and contain no secret.
    :param text: for people, printed one after the other.
    :param code: the exit status.
    :param raw: printed unchanged instead of ``text`` (documents that are piped into files).
    """

    data: dict[str, Any]
    text: Sequence[RenderableType] = ()
    code: ExitCode = ExitCode.OK
    raw: str | None = None


@dataclass(frozen=True)
class Notice:
    """A notice at the very end of a command, however it ends: after its answer, or after its error.

    :param data: for ``--json``: additional keys to those of the answer or the error.
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
    """Make the current command end with a notice.

    :param read: returns the notice, or None if there is none. Called when everything else has ended.
    :param when_killed: a line for a second signal, which leaves no time for ``read``.
    """
    parting = _parting.get()
    if parting is None:
        return
    parting.read = read
    if parting.ending is not None and when_killed:
        parting.ending.parting = f"{when_killed}\n"


def _last_words(parting: _Parting) -> Notice:
    with _stdout_kept_free():
        notice = parting.read() if parting.read is not None else None
    return Notice(notice.data, [commands_in(line) for line in notice.lines]) if notice else Notice({}, ())


@contextmanager
def _stdout_kept_free() -> Iterator[None]:
    """Lead what is written to file descriptor 1 to stderr: stdout belongs to the answer.

    Importing Airflow, as connections of Airflow need it, makes the root logger write to stdout. Handlers may be older
    than the command (``airflow kafka-migration``), and libraries print from C, so the descriptor itself is led away.
    """
    try:
        kept = os.dup(1)
    except OSError:  # closed: there is nothing to keep free
        yield
        return
    _flush_stdout()
    try:
        os.dup2(2, 1)
        yield
    finally:
        _flush_stdout()
        os.dup2(kept, 1)
        os.close(kept)


def _flush_stdout() -> None:
    with suppress(OSError, ValueError):  # the reader has gone, or the stream is closed
        sys.stdout.flush()


def console() -> Console:
    """Return the console for answers."""
    return Console(soft_wrap=True, highlight=False)


def error_console() -> Console:
    """Return the console for errors and progress, so that stdout can be piped."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command function print its answer, turn errors into messages, and set the exit status.

    It adds ``--json`` and ``--debug``; the function takes ``json_output`` or ``debug`` only if it depends on it. A
    parameter whose type is a dataclass becomes one option per field, so that several commands can share them.
    """
    return _answering(command, None)


def answering_or(failed: ExitCode) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Return :func:`answering` for a command whose answer is a verdict, which an error must not look like.

    :param failed: the exit status of all errors, also of unforeseen ones; not of a signal or a wrong command line.
    """
    return functools.partial(_answering, failed=failed)


def _answering(command: Callable[..., Answer], failed: ExitCode | None) -> Callable[..., None]:
    taken, groups = _parameters(command)
    shown = [*taken.values(), *(_keyword(name, kind, False) for name, kind in _COMMON.items() if name not in taken)]

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> None:
        as_json, debug = bool(given.get("json_output")), bool(given.get("debug"))
        kwargs = {name: value for name, value in given.items() if name in taken or name not in _COMMON}
        for name, group in groups.items():
            kwargs[name] = group(**{item.name: kwargs.pop(item.name) for item in fields(group) if item.name in kwargs})
        parting = _Parting()
        token = _parting.set(parting)
        below, spec_path = _spoken_of.set(None), _spec_path.set(str(kwargs.get("file") or ""))
        try:
            with listening() as ending:
                parting.ending = ending
                try:
                    with _stdout_kept_free():
                        answer = command(*args, **kwargs)
                except (MigrationError, KeyboardInterrupt) as error:
                    if debug:
                        error_console().print_exception()
                    last = _last_words(parting)
                    _fail(error, ending, as_json=as_json, command=command.__name__, last=last, failed=failed)
                except (typer.Exit, typer.Abort, typer.BadParameter):
                    raise
                except Exception as error:
                    if debug:
                        error_console().print_exception()
                    print_unexpected(error, as_json=as_json, last=_last_words(parting))
                    raise typer.Exit(ExitCode.FAILED if failed is None else failed) from None
                last = _last_words(parting)
                answer.text = [
                    commands_in(item, markup=True) if isinstance(item, str) else item for item in answer.text
                ]
        finally:
            _parting.reset(token)
            _spec_path.reset(spec_path)
            _spoken_of.reset(below)
        print_answer(answer, as_json=as_json, last=last)
        if answer.code:
            raise typer.Exit(answer.code)

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {**{item.name: item.annotation for item in shown}, "return": None}
    return run


def _parameters(command: Callable[..., Answer]) -> tuple[dict[str, inspect.Parameter], dict[str, type[Any]]]:
    """Return the parameters of a command with its dataclasses taken apart, and the dataclasses by parameter."""
    found: dict[str, inspect.Parameter] = {}
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            found[parameter.name] = parameter
            continue
        assert isinstance(kind, type)
        groups[parameter.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        found |= {item.name: _keyword(item.name, hints[item.name], item.default) for item in fields(kind)}
    return found, groups


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _fail(
    error: MigrationError | KeyboardInterrupt,
    ending: Ending,
    *,
    as_json: bool,
    command: str,
    last: Notice,
    failed: ExitCode | None,
) -> NoReturn:
    """Print why a command ends, and end it with the matching exit status."""
    told = ending.number
    if isinstance(error, KeyboardInterrupt):
        told = told or signal.SIGINT
        error = Interrupted(
            f"stopped by {'Ctrl-C' if told == signal.SIGINT else 'SIGTERM'}",
            next_step="run the same command again: it continues where it stopped",
        )
    print_error(error, as_json=as_json, command=command, last=last)
    if told is not None and isinstance(error, Interrupted):
        raise typer.Exit(SIGNALED + told)
    raise typer.Exit(exit_code(error) if failed is None or isinstance(error, Interrupted) else failed)


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
            print_whole(out, line)
    _print_last(last)


def _print_last(last: Notice) -> None:
    for number, line in enumerate(last.lines):
        error_console().print(f"[bold yellow]{escape(line)}[/]" if number == 0 else f"  {escape(line)}")


class _WholeTable(markdown.TableElement):
    """A table of Markdown whose long names are folded, or left whole in a pipe, instead of cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for item in super().__rich_console__(console, options):
            if isinstance(item, Table) and not console.is_terminal:
                yield from (Text(line, no_wrap=True, overflow="ignore") for line in ["", *_plain_lines(item), ""])
                return
            yield _folded(item) if isinstance(item, Table) else item


class Markdown(markdown.Markdown):
    """Markdown of which a console shows each word."""

    elements: ClassVar = {**markdown.Markdown.elements, "table_open": _WholeTable}


def print_whole(out: Console, item: RenderableType) -> None:
    """Print an item of an answer. Nothing is cut, whatever the width of the terminal or pipe."""
    if isinstance(item, Markdown):
        # Rich crops what is nested, as lists are, if the text is not folded to a width.
        out.print(item, soft_wrap=False, crop=False, width=max(out.width, _LEAST_COLUMNS))
    elif isinstance(item, Table) and not out.is_terminal:
        for line in _plain_lines(item):
            out.print(Text(line))
    else:
        out.print(_folded(item) if isinstance(item, Table) else item)


def _folded(table: Table) -> Table:
    for column in table.columns:
        column.overflow = "fold"
    return table


def _plain_lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table for a pipe: as wide as needed, but one long name widens only its own row."""
    heads = [[column.header for column in table.columns]] if table.show_header else []
    rows = [
        [_plain(cell) for cell in row] for row in [*heads, *zip(*(item.cells for item in table.columns), strict=True)]
    ]
    widths = [
        max((len(cell) for cell in cells if len(cell) <= _PADDED_TO), default=0) for cells in zip(*rows, strict=True)
    ]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _plain(cell: RenderableType) -> str:
    text = Text.from_markup(cell) if isinstance(cell, str) else cell
    return " ".join(str(text).splitlines())


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object on stdout, with the keys in their order."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_error(error: MigrationError, *, as_json: bool, command: str = "", last: Notice = _NOTHING) -> None:
    """Print what, where and next, without a traceback. Details are data, so only the JSON has them.

    :param command: the failed command, to which the next step refers.
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
    """Print an unforeseen error: its text may contain anything, so only its kind and first line are shown."""
    first_line = (str(error).splitlines() or [""])[0][:300]
    wrapped = Unexpected(
        f"unexpected {type(error).__name__}: {first_line}",
        next_step="run the command again with --debug, and report the traceback",
    )
    print_error(wrapped, as_json=as_json, last=last)
