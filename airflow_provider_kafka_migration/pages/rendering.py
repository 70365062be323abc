"""Render the templates in ``templates/`` and escape everything that they show.

A template holds the text of a page, its caller supplies the facts. Every value that a template prints goes through the
escape rule of the page's format, so neither a topic name nor an error text can break a table, add a link or inject
HTML. Only a template's own text, the output of its macros and the filters below that return :class:`Markup` are
printed as they are. A fact that is missing is an error, never an empty cell.
"""

from __future__ import annotations

import html
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_provider_kafka_migration.record.finding_codes import seen_with_subject
from airflow_provider_kafka_migration.record.times import words
from airflow_provider_kafka_migration.spec import format_duration


def render(template: str, /, **facts: Any) -> str:
    """Render ``NAME.md.j2`` or ``NAME.html.j2``.

    :raises jinja2.UndefinedError: the template uses a fact that is missing.
    """
    form = template.split(".")[-2]
    return _environment(form).get_template(template).render(facts)


@cache
def _environment(form: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("airflow_provider_kafka_migration.pages"),
        # Jinja marks what macros return as finished text only with autoescape on. Its own rule, which knows HTML only,
        # finds nothing left to escape, because `finalize` comes first.
        autoescape=True,
        finalize=_finalize({"md": escape_markdown, "html": escape_html}[form]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        code=code,
        counts=counts,
        duration=format_duration,
        entity=entity,
        fenced=fenced,
        megabytes=megabytes,
        pairs=pairs,
        seen=seen_with_subject,
        shell=shell,
        words=words,
    )
    return environment


def _finalize(escape: Callable[[object], Markup]) -> Callable[[object], Markup]:
    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else escape(value)

    return finalize


# -- the escape rules -------------------------------------------------------------------------------------------------

#: What Markdown could take for markup. Characters that only matter in some places (an underscore at the end of a word,
#: a bracket before a target, a number sign at the start) are matched only there, so that ordinary names stay readable.
_MARKUP = re.compile(
    r"[\\`*<|~]"
    r"|_(?=_*(?:\W|$))"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])|(?<=\])\("
    r"|^[\[>]"
    r"|^(?:[-+#=]+|\d{1,9}[.)])(?= |$)"
)
#: Where GitHub's Markdown, which Airflow's UI speaks, makes links of addresses. A backslash does not prevent that, but
#: an address that is interrupted by a code span is none.
_ADDRESS = re.compile(r"(?:(?<=http)://|(?<=https)://|(?<=www)\.|(?<=\S)@)@*", re.IGNORECASE)


def escape_markdown(value: object) -> Markup:
    """Return text that Markdown shows literally and on one line; invisible characters are shown as their codes."""
    text = " ".join(str(value).split())
    if not text.isprintable():
        text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    text = _MARKUP.sub(lambda match: f"{match[0][:-1]}\\{match[0][-1]}", text)
    return Markup(_ADDRESS.sub(r"`\g<0>`", text))  # noqa: S704 - escaped above


def escape_html(value: object) -> Markup:
    """Return text that HTML shows literally, also inside of an attribute; None is empty."""
    return Markup("" if value is None else html.escape(str(value)))  # noqa: S704 - escaped here


# -- filters ----------------------------------------------------------------------------------------------------------


def code(value: object) -> Markup:
    """Return a code span, or escaped text if the value has characters that no code span in a table can hold."""
    text = str(value)
    if re.fullmatch(r"[^\s`|\\]+", text) and text.isprintable():
        return Markup(f"`{text}`")  # noqa: S704 - nothing in it ends the span
    return escape_markdown(text)


def fenced(text: str, language: str) -> Markup:
    """Return a code block. Its fence is longer than any run of backticks in the text."""
    text = text.strip("\n")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{text}\n{fence}")  # noqa: S704 - nothing in it closes the fence


def shell(value: object) -> Markup:
    """Return one word of a shell command, for a code block; in quotes if it needs them."""
    return Markup(shlex.quote(str(value)))  # noqa: S704 - a code block shows what it holds literally


def counts(values: Iterable[str], noun: str = "") -> str:
    """Return how often each value occurs, by value: ``2 equal, 1 mapped``."""
    return ", ".join(f"{count} {noun}{value}" for value, count in sorted(Counter(values).items()))


def entity(parts: Iterable[tuple[str, str | None]], separator: str = ", ") -> str:
    """Return the entity of a client quota: ``user=ann, client-id=(default)``."""
    return separator.join(f"{kind}={'(default)' if name is None else name}" for kind, name in parts)


def megabytes(size: int) -> str:
    """Return bytes as megabytes with one digit: ``1,234.5``."""
    return f"{size / 1e6:,.1f}"


def pairs(values: Mapping[str, float]) -> str:
    """Return numbers by name: ``a=1, b=2.5``."""
    return ", ".join(f"{name}={value:g}" for name, value in sorted(values.items()))
