#!/bin/sh
# bench/setup.sh - the environment the peers live in: built once, in the cache, outside the clone
#
# Only `make bench` and tests/numeric/make_fixtures.py need it. PyPI's torch is a large download, so
# the environment is kept; BENCH_REBUILD=1 builds it again. The last line says where it is.
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster
venv=$cache/bench-venv
stamp=$venv/complete

# torch.compile calls g++ and wants Python.h; bench/sgemm.c wants OpenBLAS.
missing=
command -v g++ >/dev/null || missing="$missing g++"
[ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    missing="$missing python3-dev"
python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
[ -e /usr/include/x86_64-linux-gnu/openblas-pthread/cblas.h ] ||
    [ -e /usr/include/openblas-pthread/cblas.h ] || missing="$missing libopenblas-dev"
if [ -n "$missing" ]; then
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing$missing" >&2
    # shellcheck disable=SC2086 # a list of words
    $sudo apt-get install -y --no-install-recommends $missing >&2
fi

[ -z "${BENCH_REBUILD:-}" ] || rm -f "$stamp"
if [ ! -e "$stamp" ]; then
    echo "building $venv (PyTorch, JAX, onnxruntime and others: some 6 GB)" >&2
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --no-cache-dir torch jax onnxruntime onnx numpy pandas pyarrow \
        polars scikit-learn safetensors tensorboard >&2
    "$venv/bin/pip" freeze >"$stamp"
fi
echo "$venv"
