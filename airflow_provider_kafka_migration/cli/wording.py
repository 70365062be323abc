"""Errors of the core advise in the words of Airflow ("clear the task"); a terminal has commands, not tasks."""

from __future__ import annotations

import re

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
