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
#include "fa_dtype.h"

/* FNV-1a of o and lse, so that runs can be compared by their output. */
static uint64_t bits_of(const test_case *c, const case_result *r) {
    const size_t values = (size_t)(r->rows * c->heads_q);
    const size_t bytes[] = {values * (size_t)c->head_dim * (size_t)fa_dtype_size(c->dtype),
                            r->lse ? values * sizeof *r->lse : 0};
    const unsigned char *const data[] = {r->o, (const unsigned char *)r->lse};
    uint64_t hash = 14695981039346656037u;
    for (int part = 0; part < 2; ++part)
        for (size_t at = 0; at < bytes[part]; ++at) hash = (hash ^ data[part][at]) * 1099511628211u;
    return hash;
}

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
        printf("%s\n    %s, bits %016llx: %s\n", line, r.kernel,
               (unsigned long long)bits_of(&c, &r), text);
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
