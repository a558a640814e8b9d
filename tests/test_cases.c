/* test_cases.c - the case list on every kernel path, and its text form. */
#include "expect.h"

/* A line on a device by the library's own choice, then on every other path. A forced path may
 * refuse a call that it is not made for; the library's own choice may not. Rows times keys beyond
 * 2^31 meet the same 64-bit addressing on every path, and one takes seconds. */
static void run_everywhere(const subject *s, fa_device device, const char *line) {
    const char *paths[SUBJECT_MAX_PATHS];
    const int count = subject_paths(s, device, paths);
    test_case c = case_of("%s", line);
    c.device = device;
    if (!memory_of(device) || !case_fits_device(&c)) return;
    case_result first = expect_case(&c);
    for (int path = 1; path < count && (int64_t)c.q_len * c.kv_len < 1 << 30; ++path) {
        if (strcmp(paths[path], first.kernel) == 0) continue;
        snprintf(c.kernel, sizeof c.kernel, "%s", paths[path]);
        case_result r;
        const bool ok = case_run(s, &c, &r);
        cr_expect(ok || r.status == FA_ERR_UNSUPPORTED, "%s", r.why);
        case_result_free(&r);
    }
    case_result_free(&first);
}

/* One part of the list, so that parts run side by side. */
static void run_part(int part, int parts) {
    for (int i = part; i < case_line_count; i += parts)
        for (fa_device device = FA_DEVICE_CPU; device <= FA_DEVICE_CUDA; ++device)
            run_everywhere(subject_get(), device, case_lines[i]);
}

Test(cases, list_part_1_of_4) { run_part(0, 4); }
Test(cases, list_part_2_of_4) { run_part(1, 4); }
Test(cases, list_part_3_of_4) { run_part(2, 4); }
Test(cases, list_part_4_of_4) { run_part(3, 4); }

Test(cases, line_says_everything_about_its_case) {
    char line[CASE_LINE_MAX], why[CASE_LINE_MAX];
    for (int i = 0; i < case_line_count; ++i) {
        const test_case c = case_of("%s", case_lines[i]);
        test_case again;
        case_print(&c, line, sizeof line);
        cr_expect(case_parse(line, &again, why, sizeof why), "%s", why);
        cr_expect(memcmp(&c, &again, sizeof c) == 0, "'%s' is printed as '%s'", case_lines[i],
                  line);
    }
}

Test(cases, wrong_lines_are_refused) {
    static const char *const wrong[] = {
        "b",      "b=",   "b=x",     "b=1x",  "nokey=1",  "dtype=f8", "Q=bhsd:",    "Q=bhsd:z1",
        "Q=sbhd", "qr=x", "qs=1,,2", "qs=1,", "scale=1,", "in=odd",   "K=bshd:p1x", "dtype="};
    char why[CASE_LINE_MAX];
    test_case c;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
        cr_expect(!case_parse(wrong[i], &c, why, sizeof why), "'%s' is taken", wrong[i]);
}

/* The harness itself must see a byte written where none may be, in every gap there is. */
Test(cases, write_outside_the_owned_rows_is_seen) {
    const test_case c = case_of("b=2 hq=2 hkv=2 d=8 q=3 kv=5 O=bhsd:p4 L=bhsd qr=u qs=2 kr=u ks=4");
    char why[CASE_LINE_MAX];
    for (int place = 0; place < 4; ++place) {
        case_bed *bed = case_open(&c, why, sizeof why);
        cr_assert(bed, "%s", why);
        cr_assert(case_call(bed, subject_get()) == FA_OK);
        cr_expect(case_untouched(bed, false, why, sizeof why), "%s", why);
        cr_expect(!case_untouched(bed, true, why, sizeof why), "the call wrote nothing");
        unsigned char *row = (unsigned char *)case_row_after(bed, TENSOR_O, 1, 1, 1);
        row[place == 0 ? 32 : (place == 1 ? -1 : (place == 2 ? 48 : 100))] ^= 1;
        cr_expect(!case_untouched(bed, false, why, sizeof why), "place %d is not seen", place);
        case_close(bed);
    }
}
