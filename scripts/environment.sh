# Sourced by start.sh and test.sh, which set ROOT. Makes the virtual environment .venv beside the sources, without root.
# Guarantees: what pyproject.toml asks for is installed; nothing is downloaded while pyproject.toml stays as it is.

say() { printf 'starling: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Prints the first Python that is new enough and can make virtual environments.
find_python() {
    local candidate
    for candidate in ${STARLING_PYTHON:+"$STARLING_PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer with its venv module was found. Install one (Debian, Ubuntu: apt install python3-venv;" \
        "Fedora: dnf install python3; macOS: brew install python), or name it in STARLING_PYTHON."
}

# Where there is no NVIDIA GPU, the CPU build of torch spares gigabytes; PyPI alone has only the large one for Linux.
# An index that was configured on purpose, such as a mirror, is left alone.
prefer_cpu_torch() {
    [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] || return 0
    [ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}" ] || return 0
    case "$("$VENV/bin/python" -m pip config list 2>/dev/null)" in *index-url*) return 0 ;; esac
    export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
}

# ensure_environment [EXTRA]: installs the project, with an extra's dependencies if one is named.
ensure_environment() {
    local extra="${1:-}" python want stamp
    VENV="$ROOT/.venv"
    stamp="$VENV/.installed${extra:+-$extra}"
    want="$(cat "$ROOT/pyproject.toml"; printf 'at %s' "$ROOT")"
    if [ -x "$VENV/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return
    fi
    # Scripts in an environment hold its path: one that was moved with its checkout is made again.
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || [ "$(cat "$VENV/.root" 2>/dev/null || printf '%s' "$ROOT")" != "$ROOT" ]; then
        python="$(find_python)" || exit 1
        say "making a virtual environment in $VENV with $("$python" --version)"
        "$python" -m venv --clear "$VENV" || fail "no virtual environment could be made in $VENV"
    fi
    say "installing what pyproject.toml asks for; the first time this takes minutes"
    prefer_cpu_torch
    rm -f "$stamp"
    (cd "$ROOT" && "$VENV/bin/python" -m pip install --quiet --editable ".${extra:+[$extra]}") ||
        fail "the installation failed; the lines above say why. Two dependencies are compiled (Debian, Ubuntu:" \
        "apt install gcc python3-dev libgmp-dev). Another try continues where it ended."
    printf '%s' "$ROOT" >"$VENV/.root"
    printf '%s\n' "$want" >"$stamp"
}
