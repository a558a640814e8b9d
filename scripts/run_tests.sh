#!/bin/sh
# Runs the tests of a build folder and ends with the counts that they printed.
#
#   run_tests.sh BUILD_DIR [CTEST_OPTION...]
set -u
build=$1
shift
ctest --test-dir "$build" --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
status=$?
log=$build/Testing/Temporary/LastTest.log
echo
# Every program ends its output with its counts; ctest keeps it in the log.
counted='Synthesis: Tested|compared with the oracle|[0-9]+/[0-9]+ killed|killed: [0-9]+/'
grep -E "($counted|^fuzz: |^slices: .*wrong)" "$log"
echo "output of every test: $log"
if [ $status = 0 ]; then echo "all tests passed"; else echo "TESTS FAILED"; fi
exit $status
