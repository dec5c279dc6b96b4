"""Certificates for tests, made for each run."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM
_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Party:
    """Somebody with a private key and a certificate."""

    key: ec.EllipticCurvePrivateKey
    signed: x509.Certificate

    @property
    def certificate(self) -> str:
        """The certificate, as PEM."""
        return self.signed.public_bytes(_PEM).decode()

    def private_key(self, password: str = "") -> str:
        """The private key as PEM (PKCS#8), encrypted if there is a password."""
        hidden = serialization.BestAvailableEncryption(password.encode()) if password else None
        how = hidden or serialization.NoEncryption()
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, how).decode()

    def old_private_key(self) -> str:
        """The private key in the form of before PKCS#8."""
        old = serialization.PrivateFormat.TraditionalOpenSSL
        return self.key.private_bytes(_PEM, old, serialization.NoEncryption()).decode()


def party(name: str, signer: Party | None = None) -> Party:
    """Make somebody at 127.0.0.1; who is signed by nobody may sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    alone = signer is None
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer.signed.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=alone, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
    )
    return Party(key, builder.sign(key if signer is None else signer.key, hashes.SHA256()))
