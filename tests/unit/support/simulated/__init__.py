"""A simulated Kafka cluster in this process: a model of logs and coordinators behind real sockets on loopback."""
