"""Certificates and keys for a trial of a deployment: TLS and node authentication.

Everything is made on one machine, keys included, which is fine for a trial and wrong
for production: there every key is made where it stays (docs/deployment.md).
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
SUPEREXEC_SECRET = "superexec.secret"
NODES = "nodes"
DEFAULT_HOSTS = ("localhost", "127.0.0.1", "superlink")
_PEM = serialization.Encoding.PEM


def make_certificates(
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int = 30
) -> None:
    """Write a certificate authority, a server certificate and a key for each node.

    The SuperExec, which runs the ServerApps, shares a secret with the SuperLink.

    Parameters
    ----------
    folder : Path
        Must not hold certificates yet: new ones would lock out all nodes that
        trust the old.
    hosts : Sequence[str]
        Names and addresses under which the SuperLink is reached.
    nodes : Sequence[str]
        Names of the SuperNodes; each gets ``nodes/<name>`` and ``nodes/<name>.pub``.
    days : int
        How long the certificates are valid.
    """
    _check_names(nodes)
    alternative_names = [_alternative_name(host) for host in hosts]
    if not hosts:
        raise ValueError("--host must name at least one host, got none.")
    if (folder / CA_CERTIFICATE).exists():
        raise FileExistsError(
            f"{folder} must not hold certificates yet, got {CA_CERTIFICATE} there. "
            "Choose another folder, remove this one, or keep them with --keep."
        )
    (folder / NODES).mkdir(parents=True, exist_ok=True)
    ca_key, server_key = _new_key(), _new_key()
    ca = _authority(ca_key, days)
    server = _server(server_key, alternative_names, ca, ca_key, days)
    _write_private(folder / CA_KEY, _pem(ca_key))
    _write_private(folder / SERVER_KEY, _pem(server_key))
    _write_private(folder / SUPEREXEC_SECRET, secrets.token_bytes(32))
    (folder / SERVER_CERTIFICATE).write_bytes(server.public_bytes(_PEM))
    for name in nodes:
        _write_node_keys(folder / NODES, name)
    (folder / CA_CERTIFICATE).write_bytes(ca.public_bytes(_PEM))


def keep_certificates(folder: Path, nodes: Sequence[str]) -> list[str]:
    """Make keys for the nodes that have none; return their names.

    Parameters
    ----------
    folder : Path
        Holds certificates; one that has expired is a ValueError.
    nodes : Sequence[str]
        Names of the SuperNodes; keys that are there stay.
    """
    _check_names(nodes)
    for path in (folder / CA_CERTIFICATE, folder / SERVER_CERTIFICATE):
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        if until <= datetime.now(UTC):
            raise ValueError(
                f"{path} must be valid to be kept, got one that expired on "
                f"{until:%Y-%m-%d}. Remove the folder, and make new ones."
            )
    # A public key is written last, so where it is the pair is whole.
    new = [name for name in nodes if not (folder / NODES / f"{name}.pub").exists()]
    for name in new:
        _write_node_keys(folder / NODES, name)
    return new


def _check_names(nodes: Sequence[str]) -> None:
    for name in nodes:
        if not re.fullmatch(r"\w[\w.-]*", name) or name.endswith(".pub"):
            raise ValueError(
                "--node must be a plain name of letters, digits, '-', '_' and '.', "
                f"got {name!r}."
            )
    if len(set(nodes)) < len(nodes):
        raise ValueError(f"--node must name each node once, got {', '.join(nodes)}.")


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _pem(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(_PEM, form, serialization.NoEncryption())


def _write_node_keys(folder: Path, name: str) -> None:
    """Write the pair of keys that ``ssh-keygen -t ecdsa -b 384`` would."""
    key = _new_key()
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_private(folder / name, _pem(key, serialization.PrivateFormat.OpenSSH))
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?", host):
        raise ValueError(
            f"--host must be a host name or an address, without port, got {host!r}."
        )
    return x509.DNSName(host)


def _builder(
    subject: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.now(UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
    )


def _authority(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    return (
        _builder("Fed3R trial CA", None, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_key_usage(signs_certificates=True), True)
        .sign(key, hashes.SHA384())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    hosts: list[x509.GeneralName],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    ca_public = ca_key.public_key()
    return (
        _builder("Fed3R SuperLink", ca.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(hosts), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_key_usage(signs_certificates=False), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_public), False
        )
        .sign(ca_key, hashes.SHA384())
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
