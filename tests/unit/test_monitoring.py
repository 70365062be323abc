"""The alert rules and the dashboard: every expression is PromQL, and every metric and label in them exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from airflow_provider_kafka_migration.metrics.table import ALL, COMMON_LABELS, FLOW_LABEL, prometheus_series

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [*(rule["expr"] for rule in RULES), *QUERIES]

LABELS = {
    series: {*COMMON_LABELS, FLOW_LABEL, *metric.labels, *({"le"} if series.endswith("_bucket") else ())}
    for metric in ALL
    for series in prometheus_series()
    if series.startswith(metric.prometheus_name)
    and series.removeprefix(metric.prometheus_name) in ("", "_bucket", "_sum", "_count")
}


def selectors(expression: Any) -> list[Any]:
    """All vector selectors of a parsed expression."""
    found: list[Any] = []
    if isinstance(expression, promql_parser.VectorSelector):
        return [expression]
    if isinstance(expression, promql_parser.MatrixSelector):
        return [expression.vector_selector]
    if isinstance(expression, promql_parser.BinaryExpr):
        return selectors(expression.lhs) + selectors(expression.rhs)
    if isinstance(expression, promql_parser.Call):
        return [item for argument in expression.args for item in selectors(argument)]
    if isinstance(expression, (promql_parser.AggregateExpr, promql_parser.ParenExpr)):
        return selectors(expression.expr)
    assert isinstance(expression, (promql_parser.NumberLiteral, promql_parser.StringLiteral)), type(expression)
    return found


def mistakes(text: str) -> list[str]:
    """What is wrong with an expression; empty if nothing is."""
    try:
        parsed = promql_parser.parse(text)
    except ValueError as error:
        return [str(error)]
    found = []
    for selector in selectors(parsed):
        labels = {matcher.name for matcher in selector.matchers.matchers}
        if selector.name not in LABELS:
            found.append(f"no metric is called {selector.name}")
        elif not labels <= LABELS[selector.name]:
            found.append(f"{selector.name} has no labels {labels - LABELS[selector.name]}")
    return found


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_are_valid_and_their_metrics_exist(text: str) -> None:
    assert mistakes(text) == []
    assert selectors(promql_parser.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "sum by (a (kafka_migration_lag_records)",
        "kafka_migration_lag_records[5m] > 3",
        "rate(kafka_migration_lag_records)",
        "max(kafka_migration_lagrecords)",
        'kafka_migration_lag_records{topic="a"} > 3',
        "rate(kafka_migration_records[5m])",
        "kafka_migration_silent_seconds > 3",
    ],
)
def test_a_wrong_expression_is_found(text: str) -> None:
    assert mistakes(text)


def test_labels_that_are_grouped_by_or_shown_exist() -> None:
    """The parser does not say which labels a result has, so this looks at the text."""
    known = {label for labels in LABELS.values() for label in labels}
    for text in EXPRESSIONS:
        for names in re.findall(r"\bby \(([^)]*)\)", text):
            assert {name.strip() for name in names.split(",")} <= known, text
    shown = [target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown += [text for rule in RULES for text in rule["annotations"].values()]
    for text in shown:
        assert set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}", text)) <= known, text


def test_every_label_of_an_annotation_survives_its_aggregation() -> None:
    for rule in RULES:
        used = set(re.findall(r"\$labels\.([a-z_]+)", " ".join(rule["annotations"].values())))
        kept = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        for names in kept:
            assert used <= {name.strip() for name in names.split(",")}, rule["alert"]


def test_rules_are_complete() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) >= 8
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_what_the_table_says_to_alert_on_has_a_rule() -> None:
    """Percentiles have one by their histogram."""
    text = " ".join(rule["expr"] for rule in RULES)
    wanted = {item.prometheus_name for item in ALL if item.alert and item.prometheus}
    wanted -= {"kafka_migration_replication_latency_p99_seconds"}
    assert {name for name in wanted if name not in text} == set()


def test_panels_do_not_overlap_and_have_the_variables_that_they_use() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    variables = {item["name"] for item in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z][a-z_]*)", json.dumps(DASHBOARD["panels"]))) <= variables
