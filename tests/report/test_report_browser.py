"""The page of thirty methods in headless Chromium, where there is one: no errors, nothing over anything else."""

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
PROBE = """{
const box = (part) => part.getBoundingClientRect();
const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
const pairs = (found) => found.flatMap((a, i) => found.slice(0, i).filter((b) => covers(a, b))).length;
const drawn = ["accuracy-rounds", "accuracy-bytes", "differences", "wire"].map((id) => document.getElementById(id));
const boxes = drawn.map((figure) => all(figure, ".name text").map(box));
const letters = drawn.flatMap((figure) => all(figure, "svg text").map((text) =>
  parseFloat(getComputedStyle(text).fontSize) * figure.querySelector("svg").getScreenCTM().a));
const heads = all(document, ".result thead th"), card = document.querySelector(".result").parentElement;
const sorted = (at) => { heads[at].firstChild.click(); return document.querySelector(".result tbody th").textContent; };
const order = [sorted(0), sorted(1)];
drawn[0].scrollIntoView();
const line = document.querySelector("#accuracy-rounds .line path"), { left, bottom } = box(line);
line.closest("svg").dispatchEvent(new PointerEvent("pointermove", { clientX: left, clientY: bottom }));
document.body.dataset.found = JSON.stringify({
  names: boxes.map((found) => found.length), pairs: boxes.map(pairs), smallest: Math.min(...letters), order,
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


def opened(page, width):
    """What the page says of itself in a window, and what the browser complained about."""
    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page / 'profile'}"]
    words += ["--enable-logging=stderr", f"--window-size={width},2000", "--virtual-time-budget=2000", "--dump-dom"]
    answer = subprocess.run([*words, f"file://{page / 'probe.html'}"], capture_output=True, text=True, check=False)
    complaints = [line for line in answer.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(re.search(r'data-found="([^"]*)"', answer.stdout)[1])), complaints


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; the page's structure is tested in test_report.py")
@pytest.mark.parametrize(("width", "columns"), [(390, 4), (1280, 10)])
def test_thirty_methods_are_readable_in_a_browser_and_nothing_fails(page, width, columns):
    found, complaints = opened(page, width)
    assert not complaints
    methods = len(KNOWN) + 1
    assert found["names"] == [methods, methods, methods - 1, methods - 1]  # local is compared with, and sends nothing
    assert found["pairs"] == [0, 0, 0, 0]
    assert found["smallest"] > 7 and found["columns"] == columns
    assert max(found["beyond"]) <= 0
    assert found["order"] == ["apfl", KNOWN[-1]]
    assert re.search(r": \d+\.\d\d\nround 2, [\d,]+ bytes\n95 % interval .*, 2 seeds", found["tip"])
