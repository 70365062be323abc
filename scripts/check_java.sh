#!/usr/bin/env bash
# Brokers and Spark need Java 17 or newer: says clearly what to do when it is missing.
set -euo pipefail

java=java
if [ -n "${JAVA_HOME:-}" ]; then
  java=$JAVA_HOME/bin/java
fi
if ! command -v "$java" >/dev/null 2>&1; then
  printf 'error: no Java found (looked for %s). Install Java 17 (for instance "apt-get install openjdk-17-jre-headless") or set JAVA_HOME.\n' "$java" >&2
  exit 1
fi
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
if [ -z "$version" ] || [ "$version" -lt 17 ]; then
  printf 'error: %s is Java %s; Kafka and Spark need Java 17 or newer. Install it or set JAVA_HOME.\n' "$java" "${version:-unknown}" >&2
  exit 1
fi
