#!/usr/bin/env bash
# Everything that must hold: formatting, lint, types, import contract, tests, two files at once. Arguments go to pytest.
#   ./scripts/test.sh -k config           the checks, then the tests whose names have "config" in them
set -euo pipefail
ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=scripts/environment.sh
. "$ROOT/scripts/environment.sh"

ensure_environment test
cd "$ROOT"
export HF_HUB_OFFLINE=1 STARLING_SWARM__LAN_DISCOVERY=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

stage() {
    local name="$1"
    shift
    say "$name: $*"
    "$VENV/bin/python" -m "$@" || fail "failed at: $name"
}

stage formatting ruff format --check
stage lint ruff check
stage types mypy
say "imports: lint-imports"
"$VENV/bin/lint-imports" || fail "failed at: imports"
stage tests pytest --numprocesses 2 --dist loadfile "$@"
say "all passed"
