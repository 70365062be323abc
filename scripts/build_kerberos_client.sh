#!/usr/bin/env bash
# Replaces the wheel of confluent-kafka, which has no Kerberos (GSSAPI), by a build of the same version against a
# librdkafka that has it. Usage: scripts/build_kerberos_client.sh PYTHON [PREFIX]
#
# PYTHON   of the environment of Airflow's workers, with this package and its dependencies.
# PREFIX   where that librdkafka is installed; without it, where the compiler and the linker look by themselves.
#
# The machine needs a C compiler, the headers of this Python, librdkafka with its headers (not older than confluent-kafka
# asks for), and libsasl2's plug-in for Kerberos (Debian: libsasl2-modules-gssapi-mit, Red Hat: cyrus-sasl-gssapi).
set -euo pipefail

python=${1:?usage: scripts/build_kerberos_client.sh PYTHON [PREFIX]}
prefix=${2:-}

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

version=$("$python" -c 'from importlib.metadata import version; print(version("confluent-kafka"))') ||
  fail "$python has no confluent-kafka; install this package there first"
version=${CONFLUENT_KAFKA_VERSION:-$version}

if [ -n "$prefix" ]; then
  prefix=$(cd "$prefix" && pwd)
  [ -f "$prefix/include/librdkafka/rdkafka.h" ] || fail "$prefix/include has no librdkafka/rdkafka.h"
  export C_INCLUDE_PATH="$prefix/include${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}"
  export LIBRARY_PATH="$prefix/lib${LIBRARY_PATH:+:$LIBRARY_PATH}"
  # The library is found again when it is loaded, without LD_LIBRARY_PATH.
  export LDFLAGS="-Wl,-rpath,$prefix/lib ${LDFLAGS:-}"
fi

"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null || fail "$python has no pip"
"$python" -m pip install --disable-pip-version-check --no-cache-dir --no-deps --force-reinstall \
  --no-binary confluent-kafka "confluent-kafka==$version"

"$python" - <<'CHECK' || fail "this librdkafka has no Kerberos: it must be built with libsasl2 (feature sasl_gssapi)"
import confluent_kafka
from confluent_kafka.admin import AdminClient

AdminClient(
    {
        "bootstrap.servers": "127.0.0.1:1",
        "log_level": 0,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.min.time.before.relogin": 0,
    }
)
print(f"confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]} has Kerberos")
CHECK
