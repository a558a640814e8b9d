/* conform.h - the parts of fa_conform: what is judged (conform.c) and what is written about it
 * (conform_report.c). It changes when a section, a state or a known difference is added. */
#ifndef TESTS_CONFORM_H
#define TESTS_CONFORM_H

#include "cases.h"

typedef enum conform_state {
    CONFORM_NOT_RUN,
    CONFORM_RIGHT,
    CONFORM_DIALECT,     /* right in the declared dialect */
    CONFORM_UNSUPPORTED, /* refused, as the declared dialect may */
    CONFORM_WRONG
} conform_state;

typedef enum conform_section {
    SECTION_CASES,
    SECTION_IDENTITIES,
    SECTION_FUZZ,
    SECTION_ERRORS,
    CONFORM_SECTIONS
} conform_section;

/* Beside the DIALECT_ bits of a case: statuses "not built, no kernel" are no fault. */
enum { DIALECT_UNSUPPORTED = 128, CONFORM_DIFFERENCES = 8 };

/* A known way of differing from the contract. */
typedef struct conform_difference {
    char letter;
    int bit;
    const char *name, *meaning;
} conform_difference;
extern const conform_difference conform_differences[CONFORM_DIFFERENCES];

typedef struct conform_item {
    conform_section section;
    int index; /* within the section */
    char name[CASE_LINE_MAX + 64];
    conform_state state;
    int dialect; /* the differences that were needed */
    double milliseconds;
    char why[2 * CASE_LINE_MAX];       /* one line */
    char repeat[CASE_LINE_MAX + 1200]; /* the command that repeats it alone */
} conform_item;

typedef struct conform_run {
    const char *library, *kernel, *only, *stem;
    fa_device device;
    int fuzz, count;
    int dialect; /* declared on the command line, -1: by the library */
    uint64_t seed;
    conform_item *item;
    struct {
        int current, dialect;
        int32_t version;
    } * shared; /* with the child that runs the items */
} conform_run;

/* The letters of the differences in text as bits; false for an unknown one. */
bool conform_read_dialect(const char *text, int *bits);
const char *conform_letters(void);
/* What a library says of itself through const char *fa_dialect(void); 0 without it, -1 when it
 * has nothing to be judged: an adapter whose peer is not installed. */
int conform_declared(const subject *s);

/* Writes the run's items where item is not null; returns how many there are. */
int conform_list(const conform_run *run, conform_item *item);
void conform_judge(const conform_run *run, conform_item *item);

/* Writes the files and prints failures, differences and the verdict. False: a file failed. */
bool conform_report(const conform_run *run);
int conform_verdict(const conform_run *run); /* the exit code */
const char *conform_section_name(conform_section section);

#endif /* TESTS_CONFORM_H */
