"""``env:NAME`` and ``file:PATH``: secrets that the machine itself has."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from airflow_provider_kafka_migration.errors import ConnectionInvalid, Where


def this_machine() -> str:
    """Return the name of this machine for messages: on several machines, only one may lack something."""
    return socket.gethostname()


def from_environment(name: str) -> str:
    """Return an environment variable.

    :raises ConnectionInvalid: this process does not have it.
    """
    value = os.environ.get(name)
    if value is None:
        raise ConnectionInvalid(
            f"the environment variable {name} is not set on {this_machine()}",
            where=Where(path=f"env:{name}"),
            next_step=f"set {name} for the process on that machine, or use another reference",
        )
    return value


def from_file(path: str) -> str:
    """Return the text of a file that only its owner may read.

    :raises ConnectionInvalid: it cannot be read on this machine, or other users may read it.
    """
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConnectionInvalid(
            f"the file cannot be read on {this_machine()}: {error.strerror}",
            where=Where(path=f"file:{path}"),
            next_step="check that the file is on that machine, and that the user of the process owns it",
        ) from None
    except UnicodeDecodeError:
        raise ConnectionInvalid(
            f"the file is not text in UTF-8 on {this_machine()}",
            where=Where(path=f"file:{path}"),
            next_step="write the secret as text",
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConnectionInvalid(
            f"the file holds a secret and other users of {this_machine()} may read it",
            where=Where(path=f"file:{path}"),
            next_step=f"chmod 600 {path}",
        )
    return text
