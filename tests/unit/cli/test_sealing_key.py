"""``kafka-migration sealing-key``: the private key is written, never printed."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from airflow_provider_kafka_migration.references.sealing import KEY_VARIABLE, private_keys


def test_the_private_key_is_written_and_the_public_one_printed(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    made = invoke("sealing-key", file)
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    private = file.read_text().strip()
    assert private not in made.output
    (key,) = private_keys({KEY_VARIABLE: private})
    assert key.public.text in made.output.splitlines()
    again = invoke("sealing-key", file, "--public", "--json")
    assert json.loads(again.stdout)["public_key"] == key.public.text
    assert private not in again.output


def test_a_key_in_use_is_never_overwritten(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("something")
    made = invoke("sealing-key", file)
    assert made.exit_code == 1
    assert "the file exists" in made.output
    assert file.read_text() == "something"


def test_the_public_part_of_an_open_file_is_refused(invoke: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    invoke("sealing-key", file)
    file.chmod(0o644)
    shown = invoke("sealing-key", file, "--public")
    assert shown.exit_code == 1
    assert "chmod 600" in shown.output
    assert file.read_text().strip() not in shown.output
