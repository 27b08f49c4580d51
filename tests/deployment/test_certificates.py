"""``fed3r certificates``: keys and certificates that TLS and Flower accept."""

import shutil
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
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
    make_certificates(tmp_path, ["localhost"], [], days=0, authority_days=0)
    path = tmp_path / "ca.crt"
    assert main(["certificates", str(tmp_path), "--keep", "--node=new"]) == 1
    error = capsys.readouterr().err
    assert f"{path} must be valid to be kept, got one that expired on" in error
    assert not (tmp_path / "nodes" / "new").exists()
    assert f"fed3r certificates {tmp_path} --renew" in error


def everything(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_renewed_certificate_is_trusted_as_before_and_has_more_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], ["clinic-7"], days=0)
    before = everything(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path, tmp_path / "ca.crt", "127.0.0.1")
    renew = ["certificates", str(tmp_path), "--renew", "--host", "new.example.org"]
    assert main(renew) == 0
    changed = {k for k, content in everything(tmp_path).items() if content != before[k]}
    assert changed == {"server.crt"}
    for host in ("127.0.0.1", "new.example.org"):
        shake_hands(tmp_path, tmp_path / "ca.crt", host)
    said = capsys.readouterr().out
    until = datetime.now(UTC) + timedelta(days=90)
    assert f"until {until:%Y-%m-%d}, as 127.0.0.1, new.example.org" in said
    assert "Nodes need nothing new." in said


def test_a_key_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["localhost"], [])
    before = (tmp_path / "server.key").read_bytes()
    (tmp_path / "server.key").unlink()
    assert main(["certificates", str(tmp_path), "--renew"]) == 0
    assert (tmp_path / "server.key").read_bytes() != before
    assert S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    shake_hands(tmp_path, tmp_path / "ca.crt", "localhost")


def test_an_authority_that_would_expire_first_is_renewed_for_the_same_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_certificates(tmp_path, ["localhost"], ["old"], authority_days=2)
    trusted = tmp_path / "as-a-node-has-it.crt"
    trusted.write_bytes((tmp_path / "ca.crt").read_bytes())
    nodes = everything(tmp_path / "nodes")
    assert main(["certificates", str(tmp_path), "--renew", "--node", "old"]) == 0
    assert "Nodes need nothing new but ca.crt, which would expire." in (
        capsys.readouterr().out
    )
    assert everything(tmp_path / "nodes") == nodes
    for authority in (trusted, tmp_path / "ca.crt"):
        shake_hands(tmp_path, authority, "localhost")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("ca.key", None, "ca.key must be there to renew certificates"),
        ("ca.key", b"no key", "ca.key must be a key as made here"),
        ("ca.crt", b"no certificate", "ca.crt must be a certificate (PEM)"),
        ("server.crt", None, "server.crt"),
    ],
)
def test_what_can_not_be_renewed_is_said_and_nothing_changes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: Any,
    sentence: str,
) -> None:
    make_certificates(tmp_path, ["localhost"], [])
    (tmp_path / file).unlink()
    if content:
        (tmp_path / file).write_bytes(content)
    before = everything(tmp_path)
    assert main(["certificates", str(tmp_path), "--renew"]) == 1
    assert sentence in capsys.readouterr().err
    assert everything(tmp_path) == before


def test_another_authority_s_key_signs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ours", "theirs"):
        make_certificates(tmp_path / name, ["localhost"], [])
    shutil.copy(tmp_path / "theirs" / "ca.key", tmp_path / "ours" / "ca.key")
    assert main(["certificates", str(tmp_path / "ours"), "--renew"]) == 1
    assert "must be the key of ca.crt beside it" in capsys.readouterr().err
