"""Lists every setting of a server once: its key in a file, its flag, its variable, its default and its help.

The options of `genret serve`, the reading of files, `--print-config` and the manual's table are made from
this table; `python -m genret.service.configuration.settings FILE` renews the manual's table in a page.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from genret.retrieval.arguments import PROMPT
from genret.service.configuration.kinds import CheckpointName, Kind, Switch, fields_of, kind_of
from genret.service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec, ServerConfig

NAME = "NAME"  # stands for any name in a key
DEFAULT_MODEL = "default"
Key = tuple[str, ...]
_PREFIX = "GENRET_SERVE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        key: Key in a file; its part `NAME` stands for the name of an index, a model or a schema.
        flag: Long option of `genret serve`.
        help: One sentence for the help and the manual.
        kind: How its values are read.
        default: Value without any source; None: none.
        attribute: Path in `ServerConfig`, for keys with a `NAME` in the spec of that name.
        unset: Meaning of no value; empty if there is always one.
        metavar: Placeholder of the value in the help.
        repeated: Whether the flag takes NAME=VALUE and may be given several times.
    """

    key: Key
    flag: str
    help: str
    kind: Kind
    default: Any
    attribute: tuple[str, ...]
    unset: str
    metavar: str
    repeated: bool = False

    @property
    def dotted(self) -> str:
        """The key as it is written on one line."""
        return ".".join(self.key)

    @property
    def parameter(self) -> str:
        """The flag as a name: what errors of the configuration call it."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return _PREFIX + self.parameter.upper()

    @property
    def negation(self) -> str | None:
        """The flag that switches it off, if it is a switch."""
        return f"--no-{self.flag.removeprefix('--')}" if isinstance(self.kind, Switch) else None

    def named(self, name: str) -> Key:
        """Return the key with a name in it."""
        return tuple(name if part == NAME else part for part in self.key)


_SPECS: dict[str, Any] = {"indexes": IndexSpec, "models": ModelSpec, "schemas": SchemaSpec}


def _setting(
    key: str,
    flag: str,
    text: str,
    *,
    at: str = "",
    unset: str = "",
    metavar: str = "",
    kind: Kind | None = None,
) -> Setting:
    """Return a setting; `at` is its attribute if that is not named as the key."""
    parts = tuple(key.split("."))
    owner = _SPECS.get(parts[0], ServerConfig)
    # Tables such as [server] and [limits] stand for the server itself.
    is_section = owner is ServerConfig and parts[0] in fields_of(ServerConfig)
    attribute = parts if is_section else (at or parts[-1],)
    for part in attribute[:-1]:
        owner = fields_of(owner)[part].type
    declared = fields_of(owner)[attribute[-1]]
    (found,) = (one for one in fields(owner) if one.name == attribute[-1])
    default = None if found.default is MISSING else found.default
    kind = kind or kind_of(declared)
    repeated = NAME in parts
    unset = "none" if repeated else unset
    return Setting(parts, flag, text, kind, default, attribute, unset, metavar or kind.metavar, repeated)


SETTINGS: tuple[Setting, ...] = (
    _setting(
        "indexes.NAME.path",
        "--index",
        "A further index and the name requests use for it. May be given several times.",
        metavar="NAME=PATH",
    ),
    _setting(
        "indexes.NAME.model",
        "--use-model",
        "Which model answers from an index. May be given several times.",
        metavar="INDEX=MODEL",
    ),
    _setting(
        "indexes.NAME.encoder",
        "--encoder",
        "Where the encoder that made an index's vectors lies now, if not where it lay then. May be given "
        "several times.",
        metavar="INDEX=ENCODER",
        kind=CheckpointName(),
    ),
    _setting(
        "models.default.checkpoint",
        "--model",
        "Checkpoint directory or hub id.",
        unset="the default model",
        kind=CheckpointName(),
    ),
    _setting("models.default.device", "--device", "auto, cpu, cuda, cuda:1, ..."),
    _setting("models.default.dtype", "--dtype", "Number type of the model."),
    _setting("models.default.threads", "--threads", "Torch threads on a CPU.", at="num_threads"),
    _setting("models.default.prompt", "--prompt", PROMPT.help, unset=PROMPT.unset),
    _setting(
        "models.default.draft",
        "--draft-model",
        "Checkpoint directory or hub id of a smaller model with the same tokenizer that proposes tokens of "
        "JSON answers.",
        unset="none",
        kind=CheckpointName(),
    ),
    _setting(
        "models.default.trust_remote_code",
        "--trust-remote-code",
        "Run the Python code that comes with a checkpoint of a hub.",
    ),
    _setting(
        "models.NAME.checkpoint",
        "--add-model",
        "A further model and the name that --use-model and files use for it; on the device, with the number "
        "type and the threads of the default model. May be given several times.",
        metavar="NAME=CHECKPOINT",
        kind=CheckpointName(),
    ),
    _setting("server.host", "--host", "Name or address to listen on."),
    _setting("server.port", "--port", "Port; 0 picks a free one."),
    _setting("server.insecure", "--insecure", "Listen beyond this machine without encryption."),
    _setting(
        "tls.certificate",
        "--tls-certificate",
        "PEM file with the server's certificate chain.",
        unset="no encryption",
        metavar="FILE",
    ),
    _setting("tls.key", "--tls-key", "PEM file with its private key.", unset="none", metavar="FILE"),
    _setting(
        "tls.client_ca",
        "--tls-client-ca",
        "PEM file with the authorities of client certificates, which are then required.",
        unset="clients show none",
        metavar="FILE",
    ),
    _setting(
        "auth.token_file",
        "--token-file",
        "File of bearer tokens with their scopes.",
        unset="nobody is asked for a token",
        metavar="FILE",
    ),
    _setting("http.host", "--http-host", "Name or address to listen on for JSON over HTTP."),
    _setting(
        "http.port", "--http-port", "Port for JSON over HTTP; 0 picks a free one.", unset="no JSON over HTTP"
    ),
    _setting("http.explorer", "--http-explorer", "Serve the page to explore with, at / of the HTTP port."),
    _setting(
        "metrics.host", "--metrics-host", "Name or address to listen on for /metrics, /livez and /readyz."
    ),
    _setting(
        "metrics.port",
        "--metrics-port",
        "Port of its own for /metrics, /livez and /readyz, which ask for no token; 0 picks a free one.",
        unset="no port of their own",
    ),
    _setting("log.level", "--log-level", "What is logged to stderr."),
    _setting("log.format", "--log-format", "Lines for people, or one JSON object a line."),
    _setting("log.requests", "--log-requests", "Log a line for every call, whatever the level is."),
    _setting(
        "log.queries", "--log-queries", "Log the text of queries with it, which is in no log otherwise."
    ),
    _setting(
        "tracing.endpoint",
        "--tracing-endpoint",
        "OTLP/gRPC collector of OpenTelemetry traces, as http://host:4317 (extra otel).",
        unset="no traces",
        metavar="URL",
    ),
    _setting(
        "tracing.sample_ratio", "--tracing-sample-ratio", "Share of the traces begun here that are kept."
    ),
    _setting("batch.max_size", "--max-batch-size", "Requests per batch."),
    _setting("batch.max_tokens", "--max-batch-tokens", "Work per batch, tokens."),
    _setting("batch.max_delay_ms", "--max-delay-ms", "Longest wait of an idle device for more requests."),
    _setting("queue.max_requests", "--max-queue-size", "Unfinished requests held."),
    _setting(
        "queue.max_tokens",
        "--max-queue-tokens",
        "Unfinished work held, tokens; beyond it requests are refused.",
    ),
    _setting(
        "queue.max_wait_seconds",
        "--max-wait-seconds",
        "Time that work beyond two full batches may be expected to take; what is more is refused.",
    ),
    _setting("limits.max_request_bytes", "--max-request-bytes", "Largest message accepted."),
    _setting("limits.max_batch_items", "--max-batch-items", "Requests in one BatchRetrieve."),
    _setting(
        "limits.accept_gzip",
        "--accept-gzip",
        "Take compressed requests over gRPC, which may grow a thousandfold in memory.",
    ),
    _setting("limits.max_request_seconds", "--max-request-seconds", "Longest a request may take."),
    _setting(
        "caches.filter_mib",
        "--filter-cache",
        "Memory for filters kept, MiB for each index; 0 keeps none.",
        at="filter_cache_mib",
        metavar="MIB",
    ),
    _setting(
        "caches.grammar_mib",
        "--grammar-cache",
        "Memory for compiled schemas kept, MiB; 0 keeps none.",
        at="grammar_cache_mib",
        metavar="MIB",
    ),
    _setting(
        "shutdown.lame_duck_seconds",
        "--lame-duck-seconds",
        "After SIGTERM: how long requests are still taken while health says NOT_SERVING.",
    ),
    _setting("shutdown.drain_seconds", "--drain-seconds", "After that: how long running requests have."),
    _setting(
        "schemas.NAME",
        "--schema",
        "A JSON Schema that requests may name; compiled at the start. May be given several times.",
        at="path",
        metavar="NAME=FILE",
    ),
)

BY_PARAMETER = {setting.parameter: setting for setting in SETTINGS}
BY_KEY = {setting.key: setting for setting in SETTINGS}
NAMED_TABLES = ("indexes", "models", "schemas")


def find(key: Key) -> Setting | None:
    """Return the setting of a key in a file, whatever the names in it; None for a key that there is not."""
    if key in BY_KEY and NAME not in key:
        return BY_KEY[key]
    if len(key) >= 2 and key[0] == "models":
        return BY_KEY.get((key[0], DEFAULT_MODEL, *key[2:]))
    if len(key) >= 2 and key[0] in NAMED_TABLES:
        return BY_KEY.get((key[0], NAME, *key[2:]))
    return None


BEGIN = "<!-- Made by `python -m genret.service.configuration.settings docs/configuration.md`. -->"
END = "<!-- End of what is made. -->"


def settings_table() -> str:
    """Return every setting as a Markdown table."""
    lines = ["| Key | Value | Default | Flag and variable | What it is |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, SETTINGS)]) + "\n"


def renewed(page: str) -> str:
    """Return a page with the table between its marks renewed.

    Raises:
        ValueError: the page does not have the two marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{settings_table()}\n{END}{after}"


def _row(setting: Setting) -> str:
    flag = setting.flag
    if setting.negation is not None:
        flag += f"`, `{setting.negation}"
    elif setting.repeated:
        flag += f" {setting.metavar}"
    cells = (
        f"`{setting.dotted}`",
        setting.kind.expected,
        _default(setting),
        f"`{flag}`<br>`{setting.variable}`",
        setting.help,
    )
    return f"| {' | '.join(cells)} |"


def _default(setting: Setting) -> str:
    if setting.default is None:
        return setting.unset
    if isinstance(setting.kind, Switch):
        return f"`{str(setting.default).lower()}`"
    return f"`{setting.default}`"


def main(file: Path) -> None:
    """Renew the table in a Markdown file."""
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
