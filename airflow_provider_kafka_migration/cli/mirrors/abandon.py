"""``kafka-migration mirror abandon``: the way out after a promotion, as long as no client has written to the target."""

from __future__ import annotations

from airflow_provider_kafka_migration.cli.abandon import (
    AbandonApproveOption,
    Abandonment,
    AbandonReasonOption,
    TargetUnreadOption,
    abandon_answer,
)
from airflow_provider_kafka_migration.cli.frame import Answer, JsonOption, answering
from airflow_provider_kafka_migration.cli.migrate import TakeoverOption
from airflow_provider_kafka_migration.cli.session import SpecArgument, read_spec


@answering
def abandon(
    file: SpecArgument,
    approve: AbandonApproveOption = None,
    target_unread: TargetUnreadOption = False,
    reason: AbandonReasonOption = "",
    takeover: TakeoverOption = False,
    *,
    json_output: JsonOption = False,
) -> Answer:
    """Back out of a planned promotion: free the producers of the source, and end the mirror.

    For a target that is dead, or that clients cannot use. Possible only if the mirror has stopped the producers itself
    (cutover.freeze) and nobody has written to the target since. Without --approve it shows what will happen, and the
    code. Exit status 10: the code is wanted. Exit status 1: it has ended, but something could not be put back; run it
    again.
    """
    spec = read_spec(file).check_kind("mirror", path=str(file))
    return abandon_answer(spec, file, Abandonment(approve, target_unread, reason, takeover), quiet=json_output)
