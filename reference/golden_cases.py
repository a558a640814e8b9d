"""golden_cases.py - the calls whose answers golden/ holds. Changes when a case is added.

Small on purpose: the answers together stay below 2 MB and take seconds to compute in Python.
"""

import zlib

ARRAYS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "leftpad_q",
    "leftpad_k",
    "block_table",
    "causal_offsets",
)
CASES = []
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def case(name, dtype, batch, heads, head_dim, q_len, kv_len, **more):
    """heads is (heads_q, heads_kv); kind and the *_scale options make the three input rules, whose
    seed comes from the name so that a new case changes no other's."""
    kind, seed = more.pop("kind", "normal"), zlib.crc32(name.encode())
    rules = {t + "_rule": (kind, seed, float(more.pop(t + "_scale", 1))) for t in "qkv"}
    fields = {
        "name": name,
        "dtype": dtype,
        "batch": batch,
        "heads_q": heads[0],
        "heads_kv": heads[1],
        "head_dim": head_dim,
        "q_len": q_len,
        "kv_len": kv_len,
        "q_layout": "bshd",
        "kv_layout": "bshd",
        "kv_rows": kv_len,  # of the cache when neither packed nor paged
        **rules,
        "scale": 0.0,
        "align": 0,
        "causal_offset": 0,
        "total_q": 0,
        "total_k": 0,
        "page_size": 0,
        "num_pages": 0,
        "block_table_cols": 0,
        "block_table_stride": 0,
        **dict.fromkeys(ARRAYS),
    }
    assert more.keys() <= fields.keys(), more
    CASES.append({**fields, **more})


# Lengths: equal, past KV, decode, more queries than keys, nothing.
case("square_f16", "f16", 1, (2, 2), 64, 33, 33)
case("square_f32", "f32", 2, (2, 1), 32, 20, 20)
case("chunk_f16", "f16", 1, (4, 2), 128, 17, 80)
case("chunk_bf16", "bf16", 2, (2, 2), 64, 9, 131)
case("decode_bf16", "bf16", 3, (4, 4), 128, 1, 129)
case("decode_one_key_f16", "f16", 2, (2, 1), 64, 1, 1)
case("q_longer_f16", "f16", 1, (2, 2), 64, 8, 3)
case("q_longer_bf16", "bf16", 1, (2, 1), 16, 130, 1)
case("q_longer_blocks_f32", "f32", 1, (1, 1), 16, 160, 40)
case("no_keys_f32", "f32", 2, (2, 1), 16, 4, 0)
case("no_queries_bf16", "bf16", 2, (2, 1), 16, 0, 9)
case("no_batch_f16", "f16", 0, (2, 1), 16, 4, 9)
case("picture_2x5_f32", "f32", 1, (1, 1), 4, 2, 5, kind="small_int")
case("picture_5x2_f32", "f32", 1, (1, 1), 4, 5, 2, kind="small_int")

# Edges of the usual tiles.
case("edge_63_f16", "f16", 1, (2, 1), 64, 63, 63)
case("edge_64_bf16", "bf16", 1, (1, 1), 64, 64, 64)
case("edge_65_f32", "f32", 1, (1, 1), 64, 65, 65)
case("edge_128_f16", "f16", 1, (1, 1), 64, 3, 128)
case("edge_257_bf16", "bf16", 1, (1, 1), 64, 2, 257)
case("diagonal_in_two_blocks_f16", "f16", 1, (1, 1), 32, 113, 203)

# Head ratios.
case("ratio_3_f16", "f16", 2, (9, 3), 64, 1, 100)
case("ratio_5_f16", "f16", 1, (5, 1), 80, 3, 65)
case("ratio_7_bf16", "bf16", 1, (14, 2), 128, 2, 64)
case("ratio_8_f16", "f16", 1, (16, 2), 64, 4, 63)
case("ratio_71_bf16", "bf16", 1, (71, 1), 16, 2, 30)

# Head dims.
case("dim_1_f32", "f32", 1, (2, 1), 1, 21, 37)
case("dim_8_f16", "f16", 1, (2, 1), 8, 30, 45)
case("dim_46_f16", "f16", 1, (2, 1), 46, 5, 33)
case("dim_96_bf16", "bf16", 1, (3, 1), 96, 7, 40)
case("dim_192_bf16", "bf16", 1, (2, 2), 192, 5, 50)
case("dim_256_f16", "f16", 1, (2, 1), 256, 6, 40)
case("dim_512_f32", "f32", 1, (2, 1), 512, 3, 20)
case("dim_512_bf16", "bf16", 1, (1, 1), 512, 4, 33)

# Layouts and ragged batches.
case("long_cache_f16", "f16", 2, (4, 2), 64, 5, 40, q_layout="bhsd", kv_layout="bhsd", kv_rows=64)
case("packed_bf16", "bf16", 3, (2, 1), 32, 146, 1,
     cu_seqlens_q=[0, 76, 110, 256], cu_seqlens_k=[0, 1, 2, 3], total_q=256, total_k=3)
case("packed_zero_lengths_f16", "f16", 5, (4, 2), 64, 6, 19,
     cu_seqlens_q=[0, 4, 4, 9, 15, 15], cu_seqlens_k=[0, 0, 7, 26, 29, 29], total_q=15, total_k=30)
case("packed_used_leftpad_f32", "f32", 3, (3, 1), 24, 9, 30, q_layout="bhsd", kv_layout="bhsd",
     cu_seqlens_q=[2, 10, 14, 23], cu_seqlens_k=[1, 31, 40, 60], total_q=25, total_k=61,
     seqused_q=[5, 0, 9], seqused_k=[20, 4, 11], leftpad_q=[3, 1, 0], leftpad_k=[0, 5, 9])
case("packed_long_segments_f16", "f16", 2, (2, 2), 16, 4, 10,
     cu_seqlens_q=[0, 7, 10], cu_seqlens_k=[0, 25, 33], total_q=10, total_k=33,
     seqused_q=[4, 3], seqused_k=[10, 8], leftpad_k=[5, 0])
case("packed_q_padded_k_bf16", "bf16", 3, (4, 1), 64, 3, 50,
     cu_seqlens_q=[0, 1, 4, 6], total_q=6, seqused_k=[50, 3, 17])
case("left_padded_f16", "f16", 3, (2, 1), 64, 12, 12, leftpad_q=[0, 5, 12], leftpad_k=[0, 5, 12])
case("right_padded_bf16", "bf16", 3, (2, 1), 64, 10, 40, seqused_q=[10, 1, 0], seqused_k=[40, 7, 3])
case("padded_both_sides_f16", "f16", 2, (4, 2), 32, 8, 30, kv_rows=33,
     leftpad_q=[1, 2], leftpad_k=[7, 0], seqused_q=[6, 4], seqused_k=[20, 29])

# Pages.
case("pages_of_16_f16", "f16", 2, (4, 2), 64, 3, 40, page_size=16, num_pages=7,
     block_table_cols=3, block_table_stride=4, block_table=[5, 0, 3, 6, 1, 4, 2, 6],
     seqused_k=[40, 33])
case("pages_of_1_bf16", "bf16", 1, (2, 1), 32, 2, 6, page_size=1, num_pages=8,
     block_table_cols=6, block_table_stride=6, block_table=[7, 0, 6, 1, 5, 2])
case("pages_of_3_leftpad_f32", "f32", 2, (3, 1), 40, 4, 11, page_size=3, num_pages=9,
     block_table_cols=4, block_table_stride=4, block_table=[8, 1, 7, 2, 0, 6, 3, 5],
     leftpad_k=[4, 0], seqused_k=[7, 10], kv_layout="bhsd")
case("pages_shared_packed_q_bf16", "bf16", 3, (8, 1), 64, 5, 64, page_size=64, num_pages=2,
     block_table_cols=1, block_table_stride=1, block_table=[1, 0, 1], seqused_k=[3, 64, 63],
     cu_seqlens_q=[0, 1, 6, 8], total_q=8)
case("no_pages_f16", "f16", 2, (2, 1), 32, 2, 32, page_size=16, num_pages=0,
     block_table_cols=2, block_table_stride=2)

# Offsets.
case("offset_top_left_f16", "f16", 1, (2, 1), 64, 6, 20, align=1, causal_offset=0)
case("offset_negative_bf16", "bf16", 1, (2, 1), 32, 10, 10, align=1, causal_offset=-4)
case("offset_beyond_f32", "f32", 1, (2, 1), 32, 4, 6, align=1, causal_offset=INT_MAX)
case("offset_all_masked_f16", "f16", 1, (2, 1), 32, 4, 6, align=1, causal_offset=INT_MIN)
case("offset_each_bf16", "bf16", 4, (2, 1), 64, 5, 24, align=1, causal_offsets=[-2, 0, 9, 100],
     seqused_k=[24, 24, 24, 2])

# Numbers.
case("scale_given_f16", "f16", 1, (2, 1), 192, 3, 7, scale=float.fromhex("0x1.d5e354p-4"))
case("scale_one_bf16", "bf16", 1, (9, 3), 64, 2, 20, scale=1.0)
case("large_logits_f16", "f16", 1, (2, 1), 80, 6, 60, q_scale=12, k_scale=60)
case("large_logits_f32", "f32", 1, (2, 1), 64, 6, 60, q_scale=100, k_scale=100)
case("equal_logits_bf16", "bf16", 1, (2, 1), 64, 4, 100, q_scale=0)
case("infinite_keys_f16", "f16", 1, (2, 1), 1, 60, 60, k_scale=30000)
case("uniform_f16", "f16", 1, (2, 2), 128, 8, 90, kind="uniform")
case("small_int_bf16", "bf16", 1, (2, 1), 64, 8, 40, kind="small_int", scale=0.0625)
