"""Converts Kafka's ``ssl.*`` settings (PEM files or PEM texts) to an `ssl.SSLContext`.

Java key stores are refused. Settings that Spark's client would refuse later (other kinds of
private keys, a store password with PEM) are refused here, with a remedy.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Mapping

_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ONLY_JAVA: Final = {
    "ssl.engine.factory.class": "Python cannot run it: give trusted certificates and the client's "
    "key as PEM in ssl.truststore.* and ssl.keystore.*",
    "ssl.cipher.suites": "Python has other names for them: leave it out, and restrict them in the "
    "broker's ssl.cipher.suites",
    "ssl.provider": "Python has no Java providers: leave it out",
}
_AS_PEM: Final = {
    "truststore": "keytool -list -rfc -keystore STORE > ca.pem",
    "keystore": "openssl pkcs12 -in STORE -nodes -out client.pem",
}
_TEXTS: Final = {
    "truststore": ("ssl.truststore.certificates",),
    "keystore": ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
}


def check(kafka: Mapping[str, str], prefix: str = "kafka.") -> None:
    """Check the names and types of ``ssl.*`` settings; opens no files.

    Args:
        kafka: Settings by Kafka's names.
        prefix: Prefix of the names in errors.

    Raises:
        InvalidOption: Python has no equivalent of a setting, or Spark's client would refuse it.
    """
    for name, remedy in _ONLY_JAVA.items():
        if kafka.get(name):
            raise InvalidOption(prefix + name, repr(kafka[name]), remedy)
    if kafka.get("ssl.endpoint.identification.algorithm", "").lower() not in ("", "https"):
        found = repr(kafka["ssl.endpoint.identification.algorithm"])
        remedy = "give https, or an empty text to trust any host name"
        raise InvalidOption(f"{prefix}ssl.endpoint.identification.algorithm", found, remedy)
    if not _enabled(kafka) <= set(_VERSIONS):
        found = repr(kafka["ssl.enabled.protocols"])
        raise InvalidOption(f"{prefix}ssl.enabled.protocols", found, "give TLSv1.2, TLSv1.3")
    for side in _TEXTS:
        _check_store(kafka, side, prefix)


def _enabled(kafka: Mapping[str, str]) -> set[str]:
    names = kafka.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
    return {name.strip() for name in names}


def _check_store(kafka: Mapping[str, str], side: str, prefix: str) -> None:
    location = f"ssl.{side}.location"
    texts = [name for name in _TEXTS[side] if name in kafka]
    if not texts and location not in kafka:
        return
    kind = kafka.get(f"ssl.{side}.type") or "JKS"
    if kind != "PEM":
        raise InvalidOption(
            f"{prefix}ssl.{side}.type",
            repr(kind),
            f"Python reads no Java key stores: give PEM, and a PEM file in ssl.{side}.location "
            f"({_AS_PEM[side]})",
        )
    if texts and location in kafka:
        raise InvalidOption(prefix + location, f"given beside {texts[0]}", "give one of the two")
    if texts and len(texts) < len(_TEXTS[side]):
        missing = next(name for name in _TEXTS[side] if name not in texts)
        raise InvalidOption(prefix + missing, f"missing beside {texts[0]}", "give both")
    if f"ssl.{side}.password" in kafka:
        remedy = "a PEM file has none: leave it out"
        if side == "keystore":
            remedy += ", and give that of the private key as ssl.key.password"
        raise InvalidOption(f"{prefix}ssl.{side}.password", "given beside PEM", remedy)


def context(kafka: Mapping[str, str], prefix: str = "kafka.") -> ssl.SSLContext:
    """Create the context for Kafka's ``ssl.*`` settings.

    Without a trust store the system's certificates are trusted. As in Java, every certificate in
    the trust store is trusted directly, even if it is not a root certificate.

    Raises:
        InvalidOption: As for `check`; or a file cannot be read, is not PEM, or
            ``ssl.key.password`` does not decrypt its key.
    """
    check(kafka, prefix)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in _enabled(kafka)]
    made.minimum_version, made.maximum_version = min(versions), max(versions)
    made.check_hostname = kafka.get("ssl.endpoint.identification.algorithm", "https") != ""
    trusted = _pem(kafka, "ssl.truststore.certificates", "ssl.truststore.location", prefix)
    if trusted is None:
        made.load_default_certs()
    else:
        name, text = trusted
        certificates = [block for kind, block in _blocks(text) if kind == "CERTIFICATE"]
        if not certificates:
            raise InvalidOption(prefix + name, "holds no certificate", "give them as PEM")
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            made.load_verify_locations(cadata="\n".join(certificates))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidOption(prefix + name, "not readable", _said(error)) from None
    _load_own(made, kafka, prefix)
    return made


def _load_own(made: ssl.SSLContext, kafka: Mapping[str, str], prefix: str) -> None:
    """Load the client's private key and certificates, if they are given."""
    own = _pem(kafka, "ssl.keystore.key", "ssl.keystore.location", prefix)
    if own is None:
        return
    name, text = own
    blocks = _blocks(text + "\n" + kafka.get("ssl.keystore.certificate.chain", ""))
    keys = [(kind, block) for kind, block in blocks if kind.endswith("PRIVATE KEY")]
    chain = [block for kind, block in blocks if kind == "CERTIFICATE"]
    if len(keys) != 1 or not chain:
        found = f"holds {len(keys)} private keys and {len(chain)} certificates"
        remedy = "give one key and its certificates, the client's own first"
        raise InvalidOption(prefix + name, found, remedy)
    kind, key = keys[0]
    if kind not in ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        remedy = "Spark's client reads PKCS#8 alone: openssl pkcs8 -topk8 -in KEY -out client.key"
        raise InvalidOption(prefix + name, f"holds a key of the kind {kind}", remedy)
    encrypted = kind.startswith("ENCRYPTED")
    password = kafka.get("ssl.key.password", "")
    if encrypted and not password:
        remedy = f"the key in {name} is encrypted: give its password"
        raise InvalidOption(f"{prefix}ssl.key.password", "missing", remedy)
    # Python loads them from files only, so they go to a private temporary file.
    with tempfile.TemporaryDirectory(prefix="coopconsume-tls-") as folder:
        file = Path(folder, "own.pem")
        file.touch(mode=0o600)
        file.write_text("\n".join([key, *chain]), encoding="ascii")
        try:
            made.load_cert_chain(file, password=password or None)
        except (ssl.SSLError, ValueError) as error:
            if encrypted:
                name, remedy = "ssl.key.password", "it does not decrypt the private key"
            else:
                remedy = f"key and certificate do not match ({_said(error)})"
            raise InvalidOption(prefix + name, "not usable", remedy) from None


def _pem(kafka: Mapping[str, str], text: str, location: str, prefix: str) -> tuple[str, str] | None:
    """Return the setting in use and its PEM text; None if neither is given."""
    if text in kafka:
        return text, kafka[text]
    path = kafka.get(location)
    if path is None:
        return None
    try:
        return location, Path(path).read_text(encoding="latin-1")
    except OSError as error:
        _unreadable(prefix + location, path, error)


def _unreadable(name: str, path: str, error: OSError) -> NoReturn:
    remedy = f"it cannot be read ({error.strerror}); driver and executors need it at that path"
    raise InvalidOption(name, repr(path), remedy) from None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks of a PEM text with their kinds, reformatted: Java accepts a single line."""
    return [
        (kind, "\n".join([f"-----BEGIN {kind}-----", *_lines(body), f"-----END {kind}-----"]))
        for kind, body in _PEM.findall(text)
    ]


def _lines(body: str) -> list[str]:
    text = "".join(body.split())
    return [text[at : at + 64] for at in range(0, len(text), 64)]


def _said(error: Exception) -> str:
    return getattr(error, "reason", None) or type(error).__name__
