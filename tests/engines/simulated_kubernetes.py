"""The part of Kubernetes' API that the engine uses: SparkApplications, Secrets, pods and their logs."""

from __future__ import annotations

import base64
import itertools
import json
import re
from typing import Any

from rest_service import Answer, Request, RestService

CRD = r"/apis/sparkoperator\.k8s\.io/v1beta2/namespaces/(?P<namespace>[^/]+)/sparkapplications"
CORE = r"/api/v1/namespaces/(?P<namespace>[^/]+)"


class SimulatedKubernetes(RestService):
    """Answers as an API server with the Spark operator's custom resource definitions does."""

    def __init__(self) -> None:
        super().__init__()
        self.applications: dict[tuple[str, str], dict[str, Any]] = {}
        self.secrets: dict[tuple[str, str], dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self._uids = itertools.count(1)

    def connection(self, namespace: str | None = "spark") -> str:
        """Return an Airflow connection to this server, as JSON."""
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "api-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        extra: dict[str, Any] = {"kube_config": json.dumps(kubeconfig)}
        if namespace:
            extra["namespace"] = namespace
        return json.dumps({"conn_type": "kubernetes", "extra": extra})

    def say(self, name: str, state: str, message: str = "", **driver: str) -> None:
        """Let the operator write a status."""
        for (_, known), item in self.applications.items():
            if known == name:
                item["status"] = {
                    "applicationState": {"state": state, "errorMessage": message},
                    "driverInfo": {"podName": f"{name}-driver", **driver},
                }

    def answer(self, request: Request) -> Answer:
        for pattern, method in (
            (rf"{CRD}(?:/(?P<name>[^/]+))?", self._application),
            (rf"{CORE}/secrets(?:/(?P<name>[^/]+))?", self._secret),
            (rf"{CORE}/pods/(?P<name>[^/]+)/log", self._log),
            (rf"{CORE}/pods/(?P<name>[^/]+)", self._pod),
        ):
            if found := re.fullmatch(pattern, request.path):
                return method(request, found["namespace"], found["name"])
        return Answer(404, b"404 page not found\n", {"Content-Type": "text/plain"})

    def _application(self, request: Request, namespace: str, name: str | None) -> Answer:
        if request.method == "POST":
            body = request.body
            key = (namespace, body["metadata"]["name"])
            if key in self.applications:
                return _status(409, "AlreadyExists", key[1])
            body["metadata"]["uid"] = f"uid-{next(self._uids)}"
            self.applications[key] = body
            return Answer(201, body)
        found = self.applications.get((namespace, name or ""))
        if found is None:
            return _status(404, "NotFound", name or "")
        if request.method == "DELETE":
            wanted = (request.body or {}).get("preconditions", {}).get("uid")
            if wanted and wanted != found["metadata"]["uid"]:
                return _status(409, "Conflict", name or "")
            uid = found["metadata"]["uid"]
            del self.applications[(namespace, name or "")]
            # Kubernetes' garbage collector deletes what the object owned.
            for key, secret in list(self.secrets.items()):
                if any(owner["uid"] == uid for owner in secret["metadata"].get("ownerReferences", [])):
                    del self.secrets[key]
            return Answer(200, {"kind": "Status", "status": "Success"})
        return Answer(200, found)

    def _secret(self, request: Request, namespace: str, name: str | None) -> Answer:
        if request.method == "GET" and name is None:
            wanted = dict(item.split("=") for item in request.query["labelSelector"].split(","))
            only = request.query["fieldSelector"].removeprefix("metadata.name=")
            items = [
                item
                for (space, known), item in self.secrets.items()
                if space == namespace and known == only and wanted.items() <= item["metadata"].get("labels", {}).items()
            ]
            return Answer(200, {"kind": "SecretList", "items": items})
        if request.method in ("POST", "PUT"):
            body = {"kind": "Secret", **request.body}
            key = (namespace, body["metadata"]["name"])
            if request.method == "POST" and key in self.secrets:
                return _status(409, "AlreadyExists", key[1])
            plain = body.pop("stringData", {})
            body["data"] = {item: base64.b64encode(value.encode()).decode() for item, value in plain.items()}
            self.secrets[key] = body
            return Answer(201, body)
        found = self.secrets.get((namespace, name or ""))
        if found is None:
            return _status(404, "NotFound", name or "", kind="secrets")
        found["metadata"].update(request.body["metadata"])
        return Answer(200, found)

    def _log(self, request: Request, namespace: str, name: str | None) -> Answer:
        if name not in self.logs:
            return _status(404, "NotFound", name or "", kind="pods")
        lines = self.logs[name].splitlines()[-int(request.query["tailLines"]) :]
        return Answer(200, "\n".join(lines).encode(), {"Content-Type": "text/plain"})

    def _pod(self, request: Request, namespace: str, name: str | None) -> Answer:
        pod = self.pods.get(name or "")
        return Answer(200, pod) if pod else _status(404, "NotFound", name or "", kind="pods")


def _status(code: int, reason: str, name: str, kind: str = "sparkapplications") -> Answer:
    words = {"NotFound": "not found", "AlreadyExists": "already exists", "Conflict": "the UID in the precondition"}
    return Answer(
        code,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": f'{kind} "{name}" {words[reason]}',
            "details": {"name": name, "kind": kind},
            "code": code,
        },
    )
