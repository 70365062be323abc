"""How commands answer: text for people or one JSON object on stdout, errors as what / where / next on stderr."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from airflow_provider_kafka_migration.cli.ending import SIGNALED, Ending, listening
from airflow_provider_kafka_migration.cli.exit_codes import ExitCode, exit_code
from airflow_provider_kafka_migration.cli.wording import next_step_for
from airflow_provider_kafka_migration.errors import Interrupted, MigrationError, Terminal

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
