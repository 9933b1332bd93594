#!/bin/sh
# Installs starling for one user; `sh install.sh --help` says how. docs/install.md has the rest.
set -eu

say() { printf 'starling: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

usage() {
    cat <<'HELP'
Installs starling for the user who runs it, without root and without a compiler, or brings an installation up to date.

  sh install.sh                                        from the checkout that this file is in
  curl -fsSL ADDRESS/install.sh | sh -s -- --from ADDRESS/starling.tar.gz
  sh install.sh --from https://HOST/starling.git#v0.2.0

  --from SOURCE    a folder, a .tar.gz (file or https address), or a git address with an optional #BRANCH-OR-TAG
  --sha256 HEX     refuse a .tar.gz with another digest
  --with EXTRA     also install an extra of pyproject.toml: math, wandb or trackio
  --uninstall      remove what this script installed; keys, checkpoints and settings stay

Everything is in ~/.local/lib/starling (STARLING_PREFIX) and one link, ~/.local/bin/starling (STARLING_BIN). A second run
replaces starling and keeps every package that still fits. A node's data are elsewhere and are never touched.
HELP
}

need() { # need VALUE OPTION
    [ -n "$1" ] || fail "$2 needs a value"
}

uninstall() {
    [ -e "$PREFIX/.starling" ] || fail "nothing was installed in $PREFIX by this script"
    refuse_running_node
    if [ "$(readlink "$LINK" 2>/dev/null)" = "$PREFIX/venv/bin/starling" ]; then rm -f "$LINK"; fi
    rm -rf "$PREFIX"
    say "removed $PREFIX and $LINK. The data of nodes are kept; to delete them as well:" \
        "rm -r ${STARLING_HOME:-$HOME/.local/share/starling}"
}

# A process that starts another while its modules change would run two versions at once.
refuse_running_node() {
    if [ -x "$PREFIX/venv/bin/starling" ] && "$PREFIX/venv/bin/starling" status --json >/dev/null 2>&1; then
        fail "a node is running from this installation: stop it with 'starling down', then run this again"
    fi
}

download() { # download ADDRESS FILE
    if command -v curl >/dev/null 2>&1; then
        curl --fail --location --show-error --proto-redir =https --output "$2" "$1" || fail "$1 could not be downloaded"
    elif command -v wget >/dev/null 2>&1; then
        wget --output-document "$2" "$1" || fail "$1 could not be downloaded"
    else
        fail "neither curl nor wget was found: install one, or download $1 yourself and give --from FILE"
    fi
}

unpack() { # unpack FILE
    if [ -n "$digest" ]; then
        found="$( (sha256sum "$1" 2>/dev/null || shasum -a 256 "$1") | cut -d ' ' -f 1)"
        [ "$found" = "$digest" ] || fail "$source has the digest $found, not $digest: nothing was installed"
    fi
    mkdir "$work/unpacked"
    tar -xzf "$1" -C "$work/unpacked" || fail "$source is no .tar.gz"
    for candidate in "$work/unpacked" "$work/unpacked"/*; do
        if [ -f "$candidate/pyproject.toml" ]; then ROOT="$candidate"; fi
    done
}

# Sets ROOT to a copy of the sources: building there leaves nothing in a checkout.
fetch_sources() {
    ROOT=""
    case "$source" in
        http://*) fail "$source is not encrypted: use https" ;;
        https://*.tar.gz | https://*.tgz)
            say "downloading $source"
            download "$source" "$work/sources.tar.gz"
            unpack "$work/sources.tar.gz"
            ;;
        https://* | ssh://* | git@* | git://* | file://*)
            command -v git >/dev/null 2>&1 || fail "git was not found: install it, or give --from a .tar.gz"
            branch="${source##*#}"
            [ "$branch" != "$source" ] || branch=""
            git clone --quiet --depth 1 ${branch:+--branch "$branch"} -- "${source%%#*}" "$work/sources" ||
                fail "$source could not be cloned"
            ROOT="$work/sources"
            ;;
        *)
            if [ -f "$source" ]; then
                unpack "$source"
            elif [ -f "$source/pyproject.toml" ]; then
                ROOT="$work/sources"
                mkdir "$ROOT"
                copied="install.sh pyproject.toml README.md LICENSE node packaging protocol scripts starling swarm"
                # shellcheck disable=SC2086  # several names
                (cd "$source" && tar -cf - $copied) | tar -xf - -C "$ROOT"
            fi
            ;;
    esac
    grep -q '^name = "starling-swarm"' "$ROOT/pyproject.toml" 2>/dev/null ||
        fail "$source holds no sources of starling: give --from a folder, a .tar.gz or a git address"
}

main() {
    PREFIX="${STARLING_PREFIX:-$HOME/.local/lib/starling}"
    LINK="${STARLING_BIN:-$HOME/.local/bin}/starling"
    VENV="$PREFIX/venv"
    source="" digest="" extra="" action=install
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) usage; exit ;;
            --from) need "${2:-}" --from; source="$2"; shift ;;
            --sha256) need "${2:-}" --sha256; digest="$2"; shift ;;
            --with) need "${2:-}" --with; extra="$2"; shift ;;
            --uninstall) action=uninstall ;;
            *) fail "$1 is no option of this script; --help lists them" ;;
        esac
        shift
    done
    if [ "$action" = uninstall ]; then uninstall; exit; fi
    here="$(cd -- "$(dirname -- "$0")" && pwd -P)"
    case "$0" in
        *install.sh) if [ -z "$source" ] && [ -f "$here/pyproject.toml" ]; then source="$here"; fi ;;
    esac
    need "$source" "this script, read from a pipe, needs --from SOURCE; --from"
    if [ -e "$PREFIX" ] && [ ! -e "$PREFIX/.starling" ]; then
        fail "$PREFIX exists, and this script did not make it: name another folder in STARLING_PREFIX"
    fi
    if [ -e "$LINK" ] && [ "$(readlink "$LINK")" != "$VENV/bin/starling" ]; then
        fail "$LINK exists, and is not of this installation: remove it, or name another folder in STARLING_BIN"
    fi
    refuse_running_node
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    fetch_sources
    # shellcheck source=scripts/environment.sh
    . "$ROOT/scripts/environment.sh"
    mkdir -p "$PREFIX" "$(dirname -- "$LINK")"
    : >"$PREFIX/.starling"
    install_node --reinstall-package starling-swarm "$ROOT${extra:+[$extra]}"
    ln -sf "$VENV/bin/starling" "$LINK"
    say "$("$LINK" --version) is installed: $LINK"
    case ":$PATH:" in
        *":$(dirname -- "$LINK"):"*) say "next: starling up" ;;
        *)
            say "next: add $(dirname -- "$LINK") to PATH, with this line in ~/.profile, then: starling up"
            say "    export PATH=\"$(dirname -- "$LINK"):\$PATH\""
            ;;
    esac
}

main "$@"
