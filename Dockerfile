# Airflow with this provider, Spark and Java, for docker-compose.yaml.
ARG AIRFLOW_BASE_IMAGE=apache/airflow:3.3.2-python3.11
FROM ${AIRFLOW_BASE_IMAGE}

USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*
COPY --chown=airflow:0 . /opt/kafka-migration

USER airflow
ENV PYSPARK_PYTHON=python
# Naming Airflow's version keeps pip from replacing it.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" "/opt/kafka-migration[spark]"
