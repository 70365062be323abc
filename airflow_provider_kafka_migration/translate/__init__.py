"""Public API: translate positions between the two clusters of a migration, exactly and in both directions.

from airflow_provider_kafka_migration.references import Resolver
from airflow_provider_kafka_migration.spec import load_spec
from airflow_provider_kafka_migration.translate import Translator

with Translator.open(load_spec("orders.yaml"), Resolver()) as translator:
    print(translator.offset("orders", 0, 4711).to_offset)
"""

from airflow_provider_kafka_migration.translate.translator import Direction, Translated, Translator

__all__ = ["Direction", "Translated", "Translator"]
