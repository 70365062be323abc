"""Writes the pages and tables that are made from code: start page, tasks, codes, references, schema.

``python scripts/generate_docs.py`` writes them; ``--check`` only says which are out of date (exit status 1).
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from airflow_provider_kafka_migration import errors, phase_table, verbs
from airflow_provider_kafka_migration.cli.app import app
from airflow_provider_kafka_migration.cli.frame import MEANINGS
from airflow_provider_kafka_migration.dag_parts.tasks import operator_class
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.errors import MigrationError, Terminal, Transient
from airflow_provider_kafka_migration.metrics.table import markdown
from airflow_provider_kafka_migration.mirror_dag import OPERATORS as MIRROR_OPERATORS
from airflow_provider_kafka_migration.mirror_dag import ROWS as MIRROR_ROWS
from airflow_provider_kafka_migration.mirror_maker.properties import table
from airflow_provider_kafka_migration.mirror_table import FREEZE_LIMIT, NEXT_RUN, VERIFY
from airflow_provider_kafka_migration.operators.mirror_verify import KafkaMirrorVerifyOperator
from airflow_provider_kafka_migration.pages.plan import documents
from airflow_provider_kafka_migration.record import finding_codes
from airflow_provider_kafka_migration.spec import MigrationSpec, advice, format_duration, json_schema, load_spec

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = "<!-- Made by scripts/generate_docs.py; change the code, not this page. -->\n\n"


def pages() -> dict[Path, str]:
    """All generated files and their content."""
    return {
        DOCS / "index.md": index_page(),
        DOCS / "spec.md": spec_page(),
        DOCS / "cli.md": cli_page(),
        DOCS / "errors.md": errors_page(),
        DOCS / "operators.md": with_tasks(DOCS / "operators.md"),
        DOCS / "monitoring.md": with_metrics(DOCS / "monitoring.md"),
        DOCS / "precheck.md": with_finding_codes(DOCS / "precheck.md"),
        DOCS / "mirror-maker-properties.md": properties_page(),
        **plan_pages(),
        DOCS / "migration-spec.schema.json": json.dumps(json_schema(), indent=2) + "\n",
    }


# -- start page -------------------------------------------------------------------------------------------------------


def index_page() -> str:
    """The README, with links that work inside of the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return GENERATED + text.replace("](docs/", "](")


# -- MirrorMaker 2's properties ----------------------------------------------------------------------------------------

_PROPERTIES_HEAD = """# Properties of MirrorMaker 2

What becomes of each property of a `mm2.properties` in `kafka-migration mirror import` ([mirrors](mirrors.md)). It holds
for a property of all flows and of one flow (`east->west.topics`). Keys that secure a connection become librdkafka's,
for the connection of that cluster. A property that is in no row is printed as unknown.
MirrorMaker 2 has no property for groups that are deleted on the source, and keeps them on the target. So do imported
flows; `groups.on_deleted: repair` is [another policy](mirrors.md#consumer-groups).

"""


def properties_page() -> str:
    """The table of properties."""
    return f"{GENERATED}{_PROPERTIES_HEAD}{table()}"


# -- a plan -----------------------------------------------------------------------------------------------------------

CASE = ROOT / "tests" / "cases" / "plan"
_MADE = (
    "Made from the demo's source (with fewer records) by `kafka-migration plan --documents FOLDER`; cluster ids and "
    "addresses replaced."
)


def plan_pages() -> dict[Path, str]:
    """The documents of the demo's plan, as the command line writes them."""
    spec = load_spec(CASE / "spec.v1.yaml")
    plan = Plan.parse((CASE / "plan.v1.json").read_bytes())
    written = documents(spec, plan)
    cost = json.dumps(json.loads(written["cost-estimate.json"]), indent=2)
    return {
        DOCS / "plan-example.md": _titled("Example: plan of the demo", written["plan.md"]),
        DOCS / "runbook-example.md": _titled("Example: runbook of the demo", written["runbook.md"]),
        DOCS / "permissions-example.md": _titled("Example: permissions of the demo", written["permissions.md"]),
        DOCS / "cost-example.md": _titled("Example: cost of the demo", f"# x\n\n```json\n{cost}\n```\n"),
    }


def _titled(title: str, text: str) -> str:
    """A document as a page: with a title of its own, and where it comes from."""
    _, _, body = text.partition("\n")
    return f"{GENERATED}# {title}\n\n{_MADE}\n{body}"


# -- spec -------------------------------------------------------------------------------------------------------------

_SPEC_HEAD = """# Spec reference

One YAML (or JSON) file, or the Params of a DAG run, describe one migration. Unknown keys are mistakes, and all mistakes
come in one error with their paths: `kafka-migration validate FILE`.

The smallest spec:

```yaml
{minimal}```

The JSON schema for editors is [migration-spec.schema.json](migration-spec.schema.json), also printed by
`kafka-migration schema`. In an editor with a YAML language server put this on the first line of a spec:

```yaml
# yaml-language-server: $schema=migration-spec.schema.json
```

## Values

| kind | written as |
|---|---|
| duration | a number with `ms`, `s`, `m`, `h`, `d`, `w` or `y` (`30s`, `7y`); a plain number means seconds |
| size | a whole number with `B`, `KB`, `MB`, `GB`, `KiB`, `MiB` or `GiB` (`32MiB`); a plain number means bytes |
| location | `s3://bucket/prefix`, or `file:///folder` for trials on one machine |
| pattern | a Python regular expression that must match the whole name |
| connection, secret | an Airflow connection id, `env:NAME` (environment variable) or `file:PATH` (mode 0600) |

"""

_MINIMAL = """migration_id: orders-2026
source: {conn_id: kafka_source}
target: {conn_id: kafka_target}
storage:
  conn_id: aws_migrations
  journal: s3://migrations/orders
  evidence: s3://evidence/orders
topics:
  include: ["orders\\\\..*"]
evidence:
  signing_key: env:EVIDENCE_SIGNING_KEY
"""


_VERBS = """## Verbs

Each `on_*` key decides what happens when something is not as it should be, and takes some of three verbs: `stop`
(nothing goes on until a person has decided), `note` (it goes on, and is named), `repair` (the migration mends it). What
they mean for a key stands at the key. The words of earlier versions, in parentheses, are still read.

{table}
"""

_MAY_CHANGE = """## What may change while a migration runs

A task reads the spec when it starts, so a changed key counts from then on, also for a copy job that goes on. Each key
may change until the end of the state in the table; the row of a key wins over that of its section. All others may
change until the end of `{default}`: no cluster is written to before. A later change is refused with its old and new
value (`FINGERPRINT_CHANGED`), and changes nothing. In a paused mirror the rules are those of `tail`.

{table}"""


def spec_page() -> str:
    """Tables of all sections, from the models."""
    parts = [GENERATED, _SPEC_HEAD.format(minimal=_MINIMAL)]
    parts += ["## Top level\n\n", _doc(MigrationSpec), _table(MigrationSpec)]
    for path, section in _sections(MigrationSpec, ""):
        parts += [f"## `{path}`\n\n", _doc(section), _table(section)]
    parts.append(_VERBS.format(table=verbs.as_markdown()))
    parts.append(_MAY_CHANGE.format(default=advice.DEFAULT_UNTIL, table=advice.as_markdown()))
    return "".join(parts).rstrip("\n") + "\n"


def _doc(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").replace("``", "`") + "\n\n"


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    kinds = [item for item in typing.get_args(field.annotation) if item is not type(None)]
    kind = kinds[0] if len(kinds) == 1 and typing.get_origin(field.annotation) is not list else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        section = _section_of(field)
        if section is not None:
            yield f"{prefix}{name}", section
            yield from _sections(section, f"{prefix}{name}.")
        for item in typing.get_args(field.annotation) if typing.get_origin(field.annotation) is list else ():
            if isinstance(item, type) and issubclass(item, BaseModel):
                yield f"{prefix}{name}[]", item


def _table(model: type[BaseModel]) -> str:
    rows = ["| key | values | default | meaning |\n|---|---|---|---|\n"]
    hints = typing.get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        section = _section_of(field)
        if section is not None:
            shown = "required" if field.is_required() else ""
            rows.append(f"| `{field.alias or name}` | section | {shown} | {_cell(_first_line(section))} |\n")
            continue
        rows.append(
            f"| `{field.alias or name}` | {_cell(_kind(hints[name]))} | {_default(field, hints[name])} | "
            f"{_cell(field.description or '')} |\n"
        )
    return "".join(rows) + "\n"


def _first_line(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").splitlines()[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


#: Validators of spec_types, by name, to what people call the type.
_NAMED = {"parse_duration": "duration", "parse_bytes": "size", "check_regex": "pattern", "check_location": "location"}


def _named(hint: Any) -> str | None:
    for extra in getattr(hint, "__metadata__", ()):
        name = getattr(getattr(extra, "func", None), "__name__", "")
        if name in _NAMED:
            return _NAMED[name]
    return None


def _kind(hint: Any) -> str:
    """A type as people write it in YAML."""
    named = _named(hint)
    if named:
        return named
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(argument) for argument in arguments if argument is not type(None))
    if origin is list:
        return f"list of {_plural(_kind(arguments[0]))}"
    if origin is dict:
        return "mapping"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "section"
    return {bool: "true, false", int: "whole number", float: "number", str: "text"}.get(hint, "any")


def _plural(kind: str) -> str:
    return kind if "`" in kind or kind == "text" else f"{kind}s"


def _default(field: FieldInfo, hint: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None or value in ("", [], {}):
        return ""
    if isinstance(value, timedelta):
        value = format_duration(value)
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, list | dict):
        value = json.dumps(value)
    return f"`{_cell(str(value))}`"


# -- command line -----------------------------------------------------------------------------------------------------

_CLI_HEAD = """# Command line reference

`kafka-migration` runs the same phases as the DAG, in one process, without Airflow. The same commands are there as
`airflow kafka-migration ...`. Connections are resolved like in the DAG: an Airflow connection id, `env:NAME` or
`file:PATH`.

Errors say what failed, where, and what to do next, on stderr and without a traceback (`--debug` shows it). With
`--json` a command prints one JSON object on stdout: `"ok": true` with its answer, or `"ok": false` with `error`.
Nothing else is ever on stdout: log lines, also those of Airflow and other libraries, go to stderr. The
command line advises commands; the same errors advise clearing a task only when Airflow shows them. Piped tables
are as wide as they have to be, and nothing in them is cut.

Ctrl-C and SIGTERM end a command in order, usually within two seconds: copiers finish what is on the wire, connections
are closed, a Spark driver is ended with all that it started; the error is `INTERRUPTED`. Nothing is undone or
lost; the same command goes on. A second signal ends the process at once, which costs no more than SIGKILL: the next
run looks where the logs end. As process 1 of a container it obeys SIGTERM, too.

## Exit status

| status | meaning |
|---|---|
"""


def cli_page() -> str:
    """All commands with their arguments and options."""
    parts = [GENERATED, _CLI_HEAD]
    parts += [f"| {int(code)} | {_cell(meaning)} |\n" for code, meaning in MEANINGS.items()]
    parts += ["\n## Commands\n\n"]
    parts += _commands(typer.main.get_command(app), "kafka-migration")
    return "".join(parts).rstrip("\n") + "\n"


def _commands(command: Any, path: str) -> Iterator[str]:
    for name, child in getattr(command, "commands", {}).items():
        here = f"{path} {name}"
        if getattr(child, "commands", None):
            yield from _commands(child, here)
        else:
            yield _command(child, here)


def _command(command: Any, path: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    names = " ".join(
        str(a.metavar or a.name.upper()) if a.required else f"[{a.metavar or a.name.upper()}]" for a in arguments
    )
    text = f"### `{path}`\n\n{_prose(command.help)}\n\n```text\n{path} {names}".rstrip() + " [OPTIONS]\n```\n\n"
    rows = [(f"`{a.metavar or a.name.upper()}`", a.help or "") for a in arguments]
    rows += [(_option(option), option.help or "") for option in options]
    return text + "| | |\n|---|---|\n" + "".join(f"| {left} | {_cell(right)} |\n" for left, right in rows) + "\n"


def _prose(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("``", "`").replace("\b\n", "")


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag or option.default in (None, "") or callable(option.default):
        return names
    return f"{names} (default `{_cell(str(getattr(option.default, 'value', option.default)))}`)"


# -- tasks ------------------------------------------------------------------------------------------------------------

_BEGIN = "<!-- Tasks: made by scripts/generate_docs.py from the table of phases. -->\n"
_END = "<!-- End of the tasks. -->\n"
_MIRROR_BEGIN = "<!-- Tasks of mirrors: made by scripts/generate_docs.py from the table of a mirror's phases. -->\n"
_MIRROR_END = "<!-- End of the tasks of mirrors. -->\n"
_VERIFY_BEGIN = "<!-- The task that compares mirrors: made by scripts/generate_docs.py from its row. -->\n"
_VERIFY_END = "<!-- End of the task that compares mirrors. -->\n"


def with_tasks(page: Path) -> str:
    """The page with the current tables of tasks between their marks."""
    text = _between(page, _BEGIN, _END, _tasks_table([(row, operator_class(row)) for row in phase_table.TASKS]))
    mirrors = _tasks_table([(row, MIRROR_OPERATORS[row.id]) for row in (*MIRROR_ROWS, NEXT_RUN, FREEZE_LIMIT)])
    text = _between(page, _MIRROR_BEGIN, _MIRROR_END, mirrors, text)
    return _between(page, _VERIFY_BEGIN, _VERIFY_END, _tasks_table([(VERIFY, KafkaMirrorVerifyOperator)]), text)


def _between(page: Path, begin: str, end: str, content: str, text: str | None = None) -> str:
    """The page, or this text of it, with other content between two marks."""
    before, _, rest = (text or page.read_text(encoding="utf-8")).partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no place for its table: {begin.strip()} ... {end.strip()}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def _tasks_table(tasks: Sequence[tuple[phase_table.Phase, Any]]) -> str:
    rows = ["| task | class | module | what it does |\n|---|---|---|---|\n"]
    for row, operator in tasks:
        module = operator.__module__.removeprefix("airflow_provider_kafka_migration.")
        rows.append(f"| `{row.id}` | `{operator.__name__}` | `{module}` | {_cell(row.summary)} |\n")
    return "".join(rows)


# -- metrics ----------------------------------------------------------------------------------------------------------

_METRICS_BEGIN = "<!-- metrics: made by scripts/generate_docs.py -->\n"
_METRICS_END = "<!-- end of metrics -->\n"


def with_metrics(page: Path) -> str:
    """The page with the current table of metrics between the two marks."""
    return _between(page, _METRICS_BEGIN, _METRICS_END, markdown())


# -- findings of the precheck ------------------------------------------------------------------------------------------

_CODES_BEGIN = "<!-- codes: made by scripts/generate_docs.py -->\n"
_CODES_END = "<!-- end of codes -->\n"


def with_finding_codes(page: Path) -> str:
    """The page with the current table of codes between the two marks."""
    return _between(page, _CODES_BEGIN, _CODES_END, finding_codes.as_markdown())


# -- errors -----------------------------------------------------------------------------------------------------------

_ERRORS_HEAD = """# Errors

Each error has one of these codes, says what failed and where, and ends with what to do next. *Terminal*: a person has
to change something, retries are not tried. *Transient*: the same call may succeed later; retries and clearing help.

| code | kind | meaning |
|---|---|---|
"""


def errors_page() -> str:
    """All kinds of errors, by code."""
    kinds = sorted((kind for kind in _error_kinds() if not kind.__subclasses__()), key=lambda kind: kind.code)
    rows = [
        f"| `{kind.code}` | {'terminal' if issubclass(kind, Terminal) else 'transient'} | {_cell(_meaning(kind))} |\n"
        for kind in kinds
    ]
    return "".join([GENERATED, _ERRORS_HEAD, *rows])


def _error_kinds() -> Iterator[type[MigrationError]]:
    for kind in vars(errors).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, MigrationError)
            and kind not in (MigrationError, Terminal, Transient)
        ):
            yield kind


def _meaning(kind: type[MigrationError]) -> str:
    return re.sub(r"\s+", " ", (inspect.getdoc(kind) or "").split("\n\n")[0]).replace("``", "`")


# -- entrance ---------------------------------------------------------------------------------------------------------


def stale() -> list[Path]:
    """Generated files that differ from what the code says."""
    return [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write, or with ``--check`` only compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    options = parser.parse_args()
    found = stale()
    if options.check:
        for path in found:
            print(f"out of date: {path.relative_to(ROOT)}; run `make docs`", file=sys.stderr)
        return 1 if found else 0
    for path in found:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
