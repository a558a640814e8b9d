/* subject.c - dlopen and dlsym behind subject.h. */
#include "subject.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_internal.h" /* the table of kernels, for their names only */

#define STRING2(x) #x
#define STRING(x) STRING2(x)

/* POSIX promises that a function pointer survives this; ISO C has no cast for it. */
static bool find(void *handle, const char *name, void *slot) {
    void *symbol = dlsym(handle, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

bool subject_open(subject *s, const char *path, char *why, size_t why_size) {
    memset(s, 0, sizeof *s);
    snprintf(s->path, sizeof s->path, "%s", path);
    s->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->handle) {
        snprintf(why, why_size, "%s", dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {STRING(fa_fwd_causal), &s->fwd_causal}, {STRING(fa_fwd_causal_workspace), &s->workspace},
        {STRING(fa_explain), &s->explain},       {STRING(fa_status_string), &s->status_string},
        {STRING(fa_last_error), &s->last_error}, {STRING(fa_version), &s->version},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        if (find(s->handle, functions[i].name, functions[i].slot)) continue;
        snprintf(why, why_size, "%s has no function %s", path, functions[i].name);
        subject_close(s);
        return false;
    }
    find(s->handle, STRING(fai_test_force_kernel), &s->force_kernel);
    return true;
}

void subject_close(subject *s) {
    if (s->handle) dlclose(s->handle);
    memset(s, 0, sizeof *s);
}

const subject *subject_get(void) {
    static subject current;
    if (current.handle) return &current;
    const char *path = getenv("FA_SUBJECT");
    char why[1200];
    if (!subject_open(&current, path && *path ? path : FA_DEFAULT_SUBJECT, why, sizeof why)) {
        fprintf(stderr, "the library under test cannot be loaded: %s\n", why);
        exit(2);
    }
    return &current;
}

/* False when the library says, of the smallest call on this path, that this machine or build has
 * not got what the path needs. */
static bool reachable(const subject *s, fa_device device, const char *name) {
    fa_args a = fa_args_default();
    size_t bytes;
    a.device = (int32_t)device;
    a.dtype = FA_DTYPE_F16;
    a.batch = a.heads_q = a.heads_kv = a.q_len = a.kv_len = 1;
    a.head_dim = 128;
    s->force_kernel(name);
    const fa_status status = s->workspace(&a, &bytes);
    s->force_kernel(NULL);
    return status != FA_ERR_ARCH && status != FA_ERR_NOT_BUILT && status != FA_ERR_NO_DEVICE;
}

int subject_paths(const subject *s, fa_device device, const char *names[SUBJECT_MAX_PATHS]) {
    static bool said;
    int count = 0, missing = 0;
    names[count++] = "";
    for (int32_t i = 0; s->force_kernel && i < fai_kernel_count; ++i) {
        const char *name = fai_kernels[i].name;
        if (fai_kernels[i].device != (int32_t)device || !fai_kernels[i].run) continue;
        if (reachable(s, device, name) && count < SUBJECT_MAX_PATHS)
            names[count++] = name;
        else if (++missing && !said)
            printf("kernel path '%s' is not reachable here: not tested\n", name);
    }
    said = said || missing > 0;
    return count;
}

void subject_explain_value(const subject *s, const fa_args *args, const char *key, char *value,
                           size_t value_size) {
    char text[4096] = "";
    s->explain(args, text, sizeof text);
    const size_t key_len = strlen(key);
    value[0] = 0;
    for (const char *line = text; line && *line;) {
        const char *end = strchr(line, '\n');
        if (strncmp(line, key, key_len) == 0 && line[key_len] == '=') {
            const char *from = line + key_len + 1;
            const size_t len = end ? (size_t)(end - from) : strlen(from);
            snprintf(value, value_size, "%.*s", (int)len, from);
            return;
        }
        line = end ? end + 1 : NULL;
    }
}
