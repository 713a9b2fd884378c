"""Names of methods: what the grammar takes and refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.evaluation.methods.spec import DEFAULT_METHODS, MethodSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unconstrained", MethodSpec("unconstrained", "unconstrained")),
        ("unconstrained:5", MethodSpec("unconstrained:5", "unconstrained", beams=5)),
        ("trie", MethodSpec("trie", "trie")),
        ("disc:3", MethodSpec("disc:3", "disc", draws=3)),
        ("disc:4/16", MethodSpec("disc:4/16", "disc", draws=4, samples=16)),
        ("disc:2x3", MethodSpec("disc:2x3", "disc", draws=2, beams=3)),
        (
            "disc:2x3/8+top:50",
            MethodSpec("disc:2x3/8+top:50", "disc", beams=3, draws=2, samples=8, top_m=50),
        ),
        ("disc:4+adaptive", MethodSpec("disc:4+adaptive", "disc", draws=4, adaptive=True)),
        ("beam", MethodSpec("beam", "beam")),
        ("beam:20", MethodSpec("beam:20", "beam", beams=20)),
        ("exact", MethodSpec("exact", "exact")),
        ("shortlist", MethodSpec("shortlist", "shortlist", size=50)),
        ("shortlist:7", MethodSpec("shortlist:7", "shortlist", size=7)),
        ("bm25", MethodSpec("bm25", "bm25")),
        ("run:a:b.run", MethodSpec("run:a:b.run", "run", file="a:b.run")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_name_means(text: str, expected: MethodSpec) -> None:
    assert MethodSpec.parse(text) == expected


def test_default_methods_are_methods() -> None:
    assert [MethodSpec.parse(name).name for name in DEFAULT_METHODS] == list(DEFAULT_METHODS)


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
        ("shortlist:0", r"N must be in \[1, 10,000\], got 0"),
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


@given(st.text(max_size=20))
def test_any_text_is_a_method_or_refused(text: str) -> None:
    try:
        spec = MethodSpec.parse(text)
    except InputError:
        return
    assert spec.name == text
