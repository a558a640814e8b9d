/* test_api.c - the parts of the API around the operation: versions, status numbers, sentences,
 * fa_explain. What is pinned here is pinned for ever; a row is only ever added. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "small_call.h"

FA_REQUIRE_VERSION(FA_VERSION_MAJOR, 0);
FA_STATIC_ASSERT(FA_MAKE_VERSION(10, 0, 0) > FA_MAKE_VERSION(9, 9, 0), ten_is_newer_than_nine);
FA_STATIC_ASSERT(FA_MAKE_VERSION(0, 10, 0) > FA_MAKE_VERSION(0, 9, 999), minors_are_numbers);
FA_STATIC_ASSERT(FA_MAKE_VERSION(1, 0, 0) > FA_MAKE_VERSION(0, 999, 999), majors_come_first);
FA_STATIC_ASSERT(FA_ARGS_MIN_SIZE == 208 && FA_DEVICE_CPU == 1 && FA_DEVICE_CUDA == 2, devices);
FA_STATIC_ASSERT(FA_DTYPE_F16 == 528 && FA_DTYPE_F32 == 544 && FA_DTYPE_BF16 == 1040, dtypes);
FA_STATIC_ASSERT(FA_ALIGN_BOTTOM_RIGHT == 0 && FA_ALIGN_OFFSET == 1, alignments);

static const struct {
    int number;
    const char *name;
} statuses[] = {
    {0, "FA_OK"},
    {1, "FA_ERR_VERSION"},
    {10, "FA_ERR_SIZE"},
    {11, "FA_ERR_HEADS"},
    {12, "FA_ERR_DTYPE"},
    {13, "FA_ERR_HEAD_DIM"},
    {20, "FA_ERR_SCALE"},
    {21, "FA_ERR_MASK"},
    {22, "FA_ERR_RAGGED"},
    {23, "FA_ERR_PAGES"},
    {24, "FA_ERR_SPLITS"},
    {25, "FA_ERR_TASKS"},
    {30, "FA_ERR_NULL"},
    {31, "FA_ERR_ALIGNMENT"},
    {32, "FA_ERR_STRIDE"},
    {33, "FA_ERR_DEVICE"},
    {34, "FA_ERR_LENGTHS"},
    {35, "FA_ERR_PAGE_INDEX"},
    {40, "FA_ERR_WORKSPACE"},
    {41, "FA_ERR_TEXT_SIZE"},
    {50, "FA_ERR_UNSUPPORTED"},
    {51, "FA_ERR_NOT_BUILT"},
    {52, "FA_ERR_NO_DEVICE"},
    {53, "FA_ERR_ARCH"},
    {54, "FA_ERR_LAUNCH"},
};

Test(api, status_numbers_and_names_are_for_ever) {
    size_t named = 0;
    for (int number = -100; number < 1000; number++) {
        const char *name = subject_get()->status_string((fa_status)number);
        const char *want = "unknown status";
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
            if (statuses[i].number == number) want = statuses[i].name, named++;
        cr_assert(strcmp(name, want) == 0, "%d is %s, not %s", number, name, want);
    }
    cr_assert(named == sizeof statuses / sizeof *statuses);
}

Test(api, the_library_is_of_the_header_s_version) {
    cr_assert(subject_get()->version() == FA_VERSION);
    const fa_args a = fa_args_default();
    cr_assert(a.version == FA_VERSION && a.struct_size == (int)sizeof a);
}

Test(api, an_older_minor_and_any_patch_are_accepted) {
    static small_memory m;
    const int32_t versions[] = {FA_MAKE_VERSION(FA_VERSION_MAJOR, 0, 1),
                                FA_MAKE_VERSION(FA_VERSION_MAJOR, FA_VERSION_MINOR, 0),
                                FA_MAKE_VERSION(FA_VERSION_MAJOR, FA_VERSION_MINOR, 999)};
    for (int i = 0; i < 3; i++) {
        fa_args a = small_call(&m, SMALL_DENSE, subject_get());
        a.version = versions[i];
        cr_assert(subject_get()->fwd_causal(&a, NULL) == FA_OK, "%d: %s", versions[i],
                  subject_get()->last_error());
    }
}

/* A caller with an older header has fewer fields: whatever lies behind them in its memory is not
 * the library's business. */
Test(api, fields_beyond_an_older_struct_read_as_zero) {
    static small_memory m, want;
    fa_args a = small_call(&m, SMALL_DENSE, subject_get());
    cr_assert(subject_get()->fwd_causal(&a, NULL) == FA_OK);
    want = m;
    for (size_t size = FA_ARGS_MIN_SIZE; size <= sizeof a; size += 8) {
        a = small_call(&m, SMALL_DENSE, subject_get());
        a.struct_size = (int32_t)size;
        memset((char *)&a + size, 0x5a, sizeof a - size);
        cr_assert(subject_get()->fwd_causal(&a, NULL) == FA_OK, "%zu: %s", size,
                  subject_get()->last_error());
        cr_assert(memcmp(&m, &want, sizeof m) == 0, "struct_size %zu changes the result", size);
    }
}

Test(api, makers_of_views_give_the_strides_they_promise) {
    int data;
    const fa_view bshd = fa_bshd(&data, 1LL << 33, 5, 7), bhsd = fa_bhsd(&data, 5, 1LL << 33, 7);
    cr_assert(bshd.data == &data && bhsd.data == &data);
    cr_assert(bshd.stride_batch == 35LL << 33 && bshd.stride_head == 7 && bshd.stride_seq == 35);
    cr_assert(bhsd.stride_batch == 35LL << 33 && bhsd.stride_head == 7LL << 33 &&
              bhsd.stride_seq == 7);
}

/* Keys in their order; "=value" where the value follows from the call alone. */
static const char *const explained[] = {
    "status=FA_OK", "kernel",
    "device=cpu",   "dtype=f16",
    "head_dim=8",   "tile_rows",
    "tile_keys",    "tile_dim",
    "packing",      "tiles",
    "splits=3",     "split_keys=0",
    "threads",      "workspace_bytes=2880",
    "why",
};

Test(explain, keys_and_their_order_are_stable) {
    static small_memory m;
    const fa_args a = small_call(&m, SMALL_SPLIT, subject_get());
    char text[1024], *line = text;
    cr_assert(subject_get()->explain(&a, text, sizeof text) == FA_OK);
    for (size_t i = 0; i < sizeof explained / sizeof *explained; i++) {
        const size_t length = strlen(explained[i]);
        const char *value = strchr(line, '=');
        cr_assert(value && value[1] > ' ' && strncmp(line, explained[i], length) == 0 &&
                      (line[length] == '=' || line[length] == '\n'),
                  "\"%s\" expected in line %zu of\n%s", explained[i], i, text);
        line = strchr(line, '\n') + 1;
    }
}

Test(explain, a_refusal_is_told_in_two_lines) {
    static small_memory m;
    fa_args a = small_call(&m, SMALL_DENSE, subject_get());
    char text[1024], want[1024];
    a.heads_q = 3;
    cr_assert(subject_get()->explain(&a, text, sizeof text) == FA_ERR_HEADS);
    snprintf(want, sizeof want, "status=FA_ERR_HEADS\nerror=%s\n", subject_get()->last_error());
    cr_assert(strcmp(text, want) == 0, "%s", text);
}

Test(explain, a_cut_text_is_an_error_and_still_a_string) {
    static small_memory m;
    const subject *s = subject_get();
    fa_args a = small_call(&m, SMALL_DENSE, s);
    for (int refused = 0; refused < 2; refused++) {
        char whole[1024], text[1024];
        a.heads_kv = refused ? 3 : kSmallHeadsKv;
        const fa_status status = s->explain(&a, whole, sizeof whole);
        const size_t length = strlen(whole);
        cr_assert(s->explain(&a, NULL, 0) == FA_ERR_TEXT_SIZE);
        for (size_t size = 0; size <= length + 1; size++) {
            memset(text, '#', sizeof text);
            const fa_status got = s->explain(&a, text, size);
            cr_assert(got == (size > length ? status : FA_ERR_TEXT_SIZE), "size %zu", size);
            cr_assert(text[size] == '#', "written past %zu", size);
            if (size == 0) continue;
            cr_assert(text[size - 1] == 0 && strncmp(text, whole, size - 1) == 0);
        }
    }
}

typedef struct thread_report {
    int32_t heads; /* this thread's own fault: its sentence holds this number */
    int mixed, fresh;
} thread_report;

static void *fail_often(void *argument) {
    thread_report *report = argument;
    const subject *s = subject_get();
    static _Thread_local small_memory m;
    char own[16];
    fa_args a = small_call(&m, SMALL_DENSE, s);
    report->fresh = s->last_error()[0] == 0;
    a.heads_q = report->heads;
    snprintf(own, sizeof own, "%d", report->heads);
    for (int i = 0; i < 2000; i++) {
        size_t bytes;
        if (s->workspace(&a, &bytes) != FA_ERR_HEADS || !strstr(s->last_error(), own))
            report->mixed++;
    }
    return NULL;
}

Test(last_error, belongs_to_the_thread) {
    enum { kThreads = 8 };
    pthread_t threads[kThreads];
    thread_report reports[kThreads] = {{0, 0, 0}};
    const subject *s = subject_get();
    cr_assert(s->workspace(NULL, NULL) != FA_OK);
    for (int i = 0; i < kThreads; i++) {
        reports[i].heads = 100001 + 2 * i;
        cr_assert(pthread_create(&threads[i], NULL, fail_often, &reports[i]) == 0);
    }
    for (int i = 0; i < kThreads; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(reports[i].fresh, "a new thread has a sentence already");
        cr_assert(reports[i].mixed == 0, "%d sentences of another thread", reports[i].mixed);
    }
    cr_assert(strstr(s->last_error(), "null"), "%s", s->last_error());
}

Test(last_error, is_empty_before_any_and_kept_by_a_success) {
    static small_memory m;
    const subject *s = subject_get();
    const fa_args good = small_call(&m, SMALL_DENSE, s);
    cr_assert(strcmp(s->last_error(), "") == 0);
    cr_assert(s->fwd_causal(&good, NULL) == FA_OK && strcmp(s->last_error(), "") == 0);
    fa_args bad = good;
    bad.q_len = -7;
    cr_assert(s->fwd_causal(&bad, NULL) == FA_ERR_SIZE);
    cr_assert(s->fwd_causal(&good, NULL) == FA_OK && strstr(s->last_error(), "-7"));
}
