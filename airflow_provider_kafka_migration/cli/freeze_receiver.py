"""``freeze-receiver``: stops and starts producers when a migration asks for it by its freeze webhook."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import Answer, answering
from airflow_provider_kafka_migration.cli.session import resolver
from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where

_LOOPBACK = ("127.", "localhost", "[::1]")


@answering
def freeze_receiver(
    stop: Annotated[
        str,
        typer.Option(
            "--stop", metavar="COMMAND", help="Shell command that stops the producers and ends when none writes."
        ),
    ],
    start: Annotated[str, typer.Option("--start", metavar="COMMAND", help="Shell command that lets them write again.")],
    state: Annotated[
        Path, typer.Option("--state", metavar="FILE", help="Where to remember what was asked, across restarts.")
    ],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Address to serve.")] = "127.0.0.1:8099",
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret",
            metavar="REFERENCE",
            help="Reference (env:NAME, file:PATH ...) to the secret of cutover.webhook_secret.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds after which a command is killed and counts as failed.")
    ] = 45,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option("--private-key", metavar="FILE", help="Its key, if it is in a file of its own.")
    ] = None,
) -> Answer:
    """Serve the freeze webhook: run one command to stop producers, and another one to start them.

    Give its address as cutover.producer_freeze_webhook, with cutover.freeze: webhook. Both commands may be run again at
    any time, and must then do no harm. They get KAFKA_MIGRATION_ACTION, KAFKA_MIGRATION_ID and
    KAFKA_MIGRATION_DEADLINE as environment variables.

    Producers are started at unfreeze, and at the deadline of a freeze; a start that fails is repeated until it works.
    """
    from airflow_provider_kafka_migration.freeze.receiver import Commands, Receiver, StateFile
    from airflow_provider_kafka_migration.freeze.receiver_http import ReceiverServer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    host, port = _address(listen)
    if secret is None and not listen.startswith(_LOOPBACK):
        raise ConnectionInvalid(
            f"whoever reaches {listen} could stop the producers",
            where=Where(path="--secret"),
            next_step="give --secret a reference to the secret of cutover.webhook_secret, or listen on 127.0.0.1",
        )
    text = None if secret is None else resolver().text(secret).strip()
    memory = StateFile(state)
    memory.lock()
    receiver = Receiver(Commands(stop, start, seconds), memory, text)
    server = ReceiverServer(receiver, host, port, secret=text, certificate=certificate, private_key=private_key)
    receiver.start()
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="freeze-receiver", daemon=True)
    thread.start()
    holders = receiver.describe()["held_by"]
    logging.getLogger(__name__).info(
        "Serving %s; producers held by: %s", server.url, ", ".join(holders) if holders else "nobody"
    )
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()
        receiver.close()
    return Answer({}, [])


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConnectionInvalid(
            f"{text!r} is not HOST:PORT", where=Where(path="--listen"), next_step="write it as 127.0.0.1:8099"
        )
    return host.strip("[]"), int(port)
