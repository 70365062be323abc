"""Connections as services and guides give them: accepted with the right values, or refused with what to write."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_kafka_migration.errors import ConnectionInvalid
from airflow_provider_kafka_migration.kafka.config import ClientConfig

EVENT_HUBS = {
    "bootstrap.servers": "ns.servicebus.windows.net:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "$ConnectionString",
    "sasl.password": "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=abc=",
}
CONFLUENT_CLOUD = {
    "bootstrap.servers": "SASL_SSL://pkc-4nym6.us-east-1.aws.confluent.cloud:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "KEY",
    "sasl.password": "SECRET",
    "session.timeout.ms": "45000",
    "client.id": "ccloud-python-client",
}
AIVEN = {
    "bootstrap.servers": "kafka-demo.aivencloud.com:12345",
    "security.protocol": "SSL",
    "ssl.ca.location": "ca.pem",
    "ssl.certificate.location": "service.cert",
    "ssl.key.location": "service.key",
}
HEROKU = {
    "bootstrap.servers": "kafka+ssl://ec2-1.compute.amazonaws.com:9096,kafka+ssl://ec2-2.compute.amazonaws.com:9096",
    "security.protocol": "SSL",
    "ssl.ca.pem": "ca",
    "ssl.certificate.pem": "cert",
    "ssl.key.pem": "key",
    "ssl.endpoint.identification.algorithm": "none",
}
MSK_IAM = {
    "bootstrap.servers": "b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
}
MSK_SCRAM = {
    "bootstrap.servers": "b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com:9096",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "scram-sha-512",
    "sasl.username": "ann",
    "sasl.password": "x",
}
STRIMZI_OAUTH = {
    "bootstrap.servers": "my-cluster-kafka-bootstrap.kafka.svc:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://sso.example.com/token",
    "sasl.oauthbearer.client.id": "migrator",
    "sasl.oauthbearer.client.secret": "x",
}


@pytest.mark.parametrize(
    ("keys", "bootstrap", "protocol", "mechanism"),
    [
        (EVENT_HUBS, [("ns.servicebus.windows.net", 9093)], "SASL_SSL", "PLAIN"),
        (CONFLUENT_CLOUD, [("pkc-4nym6.us-east-1.aws.confluent.cloud", 9092)], "SASL_SSL", "PLAIN"),
        (AIVEN, [("kafka-demo.aivencloud.com", 12345)], "SSL", None),
        (
            HEROKU,
            [("ec2-1.compute.amazonaws.com", 9096), ("ec2-2.compute.amazonaws.com", 9096)],
            "SSL",
            None,
        ),
        (MSK_IAM, [("b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com", 9098)], "SASL_SSL", "OAUTHBEARER"),
        (
            MSK_SCRAM,
            [("b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com", 9096)],
            "SASL_SSL",
            "SCRAM-SHA-512",
        ),
        (STRIMZI_OAUTH, [("my-cluster-kafka-bootstrap.kafka.svc", 9093)], "SASL_SSL", "OAUTHBEARER"),
        ({"bootstrap.servers": "[fe80::1%eth0]:9092"}, [("fe80::1%eth0", 9092)], "PLAINTEXT", None),
    ],
)
def test_what_services_give_is_taken(
    keys: dict[str, Any], bootstrap: list[tuple[str, int]], protocol: str, mechanism: str | None
) -> None:
    found = ClientConfig.from_librdkafka(keys, "source")
    assert (list(found.bootstrap), found.protocol, found.mechanism) == (bootstrap, protocol, mechanism)
    assert found.username == keys.get("sasl.username")
    assert found.msk_region == ("us-east-1" if keys is MSK_IAM else None)


@pytest.mark.parametrize(
    ("changed", "instead"),
    [
        # Java's clients, as MSK, Confluent and Strimzi document them.
        (
            {"sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a";'},
            "write sasl.username and sasl.password",
        ),
        ({"ssl.truststore.location": "/etc/client.p12"}, "write ssl.ca.location with a PEM file"),
        ({"ssl.truststore.type": "PKCS12"}, "write ssl.ca.location with a PEM file"),
        ({"ssl.keystore.location": "/etc/user.p12"}, "write ssl.certificate.location and ssl.key.location"),
        (
            {"sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
            'write sasl.mechanism OAUTHBEARER and "msk"',
        ),
        (
            {"sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"},
            "write sasl.oauthbearer.method oidc",
        ),
        # kafka-python
        ({"ssl_cafile": "ca.pem"}, "write ssl.ca.location"),
        ({"sasl_plain_username": "ann"}, "write sasl.username"),
        ({"security_protocol": "SASL_SSL"}, "write security.protocol"),
        ({"bootstrap_servers": "b1:9092"}, "write bootstrap.servers"),
        # typing errors
        ({"sasl.usernme": "ann"}, "did you mean sasl.username?"),
        ({"Security.Protocol": "SASL_SSL"}, "write security.protocol"),
    ],
)
def test_what_other_clients_call_it_is_named_with_what_to_write(changed: dict[str, str], instead: str) -> None:
    with pytest.raises(ConnectionInvalid) as caught:
        ClientConfig.from_librdkafka({**MSK_SCRAM, **changed}, "source")
    (problem,) = caught.value.details["problems"]
    (key,) = changed
    assert problem.startswith(f"{key}: ")
    assert instead in problem
