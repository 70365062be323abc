"""References to secrets: the spec, argv and journals hold references, never the secrets themselves.

==================  =====================================================================  ==========================
reference           the secret                                                             resolved by
==================  =====================================================================  ==========================
``env:NAME``        an environment variable                                                any process that has it
``file:PATH``       a file that only its owner may read                                    any process that has it
``secretsmanager:`` AWS Secrets Manager: name or ARN                                       any process with the right
``ssm:``            AWS Systems Manager, Parameter Store: name or ARN                      any process with the right
``gcp-sm:``         Google Secret Manager: ``PROJECT/SECRET``, or the full resource name   any process with the right
``vault:``          HashiCorp Vault, KV engine: ``MOUNT/PATH``                             any process with the right
``airflow:CONN_ID`` an Airflow connection; a plain word is one, too                        Airflow's processes only
==================  =====================================================================  ==========================

The four secret stores take ``?version=...`` for a version of the secret and ``#KEY`` for one value of a secret that is
a JSON object: ``secretsmanager:prod/kafka?version=AWSPREVIOUS#password``.
"""

from airflow_provider_kafka_migration.references.names import (
    DEFAULT_SCHEME,
    SECRET_STORES,
    SELF_CONTAINED,
    SecretName,
    is_self_contained,
    split_reference,
)
from airflow_provider_kafka_migration.references.resolver import Handler, Renewal, Resolver

__all__ = [
    "DEFAULT_SCHEME",
    "SECRET_STORES",
    "SELF_CONTAINED",
    "Handler",
    "Renewal",
    "Resolver",
    "SecretName",
    "is_self_contained",
    "split_reference",
]
