# Airflow with this provider, Spark and Java, for docker-compose.yaml.
ARG AIRFLOW_BASE_IMAGE=apache/airflow:3.3.2-python3.11
FROM ${AIRFLOW_BASE_IMAGE}

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
COPY --chown=airflow:0 . /opt/kafka-migration

USER airflow
ENV PYSPARK_PYTHON=python
# The versions with which all tests run, without their digests: pip checks all digests or none, and the package itself has
# none. Naming Airflow's version keeps pip from replacing it.
RUN sed -E 's/ \\$//; /^ *--hash=/d' /opt/kafka-migration/requirements.lock > /tmp/constraints.txt \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt \
        "apache-airflow==${AIRFLOW_VERSION}" "/opt/kafka-migration[spark]"
