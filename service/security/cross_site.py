"""Pages of other sites must not act through the browser of somebody who may: what HTTP requests say of that.

Browsers send some requests anywhere a page says, unasked. A token is never sent by itself, so a server with
tokens is safe; one on loopback without tokens trusts whoever is on this machine, browsers included.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from service.configuration.addresses import is_loopback
from service.errors import PermissionDeniedError

_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_OWN = {"same-origin", "none"}  # none: a person typed it or followed a bookmark


def refuse_cross_site(method: str, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another origin made a browser send.

    Replies to harmless methods change nothing, and other origins cannot read them.

    Args:
        method: Of HTTP.
        headers: By name, in lower case.

    Raises:
        PermissionDeniedError: it comes from another origin.
    """
    if method in _HARMLESS:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return  # no browser
    host = headers.get("host", "")
    # Browsers that say it know better than the names do, which proxies change.
    own = site in _OWN if site is not None else origin in (f"http://{host}", f"https://{host}")
    if not own:
        raise PermissionDeniedError("pages of another origin may not send this")


def refuse_foreign_host(headers: Mapping[str, str]) -> None:
    """Refuse what was not addressed to this machine, though it came by loopback.

    A proxy on this machine passes on what others send, and any name can be made to mean loopback.

    Raises:
        PermissionDeniedError: the Host header does not name loopback.
    """
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        name = ""
    if not is_loopback(name):
        raise PermissionDeniedError(
            "without tokens this is for callers on this machine, by the name of localhost; "
            "start the server with auth.token_file to allow it to others"
        )
