"""Formats of numeric addresses: ipv4, ipv6."""

from __future__ import annotations

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern

IPV4 = (
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
)

_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_32_BITS = f"(?:{_GROUP}:{_GROUP}|{IPV4})"


def _ipv6() -> str:
    """All forms of RFC 3986: eight groups, or `::` with at most seven groups around it."""
    forms = [f"(?:{_GROUP}:){{6}}{_LAST_32_BITS}"]
    for before in range(8):
        head = f"(?:{_GROUP}:){{0,{before - 1}}}{_GROUP}" if before else ""
        left = f"(?:{head})?" if before else ""
        after = 7 - before
        if after >= 2:
            forms.append(f"{left}::(?:{_GROUP}:){{{after - 2}}}{_LAST_32_BITS}")
        elif after == 1:
            forms.append(f"{left}::{_GROUP}")
        else:
            forms.append(f"{left}::")
    return "(?:" + "|".join(forms) + ")"


IPV6 = _ipv6()


def whole(pattern: str) -> Dfa:
    """The texts that a regular expression matches as a whole."""
    return compile_pattern(f"^(?:{pattern})$")


def ipv4() -> Dfa:
    """Four decimal numbers up to 255 without leading zeros."""
    return whole(IPV4)


def ipv6() -> Dfa:
    """RFC 4291 without a zone: groups, one `::` at most, possibly an IPv4 address at the end."""
    return whole(IPV6)
