/* subject.h - the library under test: any shared library with this ABI, loaded by path.
 *
 * Tests reach the operation only through this table, never by linking it, so that another build,
 * fork or wrapper is judged by the same code. It changes when the API gains a function. */
#ifndef TESTS_SUBJECT_H
#define TESTS_SUBJECT_H

#include <stdbool.h>
#include <stddef.h>

#include "fa_fwd_causal.h"

typedef struct subject {
    fa_status (*fwd_causal)(const fa_args *args, struct CUstream_st *stream);
    fa_status (*workspace)(const fa_args *args, size_t *bytes);
    fa_status (*explain)(const fa_args *args, char *text, size_t text_size);
    const char *(*status_string)(fa_status status);
    const char *(*last_error)(void);
    int32_t (*version)(void);
    void (*force_kernel)(const char *name); /* null where the library has no such hook */
    void *handle;
    char path[1024];
} subject;

/* Loads a library. False, with a sentence in why, when it or one of its six functions is missing.
 */
bool subject_open(subject *s, const char *path, char *why, size_t why_size);
void subject_close(subject *s);

/* The library of this process: environment FA_SUBJECT, else the shared library of this build.
 * Opened on the first call; exits with a sentence when that fails, for no test means anything
 * then. */
const subject *subject_get(void);

/* Kernel paths. Path 0 is "", the library's own choice; the others are forced through the hook.
 * names[i] is a kernel that this build's table holds for the device and that this machine can run;
 * the others are printed, once. A foreign library without the hook has path 0 only. */
enum { SUBJECT_MAX_PATHS = 16 };
int subject_paths(const subject *s, fa_device device, const char *names[SUBJECT_MAX_PATHS]);

/* The value of key in fa_explain's text for this call, "" when it has none. */
void subject_explain_value(const subject *s, const fa_args *args, const char *key, char *value,
                           size_t value_size);

#endif /* TESTS_SUBJECT_H */
