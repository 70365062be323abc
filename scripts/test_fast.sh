#!/usr/bin/env bash
# Runs the fast unit tests in four groups at the same time. Usage: scripts/test_fast.sh PYTHON PERCENT FOLDER...
# Each FOLDER is one of the package; its tests must reach PERCENT of its lines. Only they are traced, because that
# doubles their time. The other groups are plain processes, without workers that report each test to a controller. They
# need about the same processor time each, so that none is left alone at the end; all that needs Airflow is in one of
# them, so that only it imports that.
set -euo pipefail

python=${1:?usage: scripts/test_fast.sh PYTHON PERCENT FOLDER...}
percent=$2
covered=("${@:3}")
with_airflow=(cli engines notifications operators provider spark triggers test_dag.py test_docs.py)
with_data=(adoption compare kafka offset_map registry schema_ids schemas storage)

fast=("$python" -m pytest -m "not integration and not e2e and not soak and not slow" --hypothesis-profile=quick)
plain=("${fast[@]}" -p no:xdist -p no:cacheprovider -q)
mkdir -p build

names=()
processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT

start() {  # NAME ARGUMENT...: runs a group; its output goes to build/fast-NAME.txt
  "${plain[@]}" "${@:2}" >"build/fast-$1.txt" 2>&1 &
  processes+=($!)
  names+=("$1")
}

start airflow "${with_airflow[@]/#/tests/unit/}"
start data "${with_data[@]/#/tests/unit/}"
elsewhere=("${covered[@]}" "${with_airflow[@]}" "${with_data[@]}")
start others tests/unit "${elsewhere[@]/#/--ignore=tests/unit/}"

# They wait for timers of simulated brokers, too: two workers.
failed=0
"${fast[@]}" -q -n 2 --dist loadfile --no-loadscope-reorder \
  "${covered[@]/#/--cov=airflow_provider_kafka_migration.}" --cov-report= "${covered[@]/#/tests/unit/}" || failed=1
for number in "${!names[@]}"; do
  wait "${processes[number]}" || failed=1
  cat "build/fast-${names[number]}.txt"
done
for folder in "${covered[@]}"; do
  "$python" -m coverage report --include="*/$folder/*" --fail-under="$percent" || failed=1
done
exit "$failed"
