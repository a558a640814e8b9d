#!/bin/sh
# The ways in which another project takes this library in, each tried for real.
#
#   vendor.sh IDEA SOURCE_DIR WORK_DIR      IDEA: a function below; WORK_DIR is emptied
#
# Every idea ends in a program that runs.
set -eu
idea=$1
top=$2
work=$3
cc=${CC:-cc}
cxx=${CXX:-c++}
strict="-Wall -Wextra -Wpedantic -Wshadow -Werror"
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)

rm -rf "$work"
mkdir -p "$work"
cd "$work"

say() { echo "== $*"; }
fail() {
    echo "FAILED: $*"
    exit 1
}
quietly() { "$@" >log 2>&1 || { cat log; fail "$*"; }; }

# What a vendor copies, and nothing else.
copy() {
    mkdir copied
    cp -r "$top/include" "$top/kernels" copied/
    cp "$top/examples/hello.c" copied/main.c
}

# The README's build line, the one that begins with $1, exactly as it stands there.
readme_line() {
    line=$(grep "^$1 " "$top/README.md") || fail "README.md has no line that begins with $1"
    [ "$(echo "$line" | wc -l)" = 1 ] || fail "README.md has several lines that begin with $1"
    say "$line"
    sh -ec "$line"
}

plain_cc() {
    copy
    cd copied
    readme_line cc
    ./main
}

plain_nvcc() {
    [ -n "$nvcc" ] || fail "no nvcc here"
    copy
    cd copied
    PATH=$(dirname "$nvcc"):$PATH
    readme_line nvcc
    ./main
}

consumer() { # consumer DIR LINES: a project whose program is linked by CMake
    mkdir "$1"
    cp "$top/examples/hello.c" "$1/main.c"
    cat >"$1/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
$2
add_executable(main main.c)
target_link_libraries(main fa_fwd_causal::fa_fwd_causal -lm)
END
}

subdirectory() {
    consumer project "add_subdirectory(\"$top\" fa)"
    quietly cmake -S project -B build -DCMAKE_BUILD_TYPE=Release -DFA_CUDA=OFF
    quietly cmake --build build
    build/main
    for extra in fa/tests fa/bench fa/examples; do
        [ ! -e build/$extra ] || fail "the tests, the bench or the examples came along: $extra"
    done
}

# install_to PREFIX OPTION...: unoptimised, because it is quicker; plain_cc and subdirectory
# optimise.
install_to() {
    prefix=$PWD/$1
    shift
    quietly cmake -S "$top" -B "build-$(basename "$prefix")" -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_BUILD_TYPE=Debug -DFA_TESTS=OFF -DFA_BENCH=OFF -DFA_CUDA=OFF "$@"
    quietly cmake --build "build-$(basename "$prefix")" --target install
}

find_package() {
    for shared in OFF ON; do
        say "BUILD_SHARED_LIBS=$shared"
        install_to prefix-$shared -DBUILD_SHARED_LIBS=$shared
        consumer project-$shared "find_package(fa_fwd_causal 0.1 REQUIRED)"
        quietly cmake -S project-$shared -B out-$shared -DCMAKE_PREFIX_PATH="$PWD/prefix-$shared"
        quietly cmake --build out-$shared
        out-$shared/main
    done
}

pkg_config() {
    for shared in OFF ON; do
        install_to prefix-$shared -DBUILD_SHARED_LIBS=$shared
        PKG_CONFIG_PATH=$(dirname "$(find "$PWD/prefix-$shared" -name '*.pc')")
        export PKG_CONFIG_PATH
        flags=$(pkg-config --cflags --libs fa_fwd_causal)
        say "BUILD_SHARED_LIBS=$shared: version $(pkg-config --modversion fa_fwd_causal), $flags"
        $cc "$top/examples/hello.c" $flags -lm -o main-$shared
        LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH") ./main-$shared
    done
}

# Twice in one file, alone, in both languages; the linkage is tested by calling it.
header() {
    cat >once.c <<'END'
#include "fa_fwd_causal.h"
#include "fa_fwd_causal.h"
FA_REQUIRE_VERSION(0, 1);
int main(void) {
    fa_args a = fa_args_default();
    a.q = fa_bshd(&a, 1, 1, 8);
    a.k = fa_bhsd(&a, 1, 1, 8);
    return fa_version() == FA_VERSION && a.version == FA_VERSION && fa_fwd_causal(&a, NULL) ? 0 : 1;
}
END
    sed 's/FA_REQUIRE_VERSION(0, 1)/FA_REQUIRE_VERSION(0, 999)/' once.c >newer.c
    cp once.c once.cpp
    install_to prefix -DFA_OPENMP=OFF
    library=$(find "$PWD/prefix" -name '*.a')
    for compiler in "$cc" clang; do
        command -v $compiler >/dev/null || continue
        for standard in c99 c11 c17; do
            say "$compiler -std=$standard"
            $compiler -std=$standard $strict -I"$top/include" once.c "$library" -lm -o once
            ./once
        done
    done
    for compiler in "$cxx" clang++; do
        command -v $compiler >/dev/null || continue
        for standard in c++17 c++20; do
            say "$compiler -std=$standard"
            $compiler -std=$standard $strict -I"$top/include" once.cpp "$library" -lm -o once
            ./once
        done
    done
    ! $cc -I"$top/include" -c newer.c 2>/dev/null || fail "FA_REQUIRE_VERSION(0, 999) compiled"
}

# The sources are C99 for a strict compiler, too.
c99_sources() {
    for compiler in "$cc" clang; do
        command -v $compiler >/dev/null || continue
        for file in "$top"/kernels/*.c "$top"/kernels/cpu/*.c; do
            $compiler -std=c99 $strict -I"$top/include" -I"$top/kernels" -fsyntax-only "$file"
        done
        files=$(ls "$top"/kernels/*.c "$top"/kernels/cpu/*.c | wc -l)
        say "$compiler -std=c99 $strict: $files files"
    done
}

# The functions that the header declares are the symbols that the shared library exports.
symbols() {
    grep -E '^FA_API ' "$top/include/fa_fwd_causal.h" | sed -E 's/.*[ *](fa_[a-z_]+)\(.*/\1/' |
        sort >documented
    install_to prefix -DBUILD_SHARED_LIBS=ON
    nm -D --defined-only "$(find "$PWD/prefix" -name '*.so')" | awk '{ print $NF }' | sort >exported
    say "documented and exported: $(tr '\n' ' ' <documented)"
    diff documented exported || fail "the exported symbols are not the documented ones"
    [ "$(wc -l <documented)" = 6 ] || fail "the contract has 6 functions"
}

# Two versions in one program; the second one says 0.1.999 so that they can be told apart.
prefixes() {
    copy
    mv copied one
    cp -r one two
    sed -i 's/\(define FA_VERSION_PATCH\) .*/\1 999/' two/include/fa_fwd_causal.h
    for which in one two; do
        cat >$which.c <<END
#include <stdio.h>
#include "fa_fwd_causal.h"
int ${which}_version(void);
int ${which}_version(void) {
    fa_args a = fa_args_default();
    const fa_status status = fa_fwd_causal(&a, NULL);
    printf("$which: %d, %s: %s\n", (int)fa_version(), fa_status_string(status), fa_last_error());
    return (int)fa_version();
}
END
        mkdir obj-$which
        (cd obj-$which && $cc -DFA_PREFIX=${which}_ -I../$which/include -I../$which/kernels -c \
            ../$which.c ../$which/kernels/*.c ../$which/kernels/cpu/*.c)
        ar rcs lib$which.a obj-$which/*.o
    done
    cat >main.c <<'END'
int one_version(void);
int two_version(void);
int main(void) { return two_version() % 1000 == 999 && one_version() % 1000 != 999 ? 0 : 1; }
END
    $cc main.c -L. -lone -ltwo -lm -o main
    ./main
    $cc -static main.c -L. -lone -ltwo -lm -o main-static
    ./main-static
    # Nothing non-static escapes the prefix.
    nm -g --defined-only libone.a | awk 'NF == 3 { print $3 }' | grep -v '^one_' &&
        fail "symbols without the prefix" || say "every symbol of the library has the prefix"
}

# One head_dim and one image: the planner refuses what was left out, asked about a made-up card so
# that no GPU is needed, and the program still runs.
one_head_dim() {
    say "-DFA_CUDA=ON -DFA_HEAD_DIMS=128 -DFA_CUDA_ARCHS=80-real"
    install_to one-dim -DFA_CUDA=ON -DFA_HEAD_DIMS=128 -DFA_CUDA_ARCHS=80-real
    library=$(find "$PWD/one-dim" -name '*.a')
    images=$(grep -rhoE 'code=\[?(sm|compute)_[0-9a-z]+' build-one-dim --include=flags.make |
        sort -u)
    [ "$images" = "code=[sm_80" ] || [ "$images" = "code=sm_80" ] || fail "images: $images"
    cat >plan.c <<'END'
#include <stdio.h>
#include "fa_internal.h"
int main(void) {
    const fai_machine card = {.device = FA_DEVICE_CUDA, .cc = 80, .sm_count = 108,
                              .smem_bytes = 163 * 1024};
    int wrong = 0;
    for (int32_t dim = 8; dim <= 256; dim += 8) {
        fa_args a = fa_args_default();
        fai_plan p = {0};
        a.device = FA_DEVICE_CUDA;
        a.dtype = FA_DTYPE_BF16;
        a.batch = a.heads_q = a.heads_kv = a.q_len = a.kv_len = 1;
        a.head_dim = dim;
        const int planned = fai_plan_cuda_sm80(&a, &card, &p);
        const int built = dim > 96 && dim <= 128;
        if (planned == built && (built || p.refusal == FA_ERR_NOT_BUILT)) continue;
        printf("head_dim %d: planned %d, refusal %d\n", (int)dim, planned, (int)p.refusal);
        wrong = 1;
    }
    return wrong;
}
END
    $cc -DFA_WITH_CUDA -I"$top/include" -I"$top/kernels" -c plan.c
    "$nvcc" plan.o "$library" -Xcompiler -fopenmp -lm -o plan
    ./plan
    "$nvcc" -I"$top/include" "$top/examples/hello.c" "$library" -Xcompiler -fopenmp -lm -o main
    ./main
}

# Each option that leaves something out still gives a library that works.
subsets() {
    for options in -DFA_OPENMP=OFF -DFA_TEST_HOOKS=ON; do
        say "$options"
        name=subset$(echo "$options" | tr -dc 'A-Z')
        install_to "$name" $options
        library=$(find "$PWD/$name" -name '*.a')
        $cc "$top/examples/hello.c" -I"$name/include" "$library" -fopenmp -lm -o "$name/main"
        "$name/main"
        omp=$(nm "$library" | grep -c GOMP_ || true)
        [ "$options" != -DFA_OPENMP=OFF ] || [ "$omp" = 0 ] || fail "OpenMP is still asked for"
    done
    if [ -n "$nvcc" ]; then
        one_head_dim
    else
        ! cmake -S "$top" -B no-nvcc -DFA_TESTS=OFF -DFA_BENCH=OFF -DFA_CUDA=ON >log 2>&1 ||
            fail "FA_CUDA=ON configures without nvcc"
        grep -q "there is no nvcc" log || fail "FA_CUDA=ON does not say what is missing"
    fi
}

# Seconds, compiler memory and object bytes of every file, one after the other, and their bounds.
budget() {
    python3 "$top/tests/vendor/budget.py" "$cc" "$top"
}

$idea
