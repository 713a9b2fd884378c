"""Runs one training of a decoder, from files to a checkpoint folder that serving can open.

`retrieval.training.encoder_training` shares the plan, the budget and the metrics.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genret.decoding.errors import DecodingError
from genret.decoding.model.architectures import decoder_prompt
from genret.decoding.model.checkpoint_files import ADAPTER_FILE
from genret.decoding.model.model_loading import WEIGHTS_FILE, load_config, load_weights
from genret.retrieval.checkpoints import (
    TOKENIZER_FILES,
    base_of,
    find_checkpoint,
    local_folder,
    model_fingerprint,
)
from genret.retrieval.durable import write_synced
from genret.retrieval.errors import InputError, ModelError, require_package
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.progress import StepProgress
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training import lora
from genret.retrieval.training.dataset import (
    EncodedExample,
    ExampleEncoder,
    causal_batch,
    check_markup,
    limits_of_checkpoint,
    seq2seq_batch,
)
from genret.retrieval.training.examples import (
    LATER,
    LATER_WITH_MENTIONS,
    OF_PRETRAINED,
    ExampleGenerator,
    ExampleOptions,
    with_annotations,
    with_answers,
)
from genret.retrieval.training.forecast import RunForecast
from genret.retrieval.training.presets import (
    PRESETS,
    build_model,
    save_tokenizer,
    scratch_config,
    train_tokenizer,
)
from genret.retrieval.training.quality import (
    Hits,
    TitleRows,
    count_hits,
    measure_hits,
    mention_probes,
    noise_probes,
    rank_entities,
)
from genret.retrieval.training.trainer import (
    Budget,
    TitleTrainer,
    TrainerOptions,
    last_checkpoint,
    train_model,
)
from genret.retrieval.training.training_data import (
    TrainingData,
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_labelled_mentions,
    read_queries,
)

METRICS_NAME = "metrics.json"
_RUN_FILE = "genret_run.json"  # the `run_key` of the checkpoints beside it
_FILES = ("catalogue", "queries", "mentions")
# Options that do not change what is learnt
_UNDECISIVE = (
    "out",
    "restart",
    "test",
    "save_dtype",
    "max_bad_rows",
    "save_steps",
    "eval_steps",
    "log_steps",
    "use_cpu",
)
SAVE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SAMPLED_QUERIES = 64  # asked while training
MAX_STEPS = 10_000_000  # of any run; what a run under the clock alone never reaches
_CLEAN_OF_PRETRAINED = 0.5  # share of names and queries that a pretrained model sees as written
_RAMP_PASSES = 3  # passes over the pairs during which the mixture moves from copying to meaning


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Inputs, length and output of a training run. Its command has checked every number by itself."""

    catalogue: Path  # file of entities: TSV, or one title per line
    queries: Path | None  # TSV of labelled queries, or None
    out: Path  # folder of the finished checkpoint; `out/checkpoints` holds the resumable ones
    mentions: Path | None = None  # JSON lines of labelled mentions to train on, or None
    preset: str | None = None  # preset trained from scratch, or None
    model: str | None = None  # path or hub id of a checkpoint to fine-tune, or None
    encoder: bool = False  # whether to train a sentence encoder; one of preset, model and encoder is set
    # Rank of the LoRA matrices that are trained in place of the weights of `model`, or None. The result is
    # an adapter. If `model` is an adapter, its matrices are trained on. `trainer.bf16` keeps the weights
    # themselves in bfloat16
    lora: int | None = None
    # Number of layers, counted from the output, that get such matrices; None: all
    lora_layers: int | None = None
    # Model whose vectors an encoder imitates, "encoder:MODEL" or "sentence-transformers:MODEL", or None
    teacher: str | None = None
    minutes: float | None = None  # wall time of the run, or None
    epochs: float | None = None  # passes over the pairs, or None
    max_steps: int | None = None  # optimiser steps, or None. The first limit reached ends the run
    vocab_size: int | None = None  # vocabulary size in place of the preset's, or None
    max_prompt_tokens: int = 96  # length to which training prompts are cut
    max_bad_rows: int = 0  # most bad rows of the catalogue that are left out
    prompt: str | None = None  # query template of the model to fine-tune; None: its default one
    save_dtype: str = "float16"  # type of the saved weights, a key of `SAVE_DTYPES`
    answers: float = 0.0  # share of the examples whose target is a JSON document with the title in it
    # Share of the examples with labelled mentions whose target is the text with links in it
    annotations: float = 0.0
    restart: bool = False  # whether checkpoints of an earlier run in `out` are removed
    test: bool = False  # whether the test queries are measured too, after training
    trainer: TrainerOptions = field(default_factory=TrainerOptions)  # options of the optimisation

    def __post_init__(self) -> None:
        if (self.preset is not None) + (self.model is not None) + self.encoder != 1:
            raise InputError(
                "model", "give exactly one of --model (to fine-tune), --preset and --encoder (to train anew)"
            )
        if self.teacher is not None and not self.encoder:
            raise InputError("teacher", "only an encoder has a teacher")
        if self.lora is not None and self.model is None:
            raise InputError("lora", "needs a model to fine-tune")
        if self.lora is not None and self.trainer.optimizer != "adamw":
            raise InputError("optimizer", f"must be adamw with lora, got {self.trainer.optimizer!r}")
        if self.lora_layers is not None and self.lora is None:
            raise InputError("lora_layers", "needs lora")
        if self.annotations and self.mentions is None:
            raise InputError("annotations", "needs labelled mentions; name a file of them with --mentions")
        if self.prompt is not None and self.model is None:
            raise InputError("prompt", "needs a model to fine-tune, whose templates there are")


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    model: Any
    tokenizer: TextTokenizer
    config: CheckpointConfig
    adapted: Any = None  # the `PeftModel` around the model, where LoRA matrices are trained
    base: str = ""  # the name of the model they belong to


def run_training(
    plan: TrainingPlan, progress: StepProgress, approve: Callable[[RunForecast], None]
) -> dict[str, Any]:
    """Train as planned, write the checkpoint folder and return its metrics.

    `approve` receives the forecast; an error that it raises ends the run (see `train_model`).

    Raises:
        SourceError: a file cannot be used.
        InputError: the plan does not fit the files or the model.
        ModelError: the model to fine-tune cannot be loaded.
        TrainingInterrupted: the user stopped the run; `out/checkpoints` holds what to go on from.
    """
    if plan.lora is not None:
        require_package("peft", "lora")
    data = read_data(plan, progress)
    check_out(plan)
    torch.manual_seed(plan.trainer.seed)
    progress.phase("loading " + plan.model if plan.model else "learning a tokenizer")
    checkpoint = _start_checkpoint(plan, data)
    if plan.answers:
        checkpoint = replace(checkpoint, config=with_answers(checkpoint.config))
    if plan.annotations:
        checkpoint = replace(checkpoint, config=with_annotations(checkpoint.config))
    progress.phase("tokenising titles and aliases")
    encoder = _encoder(plan, checkpoint, data.entities, progress.note)
    titles = TitleRows(checkpoint.tokenizer, checkpoint.config, data.entities)

    model = checkpoint.model if checkpoint.adapted is None else checkpoint.adapted
    forecast = begun_forecast(plan, model, texts_by_kind(data))
    num_pairs = sum(forecast.texts.values())
    budget = run_budget(plan, num_pairs)
    progress.phase("collecting words of the catalogue")
    drawn = _drawn(plan, budget, num_pairs, data)
    generator = ExampleGenerator(data.entities, data.queries, drawn, data.mentions)
    sampled, asked = sample(plan, data)

    def evaluate() -> None:
        # The model in training computes under the trainer's autocast; a copy does not.
        adapted = checkpoint.adapted
        model = _copy(checkpoint.model) if adapted is None else deepcopy(adapted).merge_and_unload()
        progress.note(f"{sampled}, beam search over the titles  {measure_hits(model, titles, asked)}")

    steps = train_model(
        TitleTrainer,
        model,
        generator,
        encoder.encode,
        _collator(checkpoint),
        work_folder=plan.out / "checkpoints",
        budget=budget,
        options=plan.trainer,
        progress=progress,
        evaluate=evaluate,
        forecast=forecast,
        approve=approve,
    )
    progress.phase("saving")
    _save(checkpoint, plan)
    saved = load_model(str(plan.out))
    hits = _final_hits(plan, saved, titles, data, progress)
    more: dict[str, Any] = {"preset": plan.preset, "fine_tuned_from": plan.model}
    if plan.lora is not None:
        more |= {"lora": plan.lora, "lora_layers": plan.lora_layers}
    return write_metrics(plan, budget, steps, saved, hits, more)


def read_data(plan: TrainingPlan, progress: StepProgress) -> TrainingData:
    """Read the files of a plan; a SourceError says that one cannot be used."""
    progress.phase(f"reading {plan.catalogue}")
    entities = read_catalogue(plan.catalogue, plan.max_bad_rows, progress.note)
    queries = read_queries(plan.queries, entities) if plan.queries else []
    mentions = read_labelled_mentions(plan.mentions, entities) if plan.mentions else []
    return TrainingData(entities, queries, mentions)


def _drawn(plan: TrainingPlan, budget: Budget, num_pairs: int, data: TrainingData) -> ExampleOptions:
    """Return the options of the examples: only a model from scratch has to learn to copy first."""
    later = LATER_WITH_MENTIONS if data.mentions else OF_PRETRAINED if plan.model and data.queries else LATER
    drawn = ExampleOptions(later=later, answers=plan.answers, annotations=plan.annotations)
    if plan.model:
        return replace(drawn, first=later, ramp_examples=0, clean=_CLEAN_OF_PRETRAINED)
    ramp = _RAMP_PASSES * num_pairs
    if plan.minutes is None:
        ramp = min(ramp, budget.max_steps * plan.trainer.batch_size // 3)
    return replace(drawn, ramp_examples=ramp)


def write_metrics(
    plan: TrainingPlan,
    budget: Budget,
    steps: int,
    model: Any,
    hits: Mapping[str, Hits],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Write `metrics.json` beside the checkpoint and return its content."""
    metrics = {
        "hits": {name: measured.to_json() for name, measured in hits.items()},
        "steps": steps,
        "examples": steps * plan.trainer.batch_size,
        "minutes": round(budget.elapsed_s / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainer": asdict(plan.trainer),
        **more,
    }
    text = json.dumps(metrics, indent=2, sort_keys=True) + "\n"
    (plan.out / METRICS_NAME).write_text(text, encoding="utf-8")
    return metrics


def check_out(plan: TrainingPlan) -> None:
    """Create the folder of the result; InputError if it cannot be, or holds checkpoints of another run."""
    work = plan.out / "checkpoints"
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("out", f"{plan.out} cannot be created: {error.strerror}") from error
    if plan.restart:
        for checkpoint in work.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    ours = run_key(plan)
    if last_checkpoint(work) is not None:
        file = work / _RUN_FILE
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        changed = [
            f"--{name.replace('_', '-')} ({_told(known.get(name))}, now {_told(value)})"
            for name, value in ours.items()
            if known.get(name) != value
        ]
        if changed:
            raise InputError(
                "out",
                f"{work} holds the checkpoints of a run with another {', '.join(changed)}; go on with the "
                "command of that run, name another --out, or begin anew with --restart",
            )
    write_synced(work / _RUN_FILE, (json.dumps(ours, indent=2, sort_keys=True) + "\n").encode())


def run_key(plan: TrainingPlan) -> dict[str, Any]:
    """Return all that decides about the weights of a run: options, and digests of its files."""
    options = {name: value for name, value in asdict(plan).items() if name not in _UNDECISIVE}
    options |= {n: value for n, value in options.pop("trainer").items() if n not in _UNDECISIVE}
    for name in _FILES:
        if (file := getattr(plan, name)) is not None:
            options[name] = digest_file(file)
    if plan.model is not None:
        options["model"] = model_fingerprint(plan.model)
    return options


def _told(value: Any) -> str:
    """Return an option's value in a message; a digest is cut to what tells two apart."""
    return "not given" if value is None else str(value)[:20]


def _start_checkpoint(plan: TrainingPlan, data: TrainingData) -> _Checkpoint:
    if plan.model is not None:
        return _fine_tuned(plan, plan.model)
    preset = PRESETS[str(plan.preset)]
    if plan.vocab_size is not None:
        preset = replace(preset, vocab_size=plan.vocab_size)
    texts = training_texts(data) + [mention.text for mention in data.mentions]
    tokenizer = train_tokenizer(texts, preset.vocab_size)
    save_tokenizer(tokenizer, plan.out)
    return _Checkpoint(build_model(preset, tokenizer), TextTokenizer.load(plan.out), scratch_config())


def training_texts(data: TrainingData) -> list[str]:
    """Return the texts a tokenizer is learnt from: titles, aliases, descriptions and training queries."""
    texts = [text for entity in data.entities for text in (*entity.surfaces, entity.description) if text]
    return texts + [query.text for query in data.queries if query.split == "train"]


def _fine_tuned(plan: TrainingPlan, named: str) -> _Checkpoint:
    found = find_checkpoint(named)
    adapter = None if plan.lora is None else found.adapter  # its matrices are trained on
    base = named if adapter is None else str(base_of(adapter))
    in_bfloat16 = plan.lora is not None and plan.trainer.bf16
    model = load_model(base, "bfloat16" if in_bfloat16 else "float32")
    taught = TextTokenizer.load(named)
    folder = local_folder(found.weights)
    if found.adapter is not None and (found.adapter / "tokenizer.json").is_file():
        folder = found.adapter
    for name in TOKENIZER_FILES:
        if (folder / name).is_file() and (folder / name).resolve() != (plan.out / name).resolve():
            shutil.copyfile(folder / name, plan.out / name)
    config = replace(CheckpointConfig.load(Path(taught.source)).with_prompt(plan.prompt), base=None)
    config = replace(config, rendering=config.title_rendering())
    tokenizer = TextTokenizer.load(plan.out / "tokenizer.json")
    tokenizer.end_token = taught.end_token
    tokenizer.end_token_id(config.rendering or Rendering())
    if plan.lora is None:
        return _Checkpoint(model, tokenizer, config)
    if adapter is None:
        adapted = lora.with_lora(model, plan.lora, plan.lora_layers)
    else:
        adapted = lora.with_adapter(model, adapter, plan.lora, plan.lora_layers)
    return _Checkpoint(model, tokenizer, config, adapted, base)


def load_model(place: str, dtype: str = "float32") -> Any:
    """Return the `transformers.PreTrainedModel` of a checkpoint (see `find_checkpoint`) on the CPU.

    A ModelError says why it cannot be loaded, a MissingExtraError which package it needs.
    """
    found = find_checkpoint(place)
    found.check_packages()
    try:
        config = load_config(found.weights, trust_remote_code=False)
        model = load_weights(
            found.weights, config, torch.device("cpu"), dtype, trust_remote_code=False, adapter=found.adapter
        )
    except DecodingError as error:
        raise ModelError(f"{place}: cannot be loaded for training: {error}") from error
    if getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(
            f"{place}: quantised weights are not trained; name a checkpoint that is not quantised"
        )
    return model.requires_grad_(True)


def _copy(model: Any) -> Any:
    twin = type(model)(deepcopy(model.config))
    twin.load_state_dict(model.state_dict())
    twin.generation_config = deepcopy(model.generation_config)  # it says what stands before a title
    return twin


def _collator(checkpoint: _Checkpoint) -> Callable[[Sequence[EncodedExample]], dict[str, Tensor]]:
    pad_id = checkpoint.model.config.pad_token_id
    if not isinstance(pad_id, int) or pad_id < 0:
        pad_id = checkpoint.tokenizer.end_token_id(checkpoint.config.rendering or Rendering())
    if checkpoint.model.config.is_encoder_decoder:
        return partial(seq2seq_batch, pad_id, decoder_prompt(checkpoint.model))
    return partial(causal_batch, pad_id)


def run_budget(plan: TrainingPlan, num_pairs: int) -> Budget:
    """Return the length of a run over this number of texts with labels."""
    limits = []
    if plan.max_steps is not None:
        limits.append(plan.max_steps)
    epochs = plan.epochs
    if epochs is None and plan.max_steps is None and plan.minutes is None:
        epochs = 3.0 if plan.model else 40.0
    if epochs is not None:
        steps = min(epochs * num_pairs / plan.trainer.batch_size, MAX_STEPS)
        limits.append(max(1, round(steps)))
    return Budget(min(limits, default=MAX_STEPS), plan.minutes)


def texts_by_kind(data: TrainingData) -> dict[str, int]:
    """Return the number of texts that examples are made from, by kind; an epoch is as many examples."""
    return {
        "titles": len(data.entities),
        "aliases": sum(len(entity.surfaces) - 1 for entity in data.entities),
        "descriptions": sum(bool(entity.description) for entity in data.entities),
        "queries": sum(query.split == "train" for query in data.queries),
        "mentions": len(data.mentions),
    }


def begun_forecast(plan: TrainingPlan, model: Any, texts: Mapping[str, int]) -> RunForecast:
    """Return the forecast as far as it is known before there are examples."""
    parameters = list(model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    total = sum(p.numel() for p in parameters)
    return RunForecast(
        texts=texts,
        model=plan.preset or plan.model or "encoder",
        parameters=total,
        trained=trained,
        checkpoint_bytes=(total if plan.lora is None else trained) * SAVE_DTYPES[plan.save_dtype].itemsize,
        batch_size=plan.trainer.batch_size,
        minutes=plan.minutes,
    )


def sample(plan: TrainingPlan, data: TrainingData) -> tuple[str, list[TrainingQuery]]:
    """Return the queries that are asked while training, with their name: dev ones, else mistyped titles."""
    sets = asked_sets(plan, data)
    name = "dev" if "dev" in sets else "title with a typo"
    asked = sets[name][:SAMPLED_QUERIES]
    return f"{name} (first {len(asked)})", asked


def _encoder(
    plan: TrainingPlan,
    checkpoint: _Checkpoint,
    entities: Sequence[TrainingEntity],
    report: Callable[[str], None],
) -> ExampleEncoder:
    """Return the encoder of examples, and report the titles it has to leave out; some title must be left."""
    config = checkpoint.config
    forms = [surface for entity in entities for surface in entity.surfaces]
    rows = checkpoint.tokenizer.encode_titles(forms, config.rendering or Rendering())
    limits = limits_of_checkpoint(checkpoint.model)
    longest = limits.prompt_tokens(max(len(row) for row in rows if row is not None) if any(rows) else 0)
    most = plan.max_prompt_tokens if longest is None else min(longest, plan.max_prompt_tokens)
    encoder = ExampleEncoder(checkpoint.tokenizer, config, most, limits)
    if plan.answers:
        check_markup(config.answer_template(None), checkpoint.tokenizer, most)
    faults = [encoder.fault(row) for row in rows]
    reasons = Counter(fault for fault in faults if fault is not None)
    if reasons:
        first = next(form for form, fault in zip(forms, faults, strict=True) if fault is not None)
        said = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        told = f"{reasons.total()} of {len(forms)} titles and aliases cannot be written: {said}; "
        told += f"e.g. {first[:80]!r}"
        if reasons.total() == len(forms):
            raise InputError("catalogue", told)
        report(f"left out: {told}")
    return encoder


def _save(checkpoint: _Checkpoint, plan: TrainingPlan) -> None:
    checkpoint.config.save(plan.out)
    if checkpoint.adapted is not None:
        lora.save_adapter(checkpoint.adapted, checkpoint.base, SAVE_DTYPES[plan.save_dtype], plan.out)
        return
    for name in (ADAPTER_FILE, WEIGHTS_FILE):  # of an earlier run, whose result this would be taken for
        (plan.out / name).unlink(missing_ok=True)
    model = checkpoint.model.to(SAVE_DTYPES[plan.save_dtype])
    model.config.dtype = SAVE_DTYPES[plan.save_dtype]
    model.save_pretrained(plan.out)


def _final_hits(
    plan: TrainingPlan, model: Any, titles: TitleRows, data: TrainingData, progress: StepProgress
) -> dict[str, Hits]:
    found, sets = {}, asked_sets(plan, data)
    in_context = "mention in context"
    sets[in_context] = mention_probes(data.entities, titles.config, plan.trainer.seed)
    total = sum(map(len, sets.values()))
    progress.phase("evaluating", total)
    done = 0
    for name, asked in sets.items():
        prompt = titles.config.mention_prompt if name == in_context else None
        ranked: list[list[str]] = []
        for begin in range(0, len(asked), SAMPLED_QUERIES):
            ranked += rank_entities(model, titles, asked[begin : begin + SAMPLED_QUERIES], prompt)
            progress.advance(done + len(ranked), f"{done + len(ranked):,} of {total:,} queries")
        done += len(asked)
        found[name] = count_hits(ranked, asked)
        progress.note(f"{name}  {found[name]}")
    return found


def asked_sets(plan: TrainingPlan, data: TrainingData) -> dict[str, list[TrainingQuery]]:
    """Return the queries to measure a finished model with, by name: held-out ones and catalogue probes."""
    splits = ("dev", "test") if plan.test else ("dev",)
    held_out = {split: [query for query in data.queries if query.split == split] for split in splits}
    asked = held_out | noise_probes(data.entities, plan.trainer.seed)
    return {name: some for name, some in asked.items() if some}
