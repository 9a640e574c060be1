"""A TLS key and a certificate that it signs itself."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificate(folder: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """The files of the key and of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = folder / "key.pem", folder / "certificate.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    certificate_file.write_bytes(certificate.public_bytes(pem))
    return key_file, certificate_file
