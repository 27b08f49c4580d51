"""``fed3r check`` and ``fed3r run``: why there is no connection, in one sentence."""

import socket
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from flwr.proto.control_pb2 import ListNodesResponse, RegisterNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from PIL import Image

from fed3r_app.cli import main
from fed3r_app.deployment import follow
from fed3r_app.deployment.certificates import make_certificates
from fed3r_app.deployment.nodes import naming_absent, read_public_key
from fed3r_app.deployment.processes import free_port
from fed3r_app.deployment.superlink import SuperLink
from fed3r_app.errors import RunError
from fed3r_app.runs.directory import RunDirectory
from fed3r_app.runs.ledger import ACCEPTED, Ledger, LedgerEntry


class Health(BaseHTTPRequestHandler):
    """Answers as a SuperLink does when asked for its health."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


class NotFlower(Health):
    """Answers everything with a page of its own."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()


class Control(Health):
    """Also answers what people ask, from ``answers`` by the last part of the path."""

    answers: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path.rpartition("/")[2])
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.answers.get(self.path.rpartition("/")[2])
        self.send_response(503 if answer is None else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(answer or b"")


class Quiet(ThreadingHTTPServer):
    """Says nothing of clients that turn away: that is the test."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("certificates")
    for each in (folder, folder / "other"):
        make_certificates(each, ["127.0.0.1"], [])
    return folder


@pytest.fixture
def serve(certificates: Any) -> Iterator[Any]:
    """Start a server; return its address."""
    servers = []

    def start(handler: Any = Health, tls: bool = False) -> str:
        server = Quiet(("127.0.0.1", 0), handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(
                certificates / "server.crt", certificates / "server.key"
            )
            server.socket = context.wrap_socket(server.socket, server_side=True)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the one line that a command fails with."""

    def fail(*arguments: Any) -> str:
        assert main(list(map(str, arguments))) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return fail


def test_a_superlink_that_is_there_is_up(
    serve: Any, certificates: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", serve()]) == 0
    authority = str(certificates / "ca.crt")
    assert main(["check", serve(tls=True), "--root-certificates", authority]) == 0
    assert "is up" in capsys.readouterr().out


def test_nobody_listens(sentence: Any) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert f"at {address}: nothing listens there" in sentence("check", address)
    assert "nothing listens there" in sentence("register", address, "a.pub")


def test_a_run_needs_a_superlink(sentence: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    address = f"127.0.0.1:{free_port()}"
    line = sentence("run", address, "--app", str(tmp_path))
    assert line == (
        f"fed3r: No connection to the SuperLink at {address}: nothing listens there. "
        "Is it started?"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["metod=fedncm"],
        ["--run-config", "alpha 0.1"],
        ["--run-config", 'method="fedncm" nonsense'],
        ["--config", "nowhere.json"],
        ["method", "=", "fedncm", "partition=natural"],
    ],
)
def test_settings_are_checked_before_the_superlink_is_asked(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["run", f"127.0.0.1:{free_port()}", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No connection" not in line


def test_settings_reach_the_run_whichever_way_they_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def run_app(_: SuperLink, app: Path, run_config: list[str]) -> None:
        seen.extend(tomllib.loads(Path(path).read_text()) for path in run_config)

    monkeypatch.setattr(follow, "run_app", run_app)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text("seed = 7")
    words = ["method", "=", "fedncm", "--run-config", 'labels="a b" dataset=local']
    assert main(["run", "127.0.0.1:1", *words, "--config", "x.toml"]) == 0
    wanted = {"method": "fedncm", "labels": "a b", "dataset": "local", "seed": 7}
    assert seen == [wanted]


def test_a_run_needs_an_app(serve: Any, sentence: Any, tmp_path: Path) -> None:
    line = sentence("run", serve(), "--app", str(tmp_path))
    assert f"got {tmp_path} without pyproject.toml" in line


def test_what_flower_says_of_a_run_it_does_not_start_is_passed_on(
    serve: Any, sentence: Any, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    line = sentence("run", serve(), "--app", str(tmp_path))
    assert line.startswith("fed3r: The run was not started: ")
    assert "pyproject.toml" in line


@pytest.mark.parametrize(
    ("host", "server", "authority", "reason"),
    [
        ("no-such-host.invalid", {}, None, "the host is not known"),
        ("127.0.0.1", {"tls": True}, "other/ca.crt", "is not signed by {authority}"),
        ("localhost", {"tls": True}, "ca.crt", "does not name localhost. Make one wit"),
        ("127.0.0.1", {"tls": True}, None, "it speaks TLS only"),
        ("127.0.0.1", {}, "ca.crt", "does not speak TLS. Was it started with --insec"),
        ("127.0.0.1", {}, "none.crt", "with a PEM certificate, got {authority}"),
        ("127.0.0.1", {}, "server.key", "with a PEM certificate, got {authority}"),
        ("127.0.0.1", {"handler": NotFlower}, None, "not as a SuperLink (status 404)"),
    ],
)
def test_why_there_is_no_connection(
    serve: Any,
    sentence: Any,
    certificates: Path,
    host: str,
    server: Any,
    authority: str | None,
    reason: str,
) -> None:
    address = serve(**server).replace("127.0.0.1", host)
    path = certificates / (authority or "")
    options = ["--root-certificates", path] if authority else []
    assert reason.format(authority=path) in sentence("check", address, *options)


@pytest.mark.parametrize("address", ["superlink", ":8000", "superlink:port", "a:70000"])
def test_an_address_is_a_host_and_a_port(address: Any, sentence: Any) -> None:
    line = sentence("check", address)
    assert line == f"fed3r: The SuperLink's address must be HOST:PORT, got {address!r}."


def test_a_port_that_is_in_use_is_named(serve: Any, sentence: Any) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        line = sentence("check", serve(), "--port", str(port))
    assert f"--port must be free on this machine, got {port}, which is in use" in line
    assert main(["check", serve(), "--port", str(free_port())]) == 0


@pytest.mark.parametrize("port", ["0", "99999", "-1", "http"])
def test_a_port_that_can_not_be_is_wrong_usage(
    port: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "127.0.0.1:8000", f"--port={port}"])
    assert f"must be from 1 to 65535, got '{port}'" in capsys.readouterr().err


@pytest.fixture
def known(
    tmp_path: Path, certificates: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Let a SuperLink know some of the keys a, b and c, each as (name, status)."""
    make_certificates(tmp_path / "keys", ["127.0.0.1"], ["a", "b", "c"])

    def know(**nodes: tuple[str, str]) -> None:
        listed = []
        for key, (name, status) in nodes.items():
            public = read_public_key(tmp_path / "keys" / "nodes" / f"{key}.pub")
            listed.append(NodeInfo(public_key=public, name=name, status=status))
        answer = ListNodesResponse(nodes_info=listed).SerializeToString()
        monkeypatch.setitem(Control.answers, "list-nodes", answer)
        done = RegisterNodeResponse(node_id=1).SerializeToString()
        monkeypatch.setitem(Control.answers, "register-node", done)

    return know


def test_a_key_is_registered_under_a_name_that_belongs_to_it(
    serve: Any,
    known: Any,
    tmp_path: Path,
    sentence: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known(a=("a", "unregistered"), b=("b", "offline"))
    a, b, c = (tmp_path / "keys" / "nodes" / f"{name}.pub" for name in "abc")
    line = sentence("register", serve(Control), a)
    assert f"{a} must be a key that was never unregistered" in line
    line = sentence("register", serve(Control), b, "--name", "d")
    assert f"{b} must keep the name it was registered under, 'b', got 'd'" in line
    line = sentence("register", serve(Control), c, "--name", "b")
    assert "--name must belong to one key, got 'b', which another one has" in line
    line = sentence("register", serve(Control), b, c, "--name", "d")
    assert "--name must go with one key, got 2" in line
    assert main(["register", serve(Control), str(b)]) == 0
    assert main(["register", serve(Control), str(c), "--name", "a"]) == 0
    said = capsys.readouterr().out
    assert "b.pub: was registered before as b" in said
    assert "c.pub: registered as a" in said


def node_of(address: str, folder: Path, key: str, *options: str) -> list[str]:
    """Return the arguments of ``fed3r node`` for a client ``clinic`` with images."""
    (folder / "images" / "cat").mkdir(parents=True, exist_ok=True)
    for number in range(3):
        image = Image.new("L", (8, 8), number * 80)
        image.save(folder / "images" / "cat" / f"{number}.png")
    path = folder / "keys" / "nodes" / key
    words = ["node", address, "--data", str(folder / "images"), "--client-id", "clinic"]
    return [*words, "--key", str(path), "--port", str(free_port()), *options]


def test_a_node_that_can_not_be_let_in_is_told_why(
    serve: Any, known: Any, tmp_path: Path, sentence: Any
) -> None:
    address = serve(Control)
    known(a=("clinic", "offline"), b=("other", "offline"))
    line = sentence(*node_of(address, tmp_path, "c"))
    assert f"does not know the key {tmp_path}" in line
    assert f"fed3r register {address} {tmp_path / 'keys/nodes/c.pub'}" in line
    line = sentence(*node_of(address, tmp_path, "b"))
    assert "--client-id must be the name under which the node's key is" in line
    assert "'other', got 'clinic'" in line
    known(a=("clinic", "unregistered"))
    line = sentence(*node_of(address, tmp_path, "a"))
    assert "was unregistered, and Flower never lets it in again" in line
    line = sentence(*node_of(address, tmp_path, "a.pub"))
    assert "--key must be a private key without a passphrase" in line
    assert "got no file at" in sentence(*node_of(address, tmp_path, "d"))


def test_the_clients_of_a_superlink_are_listed_with_their_last_reply(
    serve: Any,
    known: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FED3R_OUTPUT_DIR", str(tmp_path / "runs"))
    known(a=("clinic", "online"), b=("away", "offline"), c=("old", "unregistered"))
    assert main(["clients", serve(Control)]) == 0
    run = RunDirectory.open(str(tmp_path / "runs"), "it", resume=False)
    run.write_config({})
    run.write_clients(["clinic"], {"clinic": "0.2.0"})
    for time in ("2026-01-02T03:04:05+00:00", "2026-01-01T03:04:05+00:00"):
        Ledger(run.ledger_path).append(LedgerEntry("clinic", ACCEPTED, "0", time=time))
    capsys.readouterr()
    assert main(["clients", serve(Control)]) == 0
    header, away, clinic = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "name"
    assert away.split() == ["away", "offline", "-", "-"]
    assert clinic.split()[:2] == ["clinic", "online"]
    assert clinic.split()[2] in ("2026-01-01", "2026-01-02", "2026-01-03")
    assert clinic.split()[-1] == "0.2.0"


def test_a_run_that_fails_names_the_nodes_that_are_not_online(
    serve: Any, known: Any
) -> None:
    known(a=("here", "online"), b=("away", "offline"), c=("", "offline"))
    sentence = r"^Not online: away \(offline\)\. Only 1 of 2 clients\.$"
    with (
        pytest.raises(RunError, match=sentence),
        naming_absent(SuperLink(serve(Control))),
    ):
        raise RunError("Only 1 of 2 clients.")
    with (
        pytest.raises(RunError, match=r"^Only 1 of 2 clients\.$"),
        naming_absent(SuperLink(f"127.0.0.1:{free_port()}")),
    ):
        raise RunError("Only 1 of 2 clients.")


def test_a_check_prints_what_a_node_has_and_sends_nothing(
    serve: Any,
    known: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FED3R_CACHE_DIR", str(tmp_path / "cache"))
    known(a=("clinic", "offline"))
    line = node_of(serve(Control), tmp_path, "a", "--check", "backbone=pixels")
    (tmp_path / "images" / "cat" / "bad.png").write_text("no image")
    before = list(Control.asked)
    assert main([*line, "image-size=8"]) == 0
    said = capsys.readouterr().out
    assert "3 to train on, 0 to test" in said
    assert "1: cat 3" in said
    assert "unreadable  1 file, listed above" in said
    assert "(pixels, 8 px)" in said
    assert "which knows the key as clinic" in said
    assert Control.asked[len(before) :] == ["list-nodes"]
    assert main([*line, "image-size=8", "max-unreadable=0"]) == 1
    assert "must have at most max-unreadable = 0" in capsys.readouterr().err


def test_a_superlink_that_fails_while_asked_for_a_run_is_a_sentence(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = SuperLink(serve(Control))
    with pytest.raises(OSError, match=r"No connection to the SuperLink .* '503 "):
        superlink.status(run_id=7)
    monkeypatch.setitem(Control.answers, "list-runs", b"")
    with pytest.raises(RunError, match="must know run 7, got none"):
        superlink.status(run_id=7)
    with pytest.raises(OSError, match="No connection to the SuperLink"):
        SuperLink(f"127.0.0.1:{free_port()}").status(limit=1)
