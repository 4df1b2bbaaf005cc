"""The site builds without a warning, and every page is shown correctly in a browser, on a desktop and on a phone."""

import functools
import html
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}

CODE = re.compile(r"<(pre|code|script)\b.*?</\1>", re.S)

pytestmark = [pytest.mark.site, pytest.mark.timeout(900)]  # the site is built beside other tests


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site in strict mode: missing pages, links, anchors and public names are errors."""
    pytest.importorskip("furo", reason="the site is not built: Sphinx is not installed (extra docs)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The text of all pages, by path."""
    return {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}


def test_no_formula_is_left_as_latex(pages):
    assert any("<math" in text for text in pages.values())
    assert not [page for page, text in pages.items() if re.search(r"\$[^$<]*\\[a-z]+[^$<]*\$", CODE.sub("", text))]


def test_no_link_is_left_as_a_role(pages):
    assert not [page for page, text in pages.items() if re.search(r":(?:doc|py:\w+):", CODE.sub("", text))]


def test_no_page_loads_a_file_from_another_site(pages):
    texts = {page: text.replace('<link rel="canonical"', "") for page, text in pages.items()}
    loads = re.compile(r'<(?:script|link|img)[^>]* (?:src|href)="https?://')

    assert not [page for page, text in texts.items() if loads.search(text)]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("NDCG", 'NDCG(k=None, *, gain="linear", ...)'),
        ("Coverage", "Coverage(k, *, attainable=False, catalogue, ...)"),
        ("RPrecision", "RPrecision(...)"),
    ],
)
def test_signatures_of_metrics_have_no_arguments_that_are_passed_on(site, name, signature):
    page = (site / "reference" / "metrics" / f"{name}.html").read_text(encoding="utf-8")
    assert signature in html.unescape(re.sub(r"<[^>]+>", "", page))


def test_links_to_other_sites_answer():
    """If LINKS is set; links inside the site are checked by the strict build."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    links = sorted({link for text in texts for link in re.findall(r"\]\((https://[^\s)#]+)", text)})
    if not os.environ.get("LINKS"):
        pytest.skip(f"{len(links)} LINKS TO OTHER SITES WERE NOT FOLLOWED: LINKS=1 follows them, given a network")
    dead = []
    for link in links:
        request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0"})
        try:
            urllib.request.urlopen(request, timeout=20).close()
        except OSError as error:
            dead.append(f"{link}: {error}")

    assert not dead


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    """Start Chromium without a window, or skip if Chromium or its driver is not installed."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="NO PAGE WAS LOOKED AT: selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("NO PAGE WAS LOOKED AT: no chromium with chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-dev-shm-usage hide-scrollbars"
    for argument in [*flags.split(), "disable-background-networking", "disable-component-update", "disable-sync"]:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driver
    driver.quit()


DRAWN = "const done = arguments[0]; document.fonts.ready.then(() => requestAnimationFrame(done));"
WHOLE = """
const wide = document.documentElement.scrollWidth - window.innerWidth;
const shown = [...document.images].filter(image => getComputedStyle(image).display !== "none");
const missing = shown.filter(image => !(image.complete && image.naturalWidth > 0)).map(image => image.src);
const scrolls = block => block.scrollWidth > block.clientWidth + 1;
const cut = [...document.querySelectorAll("pre")].filter(scrolls);
const tables = [...document.querySelectorAll(".table-wrapper")].filter(scrolls);
const start = block => block.textContent.trim().slice(0, 60);
return [wide, missing, shown.length, cut.map(start), tables.map(start)];
"""
WITH_WIDE_TABLES = {"explanations/conformance", "reference/evaluation"}
"""Pages whose tables are scrolled on a phone."""
FAINT = """
const linear = byte => (byte / 255 <= .04045 ? byte / 255 / 12.92 : ((byte / 255 + .055) / 1.055) ** 2.4);
const bytes = colour => colour.match(/[\\d.]+/g).map(Number);
const luminance = colour => {
  const [red, green, blue] = bytes(colour).map(linear);
  return .2126 * red + .7152 * green + .0722 * blue;
};
const faint = new Set();
for (const theme of ["light", "dark"]) {
  document.body.dataset.theme = theme;
  for (const text of document.querySelectorAll(".highlight pre, .highlight span")) {
    if (![...text.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    let behind = text;
    while (bytes(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const colours = [getComputedStyle(text).color, getComputedStyle(behind).backgroundColor].map(luminance);
    const contrast = (Math.max(...colours) + .05) / (Math.min(...colours) + .05);
    if (contrast < 4.5) faint.add(`${theme}: '${text.className}' has a contrast of ${contrast.toFixed(2)}`);
  }
}
return [...faint];
"""


def look(browser, width, keep, has_wide_tables):
    """Set the size of the window, and return what is wrong with the page in it, and its number of images."""
    size = {"width": WIDTHS[width][0], "height": WIDTHS[width][1], "deviceScaleFactor": 1, "mobile": width == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_async_script(DRAWN)
    wide, missing, shown, cut, tables = browser.execute_script(WHOLE)
    if keep:
        browser.save_screenshot(f"{keep}-{width}.png")
    faults = [f"{wide} pixels too wide"] if wide > 0 else []
    faults += [f"no image {source}" for source in missing]
    faults += [f"table too wide: {text}" for text in tables if not has_wide_tables]
    return faults + ([f"cut: {text}" for text in cut] if width == "desktop" else []), shown


def test_every_page_is_shown_correctly_in_a_browser(browser, site, address):
    """None logs a warning or an error, is wider than the window, misses an image or, on a desk, cuts a block.

    Tables fit a phone, and the text of code has a contrast of 4.5 to its background, as WCAG 2 asks for (AA).
    """
    faults, images = {}, 0
    keep = os.environ.get("SCREENSHOTS")  # a folder to keep screenshots in
    if keep:
        Path(keep).mkdir(parents=True, exist_ok=True)
    for page in sorted(page for page in site.rglob("*.html") if "_modules" not in page.parts):  # those show code
        name = page.relative_to(site).with_suffix("").as_posix()
        browser.get(f"{address}{name}.html")
        for width in WIDTHS:
            screenshot = keep and Path(keep, name.replace("/", "_"))
            faults[name, width], shown = look(browser, width, screenshot, name in WITH_WIDE_TABLES)
            images += shown
        faults[name, "contrast"] = browser.execute_script(FAINT)
        logged = [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        faults[name, "log"] = logged

    assert not {page: messages for page, messages in faults.items() if messages}
    assert images > 0


OF_METRICS = {
    "hit rate": "HitRate",
    "hit ratio": "HitRate",
    "HR": "HitRate",
    "r-precision": "RPrecision",
    "precision": "Precision",
    "recall": "Recall",
    "ndcg": "NDCG",
    "normalized discounted cumulative gain": "NDCG",
    "mean average precision": "MAP",
    "mean reciprocal rank": "MRR",
    "ILD": "IntraListDiversity",
    "catalog coverage": "Coverage",
    "novelty": "Novelty",
}
"""The metric that is listed first, by what is searched for."""
SEARCHED = """
const done = arguments[0];
const summary = () => document.querySelector("#search-results p.search-summary")?.textContent ?? "";
const wait = () => summary().match(/found|did not match/) ? done() : setTimeout(wait, 50);
wait();
"""


def pages_found(browser, address, words):
    """Return the paths of the first ten results of the site's search."""
    browser.get(f"{address}search.html?q={urllib.parse.quote(words)}")
    browser.execute_async_script(SEARCHED)
    return browser.execute_script(
        "return [...document.querySelectorAll('#search-results li > a')].slice(0, 10).map(link => link.pathname);"
    )


def test_search_lists_a_metric_first_by_any_of_its_names(browser, address):
    first = {words: pages_found(browser, address, words)[0] for words in OF_METRICS}
    assert first == {words: f"/reference/metrics/{name}.html" for words, name in OF_METRICS.items()}
