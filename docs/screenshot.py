"""The picture of the web page in the documents, taken of a run.

python docs/screenshot.py RUN writes docs/images/ui.png. It needs /usr/bin/chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "images" / "ui.png"
CHROMIUM = "/usr/bin/chromium"


def take(run: Path) -> None:
    """Open the page of a run in a browser, and keep what it shows."""
    command = [sys.executable, "-m", "fed3r_app.cli", "ui", str(run.parent)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        urls = (re.search(r"http://\S+", line) for line in server.stdout)
        url = next(found[0] for found in urls if found)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(
                viewport={"width": 1280, "height": 1180}, color_scheme="light"
            )
            page.goto(f"{url}#/run/{run.name}")
            page.wait_for_selector("circle")
            page.screenshot(path=PICTURE)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    take(Path(sys.argv[1]).resolve())
