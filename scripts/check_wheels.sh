#!/bin/sh
# Resolves what a node needs for each system and Python that docs/install.md names, and prints what has no wheel there.
#
#   ./scripts/check_wheels.sh            a quarter of an hour; needs uv and a package index, and installs nothing
#   ./scripts/check_wheels.sh --resolve  a minute: only whether macOS, Linux on ARM and Windows have an answer at all
#
# What it prints must be plain Python, for an installation has no compiler: scripts/try_install.sh shows that on this machine.
set -eu
ROOT="$(cd -- "$(dirname -- "$0")/.." && pwd -P)"
UV="${STARLING_UV:-uv}"
export MACOSX_DEPLOYMENT_TARGET=14.0
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "$ROOT/packaging/pycosat" >"$work/stand-in.txt"

compile() { # compile ARGUMENT…: as for the installation on $platform with Python $version
    (cd "$ROOT" && "$UV" pip compile --quiet --no-header --no-annotate --python-version "$version" \
        --python-platform "$platform" "$@")
}

if [ "${1:-}" = --resolve ]; then
    version=3.12
    for platform in aarch64-apple-darwin aarch64-manylinux_2_28 x86_64-pc-windows-msvc; do
        compile pyproject.toml "$work/stand-in.txt" --output-file "$work/all.txt"
        printf '%-24s %s  %d packages\n' "$platform" "$version" "$(grep -c "==" "$work/all.txt")"
    done
    exit
fi

for platform in x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin; do
    for version in 3.11 3.12 3.13; do
        compile pyproject.toml "$work/stand-in.txt" --output-file "$work/all.txt"
        grep "==" "$work/all.txt" >"$work/left.txt"
        from_source=""
        until said="$(compile "$work/left.txt" --no-deps --no-build --output-file "$work/wheels.txt" 2>&1)"; do
            package="$(printf '%s' "$said" | sed -n 's/.*Because \([^= ]*\)==.*/\1/p' | head -n 1)"
            [ -n "$package" ] || { printf '%s\n' "$said"; exit 1; }
            from_source="$from_source $package"
            grep -v "^$package==" "$work/left.txt" >"$work/fewer.txt"
            mv "$work/fewer.txt" "$work/left.txt"
        done
        count="$(grep -c "==" "$work/all.txt")"
        printf '%-24s %s  %d packages, without a wheel:%s\n' "$platform" "$version" "$count" "$from_source"
    done
done
