"""The templates of readable pages: one escape rule for each format, no missing facts, one table maker."""

from __future__ import annotations

import html
import re
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markdown_it import MarkdownIt
from markdown_it.token import Token

from airflow_provider_kafka_migration.documents.evidence import EvidenceBundle
from airflow_provider_kafka_migration.documents.plan import Plan
from airflow_provider_kafka_migration.documents.proof import Outcome
from airflow_provider_kafka_migration.documents.schemas import SchemaPlan, SchemasResult
from airflow_provider_kafka_migration.kafka.config import ClientConfig
from airflow_provider_kafka_migration.pages import approval, report
from airflow_provider_kafka_migration.pages.plan import as_markdown, diff_plans, documents
from airflow_provider_kafka_migration.pages.rendering import code, escape_html, escape_markdown, fenced, render, shell
from airflow_provider_kafka_migration.pages.schemas import approval_facts
from airflow_provider_kafka_migration.spec import MigrationSpec, parse_spec

pytestmark = pytest.mark.slow

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: What GitHub's Markdown makes links of in any text node, whether or not its characters were escaped
#: (mdast-util-gfm-autolink-literal, which Airflow's UI has).
AUTOLINKS = re.compile(r"(https?://|www(?=\.))([-.\w]+)|[-.\w+]+@[-.\w]+", re.IGNORECASE)
TABLE = {"table_open", "thead_open", "tbody_open", "tr_open", "th_open", "td_open"}

HOSTILE = [
    "a|b",
    "a\\|b",
    "|---|---|",
    "line\nbreak",
    "line\r| x | y |\r\n\n# heading",
    "[text](javascript:alert(1))",
    "[text](https://evil.example)",
    "![image](https://evil.example/x.png)",
    "[text][reference]",
    "[x]: https://evil.example",
    "[^1]: note",
    "<script>alert('x')</script>",
    "<img src=x onerror=alert(1)>",
    "<https://evil.example>",
    "&lt;b&gt;&#60;&amp;",
    "https://evil.example/path",
    "HTTP://evil.example",
    "www.evil.example",
    "someone@evil.example",
    "someone@.evil.example",
    "someone@_.evil.example",
    "http://@@evil.example",
    "`code`",
    "``a`b",
    "```",
    "**bold** _emphasis_ __strong__ ~~gone~~ ~x~",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "---",
    "x\u202egnp.exe",
    "red\x1b[31m",
    "</code></pre></td></table><h1>x</h1>",
    '" onmouseover="x',
    "'; rm -rf / #'",
    "{{ 7 * 7 }}{% raw %}",
    "\\",
    "a\\",
    "__consumer_offsets",
]
_NASTY = st.text(st.sampled_from("ab1|\\`*_[](){}<>!&;#:.~^+-=@/'\" \n\r\x1bwé"), max_size=25)


def shown(value: str) -> str:
    """The text that a reader should see: one line, invisible characters as their codes."""
    line = " ".join(value.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def text_nodes(tokens: list[Token]) -> list[str]:
    """Text between markup, as the parts that a link can be found in."""
    found = []
    for outer in tokens:
        found.append("")
        for token in outer.children or []:
            if token.type in ("text", "text_special"):
                found[-1] += token.content
            else:
                found.append("")
    return found


def check_no_markup(text: str, allowed: set[str]) -> None:
    """Assert that a page has no other markup than allowed, no HTML and no links."""
    tokens = MARKDOWN.parse(text)
    every = [*tokens, *(child for token in tokens for child in token.children or [])]
    kinds = {token.type for token in every if not token.type.endswith("_close")}
    assert kinds <= allowed | {"inline", "text", "text_special", "code_inline"}, kinds - allowed
    assert not [node for node in text_nodes(tokens) if AUTOLINKS.search(node)]


def cells(text: str) -> list[list[str]]:
    """Rows of the only table of a text, as a reader sees them."""
    rows = re.findall(r"<tr>(.*?)</tr>", MARKDOWN.render(text), re.DOTALL)
    return [
        [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)]
        for row in rows
    ]


# -- escape rules -----------------------------------------------------------------------------------------------------


@given(_NASTY, _NASTY)
@example("a|b", "www.evil.example")
def test_no_text_breaks_a_markdown_table(one: str, two: str) -> None:
    page = f"| a | b |\n|---|---|\n| {escape_markdown(one)} | {escape_markdown(two)} |\n"
    check_no_markup(page, TABLE)
    assert cells(page) == [["a", "b"], [shown(one), shown(two)]]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_text_is_shown_as_it_is(value: str) -> None:
    text = escape_markdown(value)
    page = f"| a |\n|---|\n| {text} |\n\nText {text} text.\n\n- {text}\n"
    check_no_markup(page, TABLE | {"paragraph_open", "bullet_list_open", "list_item_open"})
    assert cells(page)[1:] == [[shown(value)]]
    item = re.findall(r"<li>(.*?)</li>", MARKDOWN.render(page))
    assert [html.unescape(re.sub("<[^>]+>", "", text)) for text in item] == [shown(value)]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_code_span_in_a_table_is_never_left(value: str) -> None:
    page = f"| a |\n|---|\n| {code(value)} |\n"
    check_no_markup(page, TABLE)
    assert cells(page)[1:] == [[shown(value)]]


@pytest.mark.parametrize(
    "name",
    ["shop.orders", "a_b", "__consumer_offsets", "User:ann", "DESCRIBE_CONFIGS", "SHA-256 (4096)", "-1", "3 -> 2"],
)
def test_ordinary_names_stay_readable(name: str) -> None:
    assert escape_markdown(name) == name


@pytest.mark.parametrize("text", ["a\n```\n# b", "````", "x"])
def test_no_text_closes_a_code_block(text: str) -> None:
    tokens = MARKDOWN.parse(str(fenced(text, "sh")))
    assert [(token.type, token.content) for token in tokens] == [("fence", text + "\n")]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_word_of_a_command_is_one_word(value: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {shell(value)}"], capture_output=True, check=True)
    assert done.stdout.decode() == value


@pytest.mark.parametrize("value", HOSTILE)
def test_html_shows_hostile_text_as_it_is(value: str) -> None:
    found: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)
            assert attrs == [("title", value)]

        def handle_data(self, data: str) -> None:
            found.append(data)

    parser = Parser(convert_charrefs=True)
    parser.feed(f'<p title="{escape_html(value)}">{escape_html(value)}</p>')
    parser.close()
    assert (found[0], "".join(found[1:])) == ("p", value)


# -- whole pages ------------------------------------------------------------------------------------------------------

EVIL = "\n".join(HOSTILE)


def _spec() -> MigrationSpec:
    return parse_spec(
        {
            "migration_id": "m1",
            "source": {"conn_id": "env:SOURCE"},
            "target": {"conn_id": "env:TARGET"},
            "storage": {"journal": "s3://bucket/journal"},
            "topics": {"include": ["a|b"]},
            "schemas": {"source": "env:A|B", "target": "env:TARGET_REGISTRY", "global_config": True},
        }
    )


def _plan(name: str) -> Plan:
    cluster = {"cluster_id": name, "kafka_version": name, "mode": "kraft", "brokers": [1]}
    partition = {
        "partition": 0, "log_start_offset": 0, "end_offset": 1, "high_watermark": 1, "size_bytes": 1,
        "verdict": "mapped", "reason": name, "source_start_offset": 0, "target_start_offset": 0,
    }  # fmt: skip
    topic = {
        "name": name, "target_name": name, "partitions": [partition], "replication_factor": 1,
        "source_replication_factor": 1, "source_configs": {}, "target_configs": {}, "dropped_configs": {name: name},
        "drift": [{"config": name, "target": name, "source": name, "planned": None}],
    }  # fmt: skip
    return Plan.model_validate(
        {
            "migration_id": "m1",
            "source": cluster,
            "target": cluster,
            "topics": [topic],
            "groups": [{"group": name, "type": "classic", "state": name, "lag": 1, "topics_in_scope": [name]}],
            "users": [{"name": name, "credentials": [[name, 1]], "action": "report", "reason": name}],
            "quotas": [{"entity": [["user", name]], "values": {}, "action": "create"}],
            "excluded_topics": {name: name},
            "unknown": {name: name},
            "notes": [name],
            "defaults_drift": [{"config": name, "source": name, "target": name}],
            "lanes": [],
        }
    )


def _schemas(name: str) -> SchemaPlan:
    version = {"version": 1, "id": 1, "digest": "0"}
    subject = {"subject": name, "target_subject": f"{name}!", "type": name, "versions": [version]}
    topic = {"topic": name, "parts": "value", "context": name, "value_ids": 2, "value_known_ids": 1, "unread": name}
    return SchemaPlan.model_validate(
        {
            "migration_id": "m1",
            "id_mode": "translate",
            "reason": name,
            "source_kind": name,
            "target_kind": name,
            "subjects": [{**subject, "config": {name: name}, "mode": name, "topics": [name]}],
            "context_configs": {name: {name: name}},
            "context_modes": {name: name},
            "global_config": {name: name},
            "global_mode": name,
            "conflicts": [_conflict(name)],
            "left_out": {name: name},
            "topics": [topic],
            "notes": [name],
            "unread": {name: name},
        }
    )


def _conflict(name: str) -> dict[str, Any]:
    return {"kind": "id", "subject": name, "version": 1, "what": name}


def _synchronized(text: str) -> SchemasResult:
    return SchemasResult.model_validate(
        {
            "migration_id": "m1",
            "reason": text,
            "at": text,
            "id_mode": "translate",
            "conflicts": [_conflict(text)],
            "failed": [{"subject": text, "error": {"code": text, "what": text}}],
            "unread": {text: text},
        }
    )


def _approval_facts(text: str) -> dict[str, Any]:
    group = {
        "group": text, "type": text, "source_state": text, "target_state": text, "translations": {"equal": 1},
        "left_alone": text, "failures": [text],
    }  # fmt: skip
    proof = {
        "copied_offsets": 3, "proven_offsets": 1, "is_complete": False, "compared_records": 1, "partitions": 1,
        "complete_partitions": 0, "uncompared_records": 1, "unchecked_partitions": 1, "differing_partitions": 1,
        "differing": {text: text}, "waiting": {},
    }  # fmt: skip
    return {
        "proof": proof,
        "schemas": approval_facts(_schemas(text), _synchronized(text)),
        "groups": [group],
        "findings": [{"code": "W001", "waived": False, "severity": "Warning", "subject": text, "seen": "x"}],
        "overtaken_tombstones": [{"topic": text, "partition": 0, "what": text}],
        "target_losses": [{"topic": text, "partition": 0, "what": text}],
        "left_out": [["topic", text, text]],
        "signing_key": text,
    }


def _cutover(text: str) -> dict[str, Any]:
    return {
        **_approval_facts(text),
        "lag": {text: {"partitions": 1, "total_lag": 1, "largest_lag": 1}},
        "total_lag": 1,
        "partitions": 1,
        "tail": text,
        "tail_copies_all": False,
        "source_drift": [[text, text]],
        "expected_freeze_seconds": 1.0,
        "handover": {"changes": 1, "measured": 0, "frozen_seconds": 1.0, "typical_seconds": 1.0},
        "cannot_fit": text,
    }


def _client_switch(text: str) -> dict[str, Any]:
    return {
        **_approval_facts(text),
        "frozen": {"frozen_seconds": 1.5},
        "active_on_source": [text],
        "behind_boundary": {"late": {text: text}, "unchecked": {text: text}, "records": 1, "partitions": 2},
        "not_fenced": "",
        "unfenced": [text],
    }


def _page(name: str, text: str) -> str:
    """One of the Markdown pages, where each name and each error text is ``text``."""
    spec, plan = _spec(), _plan(text)
    if name == "diff":
        both = (_schemas(text), _schemas(f"{text}!"))
        return as_markdown(diff_plans(plan, _plan(f"{text}!"), schemas=both))
    if name == "cutover":
        return approval.render(spec, "cutover", "0a1b2c3d", _cutover(text))[1]
    if name == "client_switch":
        return approval.render(spec, "client_switch", "0a1b2c3d", _client_switch(text))[1]
    source = ClientConfig("source", (("localhost", 9092),), username=text)
    return documents(spec, plan, source, schemas=_schemas(text))[name]


@pytest.mark.parametrize("name", ["plan.md", "runbook.md", "permissions.md", "diff", "cutover", "client_switch"])
def test_names_and_errors_inject_nothing_into_a_page(name: str) -> None:
    plain, page = (_page(name, text) for text in ("plain", EVIL))
    # Headings, tables with all their cells, lists and paragraphs are those of a page with harmless names.
    assert [token.type for token in MARKDOWN.parse(page)] == [token.type for token in MARKDOWN.parse(plain)]
    layout = {"heading_open", "paragraph_open", "bullet_list_open", "ordered_list_open", "list_item_open", "fence"}
    check_no_markup(page, TABLE | layout | {"strong_open", "softbreak"})


def _report(text: str) -> str:
    """A report where each name and each error text is ``text``."""
    facts = {"cluster_id": text, "kafka_version": text, "mode": text, "brokers": [1]}
    answer = {
        "kind": "cutover", "decision": text, "responders": [{"user_id": "1", "user_name": text}], "answered_at": text,
        "code": text, "body_shown": text,
    }  # fmt: skip
    check = {"name": "content", "outcome": "WARNING", "summary": text, "findings": [text]}
    empty = ("plan", "topology", "acls", "seed", "tail", "drain_final", "cutover", "versions", "artifacts")
    bundle = EvidenceBundle.model_validate(
        {
            **{name: {} for name in empty},
            "migration_id": "m1",
            "tool_version": text,
            "signed_at": text,
            "outcome": Outcome.WARNING,
            "config_fingerprint": "",
            "journal": [{"seq": 1, "at": text, "reason": text, "actor": text}],
            "source": facts,
            "target": facts,
            "plan_digest": "",
            "validation": {"checks": [check]},
            "groups": {"groups": [{"group": text, "type": "classic", "skipped_reason": text, "offsets": []}]},
            "approvals": [answer, {"answer": answer, "why": text}],
            "findings": [{"code": "W001", "severity": text, "waived": True, "subject": text, "seen": text}],
            "not_copied": [{"kind": "topic", "name": text, "reason": text}],
            "waivers": [],
            "object_lock": {"applied": False, "mode": "", "retain_until": ""},
            "warnings": [text],
        }
    )
    return report.render(bundle, "0" * 64, b"\0" * 32).decode()


def _html_tags(page: str) -> list[str]:
    found: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(f"{tag} {attrs}")

    Parser().feed(page)
    return found


def test_names_and_errors_inject_nothing_into_the_report() -> None:
    plain, page = _report("plain"), _report(EVIL)
    assert page.count(html.escape(EVIL)) == plain.count("plain") >= 20
    assert EVIL not in page
    assert _html_tags(page) == _html_tags(plain)


# -- facts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cutover", "client_switch"])
def test_a_missing_fact_is_an_error_and_not_an_empty_cell(kind: Any) -> None:
    facts = _cutover("a") if kind == "cutover" else _client_switch("a")
    approval.render(_spec(), kind, "0a1b2c3d", facts)
    for name in facts:
        less = {key: value for key, value in facts.items() if key != name}
        with pytest.raises(UndefinedError):
            approval.render(_spec(), kind, "0a1b2c3d", less)
    group = {key: value for key, value in facts["groups"][0].items() if key != "target_state"}
    with pytest.raises(UndefinedError, match="target_state"):
        approval.render(_spec(), kind, "0a1b2c3d", {**facts, "groups": [group]})


def test_a_long_table_of_an_approval_says_how_much_it_leaves_out() -> None:
    lag = {f"t{number:02}": {"partitions": 1, "total_lag": 0, "largest_lag": 0} for number in range(53)}
    _, body = approval.render(_spec(), "cutover", "0a1b2c3d", {**_cutover("a"), "lag": lag})
    assert "| t49 |" in body
    assert "| t50 |" not in body
    assert "\n\n... and 3 more\n" in body


def test_no_frozen_time_is_not_zero_seconds() -> None:
    _, body = approval.render(_spec(), "client_switch", "0a1b2c3d", {**_client_switch("a"), "frozen": {}})
    assert "It was not recorded for how long producers were frozen. They stay stopped" in body
    assert "**0 s**" not in body


def test_a_template_is_named_by_its_format() -> None:
    with pytest.raises(KeyError):
        render("plan.txt.j2")
