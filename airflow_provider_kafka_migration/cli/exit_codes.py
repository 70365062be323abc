"""What the exit status of ``kafka-migration`` says."""

from __future__ import annotations

from enum import IntEnum

from airflow_provider_kafka_migration.errors import MigrationError, Transient, WaitsForOperator


class ExitCode(IntEnum):
    """Stable; scripts may rely on them."""

    #: done, or valid
    OK = 0
    #: failed, invalid, or different: a person has to change something
    FAILED = 1
    #: wrong command line (also an argument that makes no sense)
    USAGE = 2
    #: failed for a reason that may pass: run the same command again later
    TRY_AGAIN = 3
    #: the migration waits for an operator's approval
    WAITS = 10
    #: stopped by Ctrl-C; the same command goes on
    INTERRUPTED = 130
    #: stopped by SIGTERM; the same command goes on
    TERMINATED = 143


#: For the documentation and ``--help``.
MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done, or valid",
    ExitCode.FAILED: "failed, invalid or different: something has to be changed first",
    ExitCode.USAGE: "wrong command line",
    ExitCode.TRY_AGAIN: "failed for a reason that may pass (broker unreachable, storage throttled): run it again later",
    ExitCode.WAITS: "the migration waits for an operator: `--approve CODE` answers",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C, in order; the same command goes on where it was",
    ExitCode.TERMINATED: "stopped by SIGTERM, in order; the same command goes on where it was",
}


def exit_code(error: MigrationError) -> ExitCode:
    """The exit status of an error."""
    if isinstance(error, WaitsForOperator):
        return ExitCode.WAITS
    return ExitCode.TRY_AGAIN if isinstance(error, Transient) else ExitCode.FAILED
