# shellcheck shell=sh
# Sourced by start.sh, test.sh and install.sh, which set ROOT to the folder of the sources. Makes virtual environments,
# without root and without a compiler.
# Guarantees: what pyproject.toml asks for is installed; nothing is downloaded while pyproject.toml stays as it is; what
# is missing on this machine is said before the first download.
#
# Packages are installed by uv (https://docs.astral.sh/uv): pip cannot override libp2p's pin of a package that has no
# wheels. uv is the one on PATH, or STARLING_UV; where there is none, pip installs it into the environment. pip's
# settings of an index, of find-links and of certificates hold for uv as well.

say() { printf 'starling: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
NEWEST_PYTHON=13 # for 3.14, libp2p's coincurve has no wheels yet

# Prints the first Python that is new enough, and not too new for wheels. Fails silently.
find_python() {
    for candidate in ${STARLING_PYTHON:+"$STARLING_PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        newest=$NEWEST_PYTHON
        [ "$candidate" != "${STARLING_PYTHON:-}" ] || newest=99
        if "$candidate" -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, $newest + 1))" \
            >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

# Prints the uv to use, if there is one already.
find_uv() {
    for candidate in ${STARLING_UV:+"$STARLING_UV"} uv "$VENV/bin/uv" "$HOME/.local/bin/uv"; do
        if "$candidate" pip --help >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

has_gpu() {  # as node/doctor/gpu_devices.py: Linux, Jetson, and WSL2 with Windows' NVIDIA driver
    [ "$(uname -s)" = Linux ] || return 1
    [ -e /dev/nvidiactl ] || [ -e /dev/nvmap ] || [ -e /dev/nvhost-ctrl ] \
        || { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }
}

# Fails with a sentence where no wheels exist for this system, or where the disk has too little room.
check_machine() {
    case "$(uname -s)/$(uname -m)" in
        Linux/x86_64 | Linux/aarch64 | Linux/arm64 | Darwin/arm64) ;;
        Darwin/*) fail "PyTorch has no builds for macOS on Intel any more: a node needs Apple silicon, or Linux." ;;
        Linux/*) fail "PyTorch has no builds for $(uname -m): a node needs x86-64 or 64-bit ARM." ;;
        *) fail "a node needs Linux or macOS; on Windows, install it inside WSL2 (docs/install.md)." ;;
    esac
    case "$(ldd --version 2>&1)" in
        *musl*) fail "PyTorch has no builds for musl (Alpine): use a distribution with glibc, such as Debian." ;;
    esac
    if [ "$(uname -s)" = Darwin ] && [ "$(sw_vers -productVersion | cut -d. -f1)" -lt 14 ]; then
        fail "bitsandbytes has builds for macOS 14 and newer; this is $(sw_vers -productVersion)."
    fi
    want_mb=2500 to_fetch="about 0.5 GB"
    if has_gpu; then want_mb=9000 to_fetch="several GB, since this machine has a GPU,"; fi
    folder="$VENV"
    while [ ! -d "$folder" ]; do folder="$(dirname -- "$folder")"; done
    free_mb="$(df -Pk "$folder" | awk 'NR == 2 { printf "%d", $4 / 1024 }')"
    [ "$free_mb" -ge "$want_mb" ] ||
        fail "the installation takes about $want_mb MB, and $folder has $free_mb MB free: make room, or use another disk."
}

# Prints what is set of uv's index; empty where PyPI is asked.
own_index() {
    printf '%s' "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}${UV_OFFLINE:-}"
}

# Exports pip's index, find-links and certificates to uv, unless uv has settings of its own. They also tell
# prefer_cpu_torch that an index was configured on purpose.
export_pip_settings() {
    [ -z "$(own_index)" ] || return 0
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
    settings=""
    for candidate in ${python:+"$python"} python3 python; do # an environment that uv made has no pip
        ! settings="$("$candidate" -m pip config list 2>/dev/null)" || break
    done
    default="${PIP_INDEX_URL:-$(pip_setting index-url)}"
    extra="${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}"
    links="${PIP_FIND_LINKS:-$(pip_setting find-links)}"
    [ -z "$default" ] || export UV_DEFAULT_INDEX="$default"
    [ -z "$extra" ] || export UV_INDEX="$extra" UV_INDEX_STRATEGY=unsafe-best-match # what pip does
    links="$(printf '%s' "$links" | tr ' ' ',')"
    [ -z "$links" ] || export UV_FIND_LINKS="$links"
}

# Prints the value of one of pip's settings; of several places the last one listed, as pip does.
pip_setting() {
    printf '%s\n' "$settings" | sed -n "s/^[^=]*\\.$1='\\(.*\\)'\$/\\1/p" | tail -n 1 | sed 's/\\n/ /g; s/^ *//'
}

# reachable URL: whether something answers there.
reachable() {
    "$python" - "$1" <<'PYTHON'
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=15)
except urllib.error.HTTPError:
    pass  # it answers
except OSError as error:
    sys.exit(f"starling: {sys.argv[1]}: {error}")
PYTHON
}

# Fails with a sentence where no package index answers. Without a Python, uv itself is left to find out.
check_network() {
    [ -z "${UV_OFFLINE:-}" ] && [ -n "$python" ] || return 0
    index="${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-https://pypi.org/simple/}}"
    case "$index" in
        http*) reachable "$index" || fail "the package index cannot be reached: connect this machine to the network, or" \
            "name a proxy in HTTPS_PROXY or a mirror in UV_DEFAULT_INDEX." ;;
    esac
}

# Sets torch_backend. Where there is no NVIDIA GPU, the CPU build of torch spares gigabytes; PyPI alone has only the
# large one for Linux. An index that was configured on purpose, such as a mirror, is left alone.
prefer_cpu_torch() {
    torch_backend=""
    if [ "$(uname -s)" != Linux ] || has_gpu; then return 0; fi
    [ -z "$(own_index)${UV_TORCH_BACKEND:-}" ] || return 0
    if reachable "$CPU_TORCH_INDEX/torch/"; then
        torch_backend=cpu
    else
        say "so torch comes from the package index, with CUDA, which takes about 6 GB more and runs as well without a GPU"
    fi
}

# Makes VENV, by uv, which fetches a Python if there is none, or by Python's own venv.
make_environment() {
    if [ -n "$uv" ]; then
        say "making a virtual environment in $VENV with ${python:-a Python that uv fetches}"
        "$uv" venv --quiet --clear --python "${python:-3.$NEWEST_PYTHON}" "$VENV" ||
            fail "no virtual environment could be made in $VENV"
    elif [ -n "$python" ] && "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        say "making a virtual environment in $VENV with $("$python" --version)"
        "$python" -m venv --clear "$VENV" || fail "no virtual environment could be made in $VENV"
    else
        fail "no Python from 3.11 to 3.$NEWEST_PYTHON with its venv module was found. Install one (Debian, Ubuntu:" \
            "apt install python3-venv; Fedora: dnf install python3.$NEWEST_PYTHON; macOS:" \
            "brew install python@3.$NEWEST_PYTHON), or name it in STARLING_PYTHON. Or install uv" \
            "(https://docs.astral.sh/uv), which brings its own."
    fi
    python="$VENV/bin/python"
}

# install_node ARGUMENT…: checks, then has uv install ARGUMENT… and what they need into VENV, which is made if need be.
install_node() {
    check_machine
    python="$VENV/bin/python"
    "$python" -c '' >/dev/null 2>&1 || python="$(find_python)" || python=""
    uv="$(find_uv)" || uv=""
    export_pip_settings
    check_network
    [ "$python" = "$VENV/bin/python" ] || make_environment
    if [ -z "$uv" ]; then
        say "installing uv, which installs the rest (20 MB)"
        "$python" -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1' ||
            fail "uv could not be installed; the lines above say why. Install it by hand: https://docs.astral.sh/uv"
        uv="$VENV/bin/uv"
    fi
    prefer_cpu_torch
    say "downloading and installing: $to_fetch to fetch; what was fetched before is reused"
    started="$(date +%s)"
    # Compiled now, as pip does it: else the processes of a first start compile the same files side by side.
    (cd "$ROOT" && "$uv" pip install --python "$VENV/bin/python" ${torch_backend:+--torch-backend "$torch_backend"} \
        --compile-bytecode "$@" "$ROOT/packaging/pycosat") ||
        fail "the installation failed; the lines above say why. Another try continues where it ended."
    say "installed in $(($(date +%s) - started)) s: $(du -sk "$VENV" | awk '{ printf "%d", $1 / 1024 }') MB in $VENV"
}

# ensure_environment [EXTRA]: installs the project of ROOT into ROOT/.venv, with an extra's dependencies if one is named.
ensure_environment() {
    VENV="$ROOT/.venv"
    stamp="$VENV/.installed${1:+-$1}"
    want="$(cat "$ROOT/pyproject.toml" "$ROOT/packaging/pycosat/pyproject.toml"; printf 'at %s' "$ROOT")"
    if [ -x "$VENV/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return
    fi
    # Scripts in an environment hold its path: one that was moved with its checkout is made again.
    if [ "$(cat "$VENV/.root" 2>/dev/null || printf '%s' "$ROOT")" != "$ROOT" ]; then rm -rf "$VENV"; fi
    rm -f "$stamp"
    install_node --editable "$ROOT${1:+[$1]}"
    printf '%s' "$ROOT" >"$VENV/.root"
    printf '%s\n' "$want" >"$stamp"
}
