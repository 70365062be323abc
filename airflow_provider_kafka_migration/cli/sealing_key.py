"""``sealing-key``: the key pair with which connections travel sealed to Spark's machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_kafka_migration.cli.frame import Answer, JsonOption, answering


@answering
def sealing_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the private key.", show_default=False)],
    public: Annotated[
        bool, typer.Option("--public", help="Make nothing: print the public key of the private one in FILE.")
    ] = False,
    json_output: JsonOption = False,
) -> Answer:
    """Make a key pair for sealed references: write the private key to FILE (mode 0600), and print the public key.

    The private key is never printed. It belongs into the environment of Spark's driver and executors,
    KAFKA_MIGRATION_SEALING_KEY, as a secret of their platform; the public key into spark.sealing_key of the spec.
    """
    from airflow_provider_kafka_migration.references import Resolver
    from airflow_provider_kafka_migration.references.sealing import (
        KEY_VARIABLE,
        PrivateKey,
        private_keys,
        write_private_key,
    )

    if public:
        # Resolve it as Spark's processes would: a file that other users may read is refused.
        found = private_keys({KEY_VARIABLE: f"file:{file.absolute()}"}, Resolver())[0].public
        return Answer({"public_key": found.text, "key_id": found.id}, [found.text])
    key = PrivateKey.new()
    write_private_key(file, key)
    data = {"public_key": key.public.text, "key_id": key.public.id, "private_key_file": str(file)}
    return Answer(
        data,
        [
            key.public.text,
            "",
            f"The private key is in {file} (mode 0600). Give it to Spark's driver and executors as the environment "
            f"variable {KEY_VARIABLE}, or give that a reference to it, such as secretsmanager:NAME.",
            "Write the public key above into spark.sealing_key of the spec, or [kafka_migration] sealing_key.",
        ],
    )


COMMANDS = (sealing_key,)
