"""Lists every setting of a server once: its key in a file, its flag, its variable, its default and its help.

The options of `genret serve`, the reading of files, `--print-config` and the manual's table are made of
this table; `python -m service.configuration.settings FILE` renews the manual's table in a page. Types,
bounds and defaults are those of the dataclasses in `server_config`.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from retrieval.request_options import PROMPT
from service.configuration.kinds import CheckpointName, Kind, Switch, fields_of, kind_of
from service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec, ServerConfig

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
        help: What it does, one sentence.
        kind: How its values are read.
        default: Value without any source; None: none.
        attribute: Where it is in `ServerConfig`; in the spec of its name for keys with a `NAME`.
        unset: What having no value means; empty where there is always one.
        metavar: What stands for the value in the help.
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


def _plain(
    key: str,
    flag: str,
    text: str,
    *,
    at: str = "",
    unset: str = "",
    metavar: str = "",
    kind: Kind | None = None,
) -> Setting:
    attribute = tuple((at or key).split("."))
    owner: Any = ServerConfig
    for part in attribute[:-1]:
        owner = fields_of(owner)[part].type
    return _setting(tuple(key.split(".")), flag, text, owner, attribute, unset, metavar, kind)


def _of_model(
    key: str, flag: str, text: str, *, at: str = "", unset: str = "", kind: Kind | None = None
) -> Setting:
    path = ("models", DEFAULT_MODEL, key)
    return _setting(path, flag, text, ModelSpec, (at or key,), unset, "", kind)


def _repeated(
    key: str, flag: str, text: str, owner: type, at: str, metavar: str, kind: Kind | None = None
) -> Setting:
    return _setting(tuple(key.split(".")), flag, text, owner, (at,), "none", metavar, kind, repeated=True)


def _setting(
    key: Key,
    flag: str,
    text: str,
    owner: type,
    attribute: tuple[str, ...],
    unset: str,
    metavar: str,
    kind: Kind | None,
    repeated: bool = False,
) -> Setting:
    declared = fields_of(owner)[attribute[-1]]
    (found,) = (one for one in fields(owner) if one.name == attribute[-1])
    default = None if found.default is MISSING else found.default
    kind = kind or kind_of(declared)
    return Setting(key, flag, text, kind, default, attribute, unset, metavar or kind.metavar, repeated)


SETTINGS: tuple[Setting, ...] = (
    _repeated(
        "indexes.NAME.path",
        "--index",
        "A further index and the name requests use for it. May be given several times.",
        IndexSpec,
        "path",
        "NAME=PATH",
    ),
    _repeated(
        "indexes.NAME.model",
        "--use-model",
        "Which model answers from an index. May be given several times.",
        IndexSpec,
        "model",
        "INDEX=MODEL",
    ),
    _repeated(
        "indexes.NAME.encoder",
        "--encoder",
        "Where the encoder that made an index's vectors lies now, if not where it lay then. May be given "
        "several times.",
        IndexSpec,
        "encoder",
        "INDEX=ENCODER",
        CheckpointName(),
    ),
    _of_model(
        "checkpoint",
        "--model",
        "Checkpoint directory or hub id.",
        unset="the default model",
        kind=CheckpointName(),
    ),
    _of_model("device", "--device", "auto, cpu, cuda, cuda:1, ..."),
    _of_model("dtype", "--dtype", "Number type of the model."),
    _of_model("threads", "--threads", "Torch threads on a CPU.", at="num_threads"),
    _of_model("prompt", "--prompt", PROMPT.help, unset=PROMPT.unset),
    _of_model(
        "draft",
        "--draft-model",
        "Checkpoint directory or hub id of a smaller model with the same tokenizer that proposes tokens of "
        "JSON answers.",
        unset="none",
        kind=CheckpointName(),
    ),
    _of_model(
        "trust_remote_code",
        "--trust-remote-code",
        "Run the Python code that comes with a checkpoint of a hub.",
    ),
    _repeated(
        "models.NAME.checkpoint",
        "--add-model",
        "A further model and the name that --use-model and files use for it; on the device, with the number "
        "type and the threads of the default model. May be given several times.",
        ModelSpec,
        "checkpoint",
        "NAME=CHECKPOINT",
        CheckpointName(),
    ),
    _plain("server.host", "--host", "Name or address to listen on.", at="host"),
    _plain("server.port", "--port", "Port; 0 picks a free one.", at="port"),
    _plain("server.insecure", "--insecure", "Listen beyond this machine without encryption.", at="insecure"),
    _plain(
        "tls.certificate",
        "--tls-certificate",
        "PEM file with the server's certificate chain.",
        unset="no encryption",
        metavar="FILE",
    ),
    _plain("tls.key", "--tls-key", "PEM file with its private key.", unset="none", metavar="FILE"),
    _plain(
        "tls.client_ca",
        "--tls-client-ca",
        "PEM file with the authorities of client certificates, which are then required.",
        unset="clients show none",
        metavar="FILE",
    ),
    _plain(
        "auth.token_file",
        "--token-file",
        "File of bearer tokens with their scopes.",
        unset="nobody is asked for a token",
        metavar="FILE",
    ),
    _plain("http.host", "--http-host", "Name or address to listen on for JSON over HTTP."),
    _plain(
        "http.port", "--http-port", "Port for JSON over HTTP; 0 picks a free one.", unset="no JSON over HTTP"
    ),
    _plain("http.explorer", "--http-explorer", "Serve the page to explore with, at / of the HTTP port."),
    _plain(
        "metrics.host", "--metrics-host", "Name or address to listen on for /metrics, /livez and /readyz."
    ),
    _plain(
        "metrics.port",
        "--metrics-port",
        "Port of its own for /metrics, /livez and /readyz, which ask for no token; 0 picks a free one.",
        unset="no port of their own",
    ),
    _plain("log.level", "--log-level", "What is logged to stderr."),
    _plain("log.format", "--log-format", "Lines for people, or one JSON object a line."),
    _plain("log.requests", "--log-requests", "Log a line for every call, whatever the level is."),
    _plain("log.queries", "--log-queries", "Log the text of queries with it, which is in no log otherwise."),
    _plain(
        "tracing.endpoint",
        "--tracing-endpoint",
        "OTLP/gRPC collector of OpenTelemetry traces, as http://host:4317 (extra otel).",
        unset="no traces",
        metavar="URL",
    ),
    _plain("tracing.sample_ratio", "--tracing-sample-ratio", "Share of the traces begun here that are kept."),
    _plain("batch.max_size", "--max-batch-size", "Requests per batch."),
    _plain("batch.max_tokens", "--max-batch-tokens", "Work per batch, tokens."),
    _plain("batch.max_delay_ms", "--max-delay-ms", "Longest wait of an idle device for more requests."),
    _plain("queue.max_requests", "--max-queue-size", "Unfinished requests held."),
    _plain(
        "queue.max_tokens",
        "--max-queue-tokens",
        "Unfinished work held, tokens; beyond it requests are refused.",
    ),
    _plain(
        "queue.max_wait_seconds",
        "--max-wait-seconds",
        "Time that work beyond two full batches may be expected to take; what is more is refused.",
    ),
    _plain(
        "limits.max_request_bytes", "--max-request-bytes", "Largest message accepted.", at="max_request_bytes"
    ),
    _plain(
        "limits.max_batch_items", "--max-batch-items", "Requests in one BatchRetrieve.", at="max_batch_items"
    ),
    _plain(
        "limits.accept_gzip",
        "--accept-gzip",
        "Take compressed requests over gRPC, which may grow a thousandfold in memory.",
        at="accept_gzip",
    ),
    _plain(
        "limits.max_request_seconds",
        "--max-request-seconds",
        "Longest a request may take.",
        at="max_request_seconds",
    ),
    _plain(
        "caches.filter_mib",
        "--filter-cache",
        "Memory for filters kept, MiB for each index; 0 keeps none.",
        at="filter_cache_mib",
        metavar="MIB",
    ),
    _plain(
        "caches.grammar_mib",
        "--grammar-cache",
        "Memory for compiled schemas kept, MiB; 0 keeps none.",
        at="grammar_cache_mib",
        metavar="MIB",
    ),
    _plain(
        "shutdown.lame_duck_seconds",
        "--lame-duck-seconds",
        "After SIGTERM: how long requests are still taken while health says NOT_SERVING.",
        at="lame_duck_seconds",
    ),
    _plain(
        "shutdown.drain_seconds",
        "--drain-seconds",
        "After that: how long running requests have.",
        at="drain_seconds",
    ),
    _repeated(
        "schemas.NAME",
        "--schema",
        "A JSON Schema that requests may name; compiled at the start. May be given several times.",
        SchemaSpec,
        "path",
        "NAME=FILE",
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


BEGIN = (
    "<!-- Made by `python -m service.configuration.settings docs/configuration.md`; a test compares it. -->"
)
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
