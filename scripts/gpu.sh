#!/bin/bash
# gpu.sh - all tests that need a GPU, side by side: some four minutes on 16 cores and one GPU; then
# speeds, alone.
#
#   scripts/gpu.sh [BUILD_DIR]      build/gpu; output in BUILD_DIR/gpu/*.log
#
# FA_CUDA_ARCHS names the image that is built (90a-real). Needs nvcc, Criterion, compute-sanitizer
# and a python3 with torch. A kernel path is the table of kernels from one row on; the Criterion
# tests walk over all of them. Exits with 0 when every part passed.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
build=$(realpath -m "${1:-build/gpu}")
logs=$build/gpu
mkdir -p "$logs"
export PATH=$PATH:/usr/local/cuda/bin

build_all() {
    cmake -S . -B "$build" -DFA_CUDA=ON -DFA_CUDA_ARCHS="${FA_CUDA_ARCHS:-90a-real}" &&
        cmake --build "$build" --parallel "$(nproc)"
}
if ! build_all > "$logs/build.log" 2>&1; then
    grep -i error "$logs/build.log" | head
    exit 1
fi
echo "built in $SECONDS s"

declare -A running
# part NAME SECONDS COMMAND...
part() {
    local name=$1 limit=$2
    shift 2
    timeout "$limit" "$@" > "$logs/$name.log" 2>&1 &
    running[$name]=$!
}

tests=$build/tests
mapfile -t kernels < <(grep -E '^ *\{"cuda_' kernels/fa_plan.c | grep -oE '^[^,]*' |
    grep -oE 'cuda_[a-z0-9_]+')
part tests 300 "$tests/fa_tests" --jobs 4
for kernel in "${kernels[@]}"; do
    part "cases-$kernel" 300 "$tests/fa_case" --all device=cuda kernel="$kernel"
done
# B18 in tests/CASES.md, as large as reported.
large="id=B18 device=cuda dtype=bf16 d=64 q=46400 kv=46400 rows=0,1,46340,46341,46399"
part large 300 "$tests/fa_case" "$large" "$large v=one"
for seed in 11 12 13 14 15 16; do
    part "fuzz-$seed" 150 "$tests/fa_fuzz" device=cuda seconds=60 seed=$seed
done
# Every compiled kernel once: each family, dtype and head_dim, 4 to 516 rows of a KV head, keys at
# the edges of a tile; and the reported lines.
mapfile -t every < <(for kernel in "${kernels[@]}"; do
    for shape in d={64,128}\ q={1,65}\ kv={1,64,65,193} \
        d={64,96,128,192,256}\ q={1,2,4,16,129}\ kv=193; do
        echo "device=cuda kernel=$kernel hq=8 hkv=2 dtype=f16 $shape"
        echo "device=cuda kernel=$kernel hq=8 hkv=2 dtype=bf16 $shape"
    done
done)
mapfile -t reported < <("$tests/fa_case" --list | grep -E '^id=(B35|B62|B95) ' |
    sed 's/$/ device=cuda/')
reported+=("id=B103 device=cuda dtype=bf16 hq=32 hkv=4 d=192 q=3 kv=512")
for tool in memcheck initcheck synccheck racecheck; do
    part "$tool-every" 400 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$tests/fa_case" "${every[@]}" "${reported[@]}"
done
# racecheck is some ten times slower than the others.
for tool in memcheck:150 initcheck:150 synccheck:150 racecheck:40; do
    part "${tool%:*}" 300 compute-sanitizer --tool "${tool%:*}" --error-exitcode 9 \
        "$tests/fa_fuzz" device=cuda seconds=200 seed=5 calls="${tool#*:}"
done
part conform 300 "$tests/fa_conform" "$build/libfa_fwd_causal_shared.so" device=cuda \
    out="$logs/conform"
# Peers, each where installed; their verdicts are a record and no fault of this library.
part peers 200 python3 tests/adapters/record.py "$build" "$logs/peers.csv" device=cuda fuzz=100 \
    jobs=5 seconds=150 library torch_sdpa torch_flash2 torch_cudnn flash3
part mutants 300 python3 tests/mutants/cuda_mutants.py . --judge "$tests/fa_case" "$build/mutants"
part builds 400 python3 tests/mutants/cuda_builds.py . --judge "$tests" "$build/builds"
part calls 300 "$tests/fa_cuda_calls" seconds=60
part checks 500 python3 tests/cuda_checks.py "$build/libfa_fwd_causal_shared.so" "${kernels[@]}"

failed=0
report() {
    local name=$1
    if wait "${running[$name]}"; then
        echo "passed  $name: $(tail -1 "$logs/$name.log" | cut -c1-150)"
    else
        echo "FAILED  $name ($?), $logs/$name.log:"
        grep -E 'WRONG|FALSE|FAIL|CRASH|ERROR SUMMARY|=========|Error' "$logs/$name.log" | head -5
        failed=1
    fi
}
for name in "${!running[@]}"; do
    report "$name"
done
# Alone, for others would take their share of the memory's rate.
part speed 200 python3 tests/cuda_speed.py "$build/libfa_fwd_causal_shared.so" "$build"
report speed
grep '^OPEN' "$logs/speed.log"
echo "all in $SECONDS s"
exit $failed
