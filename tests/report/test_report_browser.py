"""The page of thirty methods in headless Chromium, where there is one: no errors, nothing over anything else.

On a telephone, on a tablet in the dark, on a desk and on paper.
"""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from pfed1bs import report
from pfed1bs.report.style import KNOWN
from run_folders import run_folder

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
PROBE = r"""{
const box = (part) => part.getBoundingClientRect();
const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
const pairs = (found) => found.flatMap((a, i) => found.slice(0, i).filter((b) => covers(a, b))).length;
const drawn = ["accuracy-rounds", "accuracy-bytes", "differences", "wire"].map((id) => document.getElementById(id));
const boxes = drawn.map((figure) => all(figure, ".name text").map(box));
const letters = drawn.flatMap((figure) => all(figure, "svg text").map((text) =>
  parseFloat(getComputedStyle(text).fontSize) * figure.querySelector("svg").getScreenCTM().a));
const light = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (part) => { const colour = getComputedStyle(part).backgroundColor;
  return /, 0\)$/.test(colour) ? behind(part.parentElement) : colour; };
const contrast = (part) => { const style = getComputedStyle(part), own = part.closest("svg") ? style.fill : style.color;
  const [dim, bright] = [light(own), light(behind(part.closest("figure") || part))].sort((a, b) => a - b);
  return (bright + 0.05) / (dim + 0.05); };
const read = all(document, "h1, h2, p, small, td, th, li, summary, figcaption, a, pre, .name text, .tick text");
const heads = all(document, ".result thead th"), card = document.querySelector(".result").parentElement;
const sorted = (at) => { heads[at].firstChild.click(); return document.querySelector(".result tbody th").textContent; };
const order = [sorted(0), sorted(1)];
drawn[0].scrollIntoView();
const line = document.querySelector("#accuracy-rounds .line path"), { left, bottom } = box(line);
line.closest("svg").dispatchEvent(new PointerEvent("pointermove", { clientX: left, clientY: bottom }));
document.body.dataset.found = JSON.stringify({
  names: boxes.map((found) => found.length), pairs: boxes.map(pairs), smallest: Math.min(...letters), order,
  faintest: Math.min(...read.map(contrast)), dark: matchMedia("(prefers-color-scheme: dark)").matches,
  tip: document.getElementById("tip").textContent, columns: heads.filter((head) => box(head).width).length,
  beyond: [document.documentElement.scrollWidth - innerWidth, card.scrollWidth - card.clientWidth] });
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("browser")
    methods = ["local", *KNOWN]
    for place, name in enumerate(methods):
        for seed in (0, 1):
            run_folder(home / "runs", name, seed, (50 + place / 3, 90 + place / 9 + seed / 9), accuracy_global=80.0)
    report.write(report.collect([home / "runs"]), home / "report.html")
    text = (home / "report.html").read_text(encoding="utf-8")
    (home / "probe.html").write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    return home


def chromium(page, *words, name="probe.html"):
    """The answer of the browser, and what it complained about."""
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page / 'profile'}", *words]
    words += ["--enable-logging=stderr", "--virtual-time-budget=2000", f"file://{page / name}"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    return answer.stdout, [line for line in answer.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; the page's structure is tested in test_report.py")
@pytest.mark.parametrize(("width", "dark", "columns"), [(390, False, 4), (768, True, 6), (1280, False, 10)])
def test_thirty_methods_are_readable_in_a_browser_and_nothing_fails(page, width, dark, columns):
    shade = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom, complaints = chromium(page, f"--window-size={width},2000", *shade, "--dump-dom")
    found = json.loads(unescape(re.search(r'data-found="([^"]*)"', dom)[1]))
    assert not complaints
    methods = len(KNOWN) + 1
    assert found["names"] == [methods, methods, methods - 1, methods - 1]  # local is compared with, and sends nothing
    assert found["pairs"] == [0, 0, 0, 0]
    assert found["smallest"] > 7 and found["columns"] == columns
    assert found["dark"] == dark and found["faintest"] > 3
    assert max(found["beyond"]) <= 0
    assert found["order"] == ["apfl", KNOWN[-1]]
    assert re.search(r": \d+\.\d\d\nround 2, [\d,]+ bytes\n95 % interval .*, 2 seeds", found["tip"])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; the page's structure is tested in test_report.py")
def test_on_paper_the_page_has_few_sheets_and_says_how_to_repeat_it(page):
    _, complaints = chromium(page, f"--print-to-pdf={page / 'page.pdf'}", name="report.html")
    assert not complaints
    assert 3 <= (page / "page.pdf").read_bytes().count(b"/Type /Page\n") <= 14


def test_the_page_of_all_methods_can_be_sent(page):
    assert (page / "report.html").stat().st_size < 3 * 2**20
