/* cover.c - greedy: each row starts from a pair that no row has yet, and every further axis takes
 * the value that adds most new pairs with what the row already holds. */
#include "cover.h"

#include <string.h>

typedef struct cover {
    int axes;
    const int *sizes;
    cover_legal *legal;
    bool done[COVER_AXES][COVER_VALUES][COVER_AXES][COVER_VALUES]; /* a < b */
} cover;

static bool legal(const cover *c, int a, int x, int b, int y) {
    return a < b ? c->legal(a, x, b, y) : c->legal(b, y, a, x);
}

static bool done(const cover *c, int a, int x, int b, int y) {
    return a < b ? c->done[a][x][b][y] : c->done[b][y][a][x];
}

/* New pairs that value x of an axis makes with the row's set axes; -1 when one is not legal. */
static int gain(const cover *c, const int *row, int axis, int x) {
    int pairs = 0;
    for (int other = 0; other < c->axes; ++other) {
        if (row[other] < 0 || other == axis) continue;
        if (!legal(c, axis, x, other, row[other])) return -1;
        pairs += !done(c, axis, x, other, row[other]);
    }
    return pairs;
}

/* A legal pair that no row has. */
static bool find_missing(const cover *c, int row[COVER_AXES]) {
    for (int a = 0; a < c->axes; ++a)
        for (int b = a + 1; b < c->axes; ++b)
            for (int x = 0; x < c->sizes[a]; ++x)
                for (int y = 0; y < c->sizes[b]; ++y)
                    if (!c->done[a][x][b][y] && c->legal(a, x, b, y)) {
                        row[a] = x;
                        row[b] = y;
                        return true;
                    }
    return false;
}

/* turn varies which axis chooses first, and which of equally good values it takes. */
static bool complete(const cover *c, int row[COVER_AXES], int turn) {
    for (int n = 0; n < c->axes; ++n) {
        const int axis = (n + turn) % c->axes;
        if (row[axis] >= 0) continue;
        int best = -1, best_value = -1;
        for (int n_value = 0; n_value < c->sizes[axis]; ++n_value) {
            const int value = (n_value + turn) % c->sizes[axis];
            const int pairs = gain(c, row, axis, value);
            if (pairs <= best) continue;
            best = pairs;
            best_value = value;
        }
        if (best_value < 0) return false;
        row[axis] = best_value;
    }
    return true;
}

int cover_rows(int axes, const int *sizes, cover_legal *may_meet,
               int rows[COVER_ROWS][COVER_AXES]) {
    static cover c;
    memset(&c, 0, sizeof c);
    c.axes = axes;
    c.sizes = sizes;
    c.legal = may_meet;
    for (int count = 0; count < COVER_ROWS; ++count) {
        int *row = rows[count];
        for (int axis = 0; axis < COVER_AXES; ++axis) row[axis] = -1;
        if (!find_missing(&c, row)) return count;
        if (!complete(&c, row, count)) return -1;
        for (int a = 0; a < axes; ++a)
            for (int b = a + 1; b < axes; ++b) c.done[a][row[a]][b][row[b]] = true;
    }
    return -1;
}
