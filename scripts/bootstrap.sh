#!/usr/bin/env bash
# Makes the project's own environment in a virtual environment: what requirements.lock pins, checked by hash, and
# this package itself, editable. Usage: scripts/bootstrap.sh VENV [PYTHON]
set -euo pipefail

venv=${1:?usage: scripts/bootstrap.sh VENV [PYTHON]}
wanted=${2:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

supported() {
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys; raise SystemExit(0 if (3, 11) <= sys.version_info[:2] <= (3, 14) else 1)' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${wanted:+"$wanted"} python3.11 python3 python3.12 python3.13 python3.14; do
    if supported "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
    if [ "$candidate" = "$wanted" ] && [ "$wanted" != python3.11 ]; then
      fail "PYTHON=$wanted is not a Python 3.11, 3.12, 3.13 or 3.14"
    fi
  done
  fail "no Python 3.11, 3.12, 3.13 or 3.14 found. Install one (for instance 'apt-get install python3.11 python3.11-venv'), or name it: make env PYTHON=/path/to/python3.11"
}

make_venv() {
  local python
  python=$(find_python)
  printf 'Making %s with %s ...\n' "$venv" "$("$python" --version)"
  if ! "$python" -m venv "$venv" >"$venv.log" 2>&1; then
    cat "$venv.log" >&2
    rm -rf "$venv" "$venv.log"
    fail "$python cannot make virtual environments; on Debian and Ubuntu install its -venv package"
  fi
  rm -f "$venv.log"
}

if [ -x "$venv/bin/python" ]; then
  supported "$venv/bin/python" || fail "$venv was made with another Python; remove it (make distclean) and run make env again"
else
  make_venv
fi

# uv is pinned in the lock as well: pip takes that one entry out of it, hashes included.
uv_pin=$(awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' "$here/requirements.lock")
version=$(printf '%s\n' "$uv_pin" | sed -n 's/^uv==\([^ ;]*\).*/\1/p')
[ -n "$version" ] || fail "requirements.lock has no entry for uv; make it again with make lock"
if [ "$("$venv/bin/uv" --version 2>/dev/null | awk '{ print $2 }')" != "$version" ]; then
  requirement=$(mktemp)
  trap 'rm -f "$requirement"' EXIT
  printf '%s\n' "$uv_pin" >"$requirement"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$requirement"
fi

printf 'Installing the pinned packages (about 1.2 GB the first time) ...\n'
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes -r "$here/requirements.lock"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation -e "$here"
printf 'The environment is ready: %s\n' "$venv"
