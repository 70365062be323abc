"""AWS Glue is recognized by its reference or its address, and refused."""

from __future__ import annotations

import pytest

from airflow_provider_kafka_migration.errors import RegistryRefused
from airflow_provider_kafka_migration.registry.glue import is_glue, refuse_glue


@pytest.mark.parametrize(
    ("reference", "url", "expected"),
    [
        ("glue:orders", "", True),
        ("registry", "https://glue.eu-central-1.amazonaws.com", True),
        ("registry", "https://glue-fips.us-gov-west-1.amazonaws.com/x", True),
        ("registry", "https://glue.cn-north-1.amazonaws.com.cn", True),
        ("registry", "https://glue.eu-central-1.api.aws", True),
        ("registry", "https://registry.example/glue.eu-central-1.amazonaws.com", False),
        ("registry", "https://notglue.eu-central-1.amazonaws.com", False),
        ("glue_registry", "", False),
        ("registry", "http://[", False),
    ],
)
def test_glue_is_recognized(reference: str, url: str, expected: bool) -> None:
    assert is_glue(reference, url) is expected
    if not expected:
        refuse_glue(reference, url)
        return
    with pytest.raises(RegistryRefused, match="not built in"):
        refuse_glue(reference, url)
