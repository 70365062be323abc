"""The part of Databricks' REST API that the engine uses: runs, workspace files, secret scopes."""

from __future__ import annotations

import itertools
import json
from typing import Any

from rest_service import Answer, Request, RestService


class SimulatedDatabricks(RestService):
    """Answers as a workspace does. A run is submitted once per idempotency token."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[int, dict[str, Any]] = {}
        self.tokens: dict[str, int] = {}
        self.outputs: dict[int, dict[str, Any]] = {}
        self.files: dict[str, str] = {}
        self.scopes: dict[str, dict[str, str]] = {"kafka-jobs": {}}
        self._ids = itertools.count(100)

    def connection(self) -> str:
        """Return an Airflow connection to this server, as JSON."""
        return json.dumps(
            {
                "conn_type": "databricks",
                "schema": "http",
                "host": "127.0.0.1",
                "port": self.port,
                "password": "api-token",
            }
        )

    def say(self, run_id: int, life: str, result: str | None = None, message: str = "") -> None:
        """Let a run reach a state."""
        state = {"life_cycle_state": life, "state_message": message, "user_cancelled_or_timedout": False}
        if result:
            state["result_state"] = result
        self.runs[run_id]["state"] = state

    def answer(self, request: Request) -> Answer:
        endpoints = {
            ("POST", "/api/2.2/jobs/runs/submit"): self._submit,
            ("GET", "/api/2.2/jobs/runs/get"): self._get,
            ("GET", "/api/2.2/jobs/runs/get-output"): self._output,
            ("POST", "/api/2.2/jobs/runs/cancel"): self._cancel,
            ("POST", "/api/2.0/workspace/mkdirs"): lambda _: Answer(),
            ("POST", "/api/2.0/workspace/import"): self._import,
            ("POST", "/api/2.0/secrets/put"): self._put_secret,
            ("POST", "/api/2.0/secrets/delete"): self._delete_secret,
        }
        found = endpoints.get((request.method, request.path))
        if request.headers.get("Authorization") != "Bearer api-token":
            return _error(401, "UNAUTHENTICATED", "Credential was not sent or was of an unsupported type")
        return found(request) if found else _error(404, "ENDPOINT_NOT_FOUND", "Path was not found")

    def _submit(self, request: Request) -> Answer:
        token = request.body["idempotency_token"]
        if token not in self.tokens:
            run_id = next(self._ids)
            self.tokens[token] = run_id
            (task,) = request.body["tasks"]
            self.runs[run_id] = {
                "run_id": run_id,
                "run_name": request.body["run_name"],
                "run_page_url": f"https://127.0.0.1/?o=7#job/1/run/{run_id}",
                "tasks": [{**task, "run_id": run_id + 1000}],
            }
            self.say(run_id, "PENDING")
        return Answer(200, {"run_id": self.tokens[token]})

    def _get(self, request: Request) -> Answer:
        run_id = int(request.query["run_id"])
        if run_id not in self.runs:
            return _error(400, "INVALID_PARAMETER_VALUE", f"Run {run_id} does not exist.")
        return Answer(200, self.runs[run_id])

    def _output(self, request: Request) -> Answer:
        run_id = int(request.query["run_id"])
        if run_id - 1000 not in self.runs:
            return _error(
                400, "INVALID_PARAMETER_VALUE", "Retrieving the output of runs with multiple tasks is not supported."
            )
        return Answer(200, {"metadata": {}, **self.outputs.get(run_id - 1000, {})})

    def _cancel(self, request: Request) -> Answer:
        self.say(request.body["run_id"], "TERMINATED", "CANCELED", "Run cancelled.")
        return Answer()

    def _import(self, request: Request) -> Answer:
        self.files[request.body["path"]] = request.body["content"]
        return Answer()

    def _put_secret(self, request: Request) -> Answer:
        scope = self.scopes.get(request.body["scope"])
        if scope is None:
            return _error(404, "RESOURCE_DOES_NOT_EXIST", f"Scope {request.body['scope']} does not exist!")
        scope[request.body["key"]] = request.body["string_value"]
        return Answer()

    def _delete_secret(self, request: Request) -> Answer:
        if self.scopes[request.body["scope"]].pop(request.body["key"], None) is None:
            return _error(404, "RESOURCE_DOES_NOT_EXIST", f"No secret with key {request.body['key']}")
        return Answer()


def _error(status: int, code: str, message: str) -> Answer:
    return Answer(status, {"error_code": code, "message": message})
