"""The documents of one shard of a corpus, read at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard
from genret.retrieval.linking.documents.corpus_reading import CorpusReader
from genret.retrieval.linking.documents.text_document import BadDocument, Document


def read_shard(options: CorpusOptions, shard: Shard) -> Iterator[Document | BadDocument]:
    with closing(CorpusReader(options)) as reader:
        yield from reader.read(shard)
