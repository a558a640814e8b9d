#!/bin/bash
# peers.sh - builds this library for one GPU and measures it against its peers there.
#
#   bench/peers.sh OUT [options of peers.py]      OUT.csv, OUT.json; builds beside them
#
# FA_CUDA_ARCHS names the image (90a-real). Builds have the tests' hooks, so that a variant such as
# `--variant sm80=OUT_FOLDER/libfa_fwd_causal.so:cuda_sm80` can name a kernel.
set -euo pipefail
out=$(realpath -m "$1")
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(dirname "$out")
cmake -S "$here/.." -B "$build" -DBUILD_SHARED_LIBS=ON -DFA_TESTS=OFF -DFA_BENCH=OFF \
    -DFA_TEST_HOOKS=ON -DFA_CUDA=ON -DFA_CUDA_ARCHS="${FA_CUDA_ARCHS:-90a-real}" > "$build.log"
cmake --build "$build" --parallel "$(nproc)" >> "$build.log" || {
    grep -i error "$build.log"
    exit 1
}
exec python3 -u "$here/peers.py" "$out" --ours "$build/libfa_fwd_causal.so" "$@"
