"""Summaries of builds and plans, as text for people."""

from __future__ import annotations

from collections.abc import Mapping

from index_builder.build import BuildSummary
from index_builder.plan import BuildPlan
from retrieval.index.evidence_summary import evidence_facts, evidence_lines
from retrieval.index.histogram import length_lines
from retrieval.normalize import NormalizationReport

_MIB = 1 << 20
_BAR_WIDTH = 40


def describe_build(summary: BuildSummary) -> str:
    """Return what was built."""
    counts, manifest = summary.manifest.counts, summary.manifest
    lines = [
        f"{summary.index}: version {summary.version}",
        f"  {counts.entities:,} entities, {counts.rows:,} rows of up to {counts.depth} tokens, "
        f"{counts.nodes:,} trie nodes",
        f"  {manifest.num_bytes:,} bytes, {manifest.num_bytes / counts.rows:.1f} per row",
    ]
    duplicates = manifest.history[-1].duplicates
    if duplicates:
        lines.append(f"  {duplicates:,} repeated rows counted once")
    if manifest.metadata:
        lines.append("  metadata: " + _types({c.name: c.type for c in manifest.metadata}))
    if manifest.weight_column is not None:
        lines.append(f"  weights: {manifest.weight_column}")
    lines += _normalization(summary.normalization)
    lines += [f"  {line}" for line in evidence_lines(evidence_facts(manifest))]
    if summary.resumed_records:
        lines.append(f"  {summary.resumed_records:,} records were taken over from an earlier run")
    seconds = sum(summary.seconds.values())
    lines.append(f"  {seconds:.1f} s, peak memory {summary.peak_rss_bytes / _MIB:,.0f} MiB")
    return "\n".join(lines)


def describe_plan(plan: BuildPlan) -> str:
    """Return what a build would make."""
    lines = [
        f"dry run: {plan.records:,} records, of which {plan.entities:,} are entities; {plan.rows:,} rows",
        f"  {plan.duplicates:,} repeated rows counted once",
        f"  {sum(plan.rejected.values()):,} bad rows" + _reasons(plan.rejected),
    ]
    if plan.longest is not None:
        longest = plan.longest
        lines.append(
            f"  longest over-long title: {longest.tokens:,} tokens, {plan.files[longest.file]} line "
            f"{longest.line}: {longest.text[:60]!r}"
        )
    if plan.columns:
        lines.append("  metadata: " + _types({c.name: c.type for c in plan.columns}))
    if plan.weight_column is not None:
        lines.append(f"  weights: {plan.weight_column}")
    lines += _normalization(plan.normalization)
    lines += ["", "tokens per row, end token included:", *_histogram(plan.lengths), ""]
    exactness = (
        "as built" if plan.sample_share == 1 else f"estimated from {plan.sample_share:.1%} of the rows"
    )
    lines.append(f"bytes, {exactness}:")
    lines += [f"  {name:<10} {size:>15,}" for name, size in plan.bytes.items()]
    lines.append(f"  {'all':<10} {plan.num_bytes:>15,}, {plan.num_bytes / max(plan.rows, 1):.1f} per row")
    further = [part for part in (plan.evidence, plan.vectors) if part is not None]
    lines += [f"  and {part.describe()}" for part in further]
    bad_rows = sum(plan.rejected.values())
    if bad_rows > plan.allowed:
        lines.append(f"a build would fail: {bad_rows:,} bad rows, allowed: {plan.allowed:,}")
    beside = "" if plan.vectors is None else ", vectors not counted"
    lines.append(
        f"estimated build time: {plan.build_seconds:.0f} s{beside}; this dry run took {plan.seconds:.0f} s"
    )
    return "\n".join(lines)


def _types(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in types.items())


def _reasons(rejected: Mapping[str, int]) -> str:
    return ": " + ", ".join(f"{count:,} × {reason}" for reason, count in rejected.items()) if rejected else ""


def _normalization(report: NormalizationReport) -> list[str]:
    counted = {
        "put into NFC": report.composed,
        "with white space corrected": report.respaced,
        "with HTML entities kept": report.html_entities,
        "with HTML entities resolved": report.unescaped,
    }
    said = [f"{count:,} {what}" for what, count in counted.items() if count]
    return [f"  titles: {', '.join(said)}"] if said else []


def _histogram(lengths: Mapping[int, int]) -> list[str]:
    return length_lines(lengths, "#", _BAR_WIDTH) if lengths else []
