"""Messages that only tests send: schemas of Apache Kafka 4.1, comments taken out."""
