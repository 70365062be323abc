"""Which changes of the source take write access away: they may be how somebody stops the producers for the cutover.

On the target they would stop the same producers after the client switch, when nothing takes them back any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_kafka_migration.drift.source_drift import SourceDrift
from airflow_provider_kafka_migration.kafka.admin.access import Acl
from airflow_provider_kafka_migration.kafka.admin.admin_quotas import QuotaEntity

_WRITING = frozenset({"WRITE", "ALL", "IDEMPOTENT_WRITE"})
_WRITTEN = frozenset({"TOPIC", "TRANSACTIONAL_ID", "CLUSTER"})
#: Quotas that slow producers down.
_PRODUCING = frozenset({"producer_byte_rate", "request_percentage"})
_EVERYBODY = "User:*"


def split(drift: SourceDrift) -> tuple[SourceDrift, SourceDrift]:
    """(everything else, what takes write access away: DENY of writing that is new, ALLOW of writing that is gone,
    users that are gone, lower quotas for producers)."""
    denied = tuple(acl for acl in drift.missing_acls if acl.permission == "DENY" and _is_writing(acl))
    revoked = tuple(acl for acl in drift.surplus_acls if acl.permission == "ALLOW" and _is_writing(acl))
    lower = {entity: _lower(values, drift.present_quotas.get(entity, {})) for entity, values in drift.quotas.items()}
    other = {
        entity: {key: value for key, value in values.items() if key not in lower[entity]}
        for entity, values in drift.quotas.items()
    }
    withdrawn = SourceDrift(
        missing_acls=denied,
        surplus_acls=revoked,
        quotas=_not_empty(lower),
        present_quotas=drift.present_quotas,
        gone_users=drift.gone_users,
    )
    rest = replace(
        drift,
        missing_acls=tuple(acl for acl in drift.missing_acls if acl not in denied),
        surplus_acls=tuple(acl for acl in drift.surplus_acls if acl not in revoked),
        quotas=_not_empty(other),
        gone_users=(),
    )
    return rest, withdrawn


def _is_writing(acl: Acl) -> bool:
    return acl.resource_type in _WRITTEN and acl.operation in _WRITING


def _lower(values: Mapping[str, float | None], there: Mapping[str, float]) -> dict[str, float | None]:
    """A value that the source has removed is no limit any more, so it is not lower."""
    return {
        key: value
        for key, value in values.items()
        if key in _PRODUCING and value is not None and (key not in there or value < there[key])
    }


def _not_empty(
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]],
) -> dict[QuotaEntity, Mapping[str, float | None]]:
    return {entity: values for entity, values in quotas.items() if values}


def without_open_doors(rest: SourceDrift, withdrawn: SourceDrift) -> tuple[SourceDrift, SourceDrift]:
    """(what may be taken over without the withdrawals, what may not).

    An ALLOW whose DENY is held back, and the end of a DENY whose ALLOW stays, would give the target's users more than
    the source gives them.
    """
    allows = tuple(
        acl
        for acl in rest.missing_acls
        if acl.permission == "ALLOW" and any(_meet(acl, deny) for deny in withdrawn.missing_acls)
    )
    denies = tuple(
        acl
        for acl in rest.surplus_acls
        if acl.permission == "DENY" and any(_meet(acl, allow) for allow in withdrawn.surplus_acls)
    )
    safe = replace(
        rest,
        missing_acls=tuple(acl for acl in rest.missing_acls if acl not in allows),
        surplus_acls=tuple(acl for acl in rest.surplus_acls if acl not in denies),
    )
    return safe, SourceDrift(missing_acls=allows, surplus_acls=denies)


def _meet(first: Acl, second: Acl) -> bool:
    """Whether two bindings may speak of the same right; names of resources are not compared, which errs to "yes"."""
    principals, operations = {first.principal, second.principal}, {first.operation, second.operation}
    return (
        first.resource_type == second.resource_type
        and (len(principals) == 1 or _EVERYBODY in principals)
        and (len(operations) == 1 or "ALL" in operations)
    )
