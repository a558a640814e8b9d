/* cases_text.c - a case as a line of key=value, both ways, by one table of keys. */
#include "cases.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind {
    KIND_INT,
    KIND_INT64,
    KIND_FLOAT,
    KIND_NAME,  /* one of names */
    KIND_FLAGS, /* any of names' letters, as bits */
    KIND_LIST,
    KIND_VIEW,
    KIND_STRING
} kind;

typedef struct key {
    const char *key;
    kind kind;
    size_t at, size;       /* in test_case; size of a string */
    const char *names;     /* space-separated, in the order of the values */
    const int32_t *values; /* of the names; null: 0, 1, 2 … */
} key;

static const int32_t dtype_values[] = {FA_DTYPE_F32, FA_DTYPE_F16, FA_DTYPE_BF16};
static const int32_t device_values[] = {FA_DEVICE_CPU, FA_DEVICE_CUDA};

#define AT(field) offsetof(test_case, field), sizeof(((test_case *)0)->field)
static const key keys[] = {
    {"id", KIND_STRING, AT(id), NULL, NULL},
    {"device", KIND_NAME, AT(device), "cpu cuda", device_values},
    {"kernel", KIND_STRING, AT(kernel), NULL, NULL},
    {"dtype", KIND_NAME, AT(dtype), "f32 f16 bf16", dtype_values},
    {"b", KIND_INT, AT(batch), NULL, NULL},
    {"hq", KIND_INT, AT(heads_q), NULL, NULL},
    {"hkv", KIND_INT, AT(heads_kv), NULL, NULL},
    {"d", KIND_INT, AT(head_dim), NULL, NULL},
    {"q", KIND_INT, AT(q_len), NULL, NULL},
    {"kv", KIND_INT, AT(kv_len), NULL, NULL},
    {"Q", KIND_VIEW, AT(view[TENSOR_Q]), NULL, NULL},
    {"K", KIND_VIEW, AT(view[TENSOR_K]), NULL, NULL},
    {"V", KIND_VIEW, AT(view[TENSOR_V]), NULL, NULL},
    {"O", KIND_VIEW, AT(view[TENSOR_O]), NULL, NULL},
    {"L", KIND_VIEW, AT(view[TENSOR_LSE]), NULL, NULL},
    {"nolse", KIND_INT, AT(no_lse), NULL, NULL},
    {"qr", KIND_FLAGS, AT(ragged_q), "c u l", NULL},
    {"kr", KIND_FLAGS, AT(ragged_k), "c u l", NULL},
    {"qs", KIND_LIST, AT(q_lens), NULL, NULL},
    {"ks", KIND_LIST, AT(k_lens), NULL, NULL},
    {"qp", KIND_LIST, AT(q_pads), NULL, NULL},
    {"kp", KIND_LIST, AT(k_pads), NULL, NULL},
    {"slack", KIND_INT, AT(slack), NULL, NULL},
    {"page", KIND_INT, AT(page_size), NULL, NULL},
    {"share", KIND_INT, AT(shared_pages), NULL, NULL},
    {"align", KIND_NAME, AT(align), "bottom given", NULL},
    {"offset", KIND_INT, AT(offset), NULL, NULL},
    {"offsets", KIND_LIST, AT(offsets), NULL, NULL},
    {"splits", KIND_INT, AT(num_splits), NULL, NULL},
    {"split_keys", KIND_INT, AT(split_keys), NULL, NULL},
    {"scale", KIND_FLOAT, AT(scale), NULL, NULL},
    {"in", KIND_NAME, AT(input), "normal large equal sink rise creep fall low pick sixty down",
     NULL},
    {"v", KIND_NAME, AT(values), "normal one index three thousand big flip int unit", NULL},
    {"tail", KIND_NAME, AT(tail), "nan inf huge", NULL},
    {"seed", KIND_INT64, AT(seed), NULL, NULL},
    {"nan_key", KIND_INT, AT(nan_key), NULL, NULL},
    {"pick_key", KIND_INT, AT(pick_key), NULL, NULL},
    {"fb", KIND_INT, AT(from_batch), NULL, NULL},
    {"fh", KIND_INT, AT(from_head), NULL, NULL},
    {"fr", KIND_INT, AT(from_row), NULL, NULL},
    {"fk", KIND_INT, AT(from_key), NULL, NULL},
    {"threads", KIND_INT, AT(threads), NULL, NULL},
    {"tasks", KIND_INT, AT(tasks), NULL, NULL},
    {"rows", KIND_LIST, AT(rows), NULL, NULL},
    {"dialect", KIND_FLAGS, AT(dialect), "t b n p l e c", NULL},
};
enum { kKeys = sizeof keys / sizeof *keys };

static const char layout_names[] = "bshd bhsd fused";

static test_case defaults(void) {
    test_case c;
    memset(&c, 0, sizeof c); /* padding too: printing compares bytes */
    c.device = FA_DEVICE_CPU;
    c.dtype = FA_DTYPE_F32;
    c.batch = c.heads_q = c.heads_kv = c.q_len = c.kv_len = 1;
    c.head_dim = 64;
    c.slack = 2;
    c.nan_key = c.pick_key = -1;
    return c;
}

/* The number at *text, of at most 64 bits; *text moves past it. */
static bool take_int(const char **text, int64_t *value) {
    char *end;
    const long long number = strtoll(*text, &end, 10);
    if (end == *text) return false;
    *text = end;
    *value = number;
    return true;
}

/* Index of the word at text among space-separated names, -1 if it is none. */
static int name_index(const char *names, const char *text) {
    int index = 0;
    for (const char *name = names; *name; ++index) {
        const size_t len = strcspn(name, " ");
        if (strlen(text) == len && strncmp(name, text, len) == 0) return index;
        name += len + (name[len] == ' ');
    }
    return -1;
}

/* The index-th name and its length; "" beyond the last. */
static const char *name_at(const char *names, int index, int *len) {
    while (index-- > 0 && *names) names += strcspn(names, " ") + (strchr(names, ' ') != NULL);
    *len = (int)strcspn(names, " ");
    return names;
}

/* The name of a value; its number where it has none, as in a bad call. */
static void print_name(const key *k, int32_t value, char *text, size_t size) {
    int len;
    for (int i = 0; *name_at(k->names, i, &len); ++i)
        if ((k->values ? k->values[i] : i) == value) {
            snprintf(text, size, "%.*s", len, name_at(k->names, i, &len));
            return;
        }
    snprintf(text, size, "%d", value);
}

static bool parse_view(const char *text, case_view *view) {
    static const char strides[] = "BHS";
    memset(view, 0, sizeof *view);
    char layout[8];
    const size_t len = strcspn(text, ":");
    snprintf(layout, sizeof layout, "%.*s", (int)len, text);
    view->layout = name_index(layout_names, layout);
    if (view->layout < 0) return false;
    for (text += len; *text == ':';) {
        const char letter = text[1];
        int64_t value;
        text += 2;
        if (!letter || !take_int(&text, &value)) return false;
        const char *stride = strchr(strides, letter);
        if (stride) {
            view->set[stride - strides] = true;
            view->stride[stride - strides] = value;
        } else if (letter == 'p') {
            view->pitch = (int32_t)value;
        } else if (letter == 's') {
            view->shift = (int32_t)value;
        } else if (letter == 'c') {
            view->spare = (int32_t)value;
        } else {
            return false;
        }
    }
    return *text == 0;
}

static bool parse_list(const char *text, case_list *list) {
    memset(list, 0, sizeof *list);
    while (list->count < CASE_LIST_MAX) {
        int64_t value;
        if (!take_int(&text, &value)) return false;
        list->value[list->count++] = (int32_t)value;
        if (*text == 0) return true;
        if (*text++ != ',') return false;
    }
    return false;
}

static bool parse_value(const key *k, const char *text, void *field) {
    int64_t number = 0;
    char *end;
    int index;
    switch (k->kind) {
    case KIND_INT:
    case KIND_INT64:
        if (!take_int(&text, &number) || *text) return false;
        if (k->kind == KIND_INT64) return *(int64_t *)field = number, true;
        return *(int32_t *)field = (int32_t)number, true;
    case KIND_FLOAT:
        *(float *)field = strtof(text, &end);
        return end != text && *end == 0;
    case KIND_NAME:
        index = name_index(k->names, text);
        if (index >= 0) *(int32_t *)field = k->values ? k->values[index] : index;
        return index >= 0;
    case KIND_FLAGS:
        for (; *text; ++text) {
            const char letter[2] = {*text, 0};
            index = name_index(k->names, letter);
            if (index < 0) return false;
            number |= 1 << index;
        }
        return *(int32_t *)field = (int32_t)number, true;
    case KIND_LIST:
        return parse_list(text, field);
    case KIND_VIEW:
        return parse_view(text, field);
    case KIND_STRING:
        return snprintf(field, k->size, "%s", text) < (int)k->size;
    }
    return false;
}

bool case_parse(const char *line, test_case *c, char *why, size_t why_size) {
    *c = defaults();
    char copy[CASE_LINE_MAX];
    if (snprintf(copy, sizeof copy, "%s", line) >= (int)sizeof copy) {
        snprintf(why, why_size, "the line is longer than %d bytes", CASE_LINE_MAX);
        return false;
    }
    char *rest = NULL;
    for (char *word = strtok_r(copy, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        char *equals = strchr(word, '=');
        const key *k = equals ? keys : keys + kKeys;
        if (equals) *equals = 0;
        while (k < keys + kKeys && strcmp(k->key, word) != 0) ++k;
        if (k == keys + kKeys || !parse_value(k, equals + 1, (char *)c + k->at)) {
            snprintf(why, why_size, "%s=%s is not understood", word, equals ? equals + 1 : "");
            return false;
        }
    }
    return true;
}

test_case case_of(const char *format, ...) {
    char line[CASE_LINE_MAX], why[CASE_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    test_case c;
    if (!case_parse(line, &c, why, sizeof why)) {
        fprintf(stderr, "case '%s': %s\n", line, why);
        exit(2);
    }
    return c;
}

/* snprintf at the end of a string that grows. */
static void append(char *line, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void append(char *line, size_t size, const char *format, ...) {
    const size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, size - used, format, args);
    va_end(args);
}

static void print_view(const case_view *view, char *line, size_t size) {
    int len;
    const char *layout = name_at(layout_names, view->layout, &len);
    append(line, size, "%.*s", len, layout);
    if (view->pitch) append(line, size, ":p%d", view->pitch);
    if (view->shift) append(line, size, ":s%d", view->shift);
    if (view->spare) append(line, size, ":c%d", view->spare);
    for (int i = 0; i < 3; ++i) {
        const int64_t stride = view->stride[i];
        if (view->set[i]) append(line, size, ":%c%" PRId64, "BHS"[i], stride);
    }
}

static void print_value(const key *k, const void *field, char *line, size_t size) {
    const case_list *list = field;
    char name[16];
    int index = 0;
    switch (k->kind) {
    case KIND_INT:
        append(line, size, "%d", *(const int32_t *)field);
        return;
    case KIND_INT64:
        append(line, size, "%" PRId64, *(const int64_t *)field);
        return;
    case KIND_FLOAT:
        append(line, size, "%.9g", (double)*(const float *)field);
        return;
    case KIND_NAME:
        print_name(k, *(const int32_t *)field, name, sizeof name);
        append(line, size, "%s", name);
        return;
    case KIND_FLAGS:
        for (; 2 * index < (int)strlen(k->names); ++index)
            if (*(const int32_t *)field >> index & 1) append(line, size, "%c", k->names[2 * index]);
        return;
    case KIND_LIST:
        for (int i = 0; i < list->count; ++i)
            append(line, size, "%s%d", i ? "," : "", list->value[i]);
        return;
    case KIND_VIEW:
        print_view(field, line, size);
        return;
    case KIND_STRING:
        append(line, size, "%s", (const char *)field);
        return;
    }
}

void case_print(const test_case *c, char *line, size_t line_size) {
    const test_case plain = defaults();
    line[0] = 0;
    for (const key *k = keys; k < keys + kKeys; ++k) {
        const char *field = (const char *)c + k->at;
        if (memcmp(field, (const char *)&plain + k->at, k->size) == 0) continue;
        append(line, line_size, "%s%s=", *line ? " " : "", k->key);
        print_value(k, field, line, line_size);
    }
}
