"""One run of the DAG over Airflow's REST API: trigger, progress, approvals, end."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from demo.screen import Screen, progress_text
from harness.airflow import AirflowStandalone
from harness.processes import HarnessError

DAG_ID = "kafka_migration"
TAIL = "tail"
CUTOVER = "approve_cutover"
SWITCH = "approve_client_switch"

_CODE = re.compile(r"type this code: \*\*`([0-9a-f]{8})`\*\*")
# Airflow logs an exception as a list of dictionaries in Python syntax; the first one is the error itself.
_ERROR = re.compile(r"error_detail=\[\{'exc_type': '(\w+)', 'exc_value': (['\"])(.*?)\2, 'exc_notes'")
_LINES = 15
_LINE_CHARACTERS = 300
_POLL_SECONDS = 1.0
#: As long as a person would need; the harness also waits until Airflow is ready for an answer.
_THINK_SECONDS = 3.0
#: A run that shows nothing new for so long has stopped; one that goes on may take as long as it needs.
_STILL_SECONDS = 30 * 60.0
#: After this time, people learn why it takes longer than the few minutes that were promised.
_SLOW_SECONDS = 10 * 60.0
_ANSWER_SECONDS = 60.0


def params(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The Params of the generic DAG for a spec: the form's required fields, and the rest unchanged."""
    return {
        "migration_id": spec["migration_id"],
        "source": spec["source"]["conn_id"],
        "target": spec["target"]["conn_id"],
        "journal": spec["storage"]["journal"],
        "more": dict(spec),
    }


def code_in(body: str) -> str:
    """The code that an approval's text shows.

    :raises HarnessError: the text shows no code.
    """
    found = _CODE.search(body)
    if found is None:
        raise HarnessError(f"the approval shows no code:\n{body}")
    return found[1]


class Run:
    """A run of the migration's DAG.

    :param by_hand: leave the approvals to a person.
    :param before_switch: called once when the client switch waits for its approval, to move the clients.
    :param in_tail: called once when the tail runs.
    :param before_cutover: called once when the cutover waits for its approval.
    :param choice: how the cutover is approved.
    """

    def __init__(
        self,
        airflow: AirflowStandalone,
        screen: Screen,
        *,
        by_hand: bool,
        before_switch: Callable[[], None],
        in_tail: Callable[[], None],
        before_cutover: Callable[[], None] = lambda: None,
        dag_id: str = DAG_ID,
        choice: str = "Approve",
    ) -> None:
        self._dag_id = dag_id
        self._choices = {CUTOVER: choice, SWITCH: "Approve"}
        self._before_cutover = before_cutover
        self._airflow = airflow
        self._screen = screen
        self._by_hand = by_hand
        self._before_switch = before_switch
        self._in_tail: Callable[[], None] | None = in_tail
        self._asked: dict[str, float] = {}
        self._answered: set[str] = set()
        self._progress: dict[str, str] = {}
        self.run_id = ""

    def run(self, spec: Mapping[str, Any]) -> None:
        """Trigger and follow the run until it has succeeded.

        :raises HarnessError: it failed, or took too long; names the task and shows the end of its log.
        """
        self.run_with(params(spec))

    def run_with(self, given: Mapping[str, Any]) -> None:
        """Trigger the DAG with these Params and follow the run until it has succeeded. Errors as :meth:`run`."""
        self.run_id = self._airflow.trigger(self._dag_id, dict(given), f"demo-{int(time.time())}")
        self._screen.say(f"Run {self.run_id} of DAG {self._dag_id}: {self.address}")
        patience = Patience()
        while True:
            states = self._airflow.task_states(self._dag_id, self.run_id)
            self._read_progress(states)
            self._screen.show(states, self._progress)
            state = self._airflow.run_state(self._dag_id, self.run_id)
            if state == "success":
                return
            failed = [name for name, task in states.items() if task == "failed"]
            if failed or state == "failed":
                raise HarnessError(self._story(failed))
            why = patience.look((dict(states), dict(self._progress)), time.monotonic())
            if why and patience.is_over:
                raise HarnessError(waiting_story(why, states, self._progress))
            if why:
                self._screen.say(waiting_story(why, states, self._progress))
            if self._in_tail is not None and states.get(TAIL) == "running":
                self._in_tail()
                self._in_tail = None
            for task_id in (CUTOVER, SWITCH):
                if states.get(task_id) == "awaiting_input":
                    self._approve(task_id)
            time.sleep(_POLL_SECONDS)

    @property
    def address(self) -> str:
        """The run in Airflow's UI."""
        return f"{self._airflow.url}/dags/{self._dag_id}/runs/{self.run_id}"

    def _approve(self, task_id: str) -> None:
        if task_id in self._answered:
            return
        if task_id not in self._asked:
            self._asked[task_id] = time.monotonic()
            if task_id == SWITCH:
                self._before_switch()
            if task_id == CUTOVER:
                self._before_cutover()
            if self._by_hand:
                self._screen.say(
                    f"{task_id} waits for you: {self.address} (tab Required Actions; no login is needed, everyone is "
                    "admin). Read the text, type its code, choose " + f"{self._choices[task_id]}."
                )
        if self._by_hand or time.monotonic() - self._asked[task_id] < _THINK_SECONDS:
            return
        shown = self._airflow.hitl(self._dag_id, self.run_id, task_id)
        if shown is None:
            return
        code = code_in(str(shown["body"]))
        self._airflow.answer(
            self._dag_id, self.run_id, task_id, [self._choices[task_id]], {"code": code}, _ANSWER_SECONDS
        )
        self._answered.add(task_id)
        self._screen.say(f"{task_id}: approved with code {code}")

    def _read_progress(self, states: Mapping[str, str | None]) -> None:
        for name, state in states.items():
            if state == "running":
                with contextlib.suppress(HarnessError, OSError):
                    stored = self._airflow.state_store(self._dag_id, self.run_id, name)
                    self._progress[name] = progress_text(stored.get("progress"))
            elif state in ("success", "failed"):
                self._progress.pop(name, None)

    def _story(self, failed: list[str]) -> str:
        text = f"the run failed: {', '.join(failed) or 'no task says why'}"
        for name in failed[:1]:
            with contextlib.suppress(HarnessError):
                text += log_story(name, self._airflow.task_log(self._dag_id, self.run_id, name))
        return text


class Patience:
    """How long a run is waited for: as long as something moves."""

    def __init__(self) -> None:
        self._seen: object = None
        self._began_at = self._moved_at = time.monotonic()
        self._is_told = False
        #: Whether nothing has moved for half an hour.
        self.is_over = False

    def look(self, seen: object, now: float) -> str:
        """Return a line for people when the run is over, and once when it turns out to be slow; empty otherwise.

        :param seen: all that changes while the run goes on.
        :param now: monotonic clock.
        """
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        if now - self._moved_at > _STILL_SECONDS:
            self.is_over = True
            return f"nothing has changed for {_STILL_SECONDS / 60:g} minutes; {_load()}"
        if self._is_told or now - self._began_at <= _SLOW_SECONDS:
            return ""
        self._is_told = True
        return f"the run is slow and goes on; {_load()}"


def _load() -> str:
    return f"the machine's load is {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"


def waiting_story(why: str, states: Mapping[str, str | None], progress: Mapping[str, str]) -> str:
    """Say what a run waits for."""
    over = ("success", "skipped", "upstream_failed", None, "")
    waiting = [
        f"  {name} ({state})" + (f": {progress[name]}" if progress.get(name) else "")
        for name, state in states.items()
        if state not in over
    ]
    return "\n".join([f"{why}; it waits for", *waiting])


def log_story(task_id: str, log: str) -> str:
    """From a failed task's log: its error in full, then its last lines, cut."""
    error = _ERROR.search(log)
    text = f"\n{error[3]}" if error else ""
    lines = [line[:_LINE_CHARACTERS] for line in log.splitlines()[-_LINES:]]
    return f"{text}\nthe log of {task_id} ends:\n" + "\n".join(lines)
