/* counts.h - what a test run compared, summed over the processes that it consists of. */
#ifndef TESTS_COUNTS_H
#define TESTS_COUNTS_H

#include <stdint.h>

typedef struct counts {
    int64_t cases, elements, cells; /* calls judged, values compared, cells of the truth table */
} counts;

/* Called once, before any test, by the process that prints the sum: later ones inherit it. */
void counts_begin(void);
void counts_add(int64_t cases, int64_t elements, int64_t cells);
counts counts_sum(void);

#endif /* TESTS_COUNTS_H */
