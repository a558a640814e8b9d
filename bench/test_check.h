/* test_check.h - one macro for the bench's own tests: states a fact, prints it when it is false. */
#ifndef FB_TEST_CHECK_H
#define FB_TEST_CHECK_H

#include <stdio.h>

static int checks, failures;

#define CHECK(fact, ...)                                                                     \
    do {                                                                                     \
        checks++;                                                                            \
        if (!(fact)) failures++, printf("FALSE %s: ", #fact), printf(__VA_ARGS__), puts(""); \
    } while (0)

static int report_checks(const char *what) {
    printf("%s: %d checks, %d false\n", what, checks, failures);
    return failures != 0;
}

#endif /* FB_TEST_CHECK_H */
