"""peers.py - this library against what a user would pick instead, on a GPU.

    python3 bench/peers.py OUT --ours LIB.so [--variant NAME=LIB.so[:KERNEL] ...]
                                [--rows REGEX] [--shape B,HQ,HKV,D,Q,KV ...] [--peers NAME,...]

Writes OUT.csv (a record for report.py) and OUT.json (Google-Benchmark's form, with all samples).
Rows are grids A to D of grids.c, chosen by a regular expression on names such as
`A b8 h32/8 d128 q2048 kv2048`, and shapes given here. A variant is another build of this library,
or one of its kernels, timed in the same turns; --ours takes a KERNEL too. Builds with test hooks
can be told the kernel. peers.sh builds what this needs and runs it.

Peers, each where installed: FlashAttention-2 and cuDNN as torch calls them, FlashAttention-3
(fa3-fwd), FlashAttention-4 (flash-attn-4). A peer without the call is a gap: cuDNN's mask through
torch is top-left, so it stands in square calls and in those of one row.

All get the same (b, s, h, d) tensors. Outputs (ours poisoned before) are compared with a float32
computation on the GPU before they are timed, ours also afterwards, in every bit. Calls alternate in
a new order each round, a launch more or less between them, so that no call always meets the same
state of the instruction caches. Before each the L2 is flushed by reading. A time is the median of
device events; a ratio the median of paired ratios within the rounds, with the interval that covers
the true median in 95 % (order statistics). Ceilings come from the same run.
"""

import argparse
import ctypes
import datetime
import hashlib
import math
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import time

import gate
from peers_record import (FIELDS, FORMULA, FROBENIUS, median_interval, name_of, summary, table_line,
                          write_csv, write_json)

HERE = pathlib.Path(__file__).resolve().parent
LSE = 16 * 2.0 ** -24  # times max(8, |lse|): twice the tests', since the reference rounds too


# ---- what is measured ----------------------------------------------------------------------------


def grid_rows():
    """The table of grids.c, as dicts."""
    text = (HERE / "grids.c").read_text(encoding="utf-8")
    found = re.findall(r'\{"(\w+)", ' + ", ".join([r"(\d+)"] * 6) + r"\}", text)
    return [dict(zip(FIELDS, (row[0], *map(int, row[1:])))) for row in found]


def chosen_rows(options):
    rows = [r for r in grid_rows() if re.search(options.rows, name_of(r))]
    rows += [dict(zip(FIELDS, ("X", *map(int, text.split(","))))) for text in options.shape]
    for row in rows:
        if len(row) != len(FIELDS) or row["q_len"] > row["kv_len"]:
            sys.exit(f"{row}: a shape is B,HQ,HKV,D,Q,KV with Q <= KV")
    return rows


# ---- calls ---------------------------------------------------------------------------------------


class Unsupported(Exception):
    """The peer has no such call; the text says why."""


class Library:
    """One build of this library, by path; kernel: the one to force, or none."""

    def __init__(self, text, fa):
        path, _, kernel = text.partition(":")
        self.kernel = kernel.encode() or None  # the library keeps its address, so it must stay
        self.path, self.fa = pathlib.Path(path).resolve(), fa
        self.library = ctypes.CDLL(str(self.path))
        self.library.fa_last_error.restype = ctypes.c_char_p
        self.version = hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]

    def force(self, kernel):
        if self.kernel:
            self.library.fai_test_force_kernel(kernel)

    def must(self, status):
        if status:
            raise Unsupported(f"status {status}: {self.library.fa_last_error().decode()}")

    def arguments(self, torch, q, k, v, fields):
        fa = self.fa

        def view(t):
            return fa.View(t.data_ptr(), t.stride(0), t.stride(2), t.stride(1))
        batch, q_len, heads_q, head_dim = q.shape
        o = torch.full_like(q, math.nan)
        lse = torch.full(q.shape[:3], math.nan, device=q.device)
        a = fa.Args(struct_size=ctypes.sizeof(fa.Args), version=fa.VERSION,
                    device=2 if q.is_cuda else 1,
                    dtype=(4 if q.dtype == torch.bfloat16 else 2) * 256 + 16, batch=batch,
                    heads_q=heads_q, heads_kv=k.shape[2], head_dim=head_dim, q_len=q_len,
                    kv_len=k.shape[1], q=view(q), k=view(k), v=view(v), o=view(o),
                    lse=view(lse[..., None]), **fields)
        return a, o, lse

    def prepare(self, torch, q, k, v, **fields):
        """A function that runs the call on the current stream and returns (o, lse as (b, q, h)).
        fields are others of fa_args."""
        a, o, lse = self.arguments(torch, q, k, v, fields)
        pointer, size = ctypes.byref(a), ctypes.c_size_t()
        self.force(self.kernel)
        self.must(self.library.fa_fwd_causal_workspace(pointer, ctypes.byref(size)))
        workspace = torch.zeros(max(size.value, 16), dtype=torch.uint8, device=q.device)
        a.workspace, a.workspace_size = workspace.data_ptr(), size.value
        text = ctypes.create_string_buffer(4096)
        self.must(self.library.fa_explain(pointer, text, ctypes.c_size_t(len(text))))
        self.force(None)
        stream_of = torch.cuda.current_stream if q.is_cuda else None
        library, force, kernel = self.library, self.force, self.kernel

        def run():
            stream = ctypes.c_void_p(stream_of().cuda_stream) if stream_of else None
            force(kernel)
            status = library.fa_fwd_causal(pointer, stream)
            force(None)
            if status:
                self.must(status)
            return o, lse
        run.alive, run.found = (a, workspace, q, k, v), (o, lse)  # the call has addresses only
        run.plan = dict(line.split("=", 1) for line in text.value.decode().splitlines()
                        if "=" in line)
        return run


def flash_2(torch, q, k, v):
    aten = torch.ops.aten._scaled_dot_product_flash_attention
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))

    def run():
        found = aten(q, k, v, 0.0, True)
        return found[0].transpose(1, 2), found[1].transpose(1, 2)
    return run


def cudnn(torch, q, k, v):
    if 1 < q.shape[1] != k.shape[1]:
        raise Unsupported("the causal mask is top-left")
    aten = torch.ops.aten._scaled_dot_product_cudnn_attention
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal = q.shape[2] > 1

    def run():
        return aten(q, k, v, None, False, 0.0, causal, False)[0].transpose(1, 2), None
    return run


def flash_3(torch, q, k, v):
    from fa3_fwd_interface import _flash_attn_forward as forward

    def run():  # 0 splits: as many as its heuristic wants
        found = forward(q, k, v, causal=True, num_splits=0)
        return found[0], found[1].transpose(1, 2)
    return run


def flash_4(torch, q, k, v):
    from flash_attn.cute.interface import flash_attn_func

    def run():
        found = flash_attn_func(q, k, v, causal=True)
        return found[0] if isinstance(found, tuple) else found, None
    return run


PEERS = {"fa2": ("torch", flash_2), "cudnn": ("torch", cudnn), "fa3": ("fa3-fwd", flash_3),
         "fa4": ("flash-attn-4", flash_4)}


def installed(wanted):
    """Versions of the wanted peers that are installed."""
    from importlib import metadata

    found = {}
    for name in wanted:
        try:
            found[name] = metadata.version(PEERS[name][0])
        except metadata.PackageNotFoundError:
            print(f"{name}: {PEERS[name][0]} is not installed", file=sys.stderr)
    return found


# ---- right first ---------------------------------------------------------------------------------


def reference(torch, q, k, v, most=1 << 28):
    """(o, lse as (b, q, h)) in float32, bottom-right, at most `most` scores at a time."""
    batch, q_len, heads_q, dim = q.shape
    kv_len, heads_kv = k.shape[1:3]
    group, rows = heads_q // heads_kv, heads_q // heads_kv * q_len
    # Units are (sequence, kv head); a unit's rows are packed, query r // group.
    packed = q.reshape(batch, q_len, heads_kv, group, dim).permute(0, 2, 1, 3, 4)
    packed = packed.reshape(batch * heads_kv, rows, dim)
    k, v = (x.permute(0, 2, 1, 3).reshape(batch * heads_kv, kv_len, dim) for x in (k, v))
    o = torch.empty(packed.shape, device=q.device)
    lse = torch.empty(packed.shape[:2], device=q.device)
    last = torch.arange(rows, device=q.device) // group + kv_len - q_len
    keys = torch.arange(kv_len, device=q.device)
    step = max(1, min(rows, most // kv_len))
    units = max(1, most // (step * kv_len))
    for unit in range(0, batch * heads_kv, units):
        keys_t = k[unit:unit + units].float().transpose(1, 2)
        values = v[unit:unit + units].float()
        for row in range(0, rows, step):
            at = slice(unit, unit + units), slice(row, row + step)
            scores = torch.bmm(packed[at].float(), keys_t).mul_(dim ** -0.5)
            scores.masked_fill_(keys > last[at[1], None], -math.inf)
            lse[at] = torch.logsumexp(scores, -1)
            o[at] = torch.bmm(scores.sub_(lse[at][..., None]).exp_(), values)
    o = o.reshape(batch, heads_kv, q_len, group, dim).permute(0, 2, 1, 3, 4).reshape(q.shape)
    lse = lse.reshape(batch, heads_kv, q_len, group).permute(0, 2, 1, 3)
    return o, lse.reshape(batch, q_len, heads_q)


def judge(found, wanted, limit):
    """(relative Frobenius error of o, a complaint or none). NaN never passes."""
    (o, lse), (want_o, want_lse) = found, wanted
    error = float((o.float() - want_o).norm() / want_o.norm())
    if not error <= limit:
        return error, f"o is off by {error:.2e}, at most {limit:.2e}"
    if lse is not None:
        off = float(((lse - want_lse).abs() / want_lse.abs().clamp(min=8)).max())
        if not off <= LSE:
            return error, f"lse is off by {off:.2e}, relative, at most {LSE:.2e}"
    return error, None


# ---- timing --------------------------------------------------------------------------------------


class Clock:
    """Cold times of calls in turns, on the current device."""

    def __init__(self, torch, read, flush_bytes):
        self.torch, self.read = torch, read
        self.data = torch.ones(flush_bytes // 4, dtype=torch.int32, device="cuda")
        self.span = ctypes.c_void_p(self.data.data_ptr()), ctypes.c_size_t(flush_bytes)
        self.extra = torch.zeros(1, device="cuda")
        self.coin = random.Random(1)

    def flush(self):
        """Reads, since a write would leave lines whose write-back the next call pays. Long enough
        for the host to be ahead."""
        self.read.fb_cuda_read(*self.span)

    def round(self, runs):
        """One call of each in a new order: {name: (event, event)}."""
        events, order = {}, list(runs)
        self.coin.shuffle(order)
        for name in order:
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            if self.coin.random() < 0.5:
                self.extra.zero_()
            self.flush()
            begin.record()
            runs[name]()
            end.record()
            events[name] = begin, end
        return events

    def samples(self, runs, seconds):
        """{name: [us]}: an odd number of rounds, at least 15, 25 where a call takes below 50 us,
        at most 101, as the seconds allow; the first two warm up."""
        def us(events):
            self.torch.cuda.synchronize()
            return {n: 1e3 * a.elapsed_time(b) for n, (a, b) in events.items()}
        us(self.round(runs))
        began = time.monotonic()
        first = us(self.round(runs))
        least = 25 if min(first.values()) < 50 else 15
        rounds = max(least, min(101, int(seconds / (time.monotonic() - began)))) | 1
        found = [self.round(runs) for _ in range(rounds)]
        found = [us(events) for events in found]
        return {name: [f[name] for f in found] for name in runs}


def reader(folder):
    """read_cuda.cu, compiled; its functions start kernels on the default stream."""
    path = pathlib.Path(folder) / "read_cuda.so"
    if not path.exists():
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        subprocess.run([nvcc, "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-arch=native",
                        f"-I{HERE}", f"-I{HERE.parent / 'include'}", HERE / "read_cuda.cu", "-o",
                        path], check=True)
    return ctypes.CDLL(str(path))


def measure_ceilings(torch, clock, read):
    """The floor's constants: an empty kernel, the rate of one that only reads and what it takes
    before its first byte, and a large matrix product, a reference line that a kernel may pass."""
    large = torch.ones(1 << 29, dtype=torch.int32, device="cuda")
    sizes, address = (16 << 20, 2 << 30), ctypes.c_void_p(large.data_ptr())
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def reading(size):
        return lambda: read.fb_cuda_read(address, ctypes.c_size_t(size))
    runs = {"empty": read.fb_cuda_empty, "small": reading(sizes[0]), "large": reading(sizes[1]),
            "matmul": lambda: torch.mm(a, b)}
    us = {n: statistics.median(s) for n, s in clock.samples(runs, 0.5).items()}
    rate = (sizes[1] - sizes[0]) / (us["large"] - us["small"]) * 1e6
    return {"flops_per_second": 2 * 8192 ** 3 / us["matmul"] * 1e6, "bytes_per_second": rate,
            "empty_us": us["empty"], "read_us": us["small"] - 1e6 * sizes[0] / rate}


def clocks():
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
    found = subprocess.run(["nvidia-smi", "-i", "0", "--format=csv,noheader",
                            f"--query-gpu={query}"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


# ---- the run -------------------------------------------------------------------------------------


def prepare(torch, row, subjects, peers, dtype, told):
    """(runs, errors): everything that can do the row's call and is right. Complaints are told
    once."""
    torch.manual_seed(1)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    b, hq, hkv, d, q_len, kv_len = (row[f] for f in FIELDS[1:])
    q, k, v = (torch.randn(b, rows, heads, d, device="cuda").to(kind)
               for rows, heads in ((q_len, hq), (kv_len, hkv), (kv_len, hkv)))
    wanted, runs, errors = reference(torch, q, k, v), {}, {}
    for name in [*subjects, *peers]:
        try:
            run = (subjects[name].prepare(torch, q, k, v) if name in subjects
                   else PEERS[name][1](torch, q, k, v))
            errors[name], complaint = judge(run(), wanted, FROBENIUS[dtype])
        except Exception as why:  # a gap in the table, with its reason
            complaint = f"{type(why).__name__}: {str(why)[:200]}"
            if "CUDA error" in complaint or (name == "ours" and not isinstance(why, Unsupported)):
                raise
        if complaint:
            if (name, complaint) not in told:
                print(f"{name_of(row)}: {name}: {complaint}", file=sys.stderr)
            told.add((name, complaint))
            continue
        runs[name] = run
    return runs, errors


def same_bits(torch, before, run):
    return all(torch.equal(x, y) for x, y in zip(before, run()))


def measure(torch, clock, row, subjects, peers, options, told):
    runs, errors = prepare(torch, row, subjects, peers, options.dtype, told)
    if "ours" not in runs:
        raise SystemExit(f"{name_of(row)}: ours is refused or wrong")
    before = [t.clone() for t in runs["ours"]()]
    samples = clock.samples(runs, options.seconds)
    if not same_bits(torch, before, runs["ours"]):
        raise SystemExit(f"{name_of(row)}: the bits of ours changed while it was timed")
    us = {name: statistics.median(s) for name, s in samples.items()}
    ratios = {name: median_interval([p / o for p, o in zip(s, samples["ours"])])
              for name, s in samples.items() if name != "ours"}
    best = min((n for n in us if n in peers), key=us.get, default=None)
    return {"row": row, "us": us, "samples": samples, "errors": errors, "ratios": ratios,
            "best": best, "plans": {n: runs[n].plan for n in runs if n in subjects}}


def context_of(torch, subjects, versions, options, before):
    device = torch.cuda.get_device_properties(0)
    return {"executable": "peers.py", "device": "cuda", "processor": device.name,
            "sms": device.multi_processor_count, "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
            "peers": versions, "libraries": {n: s.version for n, s in subjects.items()},
            "source_digest": gate.digest_of(HERE.parent), "dtype": options.dtype,
            "statistic": "median", "temperature": "cold", "formula": FORMULA,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "clocks_before": before, "clocks_after": clocks(), "record_version": 1}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="path of the records, without its ending")
    parser.add_argument("--ours", required=True, metavar="LIB[:KERNEL]")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=LIB[:KERNEL]")
    parser.add_argument("--rows", default=".", help="regular expression on the rows' names")
    parser.add_argument("--shape", action="append", default=[], metavar="B,HQ,HKV,D,Q,KV")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, or none")
    parser.add_argument("--dtype", choices=list(FROBENIUS), default="bf16")
    parser.add_argument("--seconds", type=float, default=0.6, help="of timing, each row")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of the whole run")
    parser.add_argument("--list", action="store_true", help="print the rows' names and stop")
    return parser.parse_args()


def main():
    options, began = parse(), time.monotonic()
    rows = chosen_rows(options)
    if options.list:
        print("\n".join(map(name_of, rows)))
        return 0
    import torch

    os.environ["FA_LIBRARY"] = options.ours.partition(":")[0]
    sys.path.insert(0, str(HERE.parent / "examples" / "llama"))
    import fa

    named = [("ours", options.ours), *(text.split("=", 1) for text in options.variant)]
    subjects = {name: Library(text, fa) for name, text in named}
    versions = installed([] if options.peers == "none" else options.peers.split(","))
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    read = reader(pathlib.Path(options.out).resolve().parent)
    before, clock = clocks(), Clock(torch, read, 1 << 30)
    ceilings = measure_ceilings(torch, clock, read)
    print(f"{torch.cuda.get_device_name(0)}, {before}; peers {versions}\nceilings: "
          + ", ".join(f"{k} {v:.5g}" for k, v in ceilings.items()) + f"\n{FORMULA}", flush=True)
    points, names, told = [], [*subjects, *versions], set()
    try:
        for at, row in enumerate(rows):
            if time.monotonic() - began > options.budget:
                print(f"out of time: {len(rows) - at} rows are left out")
                break
            points.append(measure(torch, clock, row, subjects, versions, options, told))
            print(table_line(points[-1], ceilings), flush=True)
            torch.cuda.empty_cache()
    finally:
        if points:
            context = context_of(torch, subjects, versions, options, before)
            write_csv(f"{options.out}.csv", context, ceilings, points, names)
            write_json(f"{options.out}.json", context, ceilings, points)
    summary(points)
    print(f"{len(points)} of {len(rows)} rows in {time.monotonic() - began:.0f} s")
    return 0 if len(points) == len(rows) else 3


if __name__ == "__main__":
    sys.exit(main())
