/* test_limits.c - calls at the very edge of what is legal: they must be right, not refused.
 *
 * The other side of the edge is test_bad_input.c. Ids name reported faults of other libraries
 * (CASES.md). It changes when a limit of the contract does. */
#include <limits.h>

#include "expect.h"

/* B24: strides of dimensions of size 1 mean nothing, however large. */
Test(limits, strides_of_single_rows_and_batches_are_ignored) {
    expect_same_with("id=B24 dtype=f16 hq=8 hkv=8 q=1 kv=33 d=64",
                     "Q=bshd:S7:B4611686018427387904 O=bshd:S7:B4611686018427387904 "
                     "K=bshd:B3 V=bshd:B3",
                     "strides that are ignored");
    expect_same_with("id=B24 dtype=f32 hq=1 hkv=1 q=3 kv=1 d=64",
                     "Q=bshd:H-9223372036854775807 O=bshd:H0 K=bshd:S9223372036854775807 L=bhsd:H0",
                     "strides that are ignored");
}

/* B31, B32: any address and pitch aligned to the element; the kernel family says whether the bits
 * may depend on it, and on the CPU they do not. */
Test(limits, element_aligned_addresses_and_odd_pitches_change_no_bit) {
    static const char *const views[] = {"p4", "p1", "p2", "s1", "s2", "s4", "p1:s1"};
    static const char tensors[] = "QKVOL";
    for (int dtype = 0; dtype < 2; dtype++)
        for (int t = 0; tensors[t]; t++)
            for (size_t v = 0; v < sizeof views / sizeof *views; v++) {
                char line[128], more[32];
                snprintf(line, sizeof line, "id=B31 dtype=%s hq=4 hkv=2 q=17 kv=65 d=128 splits=1",
                         dtype ? "f32" : "f16");
                snprintf(more, sizeof more, "%c=bshd:%s", tensors[t], views[v]);
                expect_same_with(line, more, "an address or a pitch");
            }
}

/* B32, B40: every head_dim from 1 to 512. */
Test(limits, any_head_dim_of_the_cpu) {
    static const int32_t dims[] = {1, 2, 3, 7, 9, 46, 63, 65, 100, 255, 257, 264, 511, 512};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int dtype = 0; dtype < 3; dtype++)
            expect_line("id=B40 dtype=%s b=2 hq=2 hkv=2 q=9 kv=70 d=%d",
                        dtype == 0 ? "f32" : (dtype == 1 ? "f16" : "bf16"), dims[i]);
    expect_line("id=B40 dtype=f16 b=2 hq=4 hkv=4 q=4095 kv=4095 d=63 rows=0,1,63,64,2047,4094");
    expect_line("id=B40 dtype=f16 b=2 hq=4 hkv=4 q=4095 kv=4095 d=65 rows=0,1,63,64,2047,4094");
}

/* B49, B50: zero sizes are legal with null pointers. Without rows nothing is written; without keys
 * all rows are empty. */
Test(limits, zero_sizes) {
    static const char *const sizes[] = {"b=2 q=0 kv=4096", "b=0 q=64 kv=4096", "b=2 q=64 kv=0",
                                        "b=2 q=0 kv=0"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int splits = 0; splits <= 4; splits += splits ? 3 : 1) {
            expect_line("id=B49 dtype=bf16 hq=4 hkv=2 d=64 splits=%d %s", splits, sizes[i]);
            expect_line("id=B49 dtype=f32 hq=4 hkv=2 d=64 splits=%d %s page=16", splits, sizes[i]);
        }
    expect_line("id=B49 dtype=f16 b=3 hq=4 hkv=2 q=64 kv=64 qr=c kr=c qs=0 ks=0 slack=0");
    expect_line("id=B49 dtype=f16 b=3 hq=4 hkv=2 q=64 kv=64 qr=c kr=c qs=5 ks=0 slack=0");
    expect_line("id=B49 dtype=f16 b=3 hq=4 hkv=2 q=64 kv=64 qr=c kr=c qs=0 ks=5");
    expect_line("id=B50 dtype=f16 b=7 hq=9 hkv=9 q=0 kv=0 d=32");
    expect_line("id=B50 dtype=f16 b=0 hq=10 hkv=10 q=3952 kv=16 d=64");
}

/* B59: no offset is a secret code for "none given". */
Test(limits, any_causal_offset) {
    const char *const line = "id=B59 dtype=f32 b=2 hq=2 hkv=2 q=4 kv=6 d=32";
    static const int32_t offsets[] = {0, -1, -4, INT_MIN, INT_MAX};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        expect_line("%s align=given offset=%d", line, offsets[i]);
    expect_line("%s align=given offsets=%d,%d", line, INT_MIN, INT_MAX);
    expect_same_with(line, "align=given offset=2", "bottom-right, said explicitly");
    char all[128];
    snprintf(all, sizeof all, "%s align=given offset=6", line);
    expect_same_with(all, "offset=2147483647", "offsets beyond the last key");
    snprintf(all, sizeof all, "%s align=given offset=-4", line);
    const test_case none = case_of("%s", all);
    case_result r = expect_case(&none);
    for (int64_t at = 0; r.ok && at < r.rows * 2; at++)
        cr_expect(isinf(r.lse[at]) && r.lse[at] < 0, "lse %lld is %g", (long long)at,
                  (double)r.lse[at]);
    case_result_free(&r);
}

/* B75: the largest and smallest lengths and paddings that an array may hold. */
Test(limits, lengths_from_nothing_to_the_capacity) {
    expect_line("id=B75 dtype=f16 b=3 hq=2 hkv=1 q=5 kv=40 kr=u ks=0,40,1");
    expect_line("id=B75 dtype=f16 b=3 hq=2 hkv=1 q=5 kv=40 kr=ul ks=0,40,1 kp=40,0,39");
    expect_line("id=B75 dtype=f16 b=3 hq=2 hkv=1 q=5 kv=40 qr=ul qs=0,5,1 qp=5,0,4");
    expect_line("id=B75 dtype=f16 b=3 hq=2 hkv=1 q=5 kv=40 kr=l ks=0,40,1");
    expect_line("id=B75 dtype=f16 b=3 hq=2 hkv=1 q=5 kv=40 qr=cul kr=cul qs=0,5,1 ks=40,0,3");
}

/* B74, B77: any page size from 1. Entries that hold no key of their sequence are absurd on purpose
 * (cases_call.c), and are not looked at. */
Test(limits, any_page_size) {
    static const int32_t pages[] = {1, 3, 16, 19, 48, 96};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        for (int splits = 0; splits <= 5; splits += splits ? 4 : 1) {
            expect_line("id=B77 dtype=bf16 b=2 hq=4 hkv=2 q=3 kv=130 kr=u ks=130,77 page=%d "
                        "splits=%d",
                        pages[i], splits);
            expect_line("id=B77 dtype=bf16 hq=2 hkv=1 q=1 kv=8192 page=%d splits=%d", pages[i],
                        splits);
        }
}

/* B87: 0 and -0 are the default; the smallest and the largest are taken as they are. */
Test(limits, any_positive_scale) {
    const char *const lines[] = {"id=B87 dtype=f32 hq=2 hkv=2 q=5 kv=9 d=48",
                                 "id=B87 dtype=bf16 b=2 hq=2 hkv=2 q=5 kv=65 d=48 kr=u ks=65,33"};
    for (int i = 0; i < 2; i++) {
        expect_same_with(lines[i], "scale=-0", "-0 and the default scale");
        expect_line("%s scale=1e-30", lines[i]);
        expect_line("%s scale=1e30", lines[i]);
        expect_line("%s scale=1e-45", lines[i]);
    }
}

/* B101: exactly the bytes that the query asks for, between guards. */
Test(limits, a_workspace_of_exactly_the_size_asked_for) {
    expect_line("id=B101 dtype=f16 b=8 hq=64 hkv=1 q=1 kv=1000 d=64 splits=8");
    expect_line("id=B101 dtype=f32 b=3 hq=5 hkv=5 q=7 kv=100 d=9 split_keys=33");
    expect_line("id=B101 dtype=f32 hq=1 hkv=1 q=1 kv=1 d=1 splits=1024");
}
