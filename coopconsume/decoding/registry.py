"""Deserializers of `confluent_kafka.schema_registry`, declared by settings. Task-side code."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from commits.secrets import hidden
from coopconsume.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coopconsume.record import Headers

Format = Literal["avro", "json-schema", "protobuf"]

#: Modules and classes of deserializers.
_CLASSES = {
    "avro": ("avro", "AvroDeserializer"),
    "json-schema": ("json_schema", "JSONDeserializer"),
    "protobuf": ("protobuf", "ProtobufDeserializer"),
}
#: Characters from which on a text of a setting is looked for in an error.
_SHORT = 5


@dataclass(frozen=True)
class SchemaRegistryDecoder:
    """Declares a deserializer of a schema registry, which is made in each worker process.

    Its representation hides all settings but the address. The worker processes share no client;
    each caches the schemas that it has read.

    Attributes:
        format: ``avro``, ``json-schema`` or ``protobuf``.
        registry: Settings of `SchemaRegistryClient`, such as ``url``.
        schema: Of Avro and JSON Schema: the reader's schema as text; None: that of the writer.
        message: Of Protobuf: the class of the message.
        deserializer: Settings of the deserializer, such as ``use.latest.version``.
        make: Makes the handler's object of what was read; None: it gets dictionaries, of Protobuf
            messages.
    """

    format: Format
    registry: Mapping[str, Any]
    schema: str | None = None
    message: Any = None
    deserializer: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        from coopconsume.kafka.security.secrets import Secret  # With all of Kafka's clients.

        hide = {n: Secret(v) if isinstance(v, str) else v for n, v in dict(self.registry).items()}
        object.__setattr__(self, "registry", hide)

    def __repr__(self) -> str:
        return f"SchemaRegistryDecoder({self.format!r}, {self._shown('url')!r})"

    def _shown(self, setting: str) -> str:
        """Returns an address without its login, and nothing of any other setting."""
        text = str(self.registry.get(setting, ""))
        return hidden(text) if not text or "://" in text else "***"

    def check(self, name: str) -> None:
        """Checks the settings, without a connection.

        Args:
            name: ``key`` or ``value``.

        Raises:
            ImportError: A package is missing.
            InvalidOption: A setting is wrong.
        """
        if self.format not in get_args(Format):
            raise InvalidOption(name, repr(self), f"give one of {', '.join(get_args(Format))}")
        if (self.format == "protobuf") != (self.message is not None):
            raise InvalidOption(name, repr(self), "give message=… with protobuf, and only then")
        if self.schema is not None and self.format == "protobuf":
            raise InvalidOption(name, repr(self), "give message=…, not schema=…, with protobuf")
        try:
            self.made()
        except ImportError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            for setting, given in self.registry.items():
                # An error may quote a setting, such as an address that is none. Short texts are
                # in any error.
                if isinstance(given, str) and len(given) >= _SHORT:
                    why = why.replace(given, self._shown(setting))
            raise InvalidOption(name, repr(self), f"{why}; correct the settings") from error

    def made(self) -> Callable[..., Any]:
        """Returns the deserializer; it connects at its first record."""
        module, kind = _CLASSES[self.format]
        client = import_module("confluent_kafka.schema_registry").SchemaRegistryClient(
            {name: str(v) if isinstance(v, str) else v for name, v in self.registry.items()}
        )
        deserializer = getattr(import_module(f"confluent_kafka.schema_registry.{module}"), kind)
        conf, make = dict(self.deserializer), self.make
        if self.format == "protobuf":
            made = deserializer(self.message, conf or None, client)
        elif self.format == "avro":
            made = deserializer(client, self.schema, conf=conf or None)
        else:
            made = deserializer(self.schema, schema_registry_client=client, conf=conf or None)
        return made if make is None else lambda data, context: make(made(data, context))


def with_context(deserializer: Any, name: str) -> Callable[[bytes, str, Headers], Any]:
    """Returns a function of bytes, topic and headers that calls a deserializer.

    Args:
        deserializer: A deserializer of `confluent_kafka`.
        name: ``key`` or ``value``.
    """
    from confluent_kafka.serialization import MessageField, SerializationContext

    field_of = MessageField.KEY if name == "key" else MessageField.VALUE
    return lambda data, topic, headers: deserializer(
        data, SerializationContext(topic, field_of, list(headers))
    )
