/* fa_tests.c - runs the Criterion suites and prints what they compared. */
#define _GNU_SOURCE /* setenv */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "counts.h"

int main(int argc, char **argv) {
    counts_begin();
    /* Tests run side by side, each a process: idle threads of one must not spin in another's way.
     */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    struct criterion_test_set *tests = criterion_initialize();
    int passed = 1;
    if (criterion_handle_args(argc, argv, true)) passed = criterion_run_all_tests(tests);
    criterion_finalize(tests);
    const counts sum = counts_sum();
    printf("%lld cases, %lld values compared with the oracle, %lld cells of the truth table\n",
           (long long)sum.cases, (long long)sum.elements, (long long)sum.cells);
    return !passed;
}
