"""TLS settings: what Java's client takes as PEM makes the same connection from Python."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from coopconsume.errors import InvalidOption
from coopconsume.kafka.security import tls
from tests.certificates import Party, party

if TYPE_CHECKING:
    from pathlib import Path

TRUST = "ssl.truststore.certificates"
KEY, CHAIN = "ssl.keystore.key", "ssl.keystore.certificate.chain"
PEM = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}


@dataclass(frozen=True)
class Parties:
    authority: Party
    server: Party
    client: Party
    stranger: Party


@pytest.fixture(scope="module")
def parties() -> Parties:
    """An authority, two that it has signed, and somebody else."""
    authority = party("authority")
    signed = party("server", authority), party("client", authority)
    return Parties(authority, *signed, party("stranger"))


def connect(
    parties: Parties, tmp_path: Path, kafka: dict[str, str], host: str = "127.0.0.1"
) -> str | None:
    """Connect by these settings to a server that asks for a certificate; returns the client's."""
    own = tmp_path / "server.pem"
    own.write_text(parties.server.private_key() + parties.server.certificate)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(own)
    there.load_verify_locations(cadata=parties.authority.certificate)
    there.verify_mode = ssl.CERT_OPTIONAL
    here = tls.context(kafka)
    seen: list[str | None] = []

    def serve() -> None:
        try:
            with there.wrap_socket(listener.accept()[0], server_side=True) as connection:
                names = dict(x[0] for x in connection.getpeercert().get("subject", ()))
                seen.append(names.get("commonName"))
        except (OSError, AttributeError):
            seen.append(None)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            bare = socket.create_connection(listener.getsockname())
            with bare, here.wrap_socket(bare, server_hostname=host) as connection:
                connection.recv(1)
        finally:
            server.join()
    return seen[0]


def one_line(pem: str) -> str:
    """A PEM text as it stands in a file of properties."""
    return " ".join(pem.split("\n"))


@pytest.mark.parametrize("written", [str, one_line, lambda pem: f"# why\n\n{pem}"])
def test_texts_make_a_connection(parties, tmp_path, written):
    """Certificates and keys given as texts, set in any way, are used on both sides."""
    kafka = PEM | {
        TRUST: written(parties.stranger.certificate + parties.authority.certificate),
        KEY: written(parties.client.private_key()),
        CHAIN: written(parties.client.certificate),
    }
    assert connect(parties, tmp_path, kafka) == "client"


def test_files_make_a_connection(parties, tmp_path):
    """So do files; an encrypted key opens by its password."""
    (tmp_path / "ca.pem").write_text(parties.authority.certificate)
    (tmp_path / "own.pem").write_text(
        parties.client.certificate + parties.client.private_key("hush")
    )
    kafka = PEM | {
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.keystore.location": str(tmp_path / "own.pem"),
        "ssl.key.password": "hush",
    }
    assert connect(parties, tmp_path, kafka) == "client"


def test_a_certificate_may_be_trusted_by_itself(parties, tmp_path):
    """As in Java, without the one that signed it."""
    assert connect(parties, tmp_path, PEM | {TRUST: parties.server.certificate}) is None


def test_a_stranger_is_not_trusted(parties, tmp_path):
    """Another authority in the trust store does not do."""
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(parties, tmp_path, PEM | {TRUST: parties.stranger.certificate})


@pytest.mark.parametrize("algorithm", [None, "https", "HTTPS"])
def test_the_name_of_the_host_is_compared(parties, tmp_path, algorithm):
    """Unless an empty algorithm says otherwise."""
    kafka = PEM | {TRUST: parties.authority.certificate}
    if algorithm is not None:
        kafka["ssl.endpoint.identification.algorithm"] = algorithm
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        connect(parties, tmp_path, kafka, "elsewhere")
    kafka["ssl.endpoint.identification.algorithm"] = ""
    assert connect(parties, tmp_path, kafka, "elsewhere") is None


@pytest.mark.parametrize(
    ("enabled", "low", "high"),
    [
        (None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        ("TLSv1.3, TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_versions_are_those_enabled(enabled, low, high):
    """Those of Kafka's default, or as given."""
    made = tls.context({} if enabled is None else {"ssl.enabled.protocols": enabled})
    assert (made.minimum_version, made.maximum_version) == (low, high)


def test_without_a_trust_store_the_systems_is_used():
    """An empty context would trust nobody."""
    made = tls.context({})
    default = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    default.load_default_certs()
    assert made.cert_store_stats() == default.cert_store_stats()


def test_private_files_are_gone(parties, tmp_path, monkeypatch):
    """A key given as a text is on disk for a moment, for its owner alone; not even if it fails."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self, file, **kwargs):
        modes.append((os.stat(file).st_mode & 0o777, os.stat(file.parent).st_mode & 0o777))
        return load(self, file, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    tls.context(PEM | {KEY: parties.client.private_key(), CHAIN: parties.client.certificate})
    with pytest.raises(InvalidOption, match="do not match"):
        tls.context(PEM | {KEY: parties.client.private_key(), CHAIN: parties.server.certificate})
    assert modes == [(0o600, 0o700)] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kafka", "name", "message"),
    [
        ({"ssl.truststore.location": "x.jks"}, "ssl.truststore.type", "'JKS'.*keytool -list -rfc"),
        ({"ssl.truststore.location": "x", "ssl.truststore.type": "PKCS12"}, "ssl.truststore.type",
         "PKCS12.*no Java key stores"),
        ({"ssl.keystore.location": "x.p12", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type",
         "openssl pkcs12 -in"),
        ({TRUST: "x"}, "ssl.truststore.type", "give PEM"),
        (PEM | {TRUST: "x", "ssl.truststore.location": "y"}, "ssl.truststore.location", "beside"),
        (PEM | {TRUST: "x", "ssl.truststore.location": ""}, "ssl.truststore.location", "beside"),
        (PEM | {KEY: "hush"}, CHAIN, "give both"),
        (PEM | {CHAIN: "x"}, KEY, "give both"),
        (PEM | {TRUST: "x", "ssl.truststore.password": "hush"}, "ssl.truststore.password", "leave"),
        (PEM | {"ssl.keystore.location": "x", "ssl.keystore.password": "hush"},
         "ssl.keystore.password", "ssl.key.password"),
        ({"ssl.engine.factory.class": "my.Factory"}, "ssl.engine.factory.class", "PEM"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "ssl.cipher.suites", "leave it out"),
        ({"ssl.provider": "BC"}, "ssl.provider", "leave it out"),
        ({"ssl.endpoint.identification.algorithm": "ldap"},
         "ssl.endpoint.identification.algorithm", "give https"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols", "TLSv1.2, TLSv1.3"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_name(kafka, name, message):
    """Before any file is opened, with the remedy and without the secret."""
    with pytest.raises(InvalidOption, match=message) as error:
        tls.check(kafka)
    assert error.value.name == f"kafka.{name}"
    assert "hush" not in str(error.value)


def test_what_a_pem_must_hold(parties, tmp_path):
    """A file that is not there, no certificate, another kind of key, a key that does not open."""
    key, certificate = parties.client.private_key(), parties.client.certificate
    hidden = parties.client.private_key("hush")
    old = parties.client.old_private_key()
    none = {KEY: "nothing", CHAIN: "nothing"}
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    for given, name, message in (
        ({"ssl.truststore.location": str(tmp_path / "none")}, "ssl.truststore.location", "No such"),
        ({"ssl.keystore.location": str(tmp_path)}, "ssl.keystore.location", "cannot be read"),
        ({TRUST: "nothing"}, TRUST, "holds no certificate"),
        ({TRUST: broken}, TRUST, "not readable"),
        (none, KEY, "0 private keys and 0 certificates"),
        ({KEY: key + key, CHAIN: certificate}, KEY, "2 private keys"),
        ({KEY: old, CHAIN: certificate}, KEY, "EC PRIVATE KEY.*openssl pkcs8 -topk8"),
        ({KEY: hidden, CHAIN: certificate}, "ssl.key.password", "missing"),
        ({KEY: hidden, CHAIN: certificate, "ssl.key.password": "wrong"}, "ssl.key.password", "not"),
    ):
        with pytest.raises(InvalidOption, match=message) as error:
            tls.context(PEM | given)
        assert error.value.name == f"kafka.{name}"
        assert "BEGIN" not in str(error.value)
