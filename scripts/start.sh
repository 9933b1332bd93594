#!/usr/bin/env bash
# Starts a node: makes the environment if need be, then `starling up` with whatever arguments follow.
#   ./scripts/start.sh                    trains the built-in model until Ctrl-C
#   ./scripts/start.sh --rounds 10        ten rounds, then exit 0
set -euo pipefail
ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=scripts/environment.sh
. "$ROOT/scripts/environment.sh"

ensure_environment ""
exec "$VENV/bin/starling" up "$@"
