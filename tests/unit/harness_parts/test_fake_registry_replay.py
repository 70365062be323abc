"""The fake registry answers every recorded call as Confluent Schema Registry 8.1.5 did, byte for byte."""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.fake_registry import FakeRegistry

PROBES = Path(__file__).parents[2] / "cases" / "registry-probes"
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
#: The recordings cut each body at this many characters.
CUT = {"probe": 330, "probe2": 260}
_RECORDED = re.compile(r"(GET|POST|PUT|DELETE) +(\S+) +-> (\d{3}) (.*)")
# Everything that may differ: the time of a registration.
_TIME = re.compile(r'"ts":\d+')


class Call(NamedTuple):
    method: str
    path: str
    body: str


class Answer(NamedTuple):
    method: str
    path: str
    status: int
    body: str


def calls_of(name: str) -> list[Call]:
    """The calls of a probe script: bash runs it with a function ``r`` that prints its arguments."""
    lines = []
    for line in (PROBES / f"{name}.sh").read_text().splitlines():
        line = re.sub(r"^(B=.*; H=.*|B=.*|H=.*|#!.*|echo .*)$", "", line)
        line = re.sub(r"^ID=.*$", "ID=1", line)
        if not line.startswith("r() {"):
            lines.append(line)
    script = 'r() { printf "%s\\0%s\\0%s\\0" "$1" "$2" "${3-}"; }\n' + "\n".join(lines)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, check=True, text=True)
    words = done.stdout.split("\0")[:-1]
    return [Call(*words[place : place + 3]) for place in range(0, len(words), 3)]


def recorded_in(name: str) -> list[Answer]:
    text = (PROBES / f"{name}-confluent-8.1.5.txt").read_text()
    found = [_RECORDED.fullmatch(line) for line in text.splitlines() if not line.startswith("##")]
    assert all(found), "a line of the recording was not understood"
    return [Answer(match[1], match[2], int(match[3]), match[4]) for match in found if match]


def ask(url: str, call: Call) -> Answer:
    data = call.body.encode() if call.body else None
    request = urllib.request.Request(url + call.path, data, {"Content-Type": CONTENT_TYPE}, method=call.method)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return Answer(call.method, call.path, reply.status, reply.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(call.method, call.path, error.code, error.read().decode())


def comparable(answer: Answer, cut: int) -> Answer:
    body = answer.body.replace("\n", "")[:cut]
    # A time that was cut has fewer digits; the recordings and the fake have as many.
    return answer._replace(body=_TIME.sub(lambda match: '"ts":' + "0" * (len(match[0]) - 5), body))


@pytest.mark.parametrize("name", ["probe", "probe2"])
def test_every_recorded_call_gets_the_recorded_answer(name: str) -> None:
    calls, recorded = calls_of(name), recorded_in(name)
    assert [(call.method, call.path) for call in calls] == [(each.method, each.path) for each in recorded]
    assert len(calls) == {"probe": 104, "probe2": 28}[name]
    with FakeRegistry() as registry:
        answers = [ask(registry.url, call) for call in calls]
    differences = [
        (number, ours, theirs)
        for number, (ours, theirs) in enumerate(
            zip(
                (comparable(answer, CUT[name]) for answer in answers),
                (comparable(answer, CUT[name]) for answer in recorded),
                strict=True,
            )
        )
        if ours != theirs
    ]
    assert differences == []


def test_a_wrong_answer_is_noticed() -> None:
    right = Answer("GET", "/x", 200, '{"id":1,"ts":1795313048608}')
    assert comparable(right, 330) == comparable(right._replace(body='{"id":1,"ts":1795313048609}'), 330)
    assert comparable(right, 330) != comparable(right._replace(body='{"id":2,"ts":1795313048608}'), 330)
