"""The fake registry answers recorded calls as real ones did: Confluent Schema Registry 8.1.5, and Apicurio 3.3.3.

Confluent's answers are equal byte for byte. With the habits of Apicurio, status, error codes and values are equal;
the texts of errors are not.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.fake_registry import FakeRegistry

pytestmark = pytest.mark.slow

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


def recorded_in(name: str, server: str = "confluent-8.1.5") -> list[Answer]:
    text = (PROBES / f"{name}-{server}.txt").read_text()
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


# -- Apicurio ---


class Ids:
    """Ids of the recorded server as those of the fake: Apicurio leaves some out, so their numbers differ."""

    def __init__(self) -> None:
        self.ours: dict[int, int] = {}

    def learn(self, call: Call, ours: Any, theirs: Any) -> None:
        """Take the ids of a registration; one id must stand for the same schemas on both sides."""
        if call.method == "POST" and call.path.endswith("/versions") and "id" in theirs and "id" in ours:
            assert self.ours.setdefault(theirs["id"], ours["id"]) == ours["id"], call
            assert len(set(self.ours.values())) == len(self.ours), call

    def translated(self, call: Call, value: Any) -> Any:
        if call.path.endswith("/referencedby"):
            return [self.ours[number] for number in value]
        return {**value, "id": self.ours[value["id"]]} if isinstance(value, dict) and "id" in value else value


def values(body: str) -> Any:
    """What a body says, without the text of an error; the order of fields means nothing. None: not JSON, or cut."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return {name: each for name, each in value.items() if name != "message"} if isinstance(value, dict) else value


def test_the_habits_of_apicurio_are_those_of_a_real_server() -> None:
    calls, recorded = calls_of("probe"), recorded_in("probe", "apicurio-3.3.3")
    assert [(call.method, call.path) for call in calls] == [(each.method, each.path) for each in recorded]
    with FakeRegistry("apicurio") as registry:
        answers = [ask(registry.url, call) for call in calls]
    ids, differences, not_compared = Ids(), [], []
    for call, our, their in zip(calls, answers, recorded, strict=True):
        ours, theirs = values(our.body), values(their.body)
        if theirs is None and their.body:
            not_compared.append(call.path)
            ours = None
        elif theirs is not None:
            ids.learn(call, ours, theirs)
            theirs = ids.translated(call, theirs)
        if (our.status, ours, not our.body) != (their.status, theirs, not their.body):
            differences.append((call, our, their))
    assert differences == []
    # A page for people, and the only body that the recording has cut.
    assert not_compared == ["/", "/schemas?latestOnly=true"]
