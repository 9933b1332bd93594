#!/usr/bin/env bash
# Everything that must hold, the cheapest first: formatting, lint, import contract, types, tests.
#
#   ./scripts/test.sh [--quick] [ARGUMENTS OF PYTEST]
#
#   ./scripts/test.sh                     everything, before a change is handed on
#   ./scripts/test.sh --quick             the checks, then the tests that start no processes: at each change
#   ./scripts/test.sh --quick -k config   the checks, then those of them whose names have "config" in them
#   HYPOTHESIS_PROFILE=thorough ./scripts/test.sh --quick     more examples, other ones each time
set -euo pipefail
ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

QUICK=""
for argument in "$@"; do
    case "$argument" in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit ;; esac
done
if [ "${1:-}" = --quick ]; then
    QUICK=yes
    shift
fi

# shellcheck source=scripts/environment.sh
. "$ROOT/scripts/environment.sh"

ensure_environment test
cd "$ROOT"
export HF_HUB_OFFLINE=1 STARLING_SWARM__LAN_DISCOVERY=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
unset PYTHONDONTWRITEBYTECODE  # or each of the hundred processes that tests start compiles the whole project again

stage() {
    local name="$1"
    shift
    say "$name: $*"
    "$@" || fail "failed at: $name"
}

stage formatting "$VENV/bin/ruff" format --check
stage lint "$VENV/bin/ruff" check
stage imports "$VENV/bin/lint-imports"
stage types "$VENV/bin/mypy"
# One worker a core, at most four, for each holds torch; with nodes one more, since these wait more than they compute.
workers="$(getconf _NPROCESSORS_ONLN)"
workers=$((workers < 4 ? workers : 4))
[ -n "$QUICK" ] || workers=$((workers + 1))
stage tests "$VENV/bin/python" -m pytest --numprocesses "$workers" --dist worksteal --processor-seconds 40 \
    ${QUICK:+-m "not processes"} "$@"
say "all passed${QUICK:+; the tests that start processes were left out}"
