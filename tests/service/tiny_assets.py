"""A random Llama that knows the built-in prompts, and an index over a dozen titles: real files."""

from __future__ import annotations

from pathlib import Path

from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.prompts import BUILT_IN, CheckpointConfig, PromptTemplate
from tests import checkpoints

NUM_ENTITIES = 12
MAX_POSITIONS = 256
LONG = PromptTemplate("long", prefix="Retrieve the entity for my query.\nQuery: ", suffix="\nEntity:")


def make_checkpoint(folder: Path) -> Path:
    config = CheckpointConfig(prompts={**BUILT_IN, LONG.name: LONG})
    return checkpoints.make_checkpoint(folder, config=config, max_positions=MAX_POSITIONS, spread=1.0)


def make_index(folder: Path, checkpoint: Path, vectors: VectorBuildOptions | None = None) -> Path:
    return checkpoints.make_index(folder, checkpoint, vectors=vectors).rename(folder / "tiny")
