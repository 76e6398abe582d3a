"""The built site in headless Chromium, at two widths, light and dark: pictures that do not load, what is cut.

Needs `make docs` and Chromium. Links are checked as the site is built (mkdocs.yml, strict).
Not here: what stands on the site (docs/site_hooks.py).
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from itertools import product
from pathlib import Path

SITE = Path("results/site")
WIDTHS, SCHEMES = (1280, 390), {"light": 1, "dark": 0}
"""Pixels, and Chromium's number of the colour scheme that a reader prefers."""
BUDGET_MS = 600_000
"""Virtual time of a page: waits pass at once."""
SCRIPT = """
<div id="told"></div><script>
const told = {}, pages = PAGES;
const look = (frame) => {
  const page = frame.contentDocument, root = page.documentElement, wrong = [];
  if (root.scrollWidth > root.clientWidth + 1) wrong.push(`${root.scrollWidth} pixels wide`);
  for (const each of page.images) if (each.complete && each.naturalWidth === 0) wrong.push(`no picture ${each.src}`);
  for (const each of page.querySelectorAll("article pre > code"))
    if (each.scrollWidth > each.clientWidth + 1) wrong.push(`code is cut: ${each.textContent.slice(0, 40)}`);
  return wrong;
};
const next = () => {
  const name = pages.pop();
  if (name === undefined) { document.getElementById("told").textContent = JSON.stringify(told); return; }
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 900px; border: 0";
  frame.onload = () => setTimeout(() => { told[name] = look(frame); frame.remove(); next(); }, 200);
  frame.src = name;
  document.body.append(frame);
};
next();
</script>
"""


def main(site: Path = SITE) -> int:
    """1 where a page has something cut or missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or not site.is_dir():
        raise ValueError(f"want Chromium, and the site in {site} (make docs)")
    wrong = 0
    for width, (scheme, number) in product(WIDTHS, SCHEMES.items()):
        told = looked_at(site, browser, width, number)
        for name, problems in sorted(told.items()):
            wrong += len(problems)
            for problem in problems:
                print(f"{name} at {width}, {scheme}: {problem}")
        print(f"{len(told)} pages at {width} pixels, {scheme}")
    return int(wrong > 0)


def looked_at(site: Path, browser: str, width: int, scheme: int) -> dict[str, list[str]]:
    """Problems by page."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    script = SCRIPT.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(width))
    frame = site / "looked-at.html"
    frame.write_text(f"<!doctype html><body>{script}</body>")
    try:
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
            flags += [f"--user-data-dir={folder}", f"--virtual-time-budget={BUDGET_MS}"]
            flags += [f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width + 40},1000"]
            line = [browser, *flags, frame.resolve().as_uri()]
            done = subprocess.run(line, capture_output=True, text=True, check=True)
    finally:
        frame.unlink()
    found = re.search(r'<div id="told">(\{.*?\})</div>', done.stdout, re.DOTALL)
    if found is None:
        raise ValueError("Chromium ended before it had seen every page")
    told: dict[str, list[str]] = json.loads(html.unescape(found[1]))
    return told
