"""A tiny real index that changes while it is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, EvidenceOptions, VectorBuildOptions
from genret.index_builder.update import UpdateRequest, update_index
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer


@dataclass
class ChangingIndex:
    """An index directory, made if need be, and the ways in which an operator changes it.

    The id of a title is its own text. `kind` is the value of a column of that name, if any; `vectors` and
    `evidence` are those of the first version.
    """

    folder: Path
    checkpoint: Path
    titles: tuple[str, ...] = ("Hamlet", "Macbeth", "Paris", "Nile")
    kind: str | None = None
    vectors: VectorBuildOptions | None = None
    evidence: EvidenceOptions | None = field(default_factory=EvidenceOptions)
    versions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "changing"
        source = self._write("first.tsv", self.titles)
        rendering = CheckpointConfig.load(self.checkpoint).title_rendering()
        options = BuildOptions(
            out=self.path, rendering=rendering, vectors=self.vectors, evidence=self.evidence
        )
        built = build_index(source, TextTokenizer.load(self.checkpoint), options)
        self.versions.append(built.version)

    @property
    def live(self) -> Path:
        """The directory of the live version."""
        return self.path / "versions" / (self.path / "CURRENT").read_text().strip()

    def add(self, *titles: str) -> str:
        """Publish a version with further titles and return it."""
        source = self._write(f"more-{len(self.versions)}.tsv", titles)
        tokenizer = TextTokenizer.load(self.checkpoint)
        updated = update_index(UpdateRequest(add=(source,)), tokenizer, BuildOptions(out=self.path))
        self.versions.append(updated.version)
        return updated.version

    def damage(self, file: str) -> Path:
        """Change a byte in the middle of a file of the live version, which keeps its size."""
        path = self.live / file
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        return path

    def _write(self, name: str, titles: tuple[str, ...]) -> Path:
        source = self.folder / name
        header, kind = ("", "") if self.kind is None else ("\tkind", f"\t{self.kind}")
        lines = [f"title\tentity_id{header}", *(f"{title}\t{title}{kind}" for title in titles)]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return source
