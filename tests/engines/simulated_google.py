"""Dataproc's batches over gRPC, and Cloud Storage over REST, as far as the engine uses them."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import BytesParser
from typing import Any
from urllib.parse import quote

from rest_service import Answer, Request, RestService


class SimulatedDataproc:
    """A gRPC server with ``BatchController`` and ``Operations``. ``force`` makes the next calls fail with a status."""

    def __init__(self) -> None:
        self.batches: dict[str, Any] = {}
        self.requests: list[tuple[str, Any]] = []
        self.hosts: list[str] = []
        self.cancelled: list[str] = []
        self.by_request_id: dict[str, str] = {}
        self.port = 0
        self._forced: dict[str, list[Callable[[Any], Any]]] = {}
        self._uuids = itertools.count(1)

    def force(self, method: str, *answers: Callable[[Any], Any]) -> None:
        """Let functions of the call's context answer the next calls of a method, one each."""
        self._forced.setdefault(method, []).extend(answers)

    def say(self, name: str, state: str, message: str = "", output: str = "") -> None:
        """Let a batch reach a state."""
        from google.cloud.dataproc_v1 import Batch

        batch = self.batches[name]
        batch.state, batch.state_message = Batch.State[state], message
        batch.runtime_info.output_uri = output

    @contextlib.contextmanager
    def running(self) -> Iterator[SimulatedDataproc]:
        """Serve until the block ends."""
        import grpc
        from google.cloud import dataproc_v1
        from google.longrunning import operations_pb2
        from google.protobuf import empty_pb2

        server = grpc.server(ThreadPoolExecutor(4))

        def method(handler: Any, request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                self._with_forced(handler), request_deserializer=request, response_serializer=response
            )

        batches = {
            "CreateBatch": method(
                self._create,
                dataproc_v1.CreateBatchRequest.deserialize,
                operations_pb2.Operation.SerializeToString,
            ),
            "GetBatch": method(self._get, dataproc_v1.GetBatchRequest.deserialize, dataproc_v1.Batch.serialize),
        }
        operations = {
            "CancelOperation": method(
                self._cancel, operations_pb2.CancelOperationRequest.FromString, empty_pb2.Empty.SerializeToString
            )
        }
        generic = grpc.method_handlers_generic_handler
        server.add_generic_rpc_handlers((generic("google.cloud.dataproc.v1.BatchController", batches),))
        server.add_generic_rpc_handlers((generic("google.longrunning.Operations", operations),))
        self.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield self
        finally:
            server.stop(None)

    def channel(self, host: str, **_: Any) -> Any:
        """Connect to this server in place of ``host``."""
        import grpc

        self.hosts.append(host)
        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def _with_forced(self, handler: Any) -> Any:
        name = handler.__name__.strip("_")

        def answer(request: Any, context: Any) -> Any:
            self.requests.append((name, request))
            forced = self._forced.get(name)
            if forced:
                return forced.pop(0)(context)
            return handler(request, context)

        return answer

    def _create(self, request: Any, context: Any) -> Any:
        import grpc
        from google.cloud.dataproc_v1 import Batch
        from google.longrunning import operations_pb2

        name = f"{request.parent.replace('/regions/', '/locations/')}/batches/{request.batch_id}"
        operation = f"{request.parent}/operations/op-{request.batch_id}"
        if self.by_request_id.get(request.request_id) == name:
            return operations_pb2.Operation(name=operation)
        if name in self.batches:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"Already exists: Failed to create batch: Batch {name}")
        batch = Batch(request.batch)
        batch.name, batch.operation, batch.state = name, operation, Batch.State.PENDING
        batch.uuid = f"uuid-{next(self._uuids)}"
        self.batches[name] = batch
        if request.request_id:
            self.by_request_id[request.request_id] = name
        return operations_pb2.Operation(name=operation)

    def _get(self, request: Any, context: Any) -> Any:
        import grpc

        if request.name not in self.batches:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: Batch {request.name}")
        return self.batches[request.name]

    def _cancel(self, request: Any, context: Any) -> Any:
        from google.cloud.dataproc_v1 import Batch
        from google.protobuf import empty_pb2

        self.cancelled.append(request.name)
        for batch in self.batches.values():
            if batch.operation == request.name:
                batch.state = Batch.State.CANCELLING
        return empty_pb2.Empty()


class SimulatedStorage(RestService):
    """Cloud Storage's JSON API: upload, metadata, list, and download of ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], bytes] = {}

    def answer(self, request: Request) -> Answer:
        if found := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", request.path):
            return self._upload(found[1], request)
        if found := re.fullmatch(r"/download/storage/v1/b/([^/]+)/o/(.+)", request.path):
            return self._download(found[1], found[2], request)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o", request.path):
            prefix = request.query.get("prefix", "")
            items = [_about(self.url, *key, data) for key, data in self.objects.items() if key[1].startswith(prefix)]
            return Answer(200, {"kind": "storage#objects", "items": items})
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", request.path):
            data = self.objects.get((found[1], found[2]))
            if data is not None:
                return Answer(200, _about(self.url, found[1], found[2], data))
        return Answer(404, {"error": {"code": 404, "message": f"No such object: {request.path}"}})

    def _upload(self, bucket: str, request: Request) -> Answer:
        headers = {name.lower(): value for name, value in request.headers.items()}
        message = BytesParser().parsebytes(
            b"Content-Type: " + headers["content-type"].encode() + b"\n\n" + request.body
        )
        about, content = message.get_payload()  # type: ignore[misc]
        name = json.loads(about.get_payload(decode=True))["name"]  # type: ignore[union-attr]
        data = content.get_payload(decode=True)  # type: ignore[union-attr]
        self.objects[(bucket, name)] = data
        return Answer(200, _about(self.url, bucket, name, data))

    def _download(self, bucket: str, name: str, request: Request) -> Answer:
        data = self.objects.get((bucket, name))
        if data is None:
            return Answer(404, {"error": {"code": 404, "message": "No such object"}})
        headers = {key.lower(): value for key, value in request.headers.items()}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if not found:
            return Answer(200, data, {"Content-Type": "text/plain"})
        start = int(found[1])
        span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}", "Content-Type": "text/plain"}
        return Answer(206, data[start:], span)


def _about(url: str, bucket: str, name: str, data: bytes) -> dict[str, Any]:
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/1",
        "bucket": bucket,
        "name": name,
        "size": str(len(data)),
        "generation": "1",
        "mediaLink": f"{url}/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}?generation=1&alt=media",
    }
