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
from genret.service.configuration.kinds import Kind, fields_of
from genret.service.configuration.server_config import IndexSpec, ModelSpec, SchemaSpec, ServerConfig

NAME = "NAME"  # stands for any name in a key
DEFAULT_MODEL = "default"
Key = tuple[str, ...]
_PREFIX = "GENRET_SERVE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    key: Key  # key in a file; its part `NAME` stands for the name of an index, a model or a schema
    flag: str  # long option of `genret serve`
    help: str  # one sentence for the help and the manual
    kind: Kind  # how its values are read
    default: Any  # value without any source; None: none
    attribute: tuple[str, ...]  # path in `ServerConfig`, for keys with a `NAME` in the spec of that name
    unset: str  # meaning of no value; empty if there is always one
    metavar: str  # placeholder of the value in the help
    repeated: bool = False  # whether the flag takes NAME=VALUE and may be given several times

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
        return f"--no-{self.flag.removeprefix('--')}" if self.kind.type is bool else None

    def named(self, name: str) -> Key:
        """Return the key with a name in it."""
        return tuple(name if part == NAME else part for part in self.key)


_SPECS: dict[str, Any] = {"indexes": IndexSpec, "models": ModelSpec, "schemas": SchemaSpec}


# Flags of settings in these tables are named as the key alone, others with the table before it.
_PLAIN = ("models", "server", "auth", "limits", "shutdown")


def _setting(
    key: str, text: str, flag: str = "", *, at: str = "", unset: str = "", metavar: str = ""
) -> Setting:
    """Return a setting; `flag` and `at`, its attribute, are given where they are not named as the key."""
    parts = tuple(key.split("."))
    owner = _SPECS.get(parts[0], ServerConfig)
    # Tables such as [server] and [limits] stand for the server itself.
    is_section = owner is ServerConfig and parts[0] in fields_of(ServerConfig)
    attribute = parts if is_section else (at or parts[-1],)
    for part in attribute[:-1]:
        owner = fields_of(owner)[part].type
    kind = fields_of(owner)[attribute[-1]]
    (found,) = (one for one in fields(owner) if one.name == attribute[-1])
    default = None if found.default is MISSING else found.default
    named = parts[-1:] if parts[0] in _PLAIN else parts
    flag = flag or f"--{'-'.join(named).replace('_', '-')}"
    repeated = NAME in parts
    unset = "none" if repeated else unset
    return Setting(parts, flag, text, kind, default, attribute, unset, metavar or kind.metavar, repeated)


SETTINGS: tuple[Setting, ...] = (
    _setting(
        "indexes.NAME.path",
        "A further index and the name requests use for it. May be given several times.",
        "--index",
        metavar="NAME=PATH",
    ),
    _setting(
        "indexes.NAME.model",
        "Which model answers from an index. May be given several times.",
        "--use-model",
        metavar="INDEX=MODEL",
    ),
    _setting(
        "indexes.NAME.encoder",
        "Where the encoder that made an index's vectors lies now, if not where it lay then. May be given "
        "several times.",
        "--encoder",
        metavar="INDEX=ENCODER",
    ),
    _setting(
        "models.default.checkpoint", "Checkpoint directory or hub id.", "--model", unset="the default model"
    ),
    _setting("models.default.device", "auto, cpu, cuda, cuda:1, ..."),
    _setting("models.default.dtype", "Number type of the model."),
    _setting("models.default.threads", "Torch threads on a CPU.", at="num_threads"),
    _setting("models.default.prompt", PROMPT.help, unset=PROMPT.unset),
    _setting(
        "models.default.draft",
        "Checkpoint directory or hub id of a smaller model with the same tokenizer that proposes tokens of "
        "JSON answers.",
        "--draft-model",
        unset="none",
    ),
    _setting(
        "models.default.trust_remote_code", "Run the Python code that comes with a checkpoint of a hub."
    ),
    _setting(
        "models.default.engine",
        "vllm, or the address of a vLLM server (http://localhost:8000/v1) that runs the checkpoint.",
        unset="the model runs here",
    ),
    _setting(
        "models.NAME.checkpoint",
        "A further model and the name that --use-model and files use for it; on the device, with the number "
        "type and the threads of the default model. May be given several times.",
        "--add-model",
        metavar="NAME=CHECKPOINT",
    ),
    _setting("server.host", "Name or address to listen on."),
    _setting("server.port", "Port; 0 picks a free one."),
    _setting("server.insecure", "Listen beyond this machine without encryption."),
    _setting(
        "server.allowed_hosts",
        "Names, with commas between them, by which HTTP requests may address a server without tokens and "
        "without TLS; `*.example.com` allows all names below, `*` any.",
        unset="addresses, names without a dot, names in --host, --http-host and --metrics-host",
    ),
    _setting(
        "server.one_process",
        "Read and refuse requests in the process that runs the models, not in one of its own; saves memory.",
    ),
    _setting(
        "server.warm_completion",
        "Make the table of Complete before an index is served, not at its first call: four seconds per "
        "million names.",
    ),
    _setting("tls.certificate", "PEM file with the server's certificate chain.", unset="no encryption"),
    _setting("tls.key", "PEM file with its private key.", unset="none"),
    _setting(
        "tls.client_ca",
        "PEM file with the authorities of client certificates, which are then required.",
        unset="clients show none",
    ),
    _setting(
        "auth.token_file", "File of bearer tokens with their scopes.", unset="nobody is asked for a token"
    ),
    _setting("http.host", "Name or address to listen on for JSON over HTTP."),
    _setting("http.port", "Port for JSON over HTTP; 0 picks a free one.", unset="no JSON over HTTP"),
    _setting("http.explorer", "Serve the page to explore with, at / of the HTTP port."),
    _setting("metrics.host", "Name or address to listen on for /metrics, /livez and /readyz."),
    _setting(
        "metrics.port",
        "Port of its own for /metrics, /livez and /readyz, which ask for no token; 0 picks a free one.",
        unset="no port of their own",
    ),
    _setting("log.level", "What is logged to stderr."),
    _setting("log.format", "Lines for people, or one JSON object a line."),
    _setting("log.requests", "Log a line for every call, whatever the level is."),
    _setting("log.queries", "Log the text of queries with it, which is in no log otherwise."),
    _setting(
        "tracing.endpoint",
        "OTLP/gRPC collector of OpenTelemetry traces, as http://host:4317 (extra otel).",
        unset="no traces",
        metavar="URL",
    ),
    _setting("tracing.sample_ratio", "Share of the traces begun here that are kept."),
    _setting("batch.max_size", "Requests per batch.", "--max-batch-size"),
    _setting("batch.max_tokens", "Work per batch, tokens.", "--max-batch-tokens"),
    _setting(
        "batch.max_forward_ms",
        "Longest time of one forward, after which others have their turn.",
        "--max-forward-ms",
    ),
    _setting("batch.max_delay_ms", "Longest wait of an idle device for more requests.", "--max-delay-ms"),
    _setting("queue.max_requests", "Unfinished requests held.", "--max-queue-size"),
    _setting(
        "queue.max_tokens",
        "Unfinished work held, tokens; beyond it requests are refused.",
        "--max-queue-tokens",
    ),
    _setting(
        "queue.max_wait_seconds",
        "Time that work beyond two full batches may be expected to wait, twice that for the second one; "
        "what is more is refused.",
        "--max-wait-seconds",
    ),
    _setting(
        "connections.max", "Connections of each port at once, fewer if open files do not suffice for them."
    ),
    _setting(
        "connections.max_per_address",
        "Connections of one address, or IPv6 network of 64 bits, to each port at once; for a new one the "
        "connection that has been idle for longest is closed.",
    ),
    _setting("connections.max_idle_seconds", "Time of a gRPC connection without a call."),
    _setting(
        "connections.max_age_seconds",
        "Age at which clients are asked to use another connection; calls that run go on.",
    ),
    _setting("limits.max_request_bytes", "Largest message accepted."),
    _setting(
        "limits.max_client_bytes",
        "Memory of the unanswered requests of one client (address); beyond it streams are not read and other "
        "calls are refused.",
    ),
    _setting("limits.max_bytes_in_flight", "The same of all clients together.", at="max_bytes"),
    _setting("limits.max_batch_items", "Requests in one BatchRetrieve."),
    _setting(
        "limits.accept_gzip", "Take compressed requests over gRPC, which may grow a thousandfold in memory."
    ),
    _setting("limits.max_request_seconds", "Longest a request may take."),
    _setting(
        "caches.filter_mib",
        "Memory for filters kept, MiB for each index; 0 keeps none.",
        "--filter-cache",
        at="filter_cache_mib",
        metavar="MIB",
    ),
    _setting(
        "caches.grammar_mib",
        "Memory for compiled schemas kept, MiB; 0 keeps none.",
        "--grammar-cache",
        at="grammar_cache_mib",
        metavar="MIB",
    ),
    _setting(
        "shutdown.lame_duck_seconds",
        "After SIGTERM: how long requests are still taken while health says NOT_SERVING.",
    ),
    _setting("shutdown.drain_seconds", "After that: how long running requests have."),
    _setting(
        "schemas.NAME",
        "A JSON Schema that requests may name; compiled at the start. May be given several times.",
        "--schema",
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


def settings_of(table: str, name: str) -> list[tuple[Key, Setting]]:
    """Return the settings of one index, model or schema, with their keys."""
    place = DEFAULT_MODEL if table == "models" else NAME
    return [((table, name, *one.key[2:]), one) for one in SETTINGS if one.key[:2] == (table, place)]


BEGIN = "<!-- Made by `python -m genret.service.configuration.settings docs/configuration.md`. -->"
END = "<!-- End of what is made. -->"


def settings_table() -> str:
    """Return every setting as a Markdown table."""
    lines = ["| Key | Value | Default | Flag and variable | What it is |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, SETTINGS)]) + "\n"


def renewed(page: str) -> str:
    """Return a page with the table between its marks renewed; ValueError if it does not have the two."""
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
    if setting.kind.type is bool:
        return f"`{str(setting.default).lower()}`"
    return f"`{setting.default}`"


def main(file: Path) -> None:
    """Renew the table in a Markdown file."""
    file.write_text(renewed(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
