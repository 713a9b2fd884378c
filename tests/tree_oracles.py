"""Plays scripts on sessions and holds every branch to a plain forward pass over its path alone."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from genret.decoding.model.chains import TreeChains
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.sequence_model import SequenceChains, SequenceModel, SequenceSession
from tests.tree_scripts import BranchTruth, Collect, Grow, Operation, Row, Script, Select
from tests.verified_architectures import VOCAB, plain_logits


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a session said after one path. `logits` shape: (V,)."""

    prompt: Row
    path: Row
    logits: Tensor


class Play:
    """Plays a script on a model, one operation at a time.

    Args:
        script: What to do.
        module: The transformers model, whose attention is replaced, or a model of sequences.

    Attributes:
        sessions: Every session made so far.
        truths: What each of them has written.
        answers: What the sessions said after every branch that is no padding.
    """

    def __init__(self, script: Script, module: PreTrainedModel | SequenceModel) -> None:
        model = module
        if isinstance(module, PreTrainedModel):
            model = HFLanguageModel(module, collection=script.policy)
        prefix = model.share_prefix(script.prompts[0][: script.prefix]) if script.prefix else None
        assert (prefix is None) == (script.prefix == 0 or model.is_encoder_decoder)
        session = model.prefill(script.prompts, prefix)
        if script.keep_levels:
            session.keep_levels()
        self.sessions: list[TreeSession | SequenceSession] = [session]
        self.truths = [BranchTruth(script.prompts, script.keep_levels)]
        self.answers: list[Answer] = []
        self._note_roots(0)

    def act(self, operation: Operation) -> None:
        """Carry out one operation."""
        match operation:
            case Grow():
                self._grow(operation)
            case Collect():
                self.sessions[operation.session].collect()
            case Select():
                self._select(operation)

    def _grow(self, step: Grow) -> None:
        device = self.sessions[step.session].root_logits.device
        parents, tokens = (torch.tensor(rows, device=device) for rows in (step.parents, step.tokens))
        logits = self.sessions[step.session].step(parents, tokens, step.depth)
        assert logits.shape[:2] == parents.shape
        assert logits.isfinite().all()
        truth = self.truths[step.session]
        for query, row in enumerate(truth.grow(step)):
            for column, branch in enumerate(row):
                if (path := branch.path) is not None:
                    self.answers.append(Answer(truth.prompts[query], path, logits[query, column]))

    def _select(self, step: Select) -> None:
        other = self.sessions[step.session].select(step.queries, step.branches)
        if not step.branches and step.keep_levels:
            other.keep_levels()
        self.sessions.append(other)
        self.truths.append(self.truths[step.session].select(step))
        self._note_roots(len(self.sessions) - 1)

    def _note_roots(self, session: int) -> None:
        rows = zip(self.truths[session].prompts, self.sessions[session].root_logits, strict=True)
        self.answers += [Answer(prompt, (), logits) for prompt, logits in rows]


class PlainPasses:
    """Next-token log-probabilities after any path, by the model's own attention, without cache or padding.

    Every path runs once, together with the paths it continues; paths of one length after one prompt are
    the rows of one pass.

    Args:
        model: The same weights as the session's, its attention untouched.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._known: dict[tuple[Row, Row], Tensor] = {}

    def largest_error(self, answers: Iterable[Answer]) -> float:
        """Largest difference in any log-probability; `inf` where one is not a number."""
        answers = list(answers)
        got = torch.stack([answer.logits.log_softmax(-1) for answer in answers])
        wanted = self.logprobs([(answer.prompt, answer.path) for answer in answers])
        error = float((got - wanted).abs().max())
        return error if error == error else float("inf")

    def logprobs(self, places: Sequence[tuple[Row, Row]]) -> Tensor:
        """After pairs of prompt and path. Shape: (n, V)."""
        self._run(set(places))
        return torch.stack([self._known[place] for place in places])

    def _run(self, wanted: set[tuple[Row, Row]]) -> None:
        missing = sorted(wanted - self._known.keys(), key=lambda pair: -len(pair[1]))
        covered: set[tuple[Row, Row]] = set()
        alike: defaultdict[tuple[Row, int], list[Row]] = defaultdict(list)
        for prompt, path in missing:
            if (prompt, path) not in covered:
                alike[prompt, len(path)].append(path)
                covered |= {(prompt, path[:length]) for length in range(len(path) + 1)}
        for (prompt, length), paths in alike.items():
            for path, logprobs in zip(
                paths, plain_logits(self._model, prompt, paths).log_softmax(-1), strict=True
            ):
                for depth in range(length + 1):
                    self._known[prompt, path[:depth]] = logprobs[depth]


def play(script: Script, module: PreTrainedModel | SequenceModel) -> Play:
    """Play a whole script."""
    played = Play(script, module)
    for operation in script.operations:
        played.act(operation)
    return played


CHAINS_PREFIX = (7, 3, 11, 5)


@dataclass(slots=True)
class Drive:
    """A session of chains, what its queries have written, and what it answered."""

    session: TreeChains | SequenceChains
    prompts: list[tuple[int, ...]]
    texts: list[list[int]]
    answers: list[Answer] = field(default_factory=list)

    def extend(self, chunks: list[list[int]]) -> None:
        logits = self.session.extend(chunks)
        assert logits.shape[:2] == (len(chunks), max(map(len, chunks)))
        assert logits.isfinite().all()
        for query, chunk in enumerate(chunks):
            for place, token in enumerate(chunk):
                self.texts[query].append(token)
                self._note(query, logits[query, place])
        assert self.session.lengths == tuple(map(len, self.texts))

    def rewind(self, lengths: list[int]) -> None:
        self.session.rewind(lengths)
        for text, length in zip(self.texts, lengths, strict=True):
            del text[length:]
        assert self.session.lengths == tuple(lengths)

    def select(self, queries: list[int]) -> None:
        self.session = self.session.select(queries)
        self.prompts = [self.prompts[query] for query in queries]
        self.texts = [list(self.texts[query]) for query in queries]

    def _note(self, query: int, logits: Tensor) -> None:
        self.answers.append(Answer(self.prompts[query], tuple(self.texts[query]), logits))


def drive(model: HFLanguageModel | SequenceModel, seed: int, steps: int, share: bool) -> Drive:
    """Extend, take back and select chains at random."""
    rng = random.Random(seed)
    prompts = [
        (*(CHAINS_PREFIX if share else ()), *(rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))))
        for _ in range(rng.randint(2, 4))
    ]
    prefix = model.share_prefix(CHAINS_PREFIX) if share else None
    run = Drive(model.prefill_chains(prompts, prefix), prompts, [[] for _ in prompts])
    longest = 20
    for _ in range(steps):
        chunks = [
            [rng.randrange(3, VOCAB) for _ in range(min(rng.choice((0, 1, 1, 2, 5)), longest - len(text)))]
            for text in run.texts
        ]
        if any(chunks):
            run.extend(chunks)
        if rng.random() < 0.5:
            run.rewind([rng.randint(max(len(text) - 5, 0), len(text)) for text in run.texts])
        if rng.random() < 0.15 and len(run.texts) > 1:
            run.select(rng.sample(range(len(run.texts)), len(run.texts) - 1))
    return run


class WorkMeter(TorchDispatchMode):
    """Counts elements that operations write within the `with`, views left out.

    Attributes:
        elements: Number of elements of all results together.
        largest: Largest number of elements of one result.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        made = results if isinstance(results, (tuple, list)) else [results]
        sizes = [] if func.is_view else [part.numel() for part in made if isinstance(part, Tensor)]
        self.elements += sum(sizes)
        self.largest = max(self.largest, *sizes, 0)
        return results
