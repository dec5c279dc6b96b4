"""The embedded broker's clients under lock and key: users, ACLs and TLS.

Clients get a listener of their own. The one among broker, controller and this library stays as it
is, plain and on the loopback address, and may do everything.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from coopconsume.kafka.security import jaas
from coopconsume.testing.local.config import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafka.admin import KafkaAdminClient

_SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_MODULES: Final = "org.apache.kafka.common.security"
_LOOK_EVERY: Final = 0.05


def settings(
    port: int,
    admin_port: int,
    controller_port: int,
    users: Mapping[str, str] | None,
    certificate: Path | None,
) -> dict[str, str]:
    """Return the broker's settings that let in users alone, or speak TLS, or both.

    Args:
        port: Port for clients.
        admin_port: Port for the broker itself and for administration.
        controller_port: Port of the controller.
        users: Passwords by user name; None lets everybody in.
        certificate: PEM file of a private key and its certificates; None for no TLS.
    """
    protocol = ("PLAINTEXT" if users is None else "SASL_PLAINTEXT").replace(
        "PLAINTEXT", "PLAINTEXT" if certificate is None else "SSL"
    )
    listeners = f"CLIENTS://{HOST}:{port},PLAINTEXT://{HOST}:{admin_port}"
    made = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            f"CLIENTS:{protocol},PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
    }
    if certificate is not None:
        made |= {
            "listener.name.clients.ssl.keystore.type": "PEM",
            "listener.name.clients.ssl.keystore.location": str(certificate),
        }
    if users is not None:
        passwords = {f"user_{name}": password for name, password in users.items()}
        plain = jaas.Login(f"{_MODULES}.plain.PlainLoginModule", passwords)
        scram = jaas.Login(f"{_MODULES}.scram.ScramLoginModule", {})
        clients = "listener.name.clients"
        made |= {
            "sasl.enabled.mechanisms": ",".join([*_SCRAM, "PLAIN"]),
            f"{clients}.plain.sasl.jaas.config": str(plain),
            **{f"{clients}.{name.lower()}.sasl.jaas.config": str(scram) for name in _SCRAM},
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Clients of the other listener, which has no login.
            "super.users": "User:ANONYMOUS",
        }
    return made


def make_users(admin: KafkaAdminClient, users: Mapping[str, str], deadline: float) -> None:
    """Give users their SCRAM passwords, and return when the broker knows them.

    Raises:
        TimeoutError: It does not by ``deadline``, a time of the monotonic clock.
        ValueError: It refuses one.
    """
    from kafka.admin import UserScramCredentialUpsertion

    with closing(admin):
        for mechanism in _SCRAM:  # of a user, a request may change but one
            wanted = [UserScramCredentialUpsertion(u, mechanism, p) for u, p in users.items()]
            for name, refusal in admin.alter_user_scram_credentials(wanted).items():
                if refusal:
                    raise ValueError(f"user {name!r}: {refusal}")
        while not _known(admin, users):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_LOOK_EVERY)


def _known(admin: KafkaAdminClient, users: Mapping[str, str]) -> bool:
    described = admin.describe_user_scram_credentials(list(users))
    return all(len(described[name]["credential_infos"]) == len(_SCRAM) for name in users)
