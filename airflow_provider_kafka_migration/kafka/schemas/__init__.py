"""Message schemas of Apache Kafka (Apache-2.0) that kafka-python 3.0 does not bring: describing groups by type."""
