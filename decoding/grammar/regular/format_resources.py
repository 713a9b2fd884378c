"""Formats of identifiers: URIs, IRIs, their templates, UUIDs, JSON pointers."""

from __future__ import annotations

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_addresses import MARK, ipv6, whole, whole_with

_SCHEME = "[A-Za-z][A-Za-z0-9+.\\-]*"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9\\-._~"
_SUB_DELIMS = "!$&'()*+,;="
_PLANES = "".join(
    rf"\u{{{plane:X}{'1000' if plane == 0xE else '0000'}}}-\u{{{plane:X}FFFD}}" for plane in range(1, 0xF)
)
_BEYOND_ASCII = rf"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF{_PLANES}"
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _reference(more: str, in_query: str, absolute: bool) -> str:
    """RFC 3986's grammar, RFC 3987's with characters beyond ASCII.

    Args:
        more: Characters beyond ASCII that are allowed everywhere.
        in_query: Further ones in the query.
        absolute: Whether a scheme must be there.
    """
    plain = f"{_UNRESERVED}{_SUB_DELIMS}{more}"
    char = f"(?:[{plain}:@]|{_ESCAPED})"
    no_colon = f"(?:[{plain}@]|{_ESCAPED})"
    future = f"[Vv][0-9A-Fa-f]+\\.[{_UNRESERVED}{_SUB_DELIMS}:]+"
    host = f"(?:\\[(?:{MARK}|{future})\\]|(?:[{plain}]|{_ESCAPED})*)"
    authority = f"(?:(?:[{plain}:]|{_ESCAPED})*@)?{host}(?::[0-9]*)?"
    segments = f"(?:/{char}*)*"
    rooted = f"//{authority}{segments}|/(?:{char}+{segments})?"
    ending = f"(?:\\?(?:{char}|[/?{in_query}])*)?(?:#(?:{char}|[/?])*)?"
    whole_one = f"{_SCHEME}:(?:{rooted}|{char}+{segments})?{ending}"
    if absolute:
        return whole_one
    return f"{whole_one}|(?:{rooted}|{no_colon}+{segments})?{ending}"


def uri() -> Dfa:
    """RFC 3986, with a scheme."""
    return whole_with(_reference("", "", absolute=True), ipv6())


def uri_reference() -> Dfa:
    """RFC 3986, with or without a scheme."""
    return whole_with(_reference("", "", absolute=False), ipv6())


def iri() -> Dfa:
    """RFC 3987, with a scheme."""
    return whole_with(_reference(_BEYOND_ASCII, _PRIVATE, absolute=True), ipv6())


def iri_reference() -> Dfa:
    """RFC 3987, with or without a scheme."""
    return whole_with(_reference(_BEYOND_ASCII, _PRIVATE, absolute=False), ipv6())


def uri_template() -> Dfa:
    """RFC 6570, without the operators it reserves; an apostrophe is a literal."""
    char = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = f"{char}(?:\\.?{char})*(?::[1-9][0-9]{{0,3}}|\\*)?"
    expression = f"\\{{[+#./;?&]?{variable}(?:,{variable})*\\}}"
    literal = f"[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~{_BEYOND_ASCII}{_PRIVATE}]"
    return whole(f"(?:{literal}|{_ESCAPED}|{expression})*")


_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def json_pointer() -> Dfa:
    """RFC 6901."""
    return whole(_POINTER)


def relative_json_pointer() -> Dfa:
    """Relative JSON pointers without moving an index: `2/foo`, `0#`."""
    return whole(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})")


def uuid() -> Dfa:
    """RFC 9562 in its usual form, of any version."""
    return whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
