"""Decodes the keys and values of records before a handler gets them. Task-side code.

`declaration` has what users declare, `record_decoder` what a slot makes of it. The libraries that
decode are imported only where a declaration names them.
"""

from __future__ import annotations

from coopconsume.decoding.declaration import DecoderFactory, Decoding
from coopconsume.decoding.registry import SchemaRegistryDecoder

__all__ = ["DecoderFactory", "Decoding", "SchemaRegistryDecoder"]
