"""page.py - the frame of the report: style, script, tables. It knows nothing of records."""

import html

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6670; --paper: #f7f8f9; --card: #fff;
  --rule: #dde2e6; --band: #f3f5f7; --c0: #0072b2; --c1: #d55e00; --c2: #007f5f; --c3: #a64d79;
  --c4: #8a6d00; --c5: #5d4bb7; --c6: #8b4a2b; --c7: #4a5a6a;
  --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaed; --soft: #9aa5af; --paper: #101418;
  --card: #181d22; --rule: #2c343b; --band: #1e242a; --c0: #56b4e9; --c1: #f08c4a; --c2: #35c49a;
  --c3: #e08fbb; --c4: #e0c04a; --c5: #a99bf0; --c6: #d3a07c; --c7: #a9b8c6;
  --shade: #0009; } }
* { box-sizing: border-box; }
body { color: var(--ink); background: var(--paper); margin: 0;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1600px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.2rem); line-height: 1.2; margin: 0 0 .3em;
  letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .2em; }
h3 { font-size: 1.05rem; margin: 2em 0 .4em; }
p { max-width: 76ch; margin: .4em 0; } .lead, .note { color: var(--soft); }
.note { font-size: 13px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 22px 24px; margin: 24px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 16px 0; }
.tiles div { border: 1px solid var(--rule); border-radius: 10px; padding: 12px 14px; min-width: 0; }
.tiles b { display: block; font-size: 1.55rem; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 12.5px; line-height: 1.35; display: block; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 18px;
  margin: 10px 0; font-size: 13px; } .facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr));
  gap: 18px; }
figure { margin: 8px 0; min-width: 0; max-width: 620px; }
figcaption { font-weight: 600; font-size: 13.5px; margin-bottom: 4px; }
svg { display: block; width: 100%; height: auto; } .legend svg { width: 26px; }
svg text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg text.name { fill: var(--ink); } svg text.row { font-size: 10px; fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: 1; } .faint { opacity: .55; }
.level { stroke: var(--ink); stroke-width: 1.4; }
.curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 6 4; } .none { stroke: none; }
.dotted { stroke-dasharray: 1.5 4; stroke-linecap: round; }
.mark { fill: currentColor; stroke: var(--card); stroke-width: 1.2; }
.hollow { fill: var(--card); stroke: currentColor; stroke-width: 1.8; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; font-size: 13px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
/* A shadow at an edge beyond which there is more to scroll to. */
.wide { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; margin: 6px 0;
  background: linear-gradient(90deg, var(--card) 60%, transparent) left / 40px 100% local,
    linear-gradient(-90deg, var(--card) 60%, transparent) right / 40px 100% local,
    linear-gradient(90deg, var(--shade), transparent) left / 12px 100%,
    linear-gradient(-90deg, var(--shade), transparent) right / 12px 100%;
  background-repeat: no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px;
  width: 100%; }
th, td { padding: 5px 8px; text-align: right; white-space: nowrap; }
thead th { position: sticky; top: 0; background: var(--band);
  border-bottom: 1px solid var(--rule); padding: 0; }
th button { all: unset; cursor: pointer; padding: 7px 8px; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--c0); outline-offset: -2px; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
tbody tr + tr td { border-top: 1px solid var(--rule); }
tbody tr:hover td { background: var(--band); }
td.low { color: var(--c1); font-weight: 600; } td.high { color: var(--c0); font-weight: 600; }
.bar { display: flex; justify-content: flex-end; }
.copy { font: inherit; font-size: 12.5px; color: var(--soft); background: none; cursor: pointer;
  border: 1px solid var(--rule); border-radius: 6px; padding: 3px 10px; }
code { font-size: 12.5px; overflow-wrap: anywhere; }
@media (min-width: 1100px) { .facts {
  grid-template-columns: max-content minmax(0, 1fr) max-content minmax(0, 1fr); } }
@media (max-width: 600px) { main { padding: 20px 12px 48px; } section { padding: 16px 14px; }
  .facts { grid-template-columns: 92px minmax(0, 1fr); gap: 3px 10px; font-size: 12px; } }
"""

SCRIPT = """
const value = cell => {
  const n = parseFloat(cell.textContent);
  return isNaN(n) ? cell.textContent : n;
};
for (const table of document.querySelectorAll('table')) {
  const heads = table.querySelectorAll('th');
  heads.forEach((th, column) => th.firstChild.addEventListener('click', () => {
    const up = th.ariaSort !== 'ascending', body = table.tBodies[0];
    for (const other of heads) other.ariaSort = 'none';
    th.ariaSort = up ? 'ascending' : 'descending';
    body.append(...[...body.rows].sort((a, b) => {
      const x = value(a.cells[column]), y = value(b.cells[column]);
      const order = typeof x === typeof y ? (x > y) - (x < y) : typeof x === 'number' ? -1 : 1;
      return up ? order : -order;
    }));
  }));
  const button = table.closest('.table').querySelector('.copy');
  button.addEventListener('click', async () => {
    const line = row => [...row.cells].map(c => c.textContent).join('\\t');
    const text = [...table.rows].map(line).join('\\n');
    try { await navigator.clipboard.writeText(text); }
    catch { const area = document.createElement('textarea'); area.value = text;
      document.body.append(area); area.select(); document.execCommand('copy'); area.remove(); }
    button.textContent = 'copied';
  });
}
"""


def escape(words):
    return html.escape(str(words))


def table(names, rows, ratios=()):
    """Sortable and copyable; cells of the named columns are marked below and above 1."""
    head = "".join(f"<th><button>{escape(name)}</button></th>" for name in names)
    lines = []
    for row in rows:
        cells = []
        for name, cell in zip(names, row):
            kind = ""
            if name in ratios and cell != "-":
                ratio = float(cell.rstrip("x"))
                kind = ' class="low"' if ratio < 0.98 else ' class="high"' if ratio > 1.02 else ""
            cells.append(f"<td{kind}>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return ('<div class="table"><div class="bar"><button class="copy">copy table</button></div>'
            f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>'
            f"{''.join(lines)}</tbody></table></div></div>")


def facts(pairs):
    listed = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs)
    return f'<dl class="facts">{listed}</dl>'


def tiles(pairs):
    """(figure, what it is)."""
    return ('<div class="tiles">' + "".join(f"<div><b>{escape(k)}</b><span>{escape(v)}</span></div>"
                                            for k, v in pairs) + "</div>")


def page(title, lead, sections):
    body = "".join(f"<section>{section}</section>" for section in sections)
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE}</style><main><h1>{escape(title)}</h1>{lead}{body}</main>"
            f"<script>{SCRIPT}</script></html>\n")
