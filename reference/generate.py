"""generate.py - writes golden/: the answers that every machine must reproduce to the last bit.

A second oracle, written apart from fa_reference.c: it lays real arrays out and slices them, where
the C oracle computes offsets. Products of the inputs are exact in float64, every sum is
math.fsum (rounded once), exp and ln come from decimal (rounded once from 40 digits), so no BLAS, no
libm and no order of summation can change a bit.

    python3 reference/generate.py --check    regenerates in memory; fails unless golden/ is the same
    python3 reference/generate.py            prints which files change, and writes them

It changes when the contract's mathematics does, or when golden_cases.py needs a new field.
"""

import argparse
import decimal
import hashlib
import json
import math
import pathlib
import struct
import sys

import numpy as np

from golden_cases import CASES

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
DIGITS = decimal.Context(prec=40, Emin=-999999999, Emax=999999999)
TENSORS = {"q": 0, "k": 1, "v": 2}


def mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def words(seed, tensor, counters):
    """The rule's 64-bit words, one for each counter (fa_inputs.h describes the rule)."""
    step = 0x9E3779B97F4A7C15
    key = mix(np.array([(seed + (tensor + 1) * step) % 2**64], dtype=np.uint64))
    return mix(key + (counters + np.uint64(1)) * np.uint64(step))


def rule_values(kind, seed, scale, tensor, count):
    index = np.arange(count, dtype=np.uint64)
    if kind == "normal":
        total = np.zeros(count, dtype=np.int64)
        for draw in range(3):
            word = words(seed, tensor, index * np.uint64(3) + np.uint64(draw))
            for field in range(4):
                total += (word >> np.uint64(16 * field) & np.uint64(0xFFFF)).astype(np.int64)
        exact = (total - 6 * 65535) / 2.0**16
    elif kind == "uniform":
        top = (words(seed, tensor, index) >> np.uint64(40)).astype(np.int64)
        exact = (top - 2**23) / 2.0**23
    else:
        top = words(seed, tensor, index) >> np.uint64(32)
        exact = (top * np.uint64(9) >> np.uint64(32)).astype(np.int64) - 4
    return exact.astype(np.float32) * np.float32(scale)


def round_to(dtype, values):
    """float32 rounded to dtype, as float64."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    elif dtype == "bf16":
        bits = values.view(np.uint32).astype(np.uint64)
        bits = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
        values = (bits << np.uint64(16)).astype(np.uint32).view(np.float32)
    return values.astype(np.float64)


def tensor(case, name):
    """The whole tensor as (entry, row, head, dim); entries are sequences, pages, or 1 if packed."""
    if name == "q":
        packed = case["cu_seqlens_q"] is not None
        shape = (1, case["total_q"]) if packed else (case["batch"], case["q_len"])
        heads, layout = case["heads_q"], case["q_layout"]
    else:
        heads, layout = case["heads_kv"], case["kv_layout"]
        if case["page_size"]:
            shape = (case["num_pages"], case["page_size"])
        elif case["cu_seqlens_k"] is not None:
            shape = (1, case["total_k"])
        else:
            shape = (case["batch"], case["kv_rows"])
    entries, rows = shape
    dim = case["head_dim"]
    flat = rule_values(*case[name + "_rule"], TENSORS[name], entries * rows * heads * dim)
    flat = round_to(case["dtype"], flat)
    if layout == "bhsd":
        return flat.reshape(entries, heads, rows, dim).transpose(0, 2, 1, 3)
    return flat.reshape(entries, rows, heads, dim)


def real_rows(case, side, i, rows, declared):
    """The real rows of sequence i among all rows that it could have, in their order."""
    cu, used, pad = (case[f"{name}_{side}"] for name in ("cu_seqlens", "seqused", "leftpad"))
    mine = rows[cu[i] : cu[i + 1]] if cu is not None else rows[:declared]
    mine = mine[pad[i] :] if pad is not None else mine
    mine = mine[:declared]
    return mine[: used[i]] if used is not None else mine


def sequence(case, arrays, i):
    """q, k and v of sequence i as (row, head, dim), padding and pages resolved."""
    q = arrays["q"][0 if case["cu_seqlens_q"] is not None else i]
    found = [real_rows(case, "q", i, q, case["q_len"])]
    for name in ("k", "v"):
        pool = arrays[name]
        if case["page_size"]:
            at = i * case["block_table_stride"]
            table = case["block_table"][at : at + case["block_table_cols"]] if len(pool) else []
            rows = pool[np.array(table, dtype=np.int64)]
            rows = rows.reshape(-1, case["heads_kv"], case["head_dim"])
        else:
            rows = pool[0 if case["cu_seqlens_k"] is not None else i]
        found.append(real_rows(case, "k", i, rows, case["kv_len"]))
    return found


def exact_sum(terms):
    try:
        return math.fsum(terms)
    except ValueError:  # +Inf and -Inf
        return math.nan


def exp(x):
    return 0.0 if x == -math.inf else float(DIGITS.exp(decimal.Decimal(x)))


def attend(scale, q, k, v):
    """One row over the keys that it sees: o and lse."""
    with np.errstate(invalid="ignore"):
        logits = [scale * exact_sum(product) for product in (k * q).tolist()]
    dim = v.shape[1]
    if any(math.isnan(x) or x == math.inf for x in logits):
        return [math.nan] * dim, math.nan
    if not logits or max(logits) == -math.inf:
        return [0.0] * dim, -math.inf
    top = max(logits)
    weights = [exp(x - top) for x in logits]
    total = math.fsum(weights)
    with np.errstate(invalid="ignore"):
        terms = (v * np.array(weights)[:, None]).T.tolist()
    ln_total = float(DIGITS.ln(decimal.Decimal(total)))
    return [exact_sum(column) / total for column in terms], top + ln_total


def answers(case):
    """o and lse of the rows that exist, in the order sequence, head, row."""
    scale = case["scale"] or float(np.float32(1 / math.sqrt(case["head_dim"])))
    group = case["heads_q"] // case["heads_kv"]
    arrays = {name: tensor(case, name) for name in TENSORS}
    o, lse = [], []
    for i in range(case["batch"]):
        q, k, v = sequence(case, arrays, i)
        offset = len(k) - len(q)
        if case["align"] == 1:
            offsets = case["causal_offsets"]
            offset = case["causal_offset"] if offsets is None else offsets[i]
        for head in range(case["heads_q"]):
            for row in range(len(q)):
                seen = max(0, min(len(k), row + offset + 1))
                mine = slice(0, seen), head // group
                o_row, lse_row = attend(scale, q[row, head], k[mine], v[mine])
                o.extend(o_row)
                lse.append(lse_row)
    return o, lse


def header(case, rows):
    lines = ["FAGOLD 1"]
    for key, value in case.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            value = " ".join(x.hex() if isinstance(x, float) else str(x) for x in value)
        lines.append(f"{key} {value.hex() if isinstance(value, float) else value}")
    lines.append(f"rows {rows}")
    return "\n".join(lines + ["data o lse float64 little-endian", ""]).encode("ascii")


def golden_files():
    """All files of golden/ but its README, as {name: bytes}."""
    files, entries = {}, []
    for case in CASES:
        o, lse = answers(case)
        data = header(case, len(lse)) + struct.pack(f"<{len(o) + len(lse)}d", *o, *lse)
        name = case["name"] + ".golden"
        assert name not in files, name
        files[name] = data
        fields = {key: value for key, value in case.items() if value is not None}
        digest = hashlib.sha256(data).hexdigest()
        entries.append({**fields, "file": name, "bytes": len(data), "sha256": digest})
    text = ",\n".join(json.dumps(entry) for entry in entries)
    files["MANIFEST.json"] = f'{{"format": "FAGOLD 1", "cases": [\n{text}\n]}}\n'.encode("ascii")
    return files


def main():
    parser = argparse.ArgumentParser(description="Checks or rewrites the golden files.")
    parser.add_argument("--check", action="store_true", help="compare only; fail on a difference")
    check = parser.parse_args().check
    new = golden_files()
    old = {path.name: path.read_bytes() for path in GOLDEN.iterdir() if path.name != "README.md"}
    changed = [name for name in sorted(new.keys() | old.keys()) if new.get(name) != old.get(name)]
    for name in changed:
        before, after = (
            hashlib.sha256(files[name]).hexdigest()[:16] if name in files else "absent"
            for files in (old, new)
        )
        print(f"{name}: {before} -> {after}")
    if not check:
        for name in changed:
            if name in new:
                (GOLDEN / name).write_bytes(new[name])
            else:
                (GOLDEN / name).unlink()
    size = sum(map(len, new.values()))
    print(f"golden: {len(new) - 1} cases, {size} bytes, {len(changed)} files differ")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
