"""The page in MLflow's own viewer, which shows it in a frame without an origin of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.registry.conftest import MlflowWorld
from tests.report.hostile import poisoned
from tests.report.pages import previews_of
from tests.servers import Server
from validator.report.html.render import render_html

pytestmark = pytest.mark.browser


@pytest.fixture
def run_page(server: Server, tmp_path: Path) -> str:
    """The address of a run's report.html, all names in which are hostile."""
    world = MlflowWorld(uri=server.uri, folder=tmp_path / "client")
    document = poisoned()
    page = tmp_path / "report.html"
    page.write_text(render_html(document, table=None, previews=previews_of(document)), encoding="utf-8")
    experiment = world.client.create_experiment("viewer")
    run_id = world.client.create_run(experiment).info.run_id
    world.client.log_artifact(run_id, str(page))
    return f"{server.uri}/#/experiments/{experiment}/runs/{run_id}/artifacts/report.html"


def test_the_page_is_shown_and_its_own_script_runs_there_and_no_other(browser: Any, run_page: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(run_page)
    shown = page.frame_locator("iframe").first
    shown.locator(".verdict").wait_for()
    assert shown.locator(".verdict").inner_text().split()[-1] == "fail"
    # Styles and script are those whose hashes the page's policy names.
    assert shown.locator("body").evaluate("node => getComputedStyle(node).maxWidth") == "1040px"
    shown.locator("#filter").fill("p99")
    assert shown.locator("#filtered").inner_text().endswith(" of 136")
    shown.locator("#within summary").click()
    shown.locator(".matrix td.within a").first.click()
    assert shown.locator("#within tr.finding").first.is_visible()
    assert shown.locator(".verdict").is_visible()  # a link led to its place, and not the frame to elsewhere
    assert shown.locator("body").evaluate("() => window.pwned") is None
    assert page.evaluate("window.pwned") is None
    assert [error for error in errors if "report" in error] == []
    context.close()
