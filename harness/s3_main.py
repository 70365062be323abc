"""The process of :class:`harness.s3.S3Server`: ``python -m harness.s3_main PORT ADDRESS``."""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


def _put_one_at_a_time() -> None:
    """moto checks whether an object exists, then writes it; S3 does both atomically, which conditional puts rely on."""
    lock = threading.Lock()
    original = S3Response.put_object

    def put_object(self: S3Response, *arguments: Any, **keywords: Any) -> Any:
        with lock:
            return original(self, *arguments, **keywords)

    S3Response.put_object = put_object


def main() -> None:
    """Serve until killed."""
    _put_one_at_a_time()
    application = DomainDispatcherApplication(create_backend_app)
    make_server(sys.argv[2], int(sys.argv[1]), application, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
