/* fa_case.c - runs cases by their lines, without the test framework: to reproduce one failure, and
 * to run the whole list under a sanitizer, on a device, or against another library.
 *
 *     fa_case LINE...              each LINE is a case
 *     fa_case --all [KEY=VALUE...] the list of cases.c, each with these keys added; on a GPU
 *                                  without the cases that the contract gives to the CPU alone
 *     fa_case --list               prints the list
 *
 * FA_SUBJECT names the library. Exits with 0 when every case is right, else with 1. */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "counts.h"

static bool run_line(const char *line) {
    char why[CASE_LINE_MAX], text[CASE_LINE_MAX];
    test_case c;
    if (!case_parse(line, &c, why, sizeof why)) {
        printf("WRONG: %s in '%s'\n", why, line);
        return false;
    }
    case_result r;
    const bool ok = case_run(subject_get(), &c, &r);
    compare_print(&r.report, text, sizeof text);
    if (ok)
        printf("%s\n    %s: %s\n", line, r.kernel, text);
    else
        printf("WRONG: %s\n", r.why);
    case_result_free(&r);
    return ok;
}

static int run_list(int words, char **word) {
    int bad = 0;
    for (int i = 0; i < case_line_count; ++i) {
        char line[2 * CASE_LINE_MAX];
        snprintf(line, sizeof line, "%s", case_lines[i]);
        for (int w = 0; w < words; ++w) {
            const size_t used = strlen(line);
            snprintf(line + used, sizeof line - used, " %s", word[w]);
        }
        const test_case c = case_of("%s", line);
        if (case_fits_device(&c)) bad += !run_line(line);
    }
    return bad;
}

static bool list_has_device(int words, char **word) {
    for (int w = 0; w < words; ++w)
        if (strcmp(word[w], "device=cuda") == 0) return memory_of(FA_DEVICE_CUDA) != NULL;
    return true;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: fa_case LINE... | --all [KEY=VALUE...] | --list\n");
        return 2;
    }
    int bad = 0;
    counts_begin();
    if (strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < case_line_count; ++i) puts(case_lines[i]);
        counts_sum();
        return 0;
    }
    if (strcmp(argv[1], "--all") == 0 && !list_has_device(argc - 2, argv + 2)) {
        puts(MEMORY_NO_DEVICE);
        counts_sum();
        return MEMORY_SKIPPED;
    }
    if (strcmp(argv[1], "--all") == 0)
        bad = run_list(argc - 2, argv + 2);
    else
        for (int i = 1; i < argc; ++i) bad += !run_line(argv[i]);
    const counts sum = counts_sum();
    printf("%lld cases, %lld values compared, %d wrong, subject %s\n", (long long)sum.cases,
           (long long)sum.elements, bad, subject_get()->path);
    return bad > 0;
}
