"""The page in a real browser: what it shows, what clicks do, what it must never do, whether everybody can read it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Share
from tests.report.pages import write_pages

pytestmark = pytest.mark.browser

DESKTOP, PHONE = 1280, 390
VERDICTS = ("pass", "fail", "inconclusive", "refused")


@pytest.fixture(scope="module")
def pages(share: Share) -> Path:
    return share("pages", lambda folder: (folder.mkdir(), write_pages(folder)))


class Visit:
    """A page that was opened, and everything that it did."""

    def __init__(self, page: Any) -> None:
        page.set_default_timeout(120_000)  # a loaded machine is no reason to fail
        self.page = page
        self.words: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.words.append(message.text))
        page.on("pageerror", lambda error: self.words.append(str(error)))
        page.on("dialog", lambda dialog: (self.words.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, anchor: str = "") -> Any:
        self.page.goto(f"{path.as_uri()}{anchor}")
        return self.page


def expect_that(locator: Any) -> Any:
    """Wait for an element. Waiting for a function needs `eval`, which the page forbids."""
    from playwright.sync_api import expect

    expect.set_options(timeout=120_000)
    return expect(locator)


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    options = getattr(request, "param", {"width": DESKTOP})
    width = options.pop("width", DESKTOP) if isinstance(options, dict) else options
    extra = {k: v for k, v in options.items() if k != "width"} if isinstance(options, dict) else {}
    context = browser.new_context(viewport={"width": width, "height": 900}, **extra)
    yield Visit(context.new_page())
    context.close()


def with_width(width: int, **options: Any) -> Any:
    return pytest.param({"width": width, **options}, id="-".join([str(width), *map(str, options.values())]))


@pytest.mark.parametrize("name", [*VERDICTS, "hostile-0"])
@pytest.mark.parametrize("visit", [with_width(DESKTOP), with_width(PHONE)], indirect=True)
def test_a_page_fits_its_width_says_its_verdict_and_asks_for_nothing(visit: Visit, pages: Path, name: str) -> None:
    page = visit.open(pages / name / "report.html")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".verdict").inner_text().split()[-1] == ("fail" if name.startswith("hostile") else name)
    assert [url for url in visit.requests if not url.startswith("data:")] == [(pages / name / "report.html").as_uri()]
    assert visit.words == []
    assert (
        page.locator("svg:visible").count()
        == page.locator("svg").count() // 2 - page.locator("details:not([open]) svg").count() // 2
    )
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    captions = "[...document.querySelectorAll('caption, .caption, .key')]"
    assert page.evaluate(f"{captions}.every(c => c.getBoundingClientRect().right <= innerWidth)")


@pytest.mark.parametrize("number", range(3))
def test_no_name_runs_and_no_name_becomes_an_element(visit: Visit, pages: Path, number: int) -> None:
    page = visit.open(pages / f"hostile-{number}" / "report.html")
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    page.locator("#filter").fill("<script>")
    assert page.evaluate("window.pwned") is None
    assert visit.words == []  # neither an error nor something that the policy had to stop
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("script, style, iframe, object, embed, base, form, link").count() == 2
    assert page.evaluate("[...document.images].every(i => i.src.startsWith('data:image/png;base64,'))")
    assert page.evaluate("[...document.links].every(a => a.getAttribute('href').startsWith('#'))")
    attributes = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    assert [name for name in page.evaluate(attributes) if name.startswith("on") or name == "style"] == []
    assert "<script>window.pwned=1</script>" in page.content().replace("&lt;", "<").replace("&gt;", ">")


def test_the_policy_stops_a_script_that_got_in_all_the_same(visit: Visit, pages: Path, tmp_path: Path) -> None:
    text = (pages / "fail" / "report.html").read_text(encoding="utf-8")
    broken = tmp_path / "report.html"
    broken.write_text(text.replace("</h1>", "</h1><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>"))
    page = visit.open(broken)
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in word for word in visit.words)


def test_a_link_to_a_finding_opens_what_it_is_folded_into(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    row = page.locator("#open tr.finding").first
    assert not row.is_visible()
    page.locator(".group h3 a").first.click()
    assert row.is_visible()
    within = page.locator("#within tr.finding").first
    page.locator(".matrix td.within a").first.click()
    assert within.is_visible()
    again = visit.open(pages / "fail" / "report.html", f"#{within.get_attribute('id')}")
    assert again.locator("#within tr.finding").first.is_visible()


def test_sections_are_reached_from_the_list_that_stays_at_the_top(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    page.get_by_role("link", name="Environment").click()
    expect_that(page.locator("#environment h2")).to_be_in_viewport()
    assert page.locator("nav").is_visible()
    assert page.locator("nav").bounding_box()["y"] < 1


def test_the_filter_shows_what_it_found(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    page.locator("#filter").fill("onnxruntime-cpu p99")
    assert page.locator("#filtered").inner_text() == "2 of 136"
    assert page.locator("tr.finding:visible").count() == 2
    page.locator("#filter").fill("")
    assert page.locator("tr.finding:visible").count() == 136


@pytest.mark.parametrize(
    "visit", [with_width(DESKTOP, permissions=["clipboard-read", "clipboard-write"])], indirect=True
)
def test_a_command_is_copied_whole(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    page.locator("#repeat button.copy").click()
    expect_that(page.locator("#repeat button.copy")).not_to_have_text("copy")
    assert page.evaluate("navigator.clipboard.readText()") == "validator check models:/alexnet/2 --golden golden/"


@pytest.mark.parametrize("visit", [with_width(DESKTOP, java_script_enabled=False)], indirect=True)
def test_without_a_script_everything_can_be_read(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    assert page.locator("svg:visible").count() > 0
    assert page.locator("button:visible, input:visible").count() == 0
    row = page.locator("#within tr.finding").first
    page.locator("#within summary").click()
    assert row.is_visible()


def test_print_shows_everything_but_what_is_within_in_light_colours(visit: Visit, pages: Path) -> None:
    page = visit.open(pages / "fail" / "report.html")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("nav:visible, .copy:visible, .filter:visible").count() == 0
    assert page.locator("#open tr.finding").first.is_visible()
    assert not page.locator("#within tr.finding").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not page.locator("#open tr.finding").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("visit", "name"),
    [
        # axe brings a script of its own, which the page's policy would stop.
        pytest.param({"width": DESKTOP, "color_scheme": "light", "bypass_csp": True}, "fail", id="desktop-light-fail"),
        pytest.param({"width": PHONE, "color_scheme": "dark", "bypass_csp": True}, "inconclusive", id="phone-dark"),
        pytest.param({"width": DESKTOP, "color_scheme": "dark", "bypass_csp": True}, "refused", id="desktop-dark"),
    ],
    indirect=["visit"],
)
def test_axe_finds_no_fault(visit: Visit, pages: Path, name: str) -> None:
    """Not even a moderate one. Drawings are looked at as what they are to a reader: one picture with a name."""
    from axe_playwright_python.sync_playwright import Axe

    page = visit.open(pages / name / "report.html")
    # Two hundred rows are as good as three, and axe looks at every pair of colours.
    page.evaluate("document.querySelectorAll('tr.finding:nth-child(n+4), svg > *').forEach(e => e.remove())")
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    found = Axe().run(page).response["violations"]
    faults = [f"{v['id']} {v['impact']}: {n['target']} {n['failureSummary']}" for v in found for n in v["nodes"][:2]]
    assert faults == []
