"""The names of methods: what each of them stands for, read from the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from decoding.params import MAX_BEAM_SIZE, MAX_DISC_BEAM_SIZE, MAX_DRAWS, MAX_SAMPLES
from retrieval.errors import InputError
from retrieval.request_checks import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE, MAX_VECTOR_WEIGHT

DEFAULT_METHODS = (
    "unconstrained",
    "trie",
    "disc:1",
    "disc:2",
    "disc:3",
    "disc:4",
    "beam:10",
    "bm25-shortlist",
    "bm25",
)
# Those that are added where an index has evidence, and where that has vectors.
DEFAULT_EVIDENCE_METHODS = ("evidence", "shortlist", "auto")
DEFAULT_VECTOR_METHODS = ("vectors",)
DEFAULT_BM25_SHORTLIST = 50
MAX_BM25_SHORTLIST = 10_000
METHOD_FORMS = (
    "unconstrained[:BEAMS]",
    "trie",
    "disc:K[xBEAMS][/SAMPLES][+adaptive][+top:M]",
    "beam[:BEAMS]",
    "exact",
    "evidence[:N]",
    "vectors[:N]",
    "shortlist[:N][+weight:W]",
    "auto[:N][+weight:W][+disc]",
    "bm25-shortlist[:N]",
    "bm25",
    "run:FILE",
)

_DISC = re.compile(r"disc:(\d+)(?:x(\d+))?(?:/(\d+))?((?:\+(?:adaptive|top:\d+))*)")
_BEAMS = re.compile(r"(unconstrained|beam)(?::(\d+))?")
_LISTED = re.compile(
    r"(evidence|vectors|shortlist|auto|bm25-shortlist)(?::(\d+))?((?:\+(?:disc|weight:\d+(?:\.\d+)?))*)"
)
# Which of them take which settings behind their number.
_SWITCHES = {"shortlist": ("weight",), "auto": ("weight", "disc")}


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method with its settings.

    Attributes:
        name: As it was given.
        family: "unconstrained", "trie", "disc", "beam", "exact", "evidence", "vectors", "shortlist", "auto",
            "bm25-shortlist", "bm25" or "run".
        beams: Beams of `unconstrained` (0: one sample instead) and `beam` (None: the larger of k and 10);
            prefixes per draw of `disc`.
        draws: `disc`: K.
        samples: `disc`: N.
        adaptive: `disc`: see `RetrieveRequest`.
        top_m: `disc`: likewise.
        size: `evidence`, `vectors`, `shortlist`, `auto`, `bm25-shortlist`: entities proposed; 0 with other
            methods, and with `auto` where the name has none: the library's.
        weight: `shortlist`, `auto`: weight of the similarity beside the log-probability; None: none, and with
            `auto` the order is the ranking's.
        decoder: `auto`: "disc"; None: the library's, which is beam search.
        file: `run`: its path.
    """

    name: str
    family: str
    beams: int | None = None
    draws: int = 1
    samples: int = 1
    adaptive: bool = False
    top_m: int | None = None
    size: int = 0
    weight: float | None = None
    decoder: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read a method as the command line spells it.

        Raises:
            InputError: there is no such method, or a number is out of range; its field is "method".
        """
        if text in ("trie", "exact", "bm25"):
            return cls(text, text)
        if text.startswith("run:") and text != "run:":
            return cls(text, "run", file=text.removeprefix("run:"))
        if match := _DISC.fullmatch(text):
            return cls._disc(text, match)
        if match := _BEAMS.fullmatch(text):
            family, digits = match.groups()
            beams = None if digits is None else _number(text, "BEAMS", digits, MAX_BEAM_SIZE)
            return cls(text, family, beams=beams)
        if match := _LISTED.fullmatch(text):
            return cls._listed(text, match)
        raise InputError("method", f"expected one of {', '.join(METHOD_FORMS)}; got {text!r}")

    @classmethod
    def _disc(cls, text: str, match: re.Match[str]) -> MethodSpec:
        draws, beams, samples, switches = match.groups()
        words = switches.split("+")[1:]
        adaptive = "adaptive" in words
        tops = [word.removeprefix("top:") for word in words if word.startswith("top:")]
        if len(words) != len({word.split(":")[0] for word in words}):
            raise InputError("method", f"{text!r} says the same twice")
        prefixes = None if beams is None else _number(text, "BEAMS", beams, MAX_DISC_BEAM_SIZE)
        if adaptive and (tops or (prefixes or 1) > 1):
            raise InputError("method", f"{text!r}: adaptive excludes top and a number of BEAMS above 1")
        return cls(
            text,
            "disc",
            beams=prefixes,
            draws=_number(text, "K", draws, MAX_DRAWS),
            samples=1 if samples is None else _number(text, "SAMPLES", samples, MAX_SAMPLES),
            adaptive=adaptive,
            top_m=_number(text, "M", tops[0], 2**31 - 1) if tops else None,
        )

    @classmethod
    def _listed(cls, text: str, match: re.Match[str]) -> MethodSpec:
        family, digits, switches = match.groups()
        words = switches.split("+")[1:]
        names = [word.split(":")[0] for word in words]
        for name in names:
            if name not in _SWITCHES.get(family, ()):
                raise InputError("method", f"{text!r}: {family} takes no {name}")
        if len(names) != len(set(names)):
            raise InputError("method", f"{text!r} says the same twice")
        default, most = 0 if family == "auto" else DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE
        if family == "bm25-shortlist":
            default, most = DEFAULT_BM25_SHORTLIST, MAX_BM25_SHORTLIST
        weights = [float(word.removeprefix("weight:")) for word in words if word.startswith("weight:")]
        if weights and weights[0] > MAX_VECTOR_WEIGHT:
            raise InputError(
                "method", f"{text!r}: W must be in [0, {MAX_VECTOR_WEIGHT:,g}], got {weights[0]:g}"
            )
        return cls(
            text,
            family,
            size=default if digits is None else _number(text, "N", digits, most),
            weight=weights[0] if weights else None,
            decoder="disc" if "disc" in names else None,
        )


def _number(text: str, name: str, digits: str, most: int) -> int:
    value = int(digits)
    if not 1 <= value <= most:
        raise InputError("method", f"{text!r}: {name} must be in [1, {most:,}], got {value}")
    return value
