"""A linker without a model, and whole runs with it in processes that can be killed.

Every word of a document is a mention; "Xword" fails, "?word" is NIL, and "DIE" kills its process.
Beside the output, `OUT.log` gets a line per shard begun: "BEGIN shard pid".
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.linking.link_answers import (
    LinkAnswer,
    LinkCandidate,
    PlacedMention,
    RowMaker,
    is_counted,
)
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus
from genret.retrieval.linking.run_progress import LinkCounts, LinkDisplay, LinkListener
from genret.retrieval.linking.shard_worker import ShardRecord, ShardWorker
from genret.retrieval.types import Mention

ROOT = Path(__file__).resolve().parents[1]
DELAY_VARIABLE = "TEST_LINKING_SECONDS_PER_DOCUMENT"
NIL_REASONS = ("no_match", "abstained", "min_logprob", "min_probability", "no_name", "error")
STAY_VARIABLE = "TEST_LINKING_STAYS"  # whoever comes to a document with the word STAY stays there
PATIENCE_S = 600.0  # on a busy machine
T = TypeVar("T")


class WordLinker:
    """Links every word to itself."""

    def __init__(self, index_digest: str) -> None:
        self._index_digest = index_digest
        self._delay = float(os.environ.get(DELAY_VARIABLE, "0"))
        self._stays = STAY_VARIABLE in os.environ

    def link(
        self, documents: Iterable[Document | BadDocument], listener: LinkListener
    ) -> Iterator[list[dict[str, Any]]]:
        maker = RowMaker(LinkOptions(), self._index_digest, listener)
        for document in documents:
            if is_counted(document, listener):
                time.sleep(600 if self._stays and "STAY" in document.text else self._delay)
                words = re.finditer(r"\S+", document.text)
                yield list(filter(None, (maker.make(*self._linked(document, word)) for word in words)))
                listener.report(listener.counts)

    def _linked(self, document: Document, match: re.Match[str]) -> tuple[PlacedMention, LinkAnswer]:
        word = match[0]
        if word == "DIE":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "REFUSE":
            raise InputError("filter", "does not fit the index")
        if word == "BREAK":
            raise ModelError("the model is broken")
        answer = LinkAnswer(None, word, (LinkCandidate(word, word, -1.0, -1.0, 0.5),))
        if word.startswith("X"):
            answer = LinkAnswer("error", error=f"{word} failed")
        elif word.startswith("?"):
            answer = LinkAnswer("no_match")
        return PlacedMention.of(document, Span(*match.span()), Mention(word), "found"), answer


class LoggingWorker(ShardWorker):
    """Keeps a log of the shards begun."""

    def __init__(self, job: LinkJob) -> None:
        super().__init__(job, WordLinker(job.index_digest))
        self._log = job.out + ".log"

    def run(self, shard: Shard, report: Callable[[LinkCounts], None] = lambda counts: None) -> ShardRecord:
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(f"BEGIN {shard.number} {os.getpid()}\n")  # one write: lines of processes stay whole
        return super().run(shard, report)


def begun(out: Path) -> list[tuple[int, int]]:
    """Return (shard, process) for every time that a shard was begun, in that order."""
    log = Path(f"{out}.log")
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [(int(shard), int(pid)) for _, shard, pid in map(str.split, lines)]


def wait_for(condition: Callable[[], T], process: subprocess.Popen[Any] | None = None) -> T:
    """Return what a condition says once it says something; `process`, where named, must not end before."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)
    return value


def rows_of(out: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a file, or of the parts in a folder."""
    out = Path(out)
    if out.is_dir():
        return [row for part in sorted(out.glob("part-*")) for row in rows_of(part)]
    if out.suffix == ".parquet":
        return list(pq.read_table(out).to_pylist())
    return [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]


def mentions_of(out: Path) -> list[tuple[str, str]]:
    """Return the document and the mention of every row."""
    return [(row["doc_id"], row["mention"]) for row in rows_of(out)]


def run_words(
    inputs: Path | tuple[Path, ...],
    out: Path,
    index: Path,
    workers: int = 1,
    shard_documents: int = 4,
    options: LinkOptions | None = None,
    display: LinkDisplay | None = None,
    **output: Any,
) -> Any:
    """Link the words of files or folders."""
    named = inputs if isinstance(inputs, tuple) else (inputs,)
    return link_corpus(
        CorpusOptions(tuple(map(str, named)), shard_documents=shard_documents),
        OutputOptions(str(out), **output),
        WorkerOptions(str(index)),
        options,
        RunnerOptions(num_workers=workers, open_worker=LoggingWorker),
        display,
    )


def run_command(inputs: Path, out: Path, index: Path, workers: int) -> list[str]:
    """Return a command that does the same in a process of its own, and prints READY before."""
    code = (
        "import sys; from pathlib import Path; from tests.linking_fakes import run_words;"
        "i, o, x, w = sys.argv[1:]; print('READY', flush=True);"
        "run_words(Path(i), Path(o), Path(x), int(w))"
    )
    return [sys.executable, "-c", code, str(inputs), str(out), str(index), str(workers)]
