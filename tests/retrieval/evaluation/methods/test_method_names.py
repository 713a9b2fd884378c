"""Names of methods: what the grammar takes and refuses."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.retrieval.evaluation.methods.evaluated_method import (
    DEFAULT_EVIDENCE_METHODS,
    DEFAULT_METHODS,
    DEFAULT_VECTOR_METHODS,
    MethodSpec,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unconstrained", MethodSpec("unconstrained", "unconstrained")),
        ("unconstrained:5", MethodSpec("unconstrained:5", "unconstrained", beams=5)),
        ("trie", MethodSpec("trie", "trie")),
        ("disc:3", MethodSpec("disc:3", "disc", draws=3)),
        ("disc:4/16", MethodSpec("disc:4/16", "disc", draws=4, samples=16)),
        ("disc:2x3", MethodSpec("disc:2x3", "disc", draws=2, beams=3)),
        ("disc:2x3/8+top:50", MethodSpec("disc:2x3/8+top:50", "disc", beams=3, draws=2, samples=8, top_m=50)),
        ("disc:4+adaptive", MethodSpec("disc:4+adaptive", "disc", draws=4, adaptive=True)),
        ("beam", MethodSpec("beam", "beam")),
        ("beam:20", MethodSpec("beam:20", "beam", beams=20)),
        ("exact", MethodSpec("exact", "exact")),
        ("evidence", MethodSpec("evidence", "evidence", size=100)),
        ("evidence:7", MethodSpec("evidence:7", "evidence", size=7)),
        ("vectors", MethodSpec("vectors", "vectors", size=100)),
        ("vectors:7", MethodSpec("vectors:7", "vectors", size=7)),
        ("shortlist", MethodSpec("shortlist", "shortlist", size=100)),
        ("shortlist:2000+weight:0", MethodSpec("shortlist:2000+weight:0", "shortlist", size=2000, weight=0)),
        ("auto", MethodSpec("auto", "auto")),
        ("auto:100", MethodSpec("auto:100", "auto", size=100)),
        ("auto+disc", MethodSpec("auto+disc", "auto", decoder="disc")),
        (
            "auto:50+disc+weight:2.5",
            MethodSpec("auto:50+disc+weight:2.5", "auto", size=50, weight=2.5, decoder="disc"),
        ),
        ("bm25-shortlist", MethodSpec("bm25-shortlist", "bm25-shortlist", size=50)),
        ("bm25-shortlist:7", MethodSpec("bm25-shortlist:7", "bm25-shortlist", size=7)),
        ("bm25", MethodSpec("bm25", "bm25")),
        ("run:a:b.run", MethodSpec("run:a:b.run", "run", file="a:b.run")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_name_means(text: str, expected: MethodSpec) -> None:
    assert MethodSpec.parse(text) == expected


def test_default_methods_are_methods() -> None:
    names = [*DEFAULT_METHODS, *DEFAULT_EVIDENCE_METHODS, *DEFAULT_VECTOR_METHODS]
    assert [MethodSpec.parse(name).name for name in names] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one of unconstrained"),
        ("dics:2", "got 'dics:2'"),
        ("disc", "expected one of"),
        ("disc:", "expected one of"),
        ("disc:2+fast", "expected one of"),
        ("trie:3", "expected one of"),
        ("run:", "expected one of"),
        ("disc:0", r"K must be in \[1, 256\], got 0"),
        ("disc:2/257", r"SAMPLES must be in \[1, 256\], got 257"),
        ("disc:2x65", r"BEAMS must be in \[1, 64\], got 65"),
        ("beam:1001", r"BEAMS must be in \[1, 1,000\], got 1001"),
        ("bm25-shortlist:0", r"N must be in \[1, 10,000\], got 0"),
        ("bm25-shortlist+weight:1", "bm25-shortlist takes no weight"),
        ("evidence:0", r"N must be in \[1, 2,000\], got 0"),
        ("evidence+weight:1", "evidence takes no weight"),
        ("vectors:0", r"N must be in \[1, 2,000\], got 0"),
        ("vectors+weight:1", "vectors takes no weight"),
        ("shortlist:2001", r"N must be in \[1, 2,000\], got 2001"),
        ("shortlist+disc", "shortlist takes no disc"),
        ("shortlist+weight:-1", "expected one of"),
        ("shortlist+weight:", "expected one of"),
        ("shortlist+weight:1000.5", r"W must be in \[0, 1,000\], got 1000.5"),
        ("auto+weight:1+weight:2", "says the same twice"),
        ("auto+disc+disc", "says the same twice"),
        ("auto+beam", "expected one of"),
        ("disc:2+top:0", "M must be in"),
        ("disc:2+adaptive+adaptive", "says the same twice"),
        ("disc:2+top:5+top:6", "says the same twice"),
        ("disc:2x2+adaptive", "adaptive excludes"),
        ("disc:2+adaptive+top:5", "adaptive excludes"),
    ],
)
def test_refusals_name_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        MethodSpec.parse(text)
    assert refused.value.field == "method"


@given(
    draws=st.integers(1, 256),
    beams=st.none() | st.integers(1, 64),
    samples=st.none() | st.integers(1, 256),
    top=st.none() | st.integers(1, 10_000),
)
def test_every_setting_of_disc_is_read_back(
    draws: int, beams: int | None, samples: int | None, top: int | None
) -> None:
    text = f"disc:{draws}"
    text += "" if beams is None else f"x{beams}"
    text += "" if samples is None else f"/{samples}"
    text += "" if top is None else f"+top:{top}"
    spec = MethodSpec.parse(text)
    assert (spec.draws, spec.beams, spec.samples, spec.top_m) == (draws, beams, samples or 1, top)


@given(
    family=st.sampled_from(["shortlist", "auto"]),
    size=st.none() | st.integers(1, 2000),
    weight=st.none() | st.decimals(0, 1000, places=3),
)
def test_every_setting_of_a_shortlist_is_read_back(
    family: str, size: int | None, weight: Decimal | None
) -> None:
    text = family
    text += "" if size is None else f":{size}"
    text += "" if weight is None else f"+weight:{weight}"
    spec = MethodSpec.parse(text)
    assert (spec.family, spec.size) == (family, size or {"shortlist": 100, "auto": 0}[family])
    assert spec.weight == (None if weight is None else float(weight))


@given(st.text(max_size=20))
def test_any_text_is_a_method_or_refused(text: str) -> None:
    try:
        spec = MethodSpec.parse(text)
    except InputError:
        return
    assert spec.name == text
