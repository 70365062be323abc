"""Which Airflow this is: two of them may have DAGs and runs of the same ids, and must not be one owner of a migration.

A blue and a green installation, a copy for disaster recovery, or a test and a production system that share a bucket: a
schedule such as ``@once`` gives their runs the same id. So a Variable holds an id, made at its first use. It stays the
same when tasks are cleared and when Airflow and its database are upgraded. Whoever copies the database sets another id,
for instance as ``AIRFLOW_VAR_KAFKA_MIGRATION_INSTALLATION_ID``.
"""

from __future__ import annotations

import logging
import time
import uuid

from airflow.sdk import Variable

from airflow_provider_kafka_migration.provider.compat import variables

log = logging.getLogger(__name__)

VARIABLE = "kafka_migration_installation_id"
#: Of several tasks that make the id at the same time, the last one wins: they all read it again after this time.
SETTLE_SECONDS = 2.0


def installation_id() -> str:
    """Return the id of this Airflow; empty if it cannot be read.

    Without it, the ids of DAG and run decide alone: an Airflow that cannot read a Variable must still free producers.
    """
    try:
        return _read() or _make()
    except Exception as error:  # whatever a secrets backend raises
        log.warning("The Variable %s cannot be read or made: %s", VARIABLE, type(error).__name__)
        return ""


def _read() -> str:
    return str(Variable.get(VARIABLE, default=None) or "")


def _make() -> str:
    # Airflow says "not found" for whatever it cannot read at the moment, and another id would make all runs others'.
    found = variables(VARIABLE)
    if found is None:
        log.info("The Variable %s is not made by this Airflow: set it if another one uses the same storage", VARIABLE)
        return ""
    if VARIABLE in found:
        raise LookupError(VARIABLE)
    Variable.set(VARIABLE, uuid.uuid4().hex, description="Tells this Airflow from others in journals of migrations.")
    time.sleep(SETTLE_SECONDS)
    return _read()
