/* fuzz.h - random calls: legal ones, for the oracle, and illegal ones, which must give an error and
 * write nothing. Call n of a seed is a function of the two. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "cases.h"

/* The case, before it is spoilt if it is an illegal one. */
test_case fuzz_case(uint64_t seed, uint64_t call, fa_device device, bool *illegal);
/* Spoils call n and makes it. True when it was refused and left everything as it was. */
bool fuzz_illegal(uint64_t seed, uint64_t call, fa_device device, char *why, size_t why_size);

#endif /* TESTS_FUZZ_H */
