"""What the page's server says, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from fed3r_app.runs.ledger import Ledger, LedgerEntry
from fed3r_app.runs.report import format_bytes, format_percent
from tests.cli.test_commands import save_run
from tests.harness.ui import Served, served, served_to_others, write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a folder with two runs."""
    folder = tmp_path_factory.mktemp("results")
    for name in ("first", "second"):
        write_run(folder, name)
    (folder / "latest").symlink_to("second")
    with served(folder) as page:
        yield page


def test_the_list_has_what_the_summaries_say(page: Served) -> None:
    rows = {row["name"]: row for row in page.json("/api/runs")["runs"]}
    assert rows.keys() == {"first", "second"}  # a link is not a run
    for name, row in rows.items():
        summary = json.loads((page.folder / name / "summary.json").read_text())
        assert row["accuracy"] == summary["accuracy"]
        assert row["accuracy_text"] == format_percent(summary["accuracy"])
        assert (row["clients"], row["rounds"]) == (4, 3)
        assert row["state"] == "complete"


def test_a_run_has_every_round_and_the_papers_bytes(page: Served) -> None:
    view = page.json("/api/runs/first")
    lines = [json.loads(line) for line in open(page.folder / "first/metrics.jsonl")]
    for point, line in zip(view["curve"], lines[1:], strict=True):
        assert point["accuracy"] == line["accuracy"]
        assert point["paper_upload_bytes"] == line["paper_upload_bytes"]
    uploaded = view["costs"][0]
    assert uploaded["ours"] == format_bytes(lines[-1]["upload_bytes"])
    assert uploaded["paper"] == format_bytes(lines[-1]["paper_upload_bytes"])


def test_what_the_page_has_is_not_sent_again(page: Served) -> None:
    for path in ("/api/runs", "/api/runs/first"):
        version = page.json(path)["version"]
        assert page.ask(f"{path}?seen={version}")[0] == 204


def test_a_change_of_any_file_is_seen(page: Served) -> None:
    run = write_run(page.folder, "changing", clients=2)
    path = "/api/runs/changing"
    seen = page.json(path)["version"]
    Ledger(run.ledger_path).append(LedgerEntry("late", "failed", reason="ill"))
    view = page.json(f"{path}?seen={seen}")
    assert view["clients"] == {"counted": 2, "failed": 1}


def test_clients_are_counted_searched_and_paged(page: Served) -> None:
    run = write_run(page.folder, "many", clients=30)
    ledger = Ledger(run.ledger_path)
    ledger.append(LedgerEntry("clinic-7", "forgotten", "d"))
    ledger.append(LedgerEntry("liar", "refused", reason="not finite"))
    path = "/api/runs/many"
    assert page.json(path)["clients"] == {"counted": 29, "refused": 1, "forgotten": 1}
    table = page.json(f"{path}/clients?limit=10&offset=25")
    assert (table["total"], len(table["rows"])) == (31, 6)
    (liar,) = page.json(f"{path}/clients?state=refused")["rows"]
    assert (liar["client"], liar["reason"]) == ("liar", "not finite")
    found = page.json(f"{path}/clients?search=CLINIC-2")["rows"]
    assert [row["client"][7:] for row in found] == ["2", *map(str, range(20, 30))]


def test_two_runs_differ_in_what_their_configs_differ_in(page: Served) -> None:
    view = page.json("/api/compare?one=first&other=second")
    seeds = [str(sum(map(ord, name))) for name in ("first", "second")]
    assert view["settings"] == [{"key": "seed", "values": seeds}]


def test_prometheus_reads_the_latest_run(page: Served) -> None:
    write_run(page.folder, 'odd "name"\\')
    status, body, headers = page.ask("/metrics")
    lines = body.decode().splitlines()
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert r'fed3r_clients{run="odd \"name\"\\",state="counted"} 4.0' in lines
    assert r'fed3r_exchange_seconds_count{run="odd \"name\"\\"} 3.0' in lines
    assert r'fed3r_exchange_seconds_sum{run="odd \"name\"\\"} 3.75' in lines
    # Each metric is described once, and ahead of its numbers.
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))


def test_prometheus_is_told_of_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    run = write_run(tmp_path, "torn")
    run.metrics_path.write_text("{\n{}\n")
    with served(tmp_path) as page:
        lines = page.ask("/metrics")[1].decode().splitlines()
    assert 'fed3r_run_unreadable{run="torn"} 1.0' in lines
    assert 'fed3r_runs{state="complete"} 1.0' in lines


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc", "latest", "first%2f..%2fsecond", "a%00", "none"],
)
def test_no_name_leads_out_of_the_folder(page: Served, name: str) -> None:
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/clients", f"/{name}"):
        assert page.ask(path)[0] == 404


def test_links_out_of_the_folder_are_not_followed(page: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"method": "secret"}')
    run = write_run(page.folder, "linked")
    run.summary_path.unlink()
    run.summary_path.symlink_to(secret)
    (page.folder / "elsewhere").symlink_to(write_run(tmp_path, "outside").path)
    rows = {row["name"]: row for row in page.json("/api/runs")["runs"]}
    assert "elsewhere" not in rows
    assert rows["linked"]["state"] == "damaged" and "secret" not in str(rows)
    status, sentence = page.refusal("/api/runs/linked")
    assert status == 422 and "must be a plain file" in sentence
    assert page.ask("/api/runs/elsewhere")[0] == 404


def test_a_damaged_run_disturbs_no_other(page: Served) -> None:
    run = write_run(page.folder, "torn")
    run.summary_path.write_text("{")
    rows = {row["name"]: row for row in page.json("/api/runs")["runs"]}
    assert rows["torn"]["state"] == "damaged" and rows["first"]["accuracy"]
    assert page.refusal("/api/runs/torn")[0] == 422


def test_pictures_are_bounded_in_bytes_and_pixels(page: Served) -> None:
    save_run(page.folder, "shades").write_config({})
    path = "/api/runs/shades/predict"
    status, sentence = page.refusal(path, method="POST", body=bytes(30_000_001))
    assert (status, sentence) == (413, "A picture must have at most 30 MB.")
    picture = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(picture, "PNG")
    status, sentence = page.refusal(path, method="POST", body=picture.getvalue())
    assert status == 422 and "megapixels" in sentence
    for name in ("..%2fshades", "latest"):
        assert page.ask(f"/api/runs/{name}/predict", "POST", b"")[0] == 404


def test_a_model_elsewhere_is_not_loaded(page: Served, tmp_path: Path) -> None:
    run = write_run(page.folder, "borrowed")
    run.model_path.symlink_to(save_run(tmp_path, "outside").model_path)
    path = "/api/runs/borrowed/predict"
    status, sentence = page.refusal(path, method="POST", body=b"x")
    assert status == 422 and "must be a plain file" in sentence


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "192.0.2.1"])
def test_other_host_names_are_refused(page: Served, host: str) -> None:
    assert page.refusal("/api/runs", Host=host) == (
        403,
        f"The Host header must name this machine, got {host!r}.",
    )


def test_other_origins_are_refused(page: Served) -> None:
    for origin in ("http://evil.example", "null", f"http://{page.address}1"):
        assert page.refusal("/api/runs", Origin=origin)[0] == 403
    assert page.ask("/api/runs", Origin=f"http://{page.address}")[0] == 200
    port = page.address.partition(":")[2]
    assert page.ask("/api/runs", Host=f"localhost:{port}")[0] == 200


def test_every_answer_tells_browsers_to_load_nothing_else(page: Served) -> None:
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        policy = page.ask(path)[2]["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy


def test_whoever_looks_only_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path, "it")
    with served(tmp_path) as page:
        for path in ("/", "/api/runs", "/api/runs/it", "/metrics"):
            assert page.ask(path)[0] == 200
        assert "libtorch" not in Path(f"/proc/{page.pid}/maps").read_text()


def test_nothing_is_written(page: Served) -> None:
    before = sorted(page.folder.rglob("*"))
    for path in ("/", "/api/runs", "/api/runs/first", "/metrics"):
        assert page.ask(path)[0] == 200
        assert page.ask(path, "POST")[0] == page.ask(path, "DELETE")[0] == 405
    assert sorted(page.folder.rglob("*")) == before


def test_another_address_needs_the_token(tmp_path: Path) -> None:
    write_run(tmp_path, "it")
    with served_to_others(tmp_path) as page:
        path, token = page.url[page.url.index("/?") :], page.url.partition("=")[2]
        assert len(token) >= 20
        for wrong in ("/", "/app.js", "/api/runs", "/?token=x", "/metrics"):
            assert page.ask(wrong)[0] == 401
        status, _, headers = page.ask(path)
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert page.ask("/api/runs", Cookie=cookie.partition(";")[0])[0] == 200
        assert page.ask("/metrics", Authorization=f"Bearer {token}")[0] == 200
        assert page.ask(path, Host="evil.example")[0] == 403


def test_bad_arguments_are_one_sentence(tmp_path: Path, page: Served) -> None:
    port = page.address.partition(":")[2]
    for arguments, sentence in (
        ([tmp_path / "none"], "must be a folder of runs"),
        ([page.folder / "first"], "Give the folder that holds it"),
        ([tmp_path, "--port", port], "must be free on this machine"),
        ([tmp_path, "--host", "no.such.invalid"], "--host must be a name"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fed3r_app.cli", "ui", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=os.environ,
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert sentence in done.stderr
