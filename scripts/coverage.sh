#!/bin/sh
# Line coverage of kernels/*.c and kernels/cpu by the tests and the fuzzer, from zero.
set -eu
cd "$(dirname "$0")/.."

cmake --preset coverage >/dev/null
cmake --build --preset coverage --parallel "$(nproc)" --target fa_tests fa_fuzz fa_slices hello
find build/coverage -name '*.gcda' -delete
scripts/run_tests.sh build/coverage -R '^(fa_tests|fa_fuzz|fa_slices|examples.hello)$'
python3 scripts/coverage.py build/coverage . 95
