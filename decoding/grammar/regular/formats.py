"""The formats JSON Schema names, as sets of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from decoding.grammar.regular import (
    format_addresses,
    format_hosts,
    format_regex,
    format_resources,
    format_times,
)
from decoding.grammar.regular.dfa import Dfa


class Enforcement(Enum):
    """How much of a format an automaton knows.

    Attributes:
        EXACT: The texts are those of the format.
        SUBSET: Every text is of the format, but some of the format are left out. What is not in the set may
            be, so the complement must not be taken for the texts that are not of the format.
    """

    EXACT = "enforced"
    SUBSET = "enforced as a subset"


_MAKERS: dict[str, tuple[Callable[[], Dfa], Enforcement]] = {
    "date": (format_times.date, Enforcement.EXACT),
    "time": (format_times.time, Enforcement.SUBSET),
    "date-time": (format_times.date_time, Enforcement.SUBSET),
    "duration": (format_times.duration, Enforcement.EXACT),
    "email": (format_hosts.email, Enforcement.SUBSET),
    "idn-email": (format_hosts.idn_email, Enforcement.SUBSET),
    "hostname": (format_hosts.hostname, Enforcement.SUBSET),
    "idn-hostname": (format_hosts.idn_hostname, Enforcement.SUBSET),
    "ipv4": (format_addresses.ipv4, Enforcement.EXACT),
    "ipv6": (format_addresses.ipv6, Enforcement.EXACT),
    "uri": (format_resources.uri, Enforcement.EXACT),
    "uri-reference": (format_resources.uri_reference, Enforcement.EXACT),
    "iri": (format_resources.iri, Enforcement.EXACT),
    "iri-reference": (format_resources.iri_reference, Enforcement.EXACT),
    "uuid": (format_resources.uuid, Enforcement.EXACT),
    "uri-template": (format_resources.uri_template, Enforcement.EXACT),
    "json-pointer": (format_resources.json_pointer, Enforcement.EXACT),
    "relative-json-pointer": (format_resources.relative_json_pointer, Enforcement.SUBSET),
    "regex": (format_regex.regex, Enforcement.SUBSET),
}

FORMATS: Mapping[str, Enforcement] = MappingProxyType(
    {name: enforcement for name, (_, enforcement) in _MAKERS.items()}
)
"""How much of each known format its automaton knows, by the format's name."""


@lru_cache(maxsize=len(_MAKERS))
def format_texts(name: str) -> Dfa | None:
    """The texts of a format; None for one that is not in `FORMATS`, which says nothing about validity.

    Made when first asked for, and kept.
    """
    made = _MAKERS.get(name)
    return made[0]() if made else None
