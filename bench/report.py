"""report.py - one self-contained page, and a table as text, from records of fa_bench.

    python3 bench/report.py RECORD.json ... [--html PAGE.html] [--title TEXT]

Without --html only the table is printed, and nothing but the standard library is needed. All
figures come from the records; nothing is measured or assumed here. It changes when a record gains
something that people should see.
"""

import argparse
import html
import io
import json
import math
import sys

# Told apart with any kind of colour vision, and on white and black alike; markers differ too.
COLOURS = ["#3b8fd6", "#e08a00", "#1b9e77", "#d9603b", "#b07aa1", "#8a8a00"]
MARKERS = ["o", "s", "^", "D", "v", "P"]
INK = "#010203"  # replaced by the page's text colour


def load(path):
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    for key in ("context", "benchmarks"):
        if key not in record:
            sys.exit(f"{path}: not a record of fa_bench: no '{key}'")
    return record


def groups(record):
    """Lists of points that one table shows; grid padded has one for each batch, heads, head_dim."""
    found = {}
    for point in record["benchmarks"]:
        key = (point["grid"],)
        if point["grid"] == "padded":
            key += tuple(point[k] for k in ("batch", "heads_q", "heads_kv", "head_dim"))
        found.setdefault(key, []).append(point)
    return list(found.values())


def role(points, name):
    return [point for point in points if point["role"] == name]


def heading(record, points):
    context, first = record["context"], points[0]
    text = f"{context['device']}, {context['dtype']}, grid {first['grid']}"
    if first["grid"] == "padded":
        text += (f": batch {first['batch']}, heads {first['heads_q']}/{first['heads_kv']}, "
                 f"head_dim {first['head_dim']}")
    return text


def significant(value, digits=3):
    """A number with that many significant digits and no exponent."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def padded_columns(point, other):
    """Time, work and memory of a native call beside those of padded q."""
    return {
        "kv": str(point["kv_len"]),
        "q": str(point["q_len"]),
        "native us": significant(point["real_time"]),
        "padded us": significant(point["padded_us"]),
        "time ratio": significant(point["speed_up"]) + "x",
        "native GFLOP": significant(point["flops"] / 1e9),
        "padded GFLOP": significant(point["padded_flops"] / 1e9),
        "work ratio": significant(point["padded_flops"] / point["flops"]) + "x",
        "extra MB": significant(point["extra_bytes"] / 1e6),
        **speed_columns(point, other),
        "bound us": significant(point["bound_us"]) if "bound_us" in point else "-",
        "within": point.get("within_bound", "-"),
    }


def grid_columns(point, other):
    return {
        "B": str(point["batch"]),
        "heads": f"{point['heads_q']}/{point['heads_kv']}",
        "D": str(point["head_dim"]),
        "q": str(point["q_len"]),
        "kv": str(point["kv_len"]),
        "us": significant(point["real_time"]),
        **speed_columns(point, other),
    }


def speed_columns(point, other):
    return {
        "+-%": f"{100 * point['spread']:.0f}",
        "GFLOP/s": significant(point["flops_per_second"] / 1e9),
        "GB/s": significant(point["bytes"] / point["real_time"] / 1e3),
        "floor us": significant(point["floor_us"]),
        "of floor": f"{100 * point['floor_share']:.0f}%",
        f"{other} us": significant(point[f"{other}_us"]) if f"{other}_us" in point else "-",
    }


def table(record, points):
    """(column names, rows of text) of a group."""
    natives = role(points, "native")
    columns = padded_columns if all("padded_us" in p for p in natives) else grid_columns
    other = "cold" if record["context"]["temperature"] == "warm" else "warm"
    rows = [columns(point, other) for point in natives]
    return list(rows[0]), [list(row.values()) for row in rows]


def machine(record):
    """(name, value) of everything known about the machine and the build, and the ceilings."""
    context = record["context"]
    skip = ("ceiling_", "record_version", "executable", "formula", "num_cpus", "library_build_type")
    facts = [(k, f"{v:.3g}" if isinstance(v, float) else str(v))
             for k, v in context.items() if not k.startswith(skip)]
    peak = f"{context['ceiling_flops_per_second'] / 1e9:.1f} GFLOP/s"
    facts.append(("peak measured", f"{peak} ({context['ceiling_arithmetic']})"))
    memory = f"{context['ceiling_memory_bytes_per_second'] / 1e9:.1f} GB/s"
    if context["ceiling_cache_bytes_per_second"]:
        cache = f"{context['ceiling_cache_bytes_per_second'] / 1e9:.1f} GB/s"
        memory = f"{cache} from the last cache, {memory} from memory"
    facts.append(("read rate measured", memory))
    for point in role(record["benchmarks"], "empty")[:1]:
        facts.append(("empty call", f"{significant(point['real_time'])} us"))
    return facts


def print_text(record, out):
    for name, value in machine(record):
        print(f"{name:20} {value}", file=out)
    for points in groups(record):
        print(f"\n{heading(record, points)}\n{record['context']['formula']}", file=out)
        names, rows = table(record, points)
        widths = [max(len(n), *(len(r[i]) for r in rows)) for i, n in enumerate(names)]
        for row in [names, *rows]:
            print("  ".join(cell.rjust(w) for cell, w in zip(row, widths)), file=out)


# ---- plots -------------------------------------------------------------------------------------


def new_figure(panels):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "svg.fonttype": "none", "font.size": 10, "axes.grid": True, "grid.alpha": 0.25,
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "grid.color": INK, "axes.titlelocation": "left",
    })
    figure, axes = pyplot.subplots(1, panels, figsize=(4.4 * panels, 3.6), squeeze=False)
    figure.patch.set_alpha(0)
    for axis in axes[0]:
        axis.patch.set_alpha(0)
    return figure, axes[0]


def to_svg(figure, number):
    import matplotlib
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = f"figure {number}"  # ids differ within the page
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg"):].replace(INK, "currentColor")


def plot_padded(points):
    """Time, speed-up over padded q, and share of the floor, by q_len; one line a kv_len."""
    figure, (time, ratio, share) = new_figure(3)
    natives = role(points, "native")
    for n, kv in enumerate(sorted({p["kv_len"] for p in natives})):
        line = [p for p in natives if p["kv_len"] == kv]
        q = [p["q_len"] for p in line]
        style = {"color": COLOURS[n % 6], "marker": MARKERS[n % 6], "markersize": 5}
        time.plot(q, [p["real_time"] for p in line], label=f"kv {kv}", **style)
        time.plot(q, [p["padded_us"] for p in line], color=style["color"], linestyle="--")
        ratio.plot(q, [p["speed_up"] for p in line], label=f"kv {kv}", **style)
        ratio.plot(q, [p["padded_flops"] / p["flops"] for p in line], color=style["color"],
                   linestyle=":")
        share.plot(q, [100 * p["floor_share"] for p in line], label=f"kv {kv}", **style)
    ratio.axhline(1, color=INK, linewidth=1.2)
    ratio.annotate("equal", (1, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    time.set(title="time, us (dashed: padded q)", yscale="log")
    ratio.set(title="padded / native time (dotted: work)", yscale="log")
    share.set(title="share of the measured limit, %", ylim=(0, 105))
    ticks = sorted({p["q_len"] for p in natives})
    for axis in (time, ratio, share):
        axis.set_xscale("log", base=4)
        axis.set_xticks(ticks, [str(t) for t in ticks])
        axis.set_xlabel("q_len")
        axis.legend()
    return figure


def plot_grid(points):
    """Share of the floor, a bar each shape."""
    figure, (axis,) = new_figure(1)
    natives = role(points, "native")
    figure.set_size_inches(9, 1 + 0.28 * len(natives))
    names = [f"{p['batch']} x {p['heads_q']}/{p['heads_kv']} x {p['head_dim']}, "
             f"q {p['q_len']}, kv {p['kv_len']}" for p in natives]
    axis.barh(names, [100 * p["floor_share"] for p in natives], color=COLOURS[0])
    axis.axvline(100, color=INK, linewidth=1.2)
    axis.invert_yaxis()
    axis.set(title="share of the measured limit, %")
    return figure


# ---- page --------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #ccc; --band: #f3f3f3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --rule: #444; --band: #202327; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
       max-width: 1200px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
td, th { padding: .2em .7em; text-align: right; border-bottom: 1px solid var(--rule); }
.facts td { text-align: left; } tr:nth-child(even) td { background: var(--band); }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; font-family: inherit; }
"""

LEGEND = """<p>Native: q_len rows against kv_len keys, bottom-right causal. Padded: q padded at its
front to kv_len, the square causal call of the same kernel, its last q_len rows kept; both results
were compared before and after timing. Floor: max(empty call + visible flops / measured peak, time
to only read the same K and V, measured in turns with the call, * all bytes / theirs); of floor:
floor / time. Bound: 1.5 * max(padded time * visible pairs native / padded, that read) + an empty
call, where kv &ge; 1k and q &le; kv/4.</p>"""


def html_table(names, rows, kind=""):
    cells = [f"<tr>{''.join(f'<th>{html.escape(n)}</th>' for n in names)}</tr>"] if names else []
    for row in rows:
        cells.append(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>")
    return f"<div class=wide><table class='{kind}'>{''.join(cells)}</table></div>"


def page(records, title):
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
             f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{LEGEND}"]
    number = 0
    for record in records:
        parts.append(f"<h2>{html.escape(record['context']['processor'])}</h2>")
        parts.append(html_table([], machine(record), "facts"))
        for points in groups(record):
            parts.append(f"<h3>{html.escape(heading(record, points))}</h3>")
            padded = all("padded_us" in p for p in role(points, "native"))
            number += 1
            parts.append(to_svg(plot_padded(points) if padded else plot_grid(points), number))
            parts.append(f"<p><code>{html.escape(record['context']['formula'])}</code></p>")
            parts.append(html_table(*table(record, points)))
    return "\n".join(parts) + "</html>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+")
    parser.add_argument("--html", help="write the page here")
    parser.add_argument("--title", default="fa_fwd_causal: padded q against native q_len != kv_len")
    options = parser.parse_args()
    records = [load(path) for path in options.records]
    for record in records:
        print_text(record, sys.stdout)
    if options.html:
        with open(options.html, "w", encoding="utf-8") as file:
            file.write(page(records, options.title))
        print(f"\nreport: {options.html}")


if __name__ == "__main__":
    main()
