"""``python -m harness.fake_registry [--kind KIND] [--port PORT] [--base-path PATH]``: serves until interrupted."""

from __future__ import annotations

import argparse
import contextlib
import threading

from harness.fake_registry.habits import KINDS
from harness.fake_registry.server import FakeRegistry


def main() -> None:
    """Print the URL, then serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="confluent")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--base-path", default="")
    arguments = parser.parse_args()
    with FakeRegistry(arguments.kind, port=arguments.port, base_path=arguments.base_path) as registry:
        print(registry.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
