/* test_bad_input.c - every fault of the contract's "checked first": its status, its sentence, that
 * it is reported before any later one, and that nothing was written. The faults are a table. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "bad_input_table.h"

/* Both would write the same field, so that only the last would be a fault. */
static int share_a_field(const fault *f, const fault *g) {
    for (int i = 0; i < kMaxChanges && f->changes[i].how != kNothing; i++)
        for (int j = 0; j < kMaxChanges && g->changes[j].how != kNothing; j++)
            if (f->changes[i].at == g->changes[j].at) return 1;
    return 0;
}

static void check_sentence(const fault *f, const char *text) {
    cr_assert(says_all(f, text), "\"%s\" does not say \"%s\" ...", text, f->words[0]);
}

static void check_status(const fault *f, const char *who, fa_status got, fa_status want) {
    cr_assert(got == want, "%s gives %d where \"%s %s\" must give %d; last error: %s", who,
              (int)got, f->words[0], f->words[1] ? f->words[1] : "", (int)want,
              subject_get()->last_error());
}

static void check_run(const fault *f, const fa_args *a, small_memory *m) {
    char why[1024];
    cr_assert(fault_is_refused(f, a, m, subject_get(), why, sizeof why), "%s", why);
}

static void check_queries(const fault *f, const fa_args *a) {
    const subject *s = subject_get();
    size_t bytes = 12345;
    check_status(f, "fa_fwd_causal_workspace", s->workspace(a, &bytes), f->in_query);
    cr_assert((bytes == 12345) == (f->in_query != FA_OK));
    char text[1024], status_line[64];
    check_status(f, "fa_explain", s->explain(a, text, sizeof text), f->in_query);
    snprintf(status_line, sizeof status_line, "status=%s\n", s->status_string(f->in_query));
    cr_assert(strncmp(text, status_line, strlen(status_line)) == 0, "%s", text);
    if (f->in_query != FA_OK) check_sentence(f, text);
}

Test(bad_input, the_unspoilt_calls_are_valid) {
    static small_memory m;
    for (int kind = 0; kind < SMALL_KINDS; kind++) {
        const fa_args a = small_call(&m, kind, subject_get());
        cr_assert(subject_get()->fwd_causal(&a, NULL) == FA_OK, "%s: %s", small_kind_name(kind),
                  subject_get()->last_error());
    }
}

Test(bad_input, every_fault_has_its_status_and_sentence_and_writes_nothing) {
    static small_memory m;
    int checked = 0;
    for (int i = 0; i < kFaults; i++)
        for (int kind = 0; kind < SMALL_KINDS; kind++) {
            if (!applies_to(&faults[i], kind)) continue;
            fa_args a = small_call(&m, kind, subject_get());
            apply_fault(&faults[i], &a);
            check_run(&faults[i], &a, &m);
            check_queries(&faults[i], &a);
            checked++;
        }
    cr_log_info("%d faults, %d spoilt calls", (int)kFaults, checked);
}

/* Two faults at once: the one that the contract checks earlier is the one reported. */
Test(bad_input, the_earlier_fault_of_two_is_reported) {
    static small_memory m;
    int pairs = 0;
    for (int i = 0; i < kFaults; i++)
        for (int j = 0; j < kFaults; j++)
            for (int kind = 0; kind < SMALL_KINDS; kind++) {
                const fault *first = &faults[i], *second = &faults[j];
                if (first->at >= second->at || share_a_field(first, second)) continue;
                if (!applies_to(first, kind) || !applies_to(second, kind)) continue;
                fa_args a = small_call(&m, kind, subject_get());
                apply_fault(second, &a);
                apply_fault(first, &a);
                check_run(first, &a, &m);
                pairs++;
            }
    cr_log_info("%d pairs of faults", pairs);
    cr_assert(pairs > 1000);
}

Test(bad_input, null_arguments_are_errors) {
    const subject *s = subject_get();
    static small_memory m;
    const fa_args a = small_call(&m, SMALL_DENSE, s);
    char text[256];
    size_t bytes = 12345;
    cr_assert(s->fwd_causal(NULL, NULL) == FA_ERR_NULL && strstr(s->last_error(), "args"));
    cr_assert(s->workspace(NULL, &bytes) == FA_ERR_NULL && bytes == 12345);
    cr_assert(s->workspace(&a, NULL) == FA_ERR_NULL && strstr(s->last_error(), "bytes"));
    cr_assert(s->explain(NULL, text, sizeof text) == FA_ERR_NULL && strstr(text, "FA_ERR_NULL"));
    cr_assert(s->explain(&a, NULL, 10) == FA_ERR_NULL && strstr(s->last_error(), "text"));
}

/* B101: both sizes are in the sentence. */
Test(bad_input, a_small_workspace_is_told_what_is_needed) {
    const subject *s = subject_get();
    static small_memory m;
    fa_args a = small_call(&m, SMALL_SPLIT, s);
    char needed[32], given[32];
    snprintf(needed, sizeof needed, "%zu", a.workspace_size);
    snprintf(given, sizeof given, "%zu", --a.workspace_size);
    cr_assert(s->fwd_causal(&a, NULL) == FA_ERR_WORKSPACE);
    cr_assert(strstr(s->last_error(), needed) && strstr(s->last_error(), given), "%s",
              s->last_error());
    a.workspace = m.workspace + 8;
    cr_assert(s->fwd_causal(&a, NULL) == FA_ERR_WORKSPACE);
}

/* A build without CUDA, or a machine without a GPU, says so; and CUDA's narrower rules come first.
 */
Test(bad_input, cuda_has_its_own_limits) {
    const subject *s = subject_get();
    static small_memory m, before;
    const int32_t dims[] = {4, 12, 257, 264, 512};
    for (int i = 0; i < 5; i++) {
        fa_args a = small_call(&m, SMALL_DENSE, s);
        a.device = FA_DEVICE_CUDA;
        a.head_dim = dims[i];
        cr_assert(s->fwd_causal(&a, NULL) == FA_ERR_HEAD_DIM, "%s", s->last_error());
    }
    fa_args a = small_call(&m, SMALL_DENSE, s);
    a.device = FA_DEVICE_CUDA;
    before = m;
    const fa_status status = s->fwd_causal(&a, NULL); /* host tensors, whatever the machine has */
    cr_assert(status == FA_ERR_NOT_BUILT || status == FA_ERR_NO_DEVICE || status == FA_ERR_DEVICE,
              "%s", s->last_error());
    cr_assert(memcmp(&before, &m, sizeof m) == 0);
    a.dtype = FA_DTYPE_F32;
    cr_assert(s->fwd_causal(&a, NULL) == FA_ERR_DTYPE && strstr(s->last_error(), "F32"));
    a.dtype = FA_DTYPE_F16;
    a.threads = 1;
    cr_assert(s->fwd_causal(&a, NULL) == FA_ERR_TASKS && strstr(s->last_error(), "threads"));
}
