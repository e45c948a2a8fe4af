"""A session that was replayed from the recorded table, and the Chromium that is installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pretune.datasets import Platform, TrialStore, Workload
from pretune.mlflow_config import NoTracker
from pretune.tuner import Answer, JobSpec, TuningSession

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
    recorded: Path,
    history: Path,
    target: Platform,
    workload: Workload,
    space: dict[str, list],
) -> tuple[Path, Answer]:
    """A session of three trials, each predicted before it ran: its folder and its answer."""
    folder = tmp_path_factory.mktemp("finished")
    job = json.loads(workload.model_dump_json()) | {
        "platform": json.loads(target.model_dump_json()),
        "launcher": {"replay": str(recorded)},
        "history": str(history),
        "space": space,
        "budget": {"trials": 3},
        "verify_pairs": 2,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(job))
    out = folder / "out"
    return out, TuningSession(JobSpec.from_yaml(folder / "tiny.yaml"), out, NoTracker()).run()


@pytest.fixture
def failed_store(recorded: Path, tmp_path: Path) -> Path:
    """A store in which nothing ran."""
    TrialStore(tmp_path / "failed").append([t for t in TrialStore(recorded).trials() if not t.ok][:5])
    return tmp_path / "failed"


@pytest.fixture
def browse() -> Iterator[Callable[..., Any]]:
    """Open a file in a real browser without a network; what its console says fails the test."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed: {', '.join(BROWSERS)}")
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])

        def opened(path: Path, width: int) -> Any:
            page = browser.new_context(viewport={"width": width, "height": 900}, offline=True).new_page()
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-drawn]", timeout=60_000)
            return page

        yield opened
        browser.close()
    assert said == []
