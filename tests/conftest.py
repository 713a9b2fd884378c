"""How the suite is collected: by tiers, without the garbage collector, long files first."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE
from genret.retrieval.defaults import small_model_dir
from genret.retrieval.errors import ModelError

pytest_plugins = ("tests.trigram_encoder", "tests.service.asynchronous", "tests.service.turned_clock")

# Where tests name no model, the small one answers, in this process and in those it starts.
try:
    os.environ[DEFAULT_MODEL_VARIABLE] = str(small_model_dir())
except ModelError:  # its tests skip, and say so
    os.environ.pop(DEFAULT_MODEL_VARIABLE, None)

# How long an example takes, and making it, says how busy the machine is, and nothing of the code.
settings.register_profile(
    "untimed", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# Files of few tests that take half a minute and more, mostly waiting for processes: a worker that began one
# of them last would keep the others waiting.
LONG = (
    "test_ray_runner.py",
    "test_ray_serve_cluster.py",
    "test_link_crashes.py",
    "test_grpc_commands.py",
    "test_server_signals.py",
    "test_demo.py",
    "test_answer_commands.py",
    "test_readers_during_publication.py",
    "test_full_disk.py",
    "test_index_fuzz.py",
    "test_explorer_page.py",
)


# What `make check` runs: a look at every room in seconds.
QUICK = (
    "decoding/beam_search/test_exact.py",
    "decoding/grammar/test_grammar_constraint.py",
    "decoding/test_stopping.py",
    "e2e/test_house_pages.py",
    "index_builder/test_build_round_trip.py",
    "retrieval/filters/test_evaluate.py",
    "retrieval/ranking/test_fitting.py",
    "retrieval/test_retriever.py",
    "retrieval/test_types.py",
    "service/test_admission.py",
    "service/test_convert.py",
)

# What `make test` leaves out and `make test-all` runs after it: clusters, crashes, commands in processes of
# their own, random and exhaustive comparisons that take long, benchmarks.
THOROUGH = (
    "benchmarks/",
    "decoding/answering/",
    "decoding/beam_search/test_against_generate.py",
    "decoding/beam_search/test_static_walk.py",
    "decoding/conformance/",
    "decoding/disc/test_beam_proposer.py",
    "decoding/disc/test_disc_on_transformers.py",
    "decoding/disc/test_static_proposer.py",
    "decoding/grammar/test_leaf_tokens.py",
    "decoding/grammar/test_schema_random.py",
    "decoding/markup/",
    "decoding/test_chain_session.py",
    "decoding/test_collection.py",
    "decoding/test_kernels.py",
    "decoding/tree/",
    "e2e/test_answer_commands.py",
    "e2e/test_demo.py",
    "e2e/test_docs_site.py",
    "e2e/test_evaluate_command.py",
    "e2e/test_explorer_page.py",
    "e2e/test_grpc_commands.py",
    "e2e/test_large_requests.py",
    "e2e/test_nobody_is_stalled.py",
    "e2e/test_page_examples.py",
    "e2e/test_pretrained_models.py",
    "e2e/test_request_cancellation.py",
    "e2e/test_server_signals.py",
    "e2e/test_slow_schemas.py",
    "e2e/test_tune_command.py",
    "e2e/test_tutorials.py",
    "e2e/test_warm_cache.py",
    "faults/",
    "fuzz/",
    "index_builder/test_build_evidence.py",
    "index_builder/test_build_vectors.py",
    "index_builder/test_odd_titles.py",
    "index_builder/test_publish.py",
    "index_builder/test_runs.py",
    "retrieval/evaluation/methods/",
    "retrieval/linking/cluster/",
    "retrieval/linking/runs/",
    "retrieval/test_entity_probabilities.py",
    "retrieval/test_scored_once.py",
    "retrieval/training/test_training_lora.py",
    "retrieval/training/test_training_plan.py",
    "retrieval/vectors/test_vector_kinds.py",
    "service/adapters/",
    "service/ray_serve/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run say which files it wants; without a word, all that were named."""
    parser.addoption(
        "--tier", choices=("quick", "usual", "rest"), help="files of tests/conftest.py to collect"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of other tiers before they are imported."""
    tier = config.getoption("tier")
    if tier is None or collection_path.suffix != ".py":
        return None
    name = collection_path.relative_to(Path(__file__).parent).as_posix()
    wanted = name in QUICK if tier == "quick" else name.startswith(THOROUGH) == (tier == "rest")
    return None if wanted else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Spare the collector walks through a million objects that live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Leave slow tests out before they are made: schemathesis takes seconds to think of its cases."""
    without_slow = "not slow" in collector.config.getoption("markexpr")
    if without_slow and any(mark.name == "slow" for mark in _marks(obj)):
        return []
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


def _marks(obj: object) -> list[pytest.Mark]:
    found = vars(obj).get("pytestmark", []) if callable(obj) and hasattr(obj, "__dict__") else []
    return found if isinstance(found, list) else [found]
