/* test_workspace.c - one workspace, zero-filled once, serves any sequence of calls.
 *
 * The contract: each completed call leaves it ready for the next, whatever that one's shape. Every
 * call is judged by the oracle and has the bits of the same call with a fresh workspace. This file
 * changes when the workspace's contract does. */
#include <stdlib.h>

#include "expect.h"

enum { kBytes = 1 << 26 };

/* Control words of one call lie where another has partial results, in both directions. */
static const char *const calls[] = {
    "b=1 hq=8 hkv=2 d=64 q=1 kv=500 splits=4",
    "b=64 hq=8 hkv=2 d=64 q=1 kv=200 splits=4 rows=0",
    "b=2 hq=4 hkv=2 d=64 q=150 kv=300 splits=5 rows=0,1,64,149",
    "b=1 hq=8 hkv=2 d=64 q=1 kv=500 splits=4",
    "b=3 hq=4 hkv=4 d=64 q=17 kv=333 split_keys=50",
    "b=2 hq=6 hkv=2 d=192 q=5 kv=400 splits=7",
    "b=3 hq=4 hkv=1 d=128 q=3 kv=300 splits=33 kr=u ks=300,0,5 page=16",
    "b=64 hq=8 hkv=2 d=64 q=1 kv=200 splits=4 rows=0",
    "b=1 hq=8 hkv=2 d=64 q=1 kv=500 splits=4",
};

static void call_with(void *workspace, const test_case *c) {
    char why[CASE_LINE_MAX];
    case_result fresh = expect_case(c), reused = {0};
    case_bed *bed = case_open(c, why, sizeof why);
    size_t bytes = 0;
    cr_assert(bed, "%s", why);
    cr_assert(subject_get()->workspace(case_args(bed), &bytes) == FA_OK);
    cr_assert(bytes > 0 && bytes <= kBytes, "%zu bytes", bytes);
    case_args(bed)->workspace = workspace;
    case_args(bed)->workspace_size = kBytes;
    cr_assert(case_call(bed, subject_get()) == FA_OK, "%s", subject_get()->last_error());
    cr_expect(case_judge(bed, &reused), "%s", reused.why);
    expect_same(c, &fresh, &reused, "a workspace that other calls used, and a fresh one");
    case_close(bed);
    case_result_free(&fresh);
    case_result_free(&reused);
}

Test(workspace, one_serves_calls_of_any_shape_in_turn) {
    char prefix[64];
    for (int n = 0; expect_path(n, prefix); ++n) {
        const test_case first = case_of("%s %s", prefix, calls[0]);
        const memory *m = memory_of((fa_device)first.device);
        void *workspace = m->alloc(kBytes), *zeros = calloc(1, kBytes);
        cr_assert(workspace && zeros);
        m->upload(workspace, zeros, kBytes);
        for (size_t at = 0; at < sizeof calls / sizeof *calls; ++at) {
            const test_case c = case_of("%s %s", prefix, calls[at]);
            call_with(workspace, &c);
        }
        m->free(workspace, kBytes);
        free(zeros);
    }
}
