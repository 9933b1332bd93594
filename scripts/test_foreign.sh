#!/usr/bin/env bash
# A peer in another language, written from docs/protocol.md alone, joins a node of this checkout, on loopback:
#
#   scripts/test_foreign.sh
#
# It starts a node that trains, and runs tests/foreign/run.js against it. Every step prints what it shows; the script
# ends with 1 at the first that fails. Needs Node.js 20 or newer; npm fetches the packages of tests/foreign once.
# PYTHON is the Python to run the node with; without it, that of the environment that scripts/test.sh makes.
set -euo pipefail
ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
FOREIGN="$ROOT/tests/foreign"

case "${1:-}" in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit ;; esac
fail() { printf 'test_foreign: %s\n' "$*" >&2; exit 1; }

command -v node >/dev/null || fail "there is no Node.js: install version 20 or newer"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || fail "Node.js $(node --version) is too old: 20 or newer"
if [ -z "${PYTHON:-}" ]; then
    # shellcheck source=scripts/environment.sh
    . "$ROOT/scripts/environment.sh"
    ensure_environment test
    PYTHON="$VENV/bin/python"
fi
if ! cmp -s "$FOREIGN/package-lock.json" "$FOREIGN/node_modules/.installed"; then
    npm --prefix "$FOREIGN" ci --ignore-scripts --no-audit --no-fund --loglevel error
    cp "$FOREIGN/package-lock.json" "$FOREIGN/node_modules/.installed"
fi

cd "$ROOT"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export STARLING_SWARM__LAN_DISCOVERY=false STARLING_API__PORT=0
WORK="$(mktemp -d)"
NODE=""
cleanup() {
    if [ -n "$NODE" ]; then
        kill -INT "$NODE" 2>/dev/null || true
        wait "$NODE" 2>/dev/null || true
    fi
    rm -rf "$WORK"
}
trap cleanup EXIT

"$PYTHON" -m node.cli.main up --home "$WORK/home" --model builtin:wren --listen /ip4/127.0.0.1/tcp/0 --json \
    >"$WORK/node.log" 2>&1 &
NODE=$!
address=""
for _ in $(seq 240); do
    address="$(grep -om1 '/ip4/127.0.0.1/tcp/[0-9]*/p2p/12D3KooW[A-Za-z0-9]*' "$WORK/node.log" || true)"
    [ -n "$address" ] && break
    kill -0 "$NODE" 2>/dev/null || break
    sleep 0.5
done
if [ -z "$address" ]; then
    tail -5 "$WORK/node.log" >&2
    fail "the node did not start"
fi
printf 'node    %s\n' "$address"
if ! node "$FOREIGN/run.js" "$address" "$WORK/home" "$PYTHON"; then
    tail -3 "$WORK/node.log" | cut -c1-2000 >&2
    fail "the foreign peer failed"
fi
printf 'A peer written from docs/protocol.md alone has joined, heard, fetched, served, and was learnt from.\n'
