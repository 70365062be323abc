"""``python -m harness.fake_registry [--kind KIND] [--port PORT] [--base-path PATH] [--write-ms N]``: serves until
interrupted."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time

from harness.fake_registry.habits import KINDS
from harness.fake_registry.server import FakeRegistry, Reply, Request


def main() -> None:
    """Print the URL, then serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="confluent")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--base-path", default="")
    parser.add_argument("--write-ms", type=float, default=0.0, help="what each write takes longer")
    arguments = parser.parse_args()

    def wait(request: Request) -> Reply | None:
        if request.writes:
            time.sleep(arguments.write_ms / 1000)
        return None

    with FakeRegistry(arguments.kind, port=arguments.port, base_path=arguments.base_path) as registry:
        registry.before = wait
        print(registry.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
