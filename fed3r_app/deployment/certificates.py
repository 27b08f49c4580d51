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
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fed3r_app.files import write_atomically

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
SUPEREXEC_SECRET = "superexec.secret"
NODES = "nodes"
DEFAULT_HOSTS = ("localhost", "127.0.0.1", "superlink")
_AUTHORITY, _SERVER = "Fed3R trial CA", "Fed3R SuperLink"
_PEM, _CURVE = Encoding.PEM, ec.SECP384R1()
_CRITICAL = (x509.BasicConstraints, x509.KeyUsage)
_OTHER_USES = (
    *("content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "encipher_only", "decipher_only"),
)


# The authority outlives what it signs, so that a renewal changes nothing for nodes.
SERVER_DAYS, AUTHORITY_DAYS = 90, 5 * 365


def make_certificates(
    folder: Path,
    hosts: Sequence[str],
    nodes: Sequence[str],
    days: int = SERVER_DAYS,
    authority_days: int = AUTHORITY_DAYS,
) -> None:
    """Write a certificate authority, a server certificate and a key for each node.

    The SuperLink is reached under the names and addresses in ``hosts``. Each node gets
    ``nodes/<name>`` and ``nodes/<name>.pub``. The SuperExec, which runs the ServerApps,
    shares a secret with the SuperLink. A folder that holds certificates is refused: new
    ones would lock out all nodes that trust the old.
    """
    _check_names(nodes)
    if not hosts:
        raise ValueError("--host must name at least one host, got none.")
    names = [_alternative_name(host) for host in hosts]
    if (folder / CA_CERTIFICATE).exists():
        raise FileExistsError(
            f"{folder} must not hold certificates yet, got {CA_CERTIFICATE} there. "
            "--renew makes a new server certificate that nodes trust as they do this "
            "one, --keep leaves all as it is. Or choose another folder."
        )
    (folder / NODES).mkdir(parents=True, exist_ok=True)
    ca_key, server_key = (ec.generate_private_key(_CURVE) for _ in range(2))
    _write_private(folder / CA_KEY, _pem(ca_key, PrivateFormat.PKCS8))
    _write_private(folder / SERVER_KEY, _pem(server_key, PrivateFormat.PKCS8))
    _write_private(folder / SUPEREXEC_SECRET, secrets.token_bytes(32))
    server = _certificate(_SERVER, server_key, ca_key, days, names)
    _write_certificate(folder / SERVER_CERTIFICATE, server)
    for name in nodes:
        _write_node_keys(folder / NODES, name)
    authority = _certificate(_AUTHORITY, ca_key, ca_key, authority_days)
    _write_certificate(folder / CA_CERTIFICATE, authority)


def renew_certificates(
    folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS
) -> bool:
    """Sign a new server certificate by the same authority; nodes notice nothing.

    It has the hosts of the old one and those in ``hosts``, and the key that is there,
    or a new one where it was removed. An authority that would expire before it gets a
    new certificate for the same key; return whether it did.
    """
    names = [_alternative_name(host) for host in hosts]
    ca_key = _read_key(folder / CA_KEY)
    authority = read_certificate(folder / CA_CERTIFICATE)
    if authority.public_key() != ca_key.public_key():
        raise ValueError(
            f"{folder / CA_KEY} must be the key of {CA_CERTIFICATE} beside it, got "
            "another one. Nodes would not trust what it signs."
        )
    earlier = read_certificate(folder / SERVER_CERTIFICATE)
    names = list(dict.fromkeys([*_names_in(earlier), *names]))
    if not (folder / SERVER_KEY).exists():
        new_key = ec.generate_private_key(_CURVE)
        _write_private(folder / SERVER_KEY, _pem(new_key, PrivateFormat.PKCS8))
    server_key = _read_key(folder / SERVER_KEY)
    server = _certificate(_SERVER, server_key, ca_key, days, names)
    expires_first = authority.not_valid_after_utc < server.not_valid_after_utc
    if expires_first:
        authority = _certificate(_AUTHORITY, ca_key, ca_key, AUTHORITY_DAYS)
        _write_certificate(folder / CA_CERTIFICATE, authority)
    _write_certificate(folder / SERVER_CERTIFICATE, server)
    return expires_first


def make_missing_keys(folder: Path, nodes: Sequence[str]) -> list[str]:
    """Make keys for the nodes that have none; return their names."""
    _check_names(nodes)
    # A public key is written last, so where it is the pair is whole.
    new = [name for name in nodes if not (folder / NODES / f"{name}.pub").exists()]
    (folder / NODES).mkdir(exist_ok=True)
    for name in new:
        _write_node_keys(folder / NODES, name)
    return new


def check_valid(folder: Path) -> None:
    """Raise a ValueError if certificates in a folder have expired."""
    for path in (folder / CA_CERTIFICATE, folder / SERVER_CERTIFICATE):
        until = read_certificate(path).not_valid_after_utc
        if until <= datetime.now(UTC):
            raise ValueError(
                f"{path} must be valid to be kept, got one that expired on "
                f"{until:%Y-%m-%d}. Renew it: fed3r certificates {folder} --renew"
            )


def describe(folder: Path) -> list[str]:
    """Return a line for each certificate in a folder: until when, and for which hosts.

    The hosts are those of the server's.
    """
    server = read_certificate(folder / SERVER_CERTIFICATE)
    hosts = ", ".join(str(name.value) for name in _names_in(server))
    until = {
        name: f"{read_certificate(folder / name).not_valid_after_utc:%Y-%m-%d}"
        for name in (CA_CERTIFICATE, SERVER_CERTIFICATE)
    }
    return [
        f"{folder / CA_CERTIFICATE}: the authority, for all, until "
        f"{until[CA_CERTIFICATE]}",
        f"{folder / SERVER_CERTIFICATE}: of the SuperLink, until "
        f"{until[SERVER_CERTIFICATE]}, as {hosts}",
    ]


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(
            f"{path} must be a certificate (PEM), got something else."
        ) from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} must be there to renew certificates, got no such file. Was the "
            "authority made elsewhere? Then renew there."
        ) from None
    except (ValueError, TypeError):  # TypeError: it has a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} must be a key as made here, got another one.")
    return key


def _names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Return the hosts of a certificate."""
    extension = x509.SubjectAlternativeName
    return list(certificate.extensions.get_extension_for_class(extension).value)


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


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    write_atomically(path, certificate.public_bytes(_PEM))


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
