#!/bin/sh
# The tests and the fuzzer under ASan and UBSan; an engine's own threads (fa_slices) under TSan.
set -eu
cd "$(dirname "$0")/.."
jobs=$(nproc)

cmake --preset asan >/dev/null
cmake --build --preset asan --parallel "$jobs" --target fa_tests fa_fuzz fa_slices hello
scripts/run_tests.sh build/asan -R '^(fa_tests|fa_fuzz|fa_slices|examples.hello)$'

cmake --preset tsan >/dev/null
cmake --build --preset tsan --parallel "$jobs" --target fa_slices
scripts/run_tests.sh build/tsan -R '^fa_slices$'
