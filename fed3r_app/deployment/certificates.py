"""Certificates and keys for a trial of a deployment: TLS and node authentication.

Everything is made on one machine, keys included, which is fine for a trial and wrong
for production: there every key is made where it stays (docs/deployment.md).
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
SUPEREXEC_SECRET = "superexec.secret"
NODES = "nodes"
DEFAULT_HOSTS = ("localhost", "127.0.0.1", "superlink")
_AUTHORITY = "Fed3R trial CA"
_PEM, _CURVE = Encoding.PEM, ec.SECP384R1()
_CRITICAL = (x509.BasicConstraints, x509.KeyUsage)
_OTHER_USES = (
    *("content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


def make_certificates(
    folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int = 30
) -> None:
    """Write a certificate authority, a server certificate and a key for each node.

    The SuperLink is reached under the names and addresses in ``hosts``. Each node gets
    ``nodes/<name>`` and ``nodes/<name>.pub``. The SuperExec, which runs the ServerApps,
    shares a secret with the SuperLink. A folder that holds certificates is refused: new
    ones would lock out all nodes that trust the old.
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
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    ca = _certificate(_AUTHORITY, ca_key, ca_key, days)
    server = _certificate(
        "Fed3R SuperLink", server_key, ca_key, days, alternative_names
    )
    _write_private(folder / CA_KEY, _pem(ca_key, PrivateFormat.PKCS8))
    _write_private(folder / SERVER_KEY, _pem(server_key, PrivateFormat.PKCS8))
    _write_private(folder / SUPEREXEC_SECRET, secrets.token_bytes(32))
    (folder / SERVER_CERTIFICATE).write_bytes(server.public_bytes(_PEM))
    for name in nodes:
        _write_node_keys(folder / NODES, name)
    (folder / CA_CERTIFICATE).write_bytes(ca.public_bytes(_PEM))


def keep_certificates(folder: Path, nodes: Sequence[str]) -> list[str]:
    """Make keys for the nodes that have none; return their names.

    Certificates in the folder that have expired are a ValueError.
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


def _pem(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(_PEM, form, NoEncryption())


def _write_node_keys(folder: Path, name: str) -> None:
    """Write the pair of keys that ``ssh-keygen -t ecdsa -b 384`` would."""
    key = ec.generate_private_key(_CURVE)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_private(folder / name, _pem(key, PrivateFormat.OpenSSH))
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(0o600, exist_ok=False)
    path.write_bytes(content)


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


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    ca_key: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """Return the authority's own certificate, or one for hosts, which it signs."""
    is_ca, public, now = key is ca_key, key.public_key(), datetime.now(UTC)
    extensions: list[x509.ExtensionType] = [
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None),
        x509.KeyUsage(
            digital_signature=not is_ca,
            key_cert_sign=is_ca,
            crl_sign=is_ca,
            **dict.fromkeys(_OTHER_USES, False),
        ),
    ]
    if not is_ca:
        issuer = ca_key.public_key()
        extensions += [
            x509.SubjectAlternativeName(hosts),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer),
        ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(_AUTHORITY))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, isinstance(extension, _CRITICAL))
    return builder.sign(ca_key, hashes.SHA384())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
