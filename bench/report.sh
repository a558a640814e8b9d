#!/bin/sh
# Measures what this machine has (the CPU, and a GPU where the build has CUDA and there is one) and
# makes one page and one table of it: report.sh FA_BENCH PYTHON, run in the folder to write to.
# The page is made even when a native call is beyond its bound; the exit code says so at the end.
set -u
bench=$1
python=$2
here=$(dirname "$0")
rm -f report-*.json
code=0
# run FILE OPTION...: 3 is "beyond the bound", 4 "no such device"; report.py prints the table
run() {
    record=$1
    shift
    "$bench" --check --json "$record" "$@" >/dev/null
    last=$?
    case $last in
    0) ;;
    3) code=3 ;;
    *) return $last ;;
    esac
}
run report-cpu.json || exit
run report-cuda-padded.json --device cuda
cuda=$?
if [ $cuda = 0 ]; then
    for grid in A A2 B C D; do
        run report-cuda-$grid.json --device cuda --grid $grid || exit
    done
elif [ $cuda != 4 ]; then
    exit $cuda
fi
# The committed comparisons with peers, which need a GPU, come behind what was measured now.
"$python" "$here/report.py" report-*.json "$here"/records/*.csv --html report.html || exit
[ $code = 0 ] || echo "A native call is beyond its bound, see 'within' above." >&2
exit $code
