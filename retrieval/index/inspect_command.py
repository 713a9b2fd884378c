"""`genret inspect` and `genret verify`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from genret.retrieval.command_options import described_option
from genret.retrieval.errors import IndexDirectoryError, InputError, MissingExtraError
from genret.retrieval.index.entities import weight_facts, weight_line
from genret.retrieval.index.layout import (
    CURRENT_FILE,
    EVIDENCE_FILES,
    PRIOR_FILE,
    RANKING_FILE,
    VECTOR_FILES,
    VECTORS_FILE,
    VERSIONS_DIR,
)
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.plots import draw
from genret.retrieval.index.reader import Index, read_manifest
from genret.retrieval.index.summary import (
    evidence_facts,
    evidence_lines,
    length_lines,
    prior_facts,
    prior_lines,
    ranking_facts,
    ranking_lines,
    unusable_vectors,
)
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import list_versions, way_back

_BAR_WIDTH = 30
_SAMPLES = 5


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@described_option("--json as_json", "As JSON.", is_flag=True)
@described_option("--samples", "Sample titles to show.", click.IntRange(min=0), _SAMPLES)
@described_option(
    "--plots",
    "Draw row lengths, fan-out per depth and padding; needs the extra `plots`.",
    click.Path(path_type=Path),
    show_default="nothing is drawn",
    metavar="DIR|FILE.png|FILE.svg",
)
def inspect_command(index: Path, as_json: bool, samples: int, plots: Path | None) -> None:
    """Show what an INDEX holds: counts, row lengths, bytes per row, tokenizer, versions, a few titles."""
    try:
        with Index.open(index, verify_digests=False) as opened:
            facts = _facts(index, opened, samples)
            if plots is not None:
                facts["plots"] = [str(file) for file in draw(opened, plots)]
    except InputError as error:
        raise click.UsageError(str(error)) from error
    except (IndexDirectoryError, MissingExtraError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(facts, ensure_ascii=False, indent=2) if as_json else _render(facts))


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
@described_option("--json as_json", "As JSON.", is_flag=True)
def verify_command(index: Path, as_json: bool) -> None:
    """Check an INDEX completely; exit with 1 and the names of damaged files if anything is wrong."""
    try:
        report = verify(index)
    except IndexDirectoryError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({**report.to_dict(), "ok": report.ok}, ensure_ascii=False))
    elif report.ok:
        for note in report.notes:
            click.echo(note, err=True)
        click.echo(
            f"{index}: sound. Version {report.version}: {report.num_files} files, "
            f"{report.num_bytes:,} bytes, {report.num_rows:,} rows, {report.num_entities:,} entities"
        )
    else:
        for problem in report.problems:
            click.echo(f"{report.path / problem.file}: {problem.message}", err=True)
        damaged = {problem.file for problem in report.problems}
        click.echo(f"{index}: DAMAGED ({len(report.problems)} problems); {_remedy(index, damaged)}", err=True)
    if not report.ok:
        sys.exit(1)


def _remedy(index: Path, damaged: set[str]) -> str:
    if damaged <= {RANKING_FILE}:
        return "a ranking is fitted with: genret tune INDEX"
    if damaged <= {PRIOR_FILE}:
        return "a prior is computed with: genret tune INDEX --model MODEL --prior"
    if damaged <= set(VECTOR_FILES):
        return "new vectors are made with: genret update INDEX --vectors METHOD"
    if damaged <= set(EVIDENCE_FILES):
        return "evidence is made anew with: genret update INDEX --evidence all"
    return f"rebuild it with genret build{way_back(index)}"


def _facts(path: Path, index: Index, samples: int) -> dict[str, Any]:
    manifest, rows, weight = index.manifest, index.num_rows, index.manifest.weight_column
    step = max(rows // max(samples, 1), 1)
    return {
        "path": str(path),
        "version": index.version,
        "versions": _versions(path, index),
        "counts": asdict(manifest.counts),
        "metadata": index.metadata_types,
        "weights": weight and weight_facts(weight, index.entities.stored_column(weight)),
        "tokenizer": asdict(manifest.tokenizer),
        "rendering": manifest.rendering.to_json(),
        "lengths": {bucket.length: bucket.rows for bucket in manifest.buckets},
        "bytes": manifest.num_bytes,
        "bytes_per_row": round(manifest.num_bytes / rows, 2),
        "files": {
            file.name: {"bytes": file.bytes, "bytes_per_row": round(file.bytes / rows, 2)}
            for file in manifest.files
        },
        "history": [asdict(entry) for entry in manifest.history],
        "built_with": dict(manifest.built_with),
        **_evidence(index),
        "ranking": ranking_facts(index),
        "prior": prior_facts(index),
        "samples": [
            {"surface": index.surface(rank), "tokens": list(index.row_token_ids(rank))}
            for rank in range(0, rows, step)[:samples]
        ],
    }


def _evidence(index: Index) -> dict[str, Any]:
    """Return the facts about evidence, with the faults of its files."""
    facts = evidence_facts(index.manifest)
    damaged = index.evidence_problems.items()
    problems = {name: str(problem).removeprefix(f"{name}: ") for name, problem in damaged}
    if (problem := unusable_vectors(index.manifest)) is not None:
        problems.setdefault(VECTORS_FILE, problem)
    return {**facts, "evidence_problems": problems}


def _versions(path: Path, index: Index) -> list[dict[str, Any]]:
    """Return a dictionary per version that is there, the most recently published first."""
    if not (path / CURRENT_FILE).exists():
        return [_version(index.version, index.manifest, live=True)]
    found = []
    for version in list_versions(path):
        live = version == index.version
        try:
            found.append(_version(version, read_manifest(path / VERSIONS_DIR / version)[0], live))
        except IndexDirectoryError as error:  # another one than the live: it need not be readable
            found.append({"version": version, "live": live, "error": str(error)})
    return found


def _version(version: str, manifest: Manifest, live: bool) -> dict[str, Any]:
    last = manifest.history[-1]
    return {
        "version": version,
        "live": live,
        "operation": last.operation,
        "parent": last.parent,
        "entities": manifest.counts.entities,
        "rows": manifest.counts.rows,
    }


def _version_line(version: dict[str, Any]) -> str:
    mark = "*" if version["live"] else " "
    if "error" in version:
        return f"  {mark} {version['version']}  {version['error']}"
    parent = f" of {version['parent']}" if version["parent"] else ""
    return f"  {mark} {version['version']}  {version['entities']:,} entities, {version['operation']}{parent}"


def _columns(types: dict[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "none"


def _history_lines(history: list[dict[str, Any]]) -> list[str]:
    """Describe the build or update that made the version; the earlier ones are counted."""
    last = history[-1]
    names = ", ".join(source["name"] for source in last["sources"]) or "no file"
    lines = [
        f"  {last['operation']:<10}  {names}: {last['records']:,} records, "
        f"{last['duplicates']:,} repeated, {last['rejected']:,} refused",
        f"              {last['added']:,} added, {last['changed']:,} changed, {last['removed']:,} removed",
    ]
    if last["parent"]:
        lines.append(f"              to version {last['parent']}; {len(history):,} steps in all")
    return lines


def _render(facts: dict[str, Any]) -> str:
    counts, tokenizer = facts["counts"], facts["tokenizer"]
    lines = [
        f"{facts['path']}",
        f"  version     {facts['version']} (of {len(facts['versions'])} kept)",
        f"  entities    {counts['entities']:,}; metadata: {_columns(facts['metadata'])}",
        *([] if facts["weights"] is None else [f"  weights     {weight_line(facts['weights'])}"]),
        f"  rows        {counts['rows']:,} titles and aliases of up to {counts['depth']} tokens; "
        f"{counts['postings']:,} postings",
        f"  trie        {counts['nodes']:,} nodes, at most {counts['max_children']:,} children",
        *_history_lines(facts["history"]),
        f"  tokenizer   {tokenizer['name']}, {tokenizer['vocab_size']:,} tokens, "
        f"end token {tokenizer['end_token_id']}",
        f"              {tokenizer['fingerprint']}",
        f"  rendering   {json.dumps(facts['rendering'], ensure_ascii=False)}",
        f"  bytes       {facts['bytes']:,}, {facts['bytes_per_row']:.1f} per row",
    ]
    lines += [f"  {line}" for line in evidence_lines(facts)]
    lines += [f"              {file}: UNUSABLE: {why}" for file, why in facts["evidence_problems"].items()]
    for name, told_by in (("ranking", ranking_lines), ("prior", prior_lines)):
        if facts[name] is not None:
            first, *further = told_by(facts[name])
            lines += [f"  {name:<12}{first}", *(f"              {line}" for line in further)]
    rows_bytes = sum(f["bytes"] for name, f in facts["files"].items() if name.startswith("rows/"))
    shares = {name: f["bytes"] for name, f in facts["files"].items() if not name.startswith("rows/")}
    for name, size in sorted({"rows/": rows_bytes, **shares}.items()):
        lines.append(f"    {name:<20}{size:>14,} {size / counts['rows']:>7.1f} per row")
    lines.append("  versions, the latest first; * is live")
    lines += ["  " + _version_line(version) for version in facts["versions"]]
    lines.append("  tokens per row")
    lines += length_lines(facts["lengths"], "█", _BAR_WIDTH)
    if facts["samples"]:
        lines.append("  for example")
        lines += [f"    {s['surface']}  {s['tokens']}" for s in facts["samples"]]
    lines += [f"  drawn       {file}" for file in facts.get("plots", ())]
    return "\n".join(lines)
