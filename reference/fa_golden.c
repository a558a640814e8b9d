/* fa_golden.c - see fa_golden.h. A file is lines of "field values", then float64 numbers. */
#include "fa_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fa_inputs.h"

#define LINE_SIZE 1024

/* Fields of the header that are no field of fa_args. */
typedef struct extras {
    int q_bhsd;
    int kv_bhsd;
    int32_t kv_rows;
    fa_input_rule rules[3]; /* of q, k and v */
} extras;

static void *allocate(int64_t count, size_t size) { return calloc((size_t)count + 1, size); }

/* The int32 field of that name, or null. */
static int32_t *scalar_field(fa_args *args, extras *more, const char *name) {
    const struct {
        const char *name;
        int32_t *at;
    } fields[] = {
        {"batch", &args->batch},
        {"heads_q", &args->heads_q},
        {"heads_kv", &args->heads_kv},
        {"head_dim", &args->head_dim},
        {"q_len", &args->q_len},
        {"kv_len", &args->kv_len},
        {"align", &args->align},
        {"causal_offset", &args->causal_offset},
        {"total_q", &args->total_q},
        {"total_k", &args->total_k},
        {"page_size", &args->page_size},
        {"num_pages", &args->num_pages},
        {"block_table_cols", &args->block_table_cols},
        {"kv_rows", &more->kv_rows},
    };
    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++)
        if (strcmp(fields[n].name, name) == 0) return fields[n].at;
    return NULL;
}

/* The pointer field of that name, or null; *index is its place among golden->arrays. */
static const int32_t **array_field(fa_args *args, const char *name, size_t *index) {
    const struct {
        const char *name;
        const int32_t **at;
    } fields[FA_GOLDEN_ARRAYS] = {
        {"cu_seqlens_q", &args->cu_seqlens_q}, {"cu_seqlens_k", &args->cu_seqlens_k},
        {"seqused_q", &args->seqused_q},       {"seqused_k", &args->seqused_k},
        {"leftpad_q", &args->leftpad_q},       {"leftpad_k", &args->leftpad_k},
        {"block_table", &args->block_table},   {"causal_offsets", &args->causal_offsets},
    };
    for (*index = 0; *index < FA_GOLDEN_ARRAYS; (*index)++)
        if (strcmp(fields[*index].name, name) == 0) return fields[*index].at;
    return NULL;
}

static int read_array(const char *text, int32_t *values, int64_t capacity) {
    int64_t count = 0;
    for (char *end;; text = end) {
        const long value = strtol(text, &end, 10);
        if (end == text) return *text == 0 ? 0 : -1;
        if (count == capacity) return -1;
        values[count++] = (int32_t)value;
    }
}

static int read_dtype(const char *text, int32_t *dtype) {
    *dtype = 0;
    if (strcmp(text, "f16") == 0) *dtype = FA_DTYPE_F16;
    if (strcmp(text, "bf16") == 0) *dtype = FA_DTYPE_BF16;
    if (strcmp(text, "f32") == 0) *dtype = FA_DTYPE_F32;
    return *dtype != 0 ? 0 : -1;
}

static int read_rule(const char *text, fa_input_rule *rule) {
    const char *const kinds[] = {"normal", "uniform", "small_int"};
    char kind[16], scale[32];
    unsigned long long seed;
    if (sscanf(text, "%15s %llu %31s", kind, &seed, scale) != 3) return -1;
    rule->seed = seed;
    rule->scale = strtof(scale, NULL);
    for (int n = 0; n < 3; n++)
        if (strcmp(kind, kinds[n]) == 0) {
            rule->kind = (fa_input_kind)n;
            return 0;
        }
    return -1;
}

/* One line of the header, cut into the field's name and its text. */
static int read_field(fa_golden *golden, extras *more, const char *name, const char *text) {
    fa_args *args = &golden->args;
    size_t index;
    int32_t *scalar = scalar_field(args, more, name);
    const int32_t **array = array_field(args, name, &index);
    if (scalar != NULL) {
        *scalar = (int32_t)strtol(text, NULL, 10);
    } else if (array != NULL) {
        golden->arrays[index] = allocate(LINE_SIZE, sizeof(int32_t));
        *array = golden->arrays[index];
        return golden->arrays[index] ? read_array(text, golden->arrays[index], LINE_SIZE) : -1;
    } else if (strcmp(name, "name") == 0) {
        snprintf(golden->name, sizeof golden->name, "%.60s", text);
    } else if (strcmp(name, "dtype") == 0) {
        return read_dtype(text, &args->dtype);
    } else if (strcmp(name, "scale") == 0) {
        args->scale = strtof(text, NULL);
    } else if (strcmp(name, "block_table_stride") == 0) {
        args->block_table_stride = strtol(text, NULL, 10);
    } else if (strcmp(name, "rows") == 0) {
        golden->rows = strtol(text, NULL, 10);
    } else if (strcmp(name, "q_layout") == 0) {
        more->q_bhsd = strcmp(text, "bhsd") == 0;
    } else if (strcmp(name, "kv_layout") == 0) {
        more->kv_bhsd = strcmp(text, "bhsd") == 0;
    } else if (strlen(name) == 6 && strcmp(name + 1, "_rule") == 0 && strchr("qkv", name[0])) {
        return read_rule(text, &more->rules[strchr("qkv", name[0]) - "qkv"]);
    } else {
        return -1;
    }
    return 0;
}

static int read_header(FILE *file, fa_golden *golden, extras *more) {
    char line[LINE_SIZE], name[32];
    int text_at = 0;
    if (fgets(line, sizeof line, file) == NULL || strcmp(line, "FAGOLD 1\n") != 0) return -1;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "data o lse float64 little-endian") == 0) return 0;
        if (sscanf(line, "%31s %n", name, &text_at) != 1) return -1;
        if (read_field(golden, more, name, line + text_at) != 0) {
            fprintf(stderr, "fa_golden: cannot read \"%s\"\n", line);
            return -1;
        }
    }
    return -1;
}

/* The whole tensor filled by its rule, and its view. */
static fa_view make_tensor(const fa_args *args, const extras *more, fa_input_tensor tensor,
                           int64_t rows, int64_t heads, int64_t count) {
    const int bhsd = tensor == FA_INPUT_Q ? more->q_bhsd : more->kv_bhsd;
    void *data = allocate(count, sizeof(float));
    if (data != NULL) fa_input_fill(more->rules[tensor], tensor, args->dtype, data, count);
    return bhsd ? fa_bhsd(data, heads, rows, args->head_dim)
                : fa_bshd(data, rows, heads, args->head_dim);
}

static int make_inputs(fa_golden *golden, const extras *more) {
    fa_args *a = &golden->args;
    const int packed_q = a->cu_seqlens_q != NULL, packed_k = a->cu_seqlens_k != NULL;
    const int64_t q_rows = packed_q ? a->total_q : a->q_len;
    int64_t kv_rows = packed_k ? a->total_k : more->kv_rows;
    int64_t kv_entries = packed_k ? 1 : a->batch;
    if (a->page_size > 0) {
        kv_rows = a->page_size;
        kv_entries = a->num_pages;
    }
    golden->lse_elements = (packed_q ? 1 : a->batch) * q_rows * a->heads_q;
    golden->q_elements = golden->lse_elements * a->head_dim;
    golden->kv_elements = kv_entries * kv_rows * a->heads_kv * a->head_dim;
    a->q = make_tensor(a, more, FA_INPUT_Q, q_rows, a->heads_q, golden->q_elements);
    a->k = make_tensor(a, more, FA_INPUT_K, kv_rows, a->heads_kv, golden->kv_elements);
    a->v = make_tensor(a, more, FA_INPUT_V, kv_rows, a->heads_kv, golden->kv_elements);
    a->o = a->q;
    a->o.data = NULL;
    a->lse = fa_bhsd(NULL, a->heads_q, q_rows, 1);
    return a->q.data != NULL && a->k.data != NULL && a->v.data != NULL ? 0 : -1;
}

/* Little-endian whatever the machine's order. */
static int read_doubles(FILE *file, double *values, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        unsigned char bytes[8];
        uint64_t bits = 0;
        if (fread(bytes, 1, sizeof bytes, file) != sizeof bytes) return -1;
        for (int b = 7; b >= 0; b--) bits = bits << 8 | bytes[b];
        memcpy(&values[n], &bits, sizeof bits);
    }
    return 0;
}

static int read_answer(FILE *file, fa_golden *golden) {
    const int64_t count = golden->rows * golden->args.head_dim;
    golden->o = allocate(count, sizeof(double));
    golden->lse = allocate(golden->rows, sizeof(double));
    if (golden->o == NULL || golden->lse == NULL) return -1;
    if (read_doubles(file, golden->o, count) != 0) return -1;
    if (read_doubles(file, golden->lse, golden->rows) != 0) return -1;
    return fgetc(file) == EOF ? 0 : -1;
}

int fa_golden_load(const char *path, fa_golden *golden) {
    extras more;
    FILE *file = fopen(path, "rb");
    memset(golden, 0, sizeof *golden);
    memset(&more, 0, sizeof more);
    golden->args = fa_args_default();
    golden->args.device = FA_DEVICE_CPU;
    if (file != NULL && read_header(file, golden, &more) == 0 && read_answer(file, golden) == 0 &&
        make_inputs(golden, &more) == 0) {
        fclose(file);
        return 0;
    }
    fprintf(stderr, "fa_golden: %s is missing or no golden file\n", path);
    if (file != NULL) fclose(file);
    fa_golden_free(golden);
    return -1;
}

void fa_golden_free(fa_golden *golden) {
    free(golden->args.q.data);
    free(golden->args.k.data);
    free(golden->args.v.data);
    free(golden->o);
    free(golden->lse);
    for (int n = 0; n < FA_GOLDEN_ARRAYS; n++) free(golden->arrays[n]);
    memset(golden, 0, sizeof *golden);
}
