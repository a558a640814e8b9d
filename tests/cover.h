/* cover.h - a pairwise cover: few rows in which every two values of any two axes meet. */
#ifndef TESTS_COVER_H
#define TESTS_COVER_H

#include <stdbool.h>

enum { COVER_AXES = 16, COVER_VALUES = 16, COVER_ROWS = 400 };

/* Whether value x of axis a and value y of axis b, a < b, may stand in one row. */
typedef bool cover_legal(int a, int x, int b, int y);

/* Fills rows[n][axis] with a value each and returns n; the same rows on every machine. A pair that
 * is not legal is in no row, every other one is in at least one. -1 when COVER_ROWS do not do. */
int cover_rows(int axes, const int *sizes, cover_legal *legal, int rows[COVER_ROWS][COVER_AXES]);

#endif /* TESTS_COVER_H */
