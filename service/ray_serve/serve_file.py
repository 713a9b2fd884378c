"""A plan as the text of a file for `serve deploy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval.errors import MissingExtraError
from service.configuration.settings import Key
from service.configuration.sources import Origin
from service.ray_serve.deployment import ServePlan

_HEAD = """\
# A deployment of genret on Ray Serve: serve deploy FILE.
# The cluster's nodes need genret itself, and the paths below.
"""


def serve_file(plan: ServePlan, origins: Mapping[Key, Origin]) -> str:
    """Return the file.

    Args:
        plan: What is deployed.
        origins: Where settings came from, for the comments on them.

    Raises:
        MissingExtraError: PyYAML is not installed, which comes with Ray.
    """
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("yaml", "ray") from error

    class Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
        """Writes texts of several lines as blocks."""

    def block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, block)
    content = plan.serve_config(origins)
    text: str = yaml.dump(content, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
    return _HEAD + text
