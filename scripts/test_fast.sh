#!/usr/bin/env bash
# Runs the fast unit tests in three groups at the same time. Usage: scripts/test_fast.sh PYTHON PERCENT FOLDER...
# Each FOLDER is one of the package; its tests must reach PERCENT of its lines. Only they are traced, because that
# doubles their time. The other groups are plain processes, without workers that report each test to a controller; one
# of them has all that needs Airflow, so that only it imports that.
set -euo pipefail

python=${1:?usage: scripts/test_fast.sh PYTHON PERCENT FOLDER...}
percent=$2
covered=("${@:3}")
with_airflow=(cli engines notifications operators provider spark triggers test_dag.py test_docs.py)

fast=("$python" -m pytest -m "not integration and not e2e and not soak and not slow" --hypothesis-profile=quick)
plain=("${fast[@]}" -p no:xdist -p no:cacheprovider -q)
mkdir -p build

"${plain[@]}" "${with_airflow[@]/#/tests/unit/}" >build/fast-airflow.txt 2>&1 &
airflow=$!
elsewhere=("${covered[@]}" "${with_airflow[@]}")
"${plain[@]}" tests/unit "${elsewhere[@]/#/--ignore=tests/unit/}" >build/fast-others.txt 2>&1 &
others=$!
trap 'kill "$airflow" "$others" 2>/dev/null || true' EXIT

# They wait for timers of simulated brokers more than they compute.
failed=0
"${fast[@]}" -q -n 2 --dist loadfile --no-loadscope-reorder \
  "${covered[@]/#/--cov=airflow_provider_kafka_migration.}" --cov-report= "${covered[@]/#/tests/unit/}" || failed=1
wait "$airflow" || failed=1
cat build/fast-airflow.txt
wait "$others" || failed=1
cat build/fast-others.txt
for folder in "${covered[@]}"; do
  "$python" -m coverage report --include="*/$folder/*" --fail-under="$percent" || failed=1
done
exit "$failed"
