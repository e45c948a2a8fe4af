"""The pictures of the documentation, from a real session: the terminal, its report and its MLflow page.

The cascades come from ``benchmarks/portability.py``.

    python docs/figures.py [--job examples/quickstart.yaml] [--out runs/figures]

Needs tmux and a Chromium on the PATH. The session runs in a real terminal of 118 columns;
the last screen of the search and the final one are kept.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pretune.mlflow_config import ui_command
from pretune.mlflow_config.settings import sqlite_uri

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-headless-shell")
PANE, COLUMNS, ROWS, PORT = "pretune-figures", 118, 50, 5079


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


def session(job: Path, out: Path) -> None:
    """Run ``pretune tune`` in a terminal and keep its screen, colours included, as ``terminal.svg``."""
    pretune = Path(sys.executable).with_name("pretune")
    done = out.resolve() / "done"
    out.mkdir(parents=True, exist_ok=True)
    done.unlink(missing_ok=True)
    command = shlex.join([str(pretune), "tune", str(job), "--out", str(out)])
    script = f"PS1='$ '; clear; {command}; touch {shlex.quote(str(done))}; sleep 60"
    tmux(
        "new-session", "-d", "-s", PANE, "-x", str(COLUMNS), "-y", str(ROWS), f"bash -c {shlex.quote(script)}"
    )
    while not done.exists():
        time.sleep(1)
    screen = tmux("capture-pane", "-e", "-p", "-t", PANE)
    tmux("kill-session", "-t", PANE)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ pretune tune examples/quickstart.yaml", style="bold"))
    console.print(Text.from_ansi(screen.rstrip()))
    console.save_svg(str(HERE / "terminal.svg"), title="pretune")


def page(out: Path, run_id: str, experiment_id: str) -> None:
    """Open the session's run in MLflow's own UI and keep a screenshot as ``mlflow.png``."""
    argv, environment = ui_command(sqlite_uri(out), PORT)
    server = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{PORT}/health")
        url = f"http://127.0.0.1:{PORT}/#/experiments/{experiment_id}/runs/{run_id}"
        shot(url, HERE / "mlflow.png", "1400,1350")
    finally:
        server.terminate()
        server.wait()


def report(out: Path) -> None:
    """The top of the session's report, as it looks on a desk and on a telephone."""
    page, pretune = out / "report.html", str(Path(sys.executable).with_name("pretune"))
    subprocess.run([pretune, "report", str(out), "--out", str(page)], check=True)
    for name, size in {"report": "1100,1400", "report-narrow": "500,1400"}.items():
        shot(page.resolve().as_uri(), HERE / f"{name}.png", size)


def shot(url: str, path: Path, size: str) -> None:
    """A screenshot by whichever Chromium is installed."""
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}"]
    subprocess.run([*command, "--virtual-time-budget=20000", f"--screenshot={path}", url], check=True)


def wait_for(url: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(url).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(url)


def main() -> int:
    from mlflow import MlflowClient

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--job", type=Path, default=Path("examples/quickstart.yaml"))
    parser.add_argument("--out", type=Path, default=Path("runs/figures"))
    arguments = parser.parse_args()
    session(arguments.job, arguments.out)
    run_id = json.loads((arguments.out / "session.json").read_text())["mlflow_run_id"]
    experiment = MlflowClient(sqlite_uri(arguments.out)).get_run(run_id).info.experiment_id
    page(arguments.out, run_id, experiment)
    report(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
