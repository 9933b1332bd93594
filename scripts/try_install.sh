#!/bin/sh
# Installs starling as a newcomer without a compiler would, in a new home, and trains two rounds with it. Prints the seconds.
#
#   ./scripts/try_install.sh [--with-uv]      fetches everything anew: about 0.5 GB, and 2 GB of disk while it runs
#
# PATH has links to the tools that a bare system has, and no compiler; --with-uv adds the uv that is on PATH. The new home is
# deleted at the end. An index that is configured in pip or uv is used as it is.
set -eu
ROOT="$(cd -- "$(dirname -- "$0")/.." && pwd -P)"
home="$(mktemp -d)"
node=""
trap '[ -z "$node" ] || kill "$node" 2>/dev/null || :; rm -rf "$home"' EXIT
trap 'exit 130' INT TERM

tools="awk basename cat chmod cp curl cut date df dirname du env git grep gzip head id ldd ln ls mkdir mktemp mv printf readlink \
rm sed sh sha256sum sleep sort tail tar tr uname wget"
[ "${1:-}" != --with-uv ] || tools="$tools uv"
mkdir "$home/bin"
for tool in $tools; do
    if place="$(command -v "$tool")" && [ -x "$place" ]; then ln -s "$place" "$home/bin/$tool"; fi
done
python="$("${STARLING_PYTHON:-python3.11}" -c 'import sys; print(sys.executable)')"
ln -s "$python" "$home/bin/python3"

now() { date +%s; }
unset STARLING_PYTHON
started="$(now)"
step() { # step NAME COMMAND…: runs it as the newcomer, and prints its seconds
    name="$1"
    shift
    before="$(now)"
    env HOME="$home" PATH="$home/.local/bin:$home/bin" CC=/bin/false CXX=/bin/false UV_CACHE_DIR="$home/.cache/uv" \
        XDG_CACHE_HOME="$home/.cache" STARLING_HOME="$home/node" HF_HUB_OFFLINE=1 \
        STARLING_SWARM__LAN_DISCOVERY=false "$@"
    printf '%-28s %4d s\n' "$name" "$(($(now) - before))"
}

for compiler in cc gcc g++ clang; do
    [ ! -e "$home/bin/$compiler" ] || { echo "a compiler is in PATH"; exit 1; }
done
step "installed" sh "$ROOT/install.sh"
step "two rounds trained" starling up --model builtin:wren --rounds 2 --listen /ip4/127.0.0.1/tcp/0
printf '%-28s %4d s\n' "from nothing to two rounds" "$(($(now) - started))"
step "installed again" sh "$ROOT/install.sh"
step "versions" starling version
step "removed" sh "$ROOT/install.sh" --uninstall
for left in "$home/.local/bin/starling" "$home/.local/lib/starling"; do
    [ ! -e "$left" ] || { echo "the removal left $left"; exit 1; }
done
