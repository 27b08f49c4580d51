"""The page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fed3r_app.data.images import FileImages
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import Ledger, LedgerEntry
from fed3r_app.runs.prediction import Predictor
from fed3r_app.runs.report import (
    format_bytes,
    format_flops,
    format_percent,
    format_seconds,
)
from tests.cli.test_commands import save_image, save_run
from tests.harness.ui import Served, served, served_to_others, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
INSTALL = "apt-get update && apt-get install -y chromium && pip install playwright"
MANY_CLIENTS = 9275
TABS = ("", "/clients", "/classes", "/settings", "/classify")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason=f"to test it: {INSTALL}")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}; to test the page: {INSTALL}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(ARGUMENTS)
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("results")
    write_run(folder, "finished", rounds=4)
    with served(folder) as site:
        yield site


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page, which must ask 127.0.0.1 alone and raise no error."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    hosts, errors = set[str | None](), list[str]()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert hosts <= {"127.0.0.1", None} and not errors  # None: of a blob


def open_run(page: Page, site: Served, name: str, tab: str = "") -> None:
    page.goto(f"{site.url}#/run/{name}{tab}")
    page.wait_for_selector("h1")
    assert page.inner_text("h1") == name


def number_of_points(page: Page) -> int:
    return page.locator("circle.first:not([r='5.5'])").count()


@pytest.mark.slow  # the run is a process of its own
def test_a_run_appears_and_its_curve_grows(page: Page, site: Served) -> None:
    page.goto(site.url)
    page.wait_for_selector("text=finished")
    settings = "dataset=synthetic:classes=3,features=4 backbone=none finetune=lp"
    command = [sys.executable, "-m", "fed3r_app.cli", "simulate", *settings.split()]
    options = f"rounds=100000 eval-every=1 output-dir={site.folder} run-name=live"
    run = subprocess.Popen(
        [*command, *options.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page.click("text=live", timeout=60_000)  # when it appears
        page.wait_for_selector(".state.running")
        seen = set[int]()
        deadline = time.monotonic() + 60
        while len(seen) < 3 and time.monotonic() < deadline:
            page.wait_for_selector(".readout:has-text('round')")
            text = page.inner_text(".readout")
            # Not while it is being drawn.
            seen |= {
                int(n.replace(",", "")) for n in re.findall(r"round ([\d,]+)", text)
            }
        assert len(seen) >= 3, seen
        done = page.inner_text(".bar:has-text('fine-tuning') .number")
        assert re.fullmatch(r"\d+ of 100000", done)
    finally:
        run.terminate()
        run.wait(timeout=60)
    page.wait_for_selector(".state.interrupted, .state.failed")


def test_numbers_on_the_page_are_those_of_the_files(page: Page, site: Served) -> None:
    run = RunDirectory(site.folder / "finished")
    summary: Any = run.read_summary()
    run.write_confusion(["ant", "bee"], [(0, 0, 7), (0, 1, 2), (1, 1, 5)])
    open_run(page, site, "finished")
    figures = page.inner_text(".figures")
    for text in (
        format_percent(summary["accuracy"]),
        str(summary["clients"]),
        format_bytes(summary["upload_bytes"]),
        format_bytes(summary["paper_upload_bytes"]),
        format_seconds(summary["seconds"]),
    ):
        assert text in figures
    assert number_of_points(page) == len(run.read_metrics())
    for line in run.read_metrics():
        values: Any = line
        dot = page.locator("circle.first").nth(int(values["round"]) - 1)
        dot.hover(force=True)
        said = page.inner_text(".readout")
        assert f"round {values['round']}" in said
        assert format_percent(values["accuracy"]) in said
        assert format_flops(values["flops_per_client"]) in said
    open_run(page, site, "finished", "/clients")
    rows = page.locator("tbody tr")
    rows.first.wait_for()
    entries = Ledger(run.ledger_path).entries()
    assert rows.count() == len(entries)
    for row, entry in zip(rows.all(), entries, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[:4] == [entry.client, "counted", str(entry.num_samples), "1"]
    open_run(page, site, "finished", "/classes")
    page.wait_for_selector("text=Most often confused")
    ant = page.locator("tr:has-text('ant')").last.locator("td").all_inner_texts()
    assert ant == ["ant", "9", "7", "77.8 %", "100.0 %", "bee"]
    assert page.locator("svg text.cell").all_text_contents() == ["7", "2", "5"]


def test_a_dropped_picture_is_classified(
    page: Page, site: Served, tmp_path: Path
) -> None:
    run = save_run(site.folder, "shades")
    run.write_config({})
    picture = save_image(tmp_path / "night.png", 20)
    images = FileImages(Path(), [str(picture)], [0])
    best = Predictor(run).best(images, 5)
    open_run(page, site, "shades", "/classify")
    page.wait_for_selector(".drop")
    for name, content in ((picture.name, picture.read_bytes()), ("a.txt", b"no")):
        encoded = base64.b64encode(content).decode()
        data = page.evaluate_handle(
            """([name, encoded]) => {
                const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
                const data = new DataTransfer();
                data.items.add(new File([bytes], name));
                return data;
            }""",
            [name, encoded],
        )
        page.dispatch_event(".drop", "drop", {"dataTransfer": data})
    page.wait_for_selector(".score", timeout=60_000)
    shown = page.locator("li:has-text('night.png') .score").all_inner_texts()
    expected = [[name, f"{score:.3f}"] for name, score in best]
    assert [text.split() for text in shown] == expected
    assert best[0][0] == "dark"
    fault = page.locator("li:has-text('a.txt') .fault")
    fault.wait_for()
    assert fault.inner_text().startswith("This file can't be read: a file that")


def test_large_folders_and_runs_open_in_two_seconds(
    browser: Browser, tmp_path: Path
) -> None:
    """Of processor time, of server and page together: others use the machine, too."""
    first = write_run(tmp_path, "run-0000")
    for number in range(1, 999):
        folder = tmp_path / f"run-{number:04}"
        folder.mkdir()
        for name in ("config.json", "summary.json", "metrics.jsonl", "ledger.jsonl"):
            shutil.copyfile(first.path / name, folder / name)
    large = write_run(tmp_path, "large", rounds=3000, clients=0)
    names = [f"client-{number}" for number in range(MANY_CLIENTS)]
    ledger = Ledger(large.ledger_path)
    ledger.append(LedgerEntry(names[0], "accepted", "d", 17))
    line = large.ledger_path.read_text().splitlines()[-1]
    with large.ledger_path.open("a") as file:
        file.writelines(line.replace(names[0], name) + "\n" for name in names[1:9000])
    large.write_clients(names)
    with served(tmp_path) as site:
        for path, selector in (
            ("", "text=1000 runs"),
            ("#/run/large", ".readout:has-text('round 3,000')"),
            ("#/run/large/clients", "text=1 to 100 of 9275"),
        ):
            page = browser.new_page()
            meter = page.context.new_cdp_session(page)
            meter.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = site.processor_seconds()
            page.goto(site.url + path)
            page.wait_for_selector(selector)
            server = site.processor_seconds() - before
            values = meter.send("Performance.getMetrics")["metrics"]
            taken = {each["name"]: each["value"] for each in values}["TaskDuration"]
            assert 0 < server + taken < 2, (path, server, taken)
            page.close()
        view = site.json("/api/runs/large")
        assert view["clients"] == {"counted": 9000, "missing": MANY_CLIENTS - 9000}


def test_runs_are_searched_sorted_and_compared(page: Page, tmp_path: Path) -> None:
    for rounds, name in enumerate(("apple", "pear", "peach"), start=1):
        write_run(tmp_path, name, rounds)
    with served(tmp_path) as site:
        page.goto(site.url)
        page.wait_for_selector("text=3 runs")
        page.click("th button:has-text('accuracy')")
        shown = page.locator("td.accuracy").all_inner_texts()
        assert shown == sorted(shown, reverse=True) and len(set(shown)) == 3
        page.fill("input[type=search]", "PEA digits")
        page.wait_for_selector("text=2 of 3 runs")
        assert set(page.locator("td.name").all_inner_texts()) == {"pear", "peach"}
        for box in page.locator("tbody input").all():
            box.check()
        page.click("text=Compare two")
        page.wait_for_selector("h1:has-text('Two runs')")
        rows = page.locator("tr:has-text('seed') td").all_inner_texts()
        seeds = {str(sum(map(ord, name))) for name in ("pear", "peach")}
        assert rows[0] == "seed" and set(rows[1:]) == seeds
        assert page.locator("path.curve").count() == 2


def test_names_are_shown_as_text(page: Page, site: Served) -> None:
    name = "<img src=x onerror=alert(1)>"
    run = write_run(site.folder, "markup")
    Ledger(run.ledger_path).append(LedgerEntry(name, "failed", reason=name))
    run.write_confusion([name, "b"], [(0, 1, 3), (1, 1, 2)])
    dialogs: list[object] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    open_run(page, site, "markup", "/clients")
    page.wait_for_selector(f"td.name:has-text('{name}')")
    open_run(page, site, "markup", "/classes")
    page.wait_for_selector(f"td.name:has-text('{name}')")
    assert page.locator("main img").count() == 0 and not dialogs


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(page: Page, site: Served, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    paths = ["", "#/compare/finished/second", *(f"#/run/second{tab}" for tab in TABS)]
    if not (site.folder / "second").exists():
        run = write_run(site.folder, "second", clients=30)
        run.write_confusion([f"species {i}" for i in range(15)], [(1, 2, 3), (4, 4, 4)])
        config = run.read_config()
        run.write_config(config | {"dataset": "synthetic:classes=100,features=64"})
    for path in paths:
        page.goto(site.url + path)
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.locator("h1").count() == 1
        assert not page.is_visible("#trouble")


def test_the_token_of_the_url_opens_the_page(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, "it")
    with served_to_others(tmp_path) as site:
        page = browser.new_page()
        page.goto(site.url)
        page.wait_for_selector("td.name:has-text('it')")
        assert "token" not in page.url
        page.close()
        stranger = browser.new_context().new_page()
        answer = stranger.goto(site.url.partition("?")[0])
        assert answer and answer.status == 401
        assert "token" in json.loads(answer.text())["error"]
        stranger.close()
