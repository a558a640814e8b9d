"""plots.py - the report's plots, as SVG text without any library.

Colours are the page's CSS variables, so light and dark are its matter; series differ in colour,
dash and marker, so that no reader depends on one of them. Every mark carries its numbers in a title
(a tooltip) and in data-x and data-y, which the tests recompute. It changes when a plot is added.
"""

import html
import math

WIDTH, HEIGHT = 380, 270
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 38
SERIES = 8  # colours and markers that the page has


def significant(value, digits=3):
    """A number with that many significant digits and no exponent."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def short(value):
    """A tick: 1k for 1000 and for 1024, no trailing zeros."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def log_ticks(low, high, most=6):
    """1-2-5 ticks of a range, or decades where those are too many; equal steps in a narrow one."""
    if high < 4 * low:
        step = next(s * 10.0 ** d for d in range(math.floor(math.log10(low)) - 2, 9)
                    for s in (1, 2, 2.5, 5) if (high - low) / (s * 10.0 ** d) <= most - 1)
        return [round(n * step, 6) for n in range(math.ceil(low / step), int(high / step) + 1)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0 ** d for d in decades for s in steps
                 if low * 0.999 <= s * 10.0 ** d <= high * 1.001]
        if len(ticks) <= most:
            return ticks
    return ticks[::math.ceil(len(ticks) / most)]


class Axis:
    """A value's place in pixels; a range of no width is given some."""

    def __init__(self, values, low_px, high_px, log=True, limits=None):
        self.log, self.low_px, self.high_px = log, low_px, high_px
        low, high = limits or (min(values), max(values))
        if log:
            room = max((high / low) ** 0.06, 1.05)
            low, high = low / room, high * room
        self.low, self.high = low, high

    def __call__(self, value):
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.low_px + part * (self.high_px - self.low_px)


def text(x, y, words, anchor="middle", kind=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f"{html.escape(words)}</text>")


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def mark(x, y, number, tip, data, hollow=False):
    """One of eight shapes of the same weight, by number; the last is ours beside peers."""
    r, number = 4, number % SERIES
    shapes = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"',
        f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"',
        f'<path d="M{x:.1f} {y - 4.6:.1f}l4.6 8h-9.2z"',
        f'<path d="M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z"',
        f'<path d="M{x:.1f} {y + 4.6:.1f}l4.6-8h-9.2z"',
        f'<path d="M{x:.1f} {y - 2:.1f}l3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3 2-2z"',
        f'<rect x="{x - 1.8:.1f}" y="{y - 5:.1f}" width="3.6" height="10"',
        f'<path d="M{x - 1.5:.1f} {y - 4.5:.1f}h3v3h3v3h-3v3h-3v-3h-3v-3h3z"',
    ]
    return (f'{shapes[number]} class="mark c{number}{" hollow" if hollow else ""}" '
            f'data-x="{data[0]:.10g}" data-y="{data[1]:.10g}"><title>{html.escape(tip)}</title>'
            + {"<c": "</circle>", "<r": "</rect>", "<p": "</path>"}[shapes[number][:2]])


def figure(title, body, height=HEIGHT):
    return (f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} '
            f'{height}" role="img" aria-label="{html.escape(title)}">{"".join(body)}</svg>'
            "</figure>")


def curves(title, series, x_name, log_y=True, level=None, limits=None, percent=False):
    """Lines over a logarithmic x. series: (name, number, [(x, y)], dash); marks where no dash.

    level is the line that a reader compares with, labelled by its value."""
    xs = sorted({x for _, _, points, _ in series for x, _ in points})
    ys = [y for _, _, points, _ in series for _, y in points] + ([level] if level else [])
    across = Axis(xs, LEFT, WIDTH - RIGHT)
    up = Axis(ys, HEIGHT - BOTTOM, TOP, log_y, limits)
    body = []
    ticks = log_ticks(up.low, up.high) if log_y else [0, 25, 50, 75, 100]
    for y in ticks:
        body.append(line(LEFT, up(y), WIDTH - RIGHT, up(y), "grid"))
        body.append(text(LEFT - 7, up(y) + 4, short(y) + ("%" if percent else ""), "end"))
    shown, last = [], -math.inf
    for x in xs:  # as many as do not touch
        if across(x) - last >= 34:
            shown.append(x)
            last = across(x)
    for x in shown:
        body.append(line(across(x), TOP, across(x), HEIGHT - BOTTOM, "grid"))
        body.append(text(across(x), HEIGHT - BOTTOM + 16, short(x)))
    if level:
        body.append(line(LEFT, up(level), WIDTH - RIGHT, up(level), "level"))
    body.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_name, "middle", "name"))
    for name, number, points, dash in series:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        body.append(f'<polyline points="{path}" class="curve c{number % SERIES} {dash}"/>')
        for x, y in points if not dash else ():
            tip = f"{name}, {x_name} {x:g}: {significant(y)}{'%' if percent else ''}"
            body.append(mark(across(x), up(y), number, tip, (x, y)))
    return figure(title, body)


def rows(title, labels, series, log=True, level=None, limits=None, unit=""):
    """A row for each label, a mark for each series. series: (name, number, [value or None])."""
    left, step = 186, 19
    height = TOP + step * len(labels) + BOTTOM - 8
    values = [v for _, _, column in series for v in column if v] + ([level] if level else [])
    across = Axis(values, left, WIDTH - 18, log, limits)
    bottom = height - BOTTOM + 12
    body, labelled = [], []
    ticks = log_ticks(across.low, across.high, 5) if log else [0, 25, 50, 75, 100]
    # The line that a reader compares with is named, whatever else finds room.
    for x in [*([level] if level and log else []), *ticks]:
        if all(abs(across(x) - other) >= 32 for other in labelled):
            body.append(line(across(x), TOP, across(x), bottom, "grid"))
            body.append(text(across(x), bottom + 16, short(x) + unit))
            labelled.append(across(x))
    if level:
        body.append(line(across(level), TOP, across(level), bottom, "level"))
    for n, label in enumerate(labels):
        y = TOP + step * (n + 0.5) + 2
        body.append(text(left - 10, y + 4, label, "end", "row"))
        body.append(line(left, y, WIDTH - 18, y, "grid faint"))
        for name, number, column in series:
            if not column[n]:
                continue
            below = level and log and column[n] < level
            tip = f"{label}: {name} {significant(column[n])}{unit}"
            body.append(mark(across(column[n]), y, number, tip, (n, column[n]), bool(below)))
    return figure(title, body, height)


def legend(entries):
    """entries: (name, number, dash); dash "none" is a mark without a line."""
    keys = []
    for name, number, dash in entries:
        shape = mark(13, 7, number, name, (0, 0)) if dash in ("", "none") else ""
        keys.append(f'<span><svg viewBox="0 0 26 14" width="26" height="14" aria-hidden="true">'
                    f'<polyline points="1,7 25,7" class="curve c{number % SERIES} {dash}"/>{shape}'
                    f"</svg>{html.escape(name)}</span>")
    return f'<div class="legend">{"".join(keys)}</div>'
