"""The compose files: every command in them is run, as a process on this machine.

Host names, ports and paths of the containers are replaced by those of the test; the
rest is what a container would run, in the order in which compose would start it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from fed3r_app.deployment.processes import free_port
from tests.harness.deployment import PROJECT

FOLDER = PROJECT / "docker"
PLAIN, TLS = ["compose.yml"], ["compose.yml", "compose.tls.yml"]
BOTH = pytest.mark.parametrize("files", [PLAIN, TLS], ids=["plain", "tls"])
FOLDERS = {"FED3R_OUTPUT_DIR": "/results", "FED3R_CACHE_DIR": "/cache"}
ONE_SHOT = {"certificates", "demo-data", "register", "run"}


def load(files: Any) -> Any:
    """Return the services of compose files, merged as compose merges them."""
    services: dict[Any, Any] = {}
    for file in files:
        found = yaml.safe_load((FOLDER / file).read_text())["services"]
        for name, service in found.items():
            services[name] = merge(services.get(name, {}), service)
    return services


def merge(base: Any, override: Any) -> Any:
    """Return a service with the settings of a file on top: commands are replaced."""
    merged = {**base, **override}
    for key in ("depends_on", "environment", "healthcheck"):
        if key in base or key in override:
            merged[key] = {**base.get(key, {}), **override.get(key, {})}
    merged["volumes"] = [*base.get("volumes", []), *override.get("volumes", [])]
    return merged


def in_order(services: Any) -> Any:
    """Return the names of the services, each after those it depends on."""
    ordered = []

    def add(name: str) -> None:
        for needed in services[name].get("depends_on", {}):
            add(needed)
        if name not in ordered:
            ordered.append(name)

    for name in services:
        add(name)
    return ordered


def mounts(service: Any) -> Any:
    """Return the folders of a container and the volumes behind them."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}


class Host:
    """Runs services of a compose file as processes on this machine."""

    def __init__(self, services: Any, root: Any) -> None:
        self.services = services
        self.root = root
        self.output: dict[Any, Any] = {}
        self._ports = {"superlink:8000": free_port()}
        self._running: list[Any] = []

    def start(self, name: str) -> None:
        """Run a one-shot service to its end; start another and wait until it is up."""
        log = self.root / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.words(name, self.services[name]["command"]),
                env=self.environment(name),
                cwd=PROJECT,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._running.append(process)
        if name in ONE_SHOT:
            code = process.wait(timeout=240)
            self.output[name] = log.read_text()
            assert code == 0, self.output[name]
        elif "healthcheck" in self.services[name]:
            self._wait_until_healthy(name, process, log)

    def words(self, name: str, command: Any) -> Any:
        """Return a command line with this machine's hosts, ports and paths."""
        own = self._ports.setdefault(f"{name}:9094", free_port())
        superlink = self._ports["superlink:8000"]
        replaced = [
            (r"superlink:8000|127\.0\.0\.1:8000", f"127.0.0.1:{superlink}"),
            (r"127\.0\.0\.1:9094", f"127.0.0.1:{own}"),
            (r"--port=8000", f"--port={superlink}"),
            (r"--port=9094", f"--port={own}"),
            (r"--port=8080", "--port=0"),
            (r"--host=0\.0\.0\.0", "--host=127.0.0.1"),
        ]
        for folder, volume in mounts(self.services[name]).items():
            # "/data", "/data/…": not what only begins like it
            pattern = rf"(?<=[=\"])?{folder}(?=[/\"]|$)"
            replaced.append((pattern, str(self._volume(volume))))
        if name == "demo-data":
            replaced.append((r"^/demo$", str(self.root / "demo")))
        words = []
        for word in command[1:] if command[0] == "CMD" else command:
            for pattern, value in replaced:
                word = re.sub(pattern, value, word)
            words.append(word)
        return words

    def environment(self, name: str) -> Any:
        """Return what the image sets, with this machine's folders."""
        folders = mounts(self.services[name])
        own = {
            key: str(self._volume(folders[path]))
            for key, path in FOLDERS.items()
            if path in folders
        }
        return {
            **os.environ,
            **image_environment(),
            **own,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "FLWR_HOME": str(self.root / "homes" / name),
            "OMP_NUM_THREADS": "1",
        }

    def stop(self) -> None:
        for process in reversed(self._running):
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
                time.sleep(0.3)
            process.wait()

    def _volume(self, volume: Any) -> Any:
        # The demo's folders are those that the nodes then see as their own.
        path = self.root / ("demo" if volume.startswith("data-") else "volumes")
        path /= volume.replace("data-", "clinic-")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _wait_until_healthy(self, name: str, process: Any, log: Any) -> None:
        command = self.words(name, self.services[name]["healthcheck"]["test"])
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.poll() is None:
            done = subprocess.run(
                command, env=self.environment(name), check=False, capture_output=True
            )
            if done.returncode == 0:
                return
            time.sleep(0.5)
        pytest.fail(f"{name} did not become healthy: {log.read_text()}")


def runs_on_the_page(host: Host) -> Any:
    """Return the runs that the page shows whose address its service has printed."""
    (url,) = re.findall(r"http://\S+", (host.root / "ui.log").read_text())
    with urlopen(f"{url}api/runs") as answer:
        return json.load(answer)["runs"]


def image_environment() -> Any:
    """Return the variables that the Dockerfile sets, but for the folders."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    last = re.findall(r"^ENV (.*)$", text, re.MULTILINE)[-1]
    pairs = [word.split("=", 1) for word in last.split()]
    return {key: value for key, value in pairs if key.startswith("FLWR_")}


@pytest.mark.slow
@BOTH
def test_the_services_run_to_the_result(files: Any, tmp_path: Path) -> None:
    services = load(files)
    host = Host(services, tmp_path)
    try:
        for name in in_order(services):
            host.start(name)
        assert [run["accuracy"] for run in runs_on_the_page(host)] != [None]
    finally:
        host.stop()
    (summary,) = (tmp_path / "volumes" / "results").glob("2*/summary.json")
    outcome = json.loads(summary.read_text())
    assert outcome["clients_counted"] == 3
    assert outcome["num_samples"] == 1442  # the digits that are not held out
    assert outcome["num_classes"] == 10
    assert "clients_counted" in host.output["run"] or "clients" in host.output["run"]


@BOTH
def test_what_is_published_is_published_on_this_machine_only(files: Any) -> None:
    ports = [
        port for service in load(files).values() for port in service.get("ports", [])
    ]
    assert ports == ["127.0.0.1:8000:8000", "127.0.0.1:8080:8080"]


@BOTH
def test_every_volume_is_declared_and_every_folder_is_made_by_the_image(
    files: Any,
) -> None:
    texts = [(FOLDER / file).read_text() for file in files]
    declared = {volume for text in texts for volume in yaml.safe_load(text)["volumes"]}
    made = set(re.findall(r" (/[\w/-]+)", (FOLDER / "Dockerfile").read_text()))
    mounted = [mounts(service) for service in load(files).values()]
    assert all(folders.keys() <= made for folders in mounted)
    assert {volume for folders in mounted for volume in folders.values()} == declared


def test_every_service_of_the_tls_file_is_encrypted() -> None:
    for name, service in load(TLS).items():
        assert "--insecure" not in service["command"], name


def test_a_node_sees_its_own_images_and_nobody_elses() -> None:
    for number in (1, 2, 3):
        service = load(PLAIN)[f"supernode-{number}"]
        own = {"/data": f"data-{number}", "/cache": f"cache-{number}"}
        assert mounts(service) == own
        assert f'client-id="clinic-{number}"' in service["command"][-1]


def test_the_dockerfile_passes_the_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [hadolint, "--no-color", FOLDER / "Dockerfile"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_in_the_image_are_the_projects() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert text.count("--constraint constraints.txt") == text.count("pip install") == 2
    version = re.search(
        r'^version = "(.*)"', (PROJECT / "pyproject.toml").read_text(), re.M
    )
    for service in load(TLS).values():
        assert version and service["image"] == f"fed3r:{version[1]}"
