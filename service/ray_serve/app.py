"""What Ray Serve imports: `build` makes the application, as files of `serve deploy` name it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.errors import InputError
from service.configuration.config import ServerConfig
from service.configuration.resolve import resolve
from service.ray_serve.deployment import DEPLOYMENT


def build(args: Mapping[str, Any]) -> Any:
    """Return the application.

    Args:
        args: `settings`, the text of a file of settings, or `config`, the path of one that every node has.

    Raises:
        InputError: neither or both are given.
        ConfigurationError: the settings are wrong; all of it is named.
    """
    return application(configuration_of(args), {})


def application(config: ServerConfig, options: Mapping[str, Any]) -> Any:
    """Return the application of a configuration.

    Args:
        config: What every replica serves.
        options: Of the deployment, as Serve names them.
    """
    from ray import serve

    from service.ray_serve.replica import GenretReplica

    return serve.deployment(name=DEPLOYMENT, **options)(GenretReplica).bind(config)


def configuration_of(args: Mapping[str, Any]) -> ServerConfig:
    """Return the configuration that the arguments of `build` name.

    Raises:
        InputError: neither or both are given.
        ConfigurationError: the settings are wrong; all of it is named.
    """
    given = sorted(set(args) & {"settings", "config"})
    if len(given) != 1 or len(args) != 1:
        raise InputError("args", f"must have either settings or config, got {sorted(args)}")
    if given == ["config"]:
        return resolve({}, None, {}, Path(os.fspath(args["config"]))).config
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        file.write_text(args["settings"], encoding="utf-8")
        return resolve({}, None, {}, file).config
