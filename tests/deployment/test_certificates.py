"""``fed3r certificates``: keys and certificates that TLS and Flower accept."""

import socket
import ssl
import threading
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fed3r_app.cli import main
from fed3r_app.deployment.certificates import make_certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trial") / "certificates"
    arguments = ["--host", "flower.example.org", "--host", "10.1.2.3"]
    arguments += ["--node", "clinic-7", "--node", "clinic-8"]
    assert main(["certificates", str(folder), *arguments]) == 0
    return folder


def shake_hands(folder: Path, authority: Any, host: Any) -> None:
    """Let a client that trusts an authority connect to a server as a host."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=authority)
    # What Python 3.13 asks for by default.
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()  # the client has turned away

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "superlink", "flower.example.org", "10.1.2.3"]
)
def test_the_server_is_trusted_under_every_name(folder: Path, host: Any) -> None:
    shake_hands(folder, folder / "ca.crt", host)


def test_the_server_is_not_trusted_under_another_name(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(folder, folder / "ca.crt", "other.example.org")


def test_the_server_is_not_trusted_by_another_authority(
    folder: Path, tmp_path: Path
) -> None:
    make_certificates(tmp_path, ["localhost"], [])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(folder, tmp_path / "ca.crt", "localhost")


def test_each_node_has_a_pair_of_keys_as_ssh_keygen_makes_them(folder: Path) -> None:
    seen = set()
    for name in ("clinic-7", "clinic-8"):
        private = (folder / "nodes" / name).read_bytes()
        public = (folder / "nodes" / f"{name}.pub").read_bytes()
        assert private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        assert public.startswith(b"ecdsa-sha2-nistp384 ")
        key = load_ssh_private_key(private, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP384R1)
        assert key.public_key() == load_ssh_public_key(public)
        seen.add(public.split()[1])
    assert len(seen) == 2


def test_only_the_owner_reads_a_private_key(folder: Path) -> None:
    for name in ("ca.key", "server.key", "superexec.secret", "nodes/clinic-7"):
        assert S_IMODE((folder / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "superlink:8000"], "without port, got 'superlink:8000'"),
        (["--node", "../etc"], "--node must be a plain name"),
        (["--node", "a", "--node", "a"], "name each node once, got a, a"),
    ],
)
def test_a_bad_name_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Any, sentence: str
) -> None:
    assert main(["certificates", str(tmp_path / "new"), *arguments]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_certificates_that_are_trusted_already_are_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "ca.crt").read_bytes()
    assert main(["certificates", str(folder)]) == 1
    assert "must not hold certificates yet" in capsys.readouterr().err
    assert main(["certificates", str(folder), "--keep"]) == 0
    assert (folder / "ca.crt").read_bytes() == before


def test_nodes_that_have_no_key_get_one_and_the_others_keep_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path, ["localhost"], ["old"])
    before = (tmp_path / "nodes" / "old.pub").read_bytes()
    arguments = ["certificates", str(tmp_path), "--keep", "--node=old", "--node=new"]
    assert main(arguments) == 0
    assert (tmp_path / "nodes" / "old.pub").read_bytes() == before
    assert (tmp_path / "nodes" / "new.pub").is_file()
    shown = capsys.readouterr().out
    assert "private key of new" in shown and "private key of old" not in shown


def test_certificates_that_have_expired_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path, ["localhost"], [], days=0)
    path = tmp_path / "ca.crt"
    assert main(["certificates", str(tmp_path), "--keep", "--node=new"]) == 1
    error = capsys.readouterr().err
    assert f"{path} must be valid to be kept, got one that expired on" in error
    assert not (tmp_path / "nodes" / "new").exists()
