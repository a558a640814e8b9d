/* cases.c - the list. Lines whose id is in the shape A<n> or B<n> stand for reported faults of
 * other libraries; CASES.md says what each is. README.md explains the keys. */
#include "cases.h"

const char *const case_lines[] = {
    "id=A1 dtype=f16 hq=2 hkv=2 d=64 q=8 kv=3",
    "id=A2 dtype=bf16 d=128 q=70 kv=33",
    "id=A9 dtype=bf16 b=3 hq=2 hkv=2 d=32 q=146 kv=1 qr=c kr=c qs=76,34,146 ks=1",
    "dtype=f32 b=2 hq=6 hkv=2 d=40 q=7 kv=23 Q=bhsd:p3:s1 K=bshd:p1 V=bhsd:c9 O=bshd:p2 L=bshd:p1",
    "dtype=f16 b=3 hq=6 hkv=2 d=40 q=9 kv=9 Q=fused K=fused V=fused qr=u kr=ul qs=9,0,4 ks=3,9,0",
    "dtype=bf16 b=3 hq=3 hkv=1 d=72 q=5 kv=50 page=16 kr=ul ks=50,0,17 kp=0,1,9 K=fused V=fused "
    "splits=3",
    "dtype=f32 b=2 d=32 hq=4 hkv=2 q=20 kv=70 in=pick v=index tasks=3 K=bhsd:S-32",
    "dtype=f16 d=64 hq=4 hkv=4 q=100 kv=300 split_keys=64 in=low",
};

const int case_line_count = sizeof case_lines / sizeof *case_lines;
