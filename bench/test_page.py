"""test_page.py - the report in a real browser: nothing overflows, overlaps or is cut off.

    python3 bench/test_page.py PAGE.html [FOLDER]

Opens the page in headless Chromium at the width of a phone and of a desk, in light and dark, asks
the layout where everything is, and with FOLDER leaves the pictures there to be looked at. Exits
with 77 where there is no Chromium.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTHS = (390, 1600)

PROBE = """<script>
const faults = [], root = document.documentElement, shown = root.clientWidth;
if (root.scrollWidth > shown) faults.push(`the page is ${root.scrollWidth} wide in ${shown}`);
const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 ||
  b.bottom <= a.top + 1;
for (const svg of document.querySelectorAll('figure svg')) {
  const frame = svg.getBoundingClientRect(), name = svg.getAttribute('aria-label');
  const texts = [...svg.querySelectorAll('text')].map(
    t => [t.textContent, t.getBoundingClientRect()]);
  for (const [words, box] of texts) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
      faults.push(`"${words}" is cut off in ${name}`);
    if (box.height < 8) faults.push(`"${words}" is ${box.height} px high in ${name}`);
  }
  for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++)
    if (!apart(texts[i][1], texts[j][1]))
      faults.push(`${texts[i][0]} and ${texts[j][0]} in ${name}`);
  for (const mark of svg.querySelectorAll('.mark')) {
    const box = mark.getBoundingClientRect();
    if (box.left < frame.left || box.right > frame.right || box.top < frame.top) faults.push(
      `a mark is outside ${name}`);
  }
}
const blocks = [...document.querySelectorAll('section > *, section > .plots > figure')];
for (const block of blocks) {
  const box = block.getBoundingClientRect();
  if (box.right > shown + 1) faults.push(`${block.className || block.tagName} passes the edge`);
  const next = block.nextElementSibling;
  if (next && !apart(box, next.getBoundingClientRect())) faults.push(
    `${block.className || block.tagName} and the next overlap`);
}
for (const tile of document.querySelectorAll('.tiles div'))
  if (tile.scrollWidth > tile.clientWidth) faults.push(`a tile overflows: ${tile.textContent}`);
for (const legend of document.querySelectorAll('.legend')) {
  const keys = [...legend.querySelectorAll('.mark')].map(m => m.getAttribute('class'));
  if (new Set(keys).size < keys.length) faults.push(`marks alike in "${legend.textContent}"`);
}
const wide = document.querySelector('.wide'), table = wide.querySelector('table'), column = [];
if (shown >= 1600 && wide.scrollWidth > wide.clientWidth) faults.push(
  `the first table is ${wide.scrollWidth} wide in ${wide.clientWidth}`);
table.querySelectorAll('th button')[1].click();
for (const row of table.tBodies[0].rows) column.push(parseFloat(row.cells[1].textContent));
if (column.some((v, i) => i && v < column[i - 1])) faults.push(`not sorted: ${column}`);
const result = document.createElement('pre');
result.id = 'probe';
result.textContent = JSON.stringify({shown, faults,
  texts: document.querySelectorAll('svg text').length,
  paper: getComputedStyle(document.body).backgroundColor});
document.body.append(result);
</script>"""


def browse(browser, page, width, dark, *options):
    flags = ["--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--window-size={width},1200"]
    if dark:
        flags.append("--blink-settings=preferredColorScheme=0")
    run = subprocess.run([browser, *flags, *options, page.as_uri()], capture_output=True, text=True,
                         timeout=120, check=False)
    return run.stdout


def main():
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if not browser:
        print(f"no browser: none of {', '.join(BROWSERS)}")
        return 77
    source = pathlib.Path(sys.argv[1]).resolve()
    faults, papers = [], set()
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe.html"
        probe.write_text(source.read_text(encoding="utf-8").replace("</html>", PROBE + "</html>"),
                         encoding="utf-8")
        for width in WIDTHS:
            for dark in (False, True):
                dom = browse(browser, probe, width, dark, "--dump-dom")
                found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.S)
                if not found:
                    sys.exit(f"FALSE: the page's own script or the probe failed at {width} px")
                seen = json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<")
                                  .replace("&amp;", "&"))
                papers.add(seen["paper"])
                print(f"{width} px, {'dark' if dark else 'light'}: {seen['texts']} labels, "
                      f"{len(seen['faults'])} faults")
                if seen["shown"] != width or seen["texts"] < 10:
                    faults.append(f"{seen['shown']} px wide, {seen['texts']} labels")
                faults += [f"{width} px: {fault}" for fault in seen["faults"]]
                if len(sys.argv) > 2:
                    picture = pathlib.Path(sys.argv[2]) / f"{width}{'-dark' if dark else ''}.png"
                    browse(browser, source, f"{width}", dark, f"--screenshot={picture}",
                           f"--window-size={width},{9000 if width < 800 else 5000}")
    if len(papers) != 2:
        faults.append(f"light and dark look alike: {papers}")
    for fault in faults:
        print("FALSE:", fault)
    return 1 if faults else 0


sys.exit(main())
