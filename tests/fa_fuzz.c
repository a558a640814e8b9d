/* fa_fuzz.c - runs random calls (fuzz.h) against the oracle until the time is up.
 *
 *     fa_fuzz [seconds=15] [calls=0] [seed=clock] [first=0] [device=cpu] [subject=path]
 *
 * first=n calls=1 repeats call n of a seed alone; a legal call also prints itself as a case line.
 * calls=0 means until the time is up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fuzz.h"

typedef struct settings {
    double seconds;
    uint64_t seed, first, calls;
    fa_device device;
} settings;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The text after "name=", null when word is another setting. */
static const char *value_of(const char *word, const char *name) {
    const size_t length = strlen(name);
    return strncmp(word, name, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static bool read_setting(const char *word, settings *s) {
    const char *value;
    if ((value = value_of(word, "seconds")))
        s->seconds = atof(value);
    else if ((value = value_of(word, "calls")))
        s->calls = strtoull(value, NULL, 10);
    else if ((value = value_of(word, "seed")))
        s->seed = strtoull(value, NULL, 10);
    else if ((value = value_of(word, "first")))
        s->first = strtoull(value, NULL, 10);
    else if ((value = value_of(word, "device")))
        s->device = strcmp(value, "cuda") == 0 ? FA_DEVICE_CUDA : FA_DEVICE_CPU;
    else if ((value = value_of(word, "subject")))
        setenv("FA_SUBJECT", value, 1);
    return value != NULL;
}

/* One call; false when it went wrong, with a sentence on the standard output. */
static bool run_call(const settings *s, uint64_t call, uint64_t count[2], double *worst) {
    bool illegal;
    const test_case c = fuzz_case(s->seed, call, s->device, &illegal);
    char line[CASE_LINE_MAX], why[2 * CASE_LINE_MAX] = "";
    case_print(&c, line, sizeof line);
    bool right;
    if (illegal) {
        right = fuzz_illegal(s->seed, call, s->device, why, sizeof why);
    } else {
        case_result result;
        right = case_run(subject_get(), &c, &result);
        snprintf(why, sizeof why, "%s", result.why);
        if (result.report.ratio > *worst) *worst = result.report.ratio;
        case_result_free(&result);
    }
    count[illegal]++;
    if (!right)
        printf("FAILED: %s\n  case: %s%s\n  repeat: fa_fuzz seed=%llu first=%llu calls=1\n", why,
               line, illegal ? "\n  (then spoilt)" : "", (unsigned long long)s->seed,
               (unsigned long long)call);
    return right;
}

int main(int count, char **words) {
    settings s = {15, (uint64_t)time(NULL), 0, 0, FA_DEVICE_CPU};
    for (int i = 1; i < count; i++)
        if (!read_setting(words[i], &s)) {
            fprintf(stderr, "usage: fa_fuzz [seconds=15] [calls=0] [seed=clock] [first=0] "
                            "[device=cpu|cuda] [subject=path]\n");
            return 2;
        }
    if (!memory_of(s.device)) {
        puts(MEMORY_NO_DEVICE);
        return MEMORY_SKIPPED;
    }
    const double start = now();
    uint64_t call = s.first, calls[2] = {0, 0}, failed = 0;
    double worst = 0;
    while (s.calls ? call < s.first + s.calls : now() < start + s.seconds)
        if (!run_call(&s, call++, calls, &worst) && ++failed == 10) break;
    printf("fuzz: seed=%llu, %llu legal calls (largest error %.2f of its tolerance), %llu illegal "
           "calls, %llu failed, %.1f s\n",
           (unsigned long long)s.seed, (unsigned long long)calls[0], worst,
           (unsigned long long)calls[1], (unsigned long long)failed, now() - start);
    return failed || calls[0] + calls[1] == 0;
}
