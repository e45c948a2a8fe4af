"""The page in a real browser, without a network: opened, clicked, read."""

from datetime import timedelta

import pytest

from pretune.datasets import TrialStore
from pretune.tuner.report import report
from pretune.tuner.report.page import write_page

WIDTHS = (380, 1600)
pytestmark = pytest.mark.slow


def shown(page, key, table):
    """The figures of a table on the page, as numbers."""
    cells = page.locator(f"#{key} table").nth(table).locator("data").all()
    return [float(cell.get_attribute("value")) for cell in cells]


def test_a_sessions_page_shows_what_its_store_holds(finished, browse, tmp_path):
    out, answer = finished
    found = report(str(out))
    write_page(found, tmp_path / "report.html")
    for width in WIDTHS:
        page = browse(tmp_path / "report.html", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert answer.sentences()[0] in page.inner_text("#answer")
    for section in found.sections:
        for number, table in enumerate(each for each in section.tables if each.rows):
            figures = [cell for row in table.rows for cell in row if isinstance(cell, int | float)]
            assert shown(page, section.key, number) == [float(cell) for cell in figures]
    for plot in page.locator(".plot").all():
        assert plot.locator("svg.marks").count() == 1
        assert plot.get_attribute("aria-label")
    assert page.locator("#plot-trials svg path[aria-roledescription=point]").count() == 3

    table = page.locator("#trials table")
    assert not table.is_visible()
    page.locator("#trials > details > summary").click()
    assert table.is_visible()


@pytest.mark.long
def test_a_stores_page_shows_one_problem_at_a_time(history, browse, tmp_path):
    write_page(report(str(history)), tmp_path / "report.html")
    page = browse(tmp_path / "report.html", 1600)
    trials = list(TrialStore(history).trials())
    points = page.locator("#plot-trials svg path[aria-roledescription=point]")
    for platform in ("fast-link", "middling-link"):
        page.locator("#plot-trials select").select_option(
            label=f"tiny-1024x16-fp32 (deepspeed) on {platform}"
        )
        assert points.count() == sum(trial.platform.name == platform for trial in trials)


def test_where_nothing_ran_there_is_a_page_too(failed_store, browse, tmp_path):
    write_page(report(str(failed_store)), tmp_path / "report.html")
    page = browse(tmp_path / "report.html", 380)
    assert "5 of 5 trials failed" in page.inner_text("#failures")
    assert page.locator("#plot-trials svg path[aria-roledescription=point]").count() == 5


@pytest.mark.long
def test_five_thousand_trials_are_drawn(recorded, browse, tmp_path):
    one = list(TrialStore(recorded).trials())
    many = [
        trial.model_copy(
            update={
                "trial_id": f"{trial.trial_id}-{copy}",
                "created_at": trial.created_at + timedelta(hours=copy),
            }
        )
        for copy in range(5000 // len(one) + 1)
        for trial in one
    ][:5000]
    TrialStore(tmp_path / "many").append(many)
    write_page(report(str(tmp_path / "many")), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 10e6
    page = browse(tmp_path / "report.html", 1600)
    assert "5,000 trials" in page.inner_text("#trials")
    assert page.locator("#plot-trials canvas").count() == 1
    assert page.locator("#trials tbody tr").count() == 200
