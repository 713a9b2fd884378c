"""`genret init-model`: a `genret.json` for a checkpoint that has none."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import click

from genret.retrieval.checkpoints import SETTINGS_FILE, WHEEL, file_of_wheel, find_checkpoint, local_folder
from genret.retrieval.command_options import prompt_option, shown_option
from genret.retrieval.compatibility import PROBE_TITLES
from genret.retrieval.errors import InputError
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.service.commands import usage_error
from genret.service.commands.connection import json_option


@click.command("init-model")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@prompt_option("Made the default one for queries.")
@shown_option(
    "--mention-prompt", help="The same for mentions.", show_default="what goes with the prompt for queries"
)
@shown_option(
    "--end-token",
    help="Token that closes every title: one of the vocabulary, or text that is one, such as \\n.",
    show_default="what ends the assistant's turn, the line or the text in the prompt",
)
@shown_option("--force", is_flag=True, help="Replace the genret.json that is there.")
@json_option("checkpoint: what was chosen, and why")
def init_model_command(
    model: Path,
    prompt: str | None,
    mention_prompt: str | None,
    end_token: str | None,
    force: bool,
    as_json_lines: bool,
) -> None:
    """Write genret.json for a checkpoint: which prompts it is asked with, and how titles end.

    MODEL is a directory or a GGUF file, beside which the genret.json is written. The GGUF file of a package
    (wheel:PACKAGE) has to be linked into a directory first.

    A checkpoint with a chat template gets the prompts chat and chat-mention; another decoder few-shot and
    few-shot-mention; an encoder-decoder, which has to be trained, plain and mention. What was chosen is
    printed, with why, and the command that builds an index for it. See docs/prompts.md.
    """
    if str(model).startswith(WHEEL):
        held = shlex.quote(str(file_of_wheel(str(model))))
        raise click.UsageError(
            f"{model}: the file lies in an installed package, which is no place for a genret.json; link it "
            f"into a directory of yours and name that: ln -s {held} DIR/"
        )
    if not model.exists():
        raise click.BadParameter(f"Path {str(model)!r} does not exist.", param_hint="'MODEL'")
    folder = model if model.is_dir() else model.parent
    file = folder / SETTINGS_FILE
    if file.exists() and not force:
        raise click.ClickException(f"{file} is there already; replace it with --force")
    weights = local_folder(find_checkpoint(model).weights)
    for name in ("tokenizer.json", "config.json"):
        if not (weights / name).is_file():
            raise click.ClickException(f"{model}: expected a checkpoint with {name}, got none")
    tokenizer = TextTokenizer.load(model)
    try:
        config, reasons = _chosen(CheckpointConfig.built_in(weights), prompt, mention_prompt)
        rendering, more = _rendering(tokenizer, config.title_rendering(), end_token)
        if more:  # otherwise the prompts say it themselves
            config, reasons = replace(config, rendering=rendering), {**reasons, **more}
        end = tokenizer.end_token_id(rendering)
        doubt = tokenizer.doubt_of_end(rendering)
    except InputError as error:
        raise usage_error(error) from error
    config.save(folder)
    told = {
        "prompt": config.default_prompt,
        "mentions": config.mention_prompt,
        "titles": repr(f"{rendering.context}{rendering.prefix}TITLE{rendering.suffix}"),
        "end token": f"{tokenizer.token_name(end)!r} ({end})",
    }
    if doubt is not None:
        click.echo(f"warning: {doubt}", err=True)
    if as_json_lines:
        document = {"file": str(file), "warning": doubt, "chosen": told, "reasons": reasons}
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    click.echo(f"{file}")
    for name, value in told.items():
        click.echo(f"  {name:<10} {value}: {reasons[name]}")
    click.echo(f"next: genret build TITLES --tokenizer {model}")


def _chosen(
    config: CheckpointConfig, prompt: str | None, mention_prompt: str | None
) -> tuple[CheckpointConfig, dict[str, str]]:
    """Return the config with the prompts that suit the checkpoint, and why each was chosen."""
    if prompt is not None:
        chosen, why = prompt, "as --prompt says"
    elif config.chat is not None:
        chosen, why = "chat", "the checkpoint has a chat template"
    elif config.prompt("few-shot").rendering is not None:
        chosen, why = "few-shot", "a decoder without a chat template goes on with what examples show"
    else:
        chosen, why = "plain", "an encoder-decoder begins titles from nothing, and has to be trained"
    mentions = mention_prompt or _MENTIONS.get(chosen, "mention")
    # The templates for JSON and for links are no examples of how a title follows a query.
    config = replace(
        config,
        default_prompt=chosen,
        mention_prompt=mentions,
        answer_prompt="chat-json" if chosen == "chat" else "json",
        annotate_prompt="annotate",
    )
    queries, others = config.prompt(chosen).rendering, config.prompt(mentions).rendering
    if queries and others and others.end_token not in (None, queries.end_token):
        raise InputError(
            "mention_prompt",
            f"{mentions!r} ends titles with {others.end_token!r}, the prompt {chosen!r} with "
            f"{queries.end_token or 'the end-of-sequence token'!r}; an index has one end token",
        )
    return config, {
        "prompt": why,
        "mentions": "as --mention-prompt says" if mention_prompt else f"what goes with {chosen}",
        "titles": "as they stand behind the prompt",
        "end token": "what ends them there" if queries and queries.end_token else "the end-of-sequence token",
    }


def _rendering(
    tokenizer: TextTokenizer, of_prompt: Rendering, end_token: str | None
) -> tuple[Rendering, dict[str, str]]:
    """Return the prompt's rendering as this vocabulary can write it, and why it differs, if it does."""
    rendering, reasons = of_prompt, {}
    if end_token is not None:
        rendering = replace(rendering, end_token=end_token.replace("\\n", "\n"))
        reasons["end token"] = "as --end-token says"
    elif rendering.end_token == "\n" and tokenizer.text_token_id("\n") is None:
        rendering = replace(rendering, end_token=None)
        reasons["end token"] = "the end of a text: the vocabulary has no token of a line break alone"
    for prefix in dict.fromkeys((rendering.prefix, "")):
        tried = replace(rendering, prefix=prefix)
        if None not in tokenizer.encode_titles(PROBE_TITLES, tried):
            if prefix != rendering.prefix:
                reasons["titles"] = "with a blank in front they would merge with the prompt"
            return tried, reasons
    raise InputError(
        "prompt", f"the first letters of titles merge with {rendering.context!r} in {tokenizer.name}"
    )


_MENTIONS = {"chat": "chat-mention", "few-shot": "few-shot-mention"}
