"""Provider info for Airflow's providers manager. No imports: it runs in every Airflow process, before configuration."""

from __future__ import annotations

from typing import Any

_PACKAGE = "airflow_provider_kafka_migration"
_INTEGRATION = "Kafka Migration"


def get_provider_info() -> dict[str, Any]:
    """Return the provider as data; a test validates it against Airflow's own ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-kafka-migration",
        "name": _INTEGRATION,
        "description": "Moves a live Kafka cluster to another one, keeping the offsets, with signed proof.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["apache", "kafka", "migration"]}],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    f"{_PACKAGE}.operators.approval",
                    f"{_PACKAGE}.operators.migration",
                    f"{_PACKAGE}.operators.freeze_limit",
                    f"{_PACKAGE}.operators.mirror",
                    f"{_PACKAGE}.operators.mirror_verify",
                    f"{_PACKAGE}.operators.next_run",
                    f"{_PACKAGE}.operators.way_back",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [f"{_PACKAGE}.sensors.deadline", f"{_PACKAGE}.sensors.drain"],
            }
        ],
        "hooks": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [f"{_PACKAGE}.hooks.kafka_cluster", f"{_PACKAGE}.hooks.offset_translation"],
            }
        ],
        "triggers": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": [
                    f"{_PACKAGE}.triggers.deadline",
                    f"{_PACKAGE}.triggers.drain",
                    f"{_PACKAGE}.triggers.freeze_limit",
                    f"{_PACKAGE}.triggers.mirror",
                ],
            }
        ],
        "extra-links": [
            f"{_PACKAGE}.links.storage.EvidenceLink",
            f"{_PACKAGE}.links.storage.JournalLink",
            f"{_PACKAGE}.links.storage.PlanLink",
            f"{_PACKAGE}.links.storage.VerificationLink",
        ],
        "notifications": [f"{_PACKAGE}.notifications.migration.MigrationNotifier"],
        # The plugin has a separate entry point: if listed here as well, Airflow would find it twice where providers are
        # not loaded lazily, and report an import error.
        "connection-types": [
            {
                "connection-type": "kafka_migration",
                "hook-class-name": f"{_PACKAGE}.hooks.kafka_cluster.KafkaClusterHook",
                "hook-name": "Kafka cluster (migration)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "password", "port", "host"],
                    "relabeling": {"extra": "Client settings (librdkafka keys)"},
                    "placeholders": {"extra": '{"bootstrap.servers": "broker:9092"}'},
                },
            }
        ],
        "cli": [f"{_PACKAGE}.airflow_cli.get_kafka_migration_cli_commands"],
        "config": {"kafka_migration": {"description": "Migrations of Kafka clusters.", "options": _OPTIONS}},
    }


_OPTIONS: dict[str, dict[str, Any]] = {
    "migrations_folder": {
        "description": "Folder with one YAML file per migration; kafka_migrations_from_yaml builds a DAG from each "
        "file. Empty: the folder `kafka_migrations` next to that DAG file.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/opt/airflow/kafka_migrations",
        "default": "",
    },
    "mirrors_folder": {
        "description": "Folder with YAML files of mirrors; kafka_mirrors_from_yaml builds a DAG from each flow of a "
        "file with `flows`, and from each spec with `kind: mirror`. Empty: the folder `kafka_mirrors` next to that DAG "
        "file.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/opt/airflow/kafka_mirrors",
        "default": "",
    },
    "secrets_aws_conn_id": {
        "description": "Airflow connection of type aws with which references like secretsmanager:NAME and ssm:NAME are "
        "read in Airflow's own processes. Empty: the identity of the machine. Spark's machines always use their own.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "aws_secrets",
        "default": "",
    },
    "secrets_directory": {
        "description": "Where connections for Spark are written while a job runs, as files that only Airflow's user "
        "may read. Preferably in memory. Empty: the system's temporary folder.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/dev/shm",  # noqa: S108 - an example in the documentation
        "default": "",
    },
    "sealing_key": {
        "description": "Public key for sealed references: the connections of a Spark job, encrypted for its driver and "
        "executors. `kafka-migration sealing-key` makes the pair; the private key belongs only into the environment of "
        "Spark's processes. Empty: none.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "kmpub1_...",
        "default": "",
    },
    "spark_jobs_folder": {
        "description": "Folder of the Spark mains (seed.py, tail.py, verify.py, compare_mirror.py, independent.py, "
        "probe.py). Empty: inside the package.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/opt/airflow/spark_jobs",
        "default": "",
    },
    "progress_interval": {
        "description": "Seconds between two progress lines in a task's log.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "10",
        "default": "5",
    },
    "preload": {
        "description": "Import what a migration's tasks need when Airflow's components start, not in each task. With "
        "the LocalExecutor, whose workers are forks of the scheduler, a task then starts about a second sooner, which "
        "shortens the freeze by that much at each of the five tasks of the cutover. It costs each component "
        "about 100 MB of memory, most of it shared, and a second at its start.",
        "version_added": "0.1.0",
        "type": "boolean",
        "example": "True",
        "default": "False",
    },
    "cutover_pool": {
        "description": "Pool of the tasks for which producers wait: the group `cutover` and `rollback`. It must exist, "
        "with two slots per migration that may be in its cutover: a task whose pool does not exist never runs. Empty: "
        "the default pool, where these tasks run before all others (priority_weight 1000).",
        "version_added": "0.1.0",
        "type": "string",
        "example": "kafka_migration_cutover",
        "default": "",
    },
    "object_url_template": {
        "description": "Address that opens an object in a browser; {uri}, {bucket} and {key} are filled in. "
        "The links of the tasks use it. Empty: AWS's console for objects on AWS, and no links for other stores.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "https://minio.example/browser/{bucket}/{key}",
        "default": "",
    },
}
