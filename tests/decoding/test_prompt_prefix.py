"""Prompts behind a shared prefix answer as whole prompts do, and refer to it instead of copying it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from decoding.conformance.difference import exactly
from decoding.errors import PromptTooLongError
from decoding.model.hf_model import HFLanguageModel
from decoding.model.hf_session import TreeSession
from decoding.model.prefill import TreePrefix
from tests.fakes import TablePrefix
from tests.no_sync import no_sync
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, plain_logprobs, random_prompts

CAUSAL = [name for name, (_, options) in ARCHITECTURES.items() if "d_model" not in options]
ENCODER_DECODERS = [name for name in ARCHITECTURES if name not in CAUSAL]


def tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    return random_prompts(list(lengths), torch.Generator().manual_seed(seed))


def shared(model: HFLanguageModel, token_ids: list[int]) -> TreePrefix:
    prefix = model.share_prefix(token_ids)
    assert isinstance(prefix, TreePrefix)
    return prefix


def grow_and_compare(
    session: TreeSession, reference: PreTrainedModel, prompts: list[list[int]], steps: int, seed: int
) -> float:
    """Largest difference from plain passes over every branch alone, in log-probabilities."""
    rng = random.Random(seed)
    worst = 0.0
    for query, prompt in enumerate(prompts):
        expected = plain_logprobs(reference, prompt, [])
        worst = max(worst, float((session.root_logits[query].log_softmax(-1) - expected).abs().max()))
    paths: list[list[list[int]]] = [[[]] for _ in prompts]
    for _ in range(steps):
        parents = [[rng.randrange(len(above)) for _ in range(3)] for above in paths]
        written = [[rng.randrange(3, VOCAB) for _ in range(3)] for _ in paths]
        logits = session.step(torch.tensor(parents), torch.tensor(written))
        paths = [
            [[*paths[query][parent], token] for parent, token in zip(*row, strict=True)]
            for query, row in enumerate(zip(parents, written, strict=True))
        ]
        for query, branch in [(q, rng.randrange(3)) for q in range(len(prompts))]:
            expected = plain_logprobs(reference, prompts[query], paths[query][branch])
            difference = logits[query, branch].log_softmax(-1) - expected
            worst = max(worst, float(difference.abs().max()))
    return worst


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("length", [1, 4, 17])
def test_equal_to_plain_passes_over_whole_prompts(name: str, length: int) -> None:
    """Windows are 5 to 7 tokens: they end in the prefix, in the prompts, and in the tree."""
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(length)
        prompts = [beginning + rest for rest in tokens(9, 1, 4, 4, seed=1)]
        session = model.prefill(prompts, shared(model, beginning))
        reference = build(name, torch.float64)
        part = session.select([3, 1])
        assert grow_and_compare(session, reference, prompts, 6, seed=length) < 1e-9
        assert grow_and_compare(part, reference, [prompts[3], prompts[1]], 3, seed=length) < 1e-9


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma2"])
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (3, 3), (7,), (20, 20)])
def test_prompts_of_one_length(name: str, lengths: tuple[int, ...]) -> None:
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(8)
        prompts = [beginning + rest for rest in tokens(*lengths, seed=2)]
        session = model.prefill(prompts, shared(model, beginning))
        assert grow_and_compare(session, build(name, torch.float64), prompts, 3, seed=0) < 1e-9


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral-window", "t5", "umt5"])
@pytest.mark.parametrize("rows_at_once", [1, 3])
def test_prompts_whose_scores_are_materialised_in_pieces(
    name: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoding.model.prefill.ROWS_AT_ONCE", rows_at_once)
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(8)
        prompts = [beginning + rest for rest in tokens(18, 7, seed=2)]
        reference = build(name, torch.float64)
        for prefix in (None, model.share_prefix(beginning)):
            session = model.prefill(prompts, prefix)
            assert grow_and_compare(session, reference, prompts, 2, seed=0) < 1e-9


def test_float32_and_bfloat16() -> None:
    (beginning,) = tokens(12)
    prompts = [beginning + rest for rest in tokens(5, 2, seed=3)]
    frontier = torch.tensor([[0, 0], [0, 0]]), torch.tensor([[4, 5], [6, 7]])
    answers = []
    for dtype, prefixed in [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]:
        model = HFLanguageModel(build("llama-gqa", dtype))
        session = model.prefill(prompts, shared(model, beginning) if prefixed else None)
        answers.append(session.step(*frontier).log_softmax(-1))
    torch.testing.assert_close(answers[1], answers[0], atol=1e-4, rtol=0)
    assert answers[2].dtype == torch.float32
    assert float((answers[2] - answers[0]).norm() / answers[0].norm()) < 0.1


def test_another_beginning_gives_other_answers() -> None:
    """The comparison above is no comparison if the prefix does not matter."""
    model = HFLanguageModel(build("llama-gqa"))
    first, second = tokens(6, 6)
    logits = [model.prefill([[*b, 5, 6]], shared(model, b)).root_logits for b in (first, second)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.1


def test_a_prefix_serves_many_sessions_and_is_copied_by_none() -> None:
    model = HFLanguageModel(build("llama-gqa"))
    (beginning,) = tokens(10)
    prefix = shared(model, beginning)
    kept = [part.clone() for segment in prefix.segments for part in segment]
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    sessions = [model.prefill([[*beginning, 5, 6], [*beginning, 7]], prefix) for _ in range(2)]
    for session in (*sessions, sessions[0].select([1, 0])):
        session.step(zeros, zeros + 4)
        assert session._cache.prefix is prefix.segments
    now = [part for segment in prefix.segments for part in segment]
    assert all(torch.equal(*pair) for pair in zip(kept, now, strict=True))


class _LargestResult(TorchDispatchMode):
    """Most elements of any one tensor that is made or copied."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows"])
def test_nothing_is_as_large_as_the_prefix_once_per_query(name: str) -> None:
    """Sixteen queries behind 60 tokens: keys of one prefix in all heads are 60 * 32 numbers."""
    model = HFLanguageModel(build(name))
    (beginning,) = tokens(60)
    prefix = shared(model, beginning)
    prompts = [[*beginning, 5 + query % 20, 6][: 61 + query % 2] for query in range(16)]
    zeros = torch.zeros(16, 2, dtype=torch.int64)
    session = model.prefill(prompts, prefix)
    weights = max(parameter.numel() for parameter in build(name).parameters())
    scores = 16 * 4 * 2 * (60 + 2 + 2)  # of all branches in all heads
    with torch.no_grad(), _LargestResult() as prefill:
        model.prefill(prompts, prefix)
    with torch.no_grad(), _LargestResult() as step:
        session.step(zeros, zeros + 4)
    assert prefill.elements <= max(weights, 62 * 32)
    assert step.elements <= max(weights, scores, 16 * 2 * VOCAB)
    assert max(weights, scores, 62 * 32, 16 * 2 * VOCAB) < 16 * 60 * 16


def test_the_prefix_is_not_run_again() -> None:
    inner = build("llama-gqa")
    model = HFLanguageModel(inner)
    (beginning,) = tokens(20)
    prefix = shared(model, beginning)
    read: list[tuple[int, ...]] = []
    inner.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    model.prefill([[*beginning, 5, 6], [*beginning, 7]], prefix)
    assert read == [(2, 2)]


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma3"])
def test_a_step_behind_a_prefix_never_waits(name: str) -> None:
    model = HFLanguageModel(build(name), pack_frontiers=False)
    session = model.prefill([[5, 6, 7, 8], [5, 6, 7, 9, 9, 9]], shared(model, [5, 6, 7]))
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    with no_sync():
        for _ in range(7):
            session.step(zeros, zeros + 4)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_share_no_prefix(name: str) -> None:
    model = HFLanguageModel(build(name))
    assert model.share_prefix([5, 6]) is None
    with pytest.raises(ValueError, match="is an encoder-decoder, which shares no prefix"):
        model.prefill([[5, 6, 7]], TablePrefix((5, 6)))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[5, 6, 7, 8], [5, 6, 9, 8]], r"prompt 1 does not begin with the prefix: token 2 is 9, .* has 7"),
        ([[5, 8]], "prompt 0 does not begin with the prefix: token 1 is 8, the prefix has 6"),
        ([[5, 6, 7]], "prompt 0 has 3 tokens, it must go on after the prefix of 3 with at least one more"),
        ([[5, 6]], "prompt 0 has 2 tokens, it must go on"),
        ([[5, 6, 7, VOCAB]], "token ids must be in"),
        ([[]], "prompt 0 is empty"),
    ],
)
def test_prompts_that_do_not_go_on_behind_it(prompts: list[list[int]], message: str) -> None:
    model = HFLanguageModel(build("gpt2"))
    prefix = shared(model, [5, 6, 7])
    with pytest.raises(ValueError, match=message):
        model.prefill(prompts, prefix)


def test_a_prefix_of_another_model_is_refused() -> None:
    model = HFLanguageModel(build("gpt2"))
    for other in ("gpt2", "llama-gqa"):
        owner = HFLanguageModel(build(other))
        made_by = "gpt2" if other == "gpt2" else "llama"
        with pytest.raises(ValueError, match=rf"another model \(model type '{made_by}'\).*'gpt2'"):
            model.prefill([[5, 6, 7]], shared(owner, [5, 6]))
    with pytest.raises(ValueError, match=r"share_prefix \(model type 'gpt2'\), got a TablePrefix"):
        model.prefill([[5, 6, 7]], TablePrefix((5, 6)))


def test_a_prefix_of_before_the_model_was_moved_is_refused() -> None:
    inner = build("gpt2")
    model = HFLanguageModel(inner)
    prefix = shared(model, [5, 6])
    inner.to(torch.float64)
    with pytest.raises(ValueError, match=r"computed in torch.float32 on cpu, .* torch.float64 on cpu"):
        model.prefill([[5, 6, 7]], prefix)


def test_a_prefix_does_not_keep_its_model_alive() -> None:
    import gc

    prefix = shared(HFLanguageModel(build("gpt2")), [5, 6])
    gc.collect()
    assert prefix._model() is None
    assert (prefix.token_ids, prefix.kv_bytes) == ((5, 6), 2 * 3 * 2 * 32 * 4)


def test_limits() -> None:
    inner = build("gpt2")
    model = HFLanguageModel(inner)
    limit = model.max_prompt_tokens
    assert limit is not None
    with pytest.raises(PromptTooLongError, match=f"{limit} tokens leaves no room.* at most {limit}"):
        model.share_prefix([5] * limit)
    prefix = shared(model, [5] * (limit - 1))
    session = model.prefill([[5] * (limit - 1) + [6]], prefix)
    with pytest.raises(PromptTooLongError, match=f"position {limit + 1} of {limit}: the prompt has {limit}"):
        session.step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(PromptTooLongError, match=f"has {limit + 1} tokens"):
        model.prefill([[5] * limit + [6]], prefix)
    for token_ids, message in [
        ([], "the prefix is empty"),
        ([VOCAB], rf"\[0, {VOCAB}\), the prefix has {VOCAB}"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.share_prefix(token_ids)
    inner.train()
    with pytest.raises(RuntimeError, match="training mode"):
        model.share_prefix([5])
