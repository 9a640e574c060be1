"""A root certificate and an instance's certificate for 127.0.0.1, as Vast gives its machines."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Certificates:
    root_pem: bytes
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name, name = _name("Root of a test"), _name("127.0.0.1")
    root = (
        _builder(root_name, root_name, root_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    own = (
        _builder(name, root_name, key.public_key())
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "instance.crt", folder / "instance.key"
    certificate_file.write_bytes(own.public_bytes(PEM))
    key_file.write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
    return Certificates(root.public_bytes(PEM), certificate_file, key_file)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
