/* run_mutants.c - judges every mutant as any library is judged. Each must be rejected, the right
 * one accepted; a survivor is a fault of the harness, and so is a numeric fault that moves the
 * output by less than ten tolerances on every case here: then the cases must change.
 *
 *     fa_mutants mutant.so fa_tests [name ...]
 *
 * A mutant runs in a process of its own: some crash, and each reads its name once. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "mutants.h"

enum { kSurvived, kKilled, kFaint, kBroken }; /* a child's exit status */
enum { kVisible = 10 };                       /* tolerances */
enum { kSeconds = 120 };                      /* of one mutant */

/* Small ones first: a mutant's run ends with the first case that clearly rejects it. */
static const char *const lines[] = {
    "id=plain dtype=f16 b=2 hq=4 hkv=2 d=64 q=33 kv=97",
    "id=tall dtype=f32 b=2 hq=4 hkv=2 d=32 q=40 kv=9",
    "id=fp32 dtype=f32 b=2 hq=6 hkv=2 d=40 q=7 kv=130 Q=bhsd:p3:s1 K=bshd:p1 V=bhsd:c9 O=bshd:p2",
    "id=aligned dtype=bf16 hq=2 hkv=2 d=64 q=128 kv=128",
    "id=packed dtype=bf16 b=3 hq=4 hkv=2 d=32 q=40 kv=70 qr=c kr=c qs=3,40,17 ks=70,1,33",
    "dtype=f16 b=3 hq=6 hkv=2 d=40 q=9 kv=90 qr=ul kr=ul qs=6,3,2 qp=1,2,3 ks=80,33,0 kp=5,9,1",
    "id=pages dtype=bf16 b=3 hq=3 hkv=1 d=72 q=5 kv=150 page=16 kr=u ks=150,0,77",
    "id=splits dtype=f16 hq=4 hkv=2 d=64 q=9 kv=400 splits=4",
    "id=split_keys dtype=f32 hq=2 hkv=2 d=64 q=9 kv=400 split_keys=100",
    "id=low dtype=f16 hq=2 hkv=2 d=64 q=1 kv=100 in=low",
    "id=rise dtype=bf16 hq=2 hkv=1 d=64 q=3 kv=700 in=rise",
    "id=ones dtype=f16 hq=1 hkv=1 d=64 q=1 kv=8192 in=equal v=one",
    "id=offsets dtype=f16 b=2 hq=2 hkv=2 d=32 q=20 kv=30 align=given offsets=3,-7",
    "id=slices dtype=f32 hq=2 hkv=2 d=32 q=40 kv=70 tasks=3",
    "id=wide dtype=f16 b=1 hq=2 hkv=2 d=8 q=3 kv=5 K=bhsd:H2147483656",
    "id=scratch dtype=f32 b=2 hq=8 hkv=2 d=128 q=16 kv=100 splits=5",
    "id=large dtype=f16 b=2 hq=8 hkv=2 d=128 q=200 kv=260",
};

/* What rejected the mutant most clearly so far; effects in tolerances, Inf where a fault is not a
 * matter of size (NaN, a wrong -inf, a touched guard, a refused call). */
typedef struct rejection {
    double effect, on_o, on_lse;
    char by[64], why[256];
} rejection;

static void note(rejection *best, const test_case *c, const case_result *r) {
    const bool numeric = r->report.bad > 0 && isfinite(r->report.ratio);
    const double effect = numeric ? r->report.ratio : INFINITY;
    if (!(effect > best->effect)) return;
    best->effect = effect;
    best->on_o = fmax(r->report.max_ratio, r->report.bound_ratio);
    best->on_lse = r->report.lse_ratio;
    snprintf(best->by, sizeof best->by, "%s", c->id);
    snprintf(best->why, sizeof best->why, "%.*s", (int)strcspn(r->why, "\n"), r->why);
}

static int judge_by_cases(const char *path, rejection *best) {
    subject s;
    if (!subject_open(&s, path, best->why, sizeof best->why)) return kBroken;
    for (size_t i = 0; i < sizeof lines / sizeof *lines && best->effect < kVisible; i++) {
        const test_case c = case_of("%s", lines[i]);
        case_result r;
        if (!case_run(&s, &c, &r)) note(best, &c, &r);
        case_result_free(&r);
    }
    if (best->effect == 0) return kSurvived;
    return best->effect < kVisible ? kFaint : kKilled;
}

/* Runs some Criterion suites on the library that FA_SUBJECT names. Every one of their tests must
 * fail, or at least one. */
static int judge_by_suites(const char *tests, const char *suites, bool every, rejection *best) {
    char command[2048], line[1024];
    int failing = 0, passing = 0;
    snprintf(command, sizeof command, "'%s' --filter '%s/*' 2>&1", tests, suites);
    FILE *output = popen(command, "r");
    if (!output) return kBroken;
    while (fgets(line, sizeof line, output)) {
        const char *counts = strstr(line, "Passing: "), *name = strstr(line, "::");
        if (counts) sscanf(counts, "Passing: %d | Failing: %d", &passing, &failing);
        if (!best->by[0] && strstr(line, "FAIL") && name)
            snprintf(best->by, sizeof best->by, "%.*s", (int)strcspn(name + 2, ": "), name + 2);
    }
    pclose(output);
    if (failing + passing == 0) return kBroken;
    if (!best->why[0]) snprintf(best->why, sizeof best->why, "%d tests", failing);
    return failing == 0 || (every && passing > 0) ? kSurvived : kKilled;
}

static void print_verdict(int m, int verdict, const rejection *r) {
    static const char *const words[] = {"accepted", "killed", "FAINT", "BROKEN"};
    printf("  %-26s %s", mutants[m].name, words[verdict]);
    if (verdict == kKilled || verdict == kFaint) {
        printf(" by %-10s ", r->by);
        if (isfinite(r->effect) && r->effect > 0)
            printf("%.3g tolerances of o, %.3g of lse", r->on_o, r->on_lse);
        else
            printf("%.70s", r->why);
    }
    if (verdict == kBroken) printf("%s", r->why);
    printf("\n");
    fflush(stdout);
}

/* In the child: the mutant's verdict is the exit status. */
static int judge(int m, const char *library, const char *tests) {
    rejection best = {0, 0, 0, "", ""};
    setenv("FA_MUTANT", mutants[m].name, 1);
    setenv("FA_SUBJECT", library, 1);
    alarm(kSeconds);
    const int judges = mutants[m].judges;
    int verdict = judges & BY_CASES ? judge_by_cases(library, &best) : kKilled;
    if (judges & BY_BORDERS && verdict == (m == NONE ? kSurvived : kKilled))
        verdict = judge_by_suites(tests, "@(bad_input|api|explain|last_error)", false, &best);
    if (judges & BY_IDENTITIES && verdict == kKilled)
        verdict = judge_by_suites(tests, "identities", true, &best);
    print_verdict(m, verdict, &best);
    return verdict;
}

static int judge_apart(int m, const char *library, const char *tests) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) exit(judge(m, library, tests));
    if (child < 0 || waitpid(child, &status, 0) != child) return kBroken;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    printf("  %-26s killed, it ended by signal %d\n", mutants[m].name, WTERMSIG(status));
    fflush(stdout);
    return WTERMSIG(status) == SIGALRM ? kBroken : kKilled;
}

static bool wanted(int m, int count, char **names) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], mutants[m].name) == 0) return true;
    return count == 0;
}

int main(int count, char **words) {
    if (count < 3) {
        fprintf(stderr, "usage: fa_mutants mutant.so fa_tests [name ...]\n");
        return 2;
    }
    int killed = 0, judged = 0;
    bool right = true;
    for (int m = 0; m < kMutants; m++) {
        if (!wanted(m, count - 3, words + 3)) continue;
        const int verdict = judge_apart(m, words[1], words[2]);
        right = right && verdict == (m == NONE ? kSurvived : kKilled);
        judged += m != NONE;
        killed += m != NONE && verdict == kKilled;
    }
    printf("mutants: %d/%d killed\n", killed, judged);
    if (!right) printf("mutants: SURVIVORS above, or the right library was rejected\n");
    return !right;
}
