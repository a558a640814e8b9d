/* fa_conform.c - judges any library of this ABI: case list, identities, random calls, error rows.
 *
 *     fa_conform LIBRARY [device=cpu|cuda] [kernel=NAME] [dialect=LETTERS] [fuzz=300] [seed=1]
 *                        [only=TEXT] [out=STEM]
 *
 * Writes STEM.tap, STEM.xml (JUnit) and STEM.json. The exit code is the verdict: 0 it keeps the
 * contract; 3 it does but for differences of its declared dialect (conform.h), each counted; 1 it
 * is wrong; 2 it cannot be judged; 77 there is no such device. only=TEXT runs the items whose name
 * contains TEXT.
 *
 * Items run one after another in a child. One that ends it by a signal, or hangs, is a failure, and
 * a new child takes the next. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conform.h"

enum { kSeconds = 300, kMostCrashes = 20 };

static const char usage[] =
    "usage: fa_conform LIBRARY [device=cpu|cuda] [kernel=NAME] [dialect=LETTERS] [fuzz=300]\n"
    "                  [seed=1] [only=TEXT] [out=STEM]\n";

static bool read_word(const char *word, conform_run *run, const char **dialect) {
    const char *value = strchr(word, '=');
    if (!value++) return false;
    if (strncmp(word, "device=", 7) == 0)
        run->device = strcmp(value, "cuda") == 0 ? FA_DEVICE_CUDA : FA_DEVICE_CPU;
    else if (strncmp(word, "kernel=", 7) == 0)
        run->kernel = value;
    else if (strncmp(word, "dialect=", 8) == 0)
        *dialect = value;
    else if (strncmp(word, "fuzz=", 5) == 0)
        run->fuzz = atoi(value);
    else if (strncmp(word, "seed=", 5) == 0)
        run->seed = strtoull(value, NULL, 10);
    else if (strncmp(word, "only=", 5) == 0)
        run->only = value;
    else if (strncmp(word, "out=", 4) == 0)
        run->stem = value;
    else
        return false;
    return true;
}

/* What the child does, from an item on. */
static void work(conform_run *run, int from) {
    const subject *s = subject_get();
    if (!memory_of(run->device)) { /* asked here: a forked child has no use of a parent's GPU */
        puts(MEMORY_NO_DEVICE);
        exit(MEMORY_SKIPPED);
    }
    const int declared = conform_declared(s);
    if (declared < 0) {
        fprintf(stderr, "%s: there is nothing to judge behind it\n", run->library);
        exit(2);
    }
    run->shared->dialect = run->dialect >= 0 ? run->dialect : declared;
    run->shared->version = s->version();
    for (int i = from; i < run->count; i++) {
        run->shared->current = i;
        alarm(kSeconds);
        conform_judge(run, &run->item[i]);
    }
    exit(0);
}

/* 0, or the exit code of a run that cannot go on. */
static int run_all(conform_run *run) {
    int from = 0, crashes = 0;
    while (from < run->count) {
        int status = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) work(run, from);
        if (child < 0 || waitpid(child, &status, 0) != child) return 2;
        if (WIFEXITED(status)) return WEXITSTATUS(status);
        conform_item *item = &run->item[run->shared->current];
        item->state = CONFORM_WRONG;
        snprintf(item->why, sizeof item->why, "ended the process by signal %d (%s)",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
        from = run->shared->current + 1;
        if (++crashes == kMostCrashes) {
            printf("gave up after %d crashes: the rest was not run\n", crashes);
            return 0;
        }
    }
    return 0;
}

static void *shared_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int main(int count, char **words) {
    static conform_run run = {
        .device = FA_DEVICE_CPU, .kernel = "", .fuzz = 300, .seed = 1, .only = "", .dialect = -1};
    const char *dialect = NULL;
    if (count < 2 || strchr(words[1], '=')) return fputs(usage, stderr), 2;
    run.library = words[1];
    for (int i = 2; i < count; i++)
        if (!read_word(words[i], &run, &dialect)) return fputs(usage, stderr), 2;
    if (dialect && !conform_read_dialect(dialect, &run.dialect)) {
        fprintf(stderr, "no such dialect: '%s'; letters are %s\n", dialect, conform_letters());
        return 2;
    }
    setenv("FA_SUBJECT", run.library, 1);
    run.count = conform_list(&run, NULL);
    run.shared = shared_memory(sizeof *run.shared);
    run.item = shared_memory(((size_t)run.count + 1) * sizeof *run.item);
    if (!run.shared || !run.item) return fputs("no memory\n", stderr), 2;
    conform_list(&run, run.item);
    const int failed = run_all(&run);
    if (failed) return failed;
    return conform_report(&run) ? conform_verdict(&run) : 2;
}
