"""The formats JSON Schema names, as sets of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_automata import (
    date,
    date_time,
    duration,
    email,
    hostname,
    idn_email,
    idn_hostname,
    ipv4,
    ipv6,
    iri,
    iri_reference,
    json_pointer,
    regex,
    relative_json_pointer,
    time,
    uri,
    uri_reference,
    uri_template,
    uuid,
)


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
    "date": (date, Enforcement.EXACT),
    "time": (time, Enforcement.SUBSET),
    "date-time": (date_time, Enforcement.SUBSET),
    "duration": (duration, Enforcement.EXACT),
    "email": (email, Enforcement.SUBSET),
    "idn-email": (idn_email, Enforcement.SUBSET),
    "hostname": (hostname, Enforcement.SUBSET),
    "idn-hostname": (idn_hostname, Enforcement.SUBSET),
    "ipv4": (ipv4, Enforcement.EXACT),
    "ipv6": (ipv6, Enforcement.EXACT),
    "uri": (uri, Enforcement.EXACT),
    "uri-reference": (uri_reference, Enforcement.EXACT),
    "iri": (iri, Enforcement.EXACT),
    "iri-reference": (iri_reference, Enforcement.EXACT),
    "uuid": (uuid, Enforcement.EXACT),
    "uri-template": (uri_template, Enforcement.EXACT),
    "json-pointer": (json_pointer, Enforcement.EXACT),
    "relative-json-pointer": (relative_json_pointer, Enforcement.SUBSET),
    "regex": (regex, Enforcement.SUBSET),
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
