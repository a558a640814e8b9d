/* conform_report.c - what a run of fa_conform writes: TAP, JUnit XML, JSON, a summary in words. */
#include <stdio.h>
#include <string.h>

#include "conform.h"

const char *conform_section_name(conform_section section) {
    static const char *const names[] = {"cases", "identities", "fuzz", "errors"};
    return names[section];
}

static const char *state_name(conform_state state) {
    static const char *const names[] = {"not run", "right", "dialect", "unsupported", "wrong"};
    return names[state];
}

/* Items of a section (CONFORM_SECTIONS: of all) in a state. */
static int tally(const conform_run *run, int section, conform_state state) {
    int count = 0;
    for (int i = 0; i < run->count; i++)
        count += run->item[i].state == state &&
                 (section == CONFORM_SECTIONS || (int)run->item[i].section == section);
    return count;
}

static int tally_difference(const conform_run *run, int bit) {
    int count = 0;
    for (int i = 0; i < run->count; i++) count += (run->item[i].dialect & bit) != 0;
    return count;
}

/* An item that was not run is no success: a child died too often. */
int conform_verdict(const conform_run *run) {
    const int all = CONFORM_SECTIONS;
    if (run->count == 0 || tally(run, all, CONFORM_WRONG) || tally(run, all, CONFORM_NOT_RUN))
        return 1;
    /* A library that refuses everything has shown nothing. */
    if (!tally(run, all, CONFORM_RIGHT) && !tally(run, all, CONFORM_DIALECT)) return 1;
    return tally(run, all, CONFORM_DIALECT) || tally(run, all, CONFORM_UNSUPPORTED) ? 3 : 0;
}

static const char *verdict_name(int verdict) {
    return verdict == 0 ? "CONFORMS" : (verdict == 3 ? "CONFORMS IN ITS DIALECT" : "FAILS");
}

static void put_differences(FILE *out, int bits, const char *between) {
    bool first = true;
    for (int n = 0; n < CONFORM_DIFFERENCES; n++) {
        if (!(bits & conform_differences[n].bit)) continue;
        fprintf(out, "%s%s", first ? "" : between, conform_differences[n].name);
        first = false;
    }
}

/* ---- TAP ---- */

static void put_tap(FILE *out, const conform_run *run) {
    fprintf(out, "TAP version 14\n1..%d\n", run->count);
    for (int i = 0; i < run->count; i++) {
        const conform_item *item = &run->item[i];
        const bool ok = item->state != CONFORM_WRONG && item->state != CONFORM_NOT_RUN;
        fprintf(out, "%sok %d - %s", ok ? "" : "not ", i + 1, item->name);
        if (item->state == CONFORM_UNSUPPORTED) fprintf(out, " # SKIP %s", item->why);
        fputc('\n', out);
        if (item->state == CONFORM_DIALECT) {
            fputs("# in its dialect: ", out);
            put_differences(out, item->dialect, ", ");
            fputc('\n', out);
        }
        if (!ok) fprintf(out, "# %s\n# %s\n", item->why, item->repeat);
    }
}

/* ---- JUnit ---- */

static void put_xml(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else
            fputc((unsigned char)*text < 32 ? ' ' : *text, out);
    }
}

static void put_junit_case(FILE *out, const conform_item *item) {
    fprintf(out, "    <testcase classname=\"%s\" name=\"", conform_section_name(item->section));
    put_xml(out, item->name);
    fprintf(out, "\" time=\"%.6f\">", item->milliseconds / 1e3);
    if (item->state == CONFORM_WRONG || item->state == CONFORM_NOT_RUN) {
        fputs("<failure message=\"", out);
        put_xml(out, item->state == CONFORM_WRONG ? item->why : "not run");
        fputs("\">", out);
        put_xml(out, item->repeat);
        fputs("</failure>", out);
    } else if (item->state == CONFORM_UNSUPPORTED) {
        fputs("<skipped message=\"", out);
        put_xml(out, item->why);
        fputs("\"/>", out);
    } else if (item->state == CONFORM_DIALECT) {
        fputs("<system-out>in its dialect: ", out);
        put_differences(out, item->dialect, ", ");
        fputs("</system-out>", out);
    }
    fputs("</testcase>\n", out);
}

static void put_junit(FILE *out, const conform_run *run) {
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"fa_conform\">\n", out);
    for (int s = 0; s < CONFORM_SECTIONS; s++) {
        int tests = 0;
        for (int i = 0; i < run->count; i++) tests += (int)run->item[i].section == s;
        fprintf(out, "  <testsuite name=\"%s\" tests=\"%d\" failures=\"%d\" skipped=\"%d\">\n",
                conform_section_name((conform_section)s), tests,
                tally(run, s, CONFORM_WRONG) + tally(run, s, CONFORM_NOT_RUN),
                tally(run, s, CONFORM_UNSUPPORTED));
        for (int i = 0; i < run->count; i++)
            if ((int)run->item[i].section == s) put_junit_case(out, &run->item[i]);
        fputs("  </testsuite>\n", out);
    }
    fputs("</testsuites>\n", out);
}

/* ---- JSON ---- */

static void put_json_text(FILE *out, const char *key, const char *text, const char *after) {
    fprintf(out, "\"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc((unsigned char)*text < 32 ? ' ' : *text, out);
    }
    fprintf(out, "\"%s", after);
}

static void put_json(FILE *out, const conform_run *run) {
    fputs("{\n  ", out);
    put_json_text(out, "library", run->library, ",\n  ");
    put_json_text(out, "device", run->device == FA_DEVICE_CUDA ? "cuda" : "cpu", ",\n  ");
    put_json_text(out, "kernel", run->kernel, ",\n  ");
    put_json_text(out, "verdict", verdict_name(conform_verdict(run)), ",\n");
    fprintf(out, "  \"version\": %d,\n  \"seed\": %llu,\n  \"differences\": [",
            run->shared->version, (unsigned long long)run->seed);
    bool first = true;
    for (int n = 0; n < CONFORM_DIFFERENCES; n++) {
        const conform_difference *d = &conform_differences[n];
        if (!(run->shared->dialect & d->bit)) continue;
        fprintf(out, "%s\n    {\"letter\": \"%c\", \"items\": %d, ", first ? "" : ",", d->letter,
                tally_difference(run, d->bit));
        put_json_text(out, "name", d->name, ", ");
        put_json_text(out, "meaning", d->meaning, "}");
        first = false;
    }
    fputs("\n  ],\n  \"results\": [", out);
    for (int i = 0; i < run->count; i++) {
        const conform_item *item = &run->item[i];
        fprintf(out, "%s\n    {", i ? "," : "");
        put_json_text(out, "section", conform_section_name(item->section), ", ");
        put_json_text(out, "name", item->name, ", ");
        put_json_text(out, "state", state_name(item->state), ", ");
        put_json_text(out, "why", item->why, ", ");
        put_json_text(out, "repeat", item->repeat, ", ");
        fprintf(out, "\"milliseconds\": %.3f}", item->milliseconds);
    }
    fputs("\n  ]\n}\n", out);
}

/* ---- words ---- */

static void print_summary(const conform_run *run) {
    const int verdict = conform_verdict(run);
    for (int i = 0; i < run->count; i++) {
        const conform_item *item = &run->item[i];
        if (item->state == CONFORM_WRONG)
            printf("WRONG %s: %s   repeat: %s\n", item->name, item->why, item->repeat);
    }
    printf("\n%-12s %8s %8s %12s %8s %8s\n", "", "right", "dialect", "unsupported", "wrong",
           "not run");
    for (int s = 0; s < CONFORM_SECTIONS; s++)
        printf("%-12s %8d %8d %12d %8d %8d\n", conform_section_name((conform_section)s),
               tally(run, s, CONFORM_RIGHT), tally(run, s, CONFORM_DIALECT),
               tally(run, s, CONFORM_UNSUPPORTED), tally(run, s, CONFORM_WRONG),
               tally(run, s, CONFORM_NOT_RUN));
    for (int n = 0; n < CONFORM_DIFFERENCES; n++) {
        const conform_difference *d = &conform_differences[n];
        if (run->shared->dialect & d->bit)
            printf("dialect %c: %s; %d items\n", d->letter, d->meaning,
                   tally_difference(run, d->bit));
    }
    printf("conform: %s %s on %s\n", run->library, verdict_name(verdict),
           run->device == FA_DEVICE_CUDA ? "cuda" : "cpu");
}

static bool write_file(const conform_run *run, const char *suffix,
                       void (*put)(FILE *, const conform_run *)) {
    char path[1200];
    snprintf(path, sizeof path, "%s%s", run->stem, suffix);
    FILE *out = fopen(path, "w");
    if (!out) {
        fprintf(stderr, "cannot write %s\n", path);
        return false;
    }
    put(out, run);
    const bool failed = ferror(out);
    return fclose(out) == 0 && !failed;
}

bool conform_report(const conform_run *run) {
    bool ok = true;
    if (run->stem) {
        /* A format that cannot be written does not keep the others from being written. */
        ok = write_file(run, ".tap", put_tap);
        ok = write_file(run, ".xml", put_junit) && ok;
        ok = write_file(run, ".json", put_json) && ok;
    }
    print_summary(run);
    return ok;
}
