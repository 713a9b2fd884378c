"""The options of `genret link` by group: which mentions are found, and how mentions are linked."""

from __future__ import annotations

import os
from pathlib import Path

import click

from retrieval.linking.finding.options import CASES, FindOptions
from retrieval.linking.flag_groups import Values, flag, flag_group
from retrieval.linking.options import CANDIDATE_SETS, MENTION_SOURCES, LinkOptions
from retrieval.options import PROMPT
from retrieval.request_checks import DECODERS, METHODS


def default_cache_dir() -> Path | None:
    """Return where tables of names are kept: `genret` in the user's folder for caches.

    None for a user without a home, as in some containers: the table is then kept in memory.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # by the XDG specification a relative path there is to be ignored
        return Path(given) / "genret"
    try:
        return Path("~/.cache/genret").expanduser()
    except RuntimeError:
        return None


def _find(values: Values) -> FindOptions:
    def limit(name: str) -> int | None:
        return values[name] or None

    return FindOptions(
        case=values["case"],
        min_chars=values["min_chars"],
        max_entities=limit("max_entities"),
        max_short_entities=limit("max_short_entities"),
        stop_words=values["stop_words"],
    )


mention_flags = flag_group(
    "find",
    "Mentions that are found (names of the index in the text; the likeliest of those that overlap)",
    [
        flag(
            "--case",
            type=click.Choice(CASES),
            default="smart",
            help="smart: where the letter case and the words of the text make a name likelier than other "
            "words; sensitive: as the index writes it; insensitive: in any letter case.",
        ),
        flag(
            "--min-chars", type=int, default=FindOptions().min_chars, help="Shorter names are not looked for."
        ),
        flag(
            "--max-entities",
            type=click.IntRange(min=0),
            default=FindOptions().max_entities,
            help="Names of more entities are not looked for; 0: all are.",
        ),
        flag(
            "--max-short-entities",
            type=click.IntRange(min=0),
            default=FindOptions().max_short_entities,
            help="The same for names of one word with at most 3 characters.",
        ),
        flag(
            "--stop-words",
            default="english",
            help="Names that are one such word alone are not looked for: english, none, or a file with one "
            "word per line.",
        ),
        flag(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where the index's table of names is kept: it is made once, and all workers share it.",
            show_default="genret in $XDG_CACHE_HOME, else in ~/.cache",
        ),
    ],
    lambda values: (_find(values), values["cache_dir"] or default_cache_dir()),
)
linking_flags = flag_group(
    "linking",
    "Linking",
    [
        flag(
            "--mentions",
            type=click.Choice(MENTION_SOURCES),
            default="auto",
            help="given: the documents mark them; found: names of the index; generated: the model writes the "
            "text again with links in it; auto: given where a document marks any, else found.",
        ),
        flag(
            "--candidates",
            type=click.Choice(CANDIDATE_SETS),
            default="auto",
            help="What a mention may be linked to: all entities, or those named so; auto: found mentions to "
            "those named so, given ones to all.",
        ),
        flag(
            "--method",
            type=click.Choice(METHODS),
            default="auto",
            help="beam: the k most probable titles; disc: samples and their shares; shortlist: entities that "
            "the index's evidence proposes, all of them scored; auto: what beam or disc finds and a "
            "shortlist, in the order of the index's ranking; without evidence just beam or disc.",
        ),
        flag(
            "--decoder",
            type=click.Choice(DECODERS),
            help="auto: what finds entities beside the evidence.",
            show_default="beam",
        ),
        flag(
            "--shortlist-size",
            type=int,
            help="shortlist, auto: entities that the evidence proposes, at most 2000.",
            show_default="shortlist: 100; auto: 24",
        ),
        flag(
            "--vector-weight",
            type=float,
            help="shortlist, auto: what a similarity of 1 adds to the log-probability, at most 1000; auto: "
            "in place of the ranking.",
            show_default="shortlist: 0; auto: the ranking makes the order",
        ),
        flag(
            "--title-weight",
            type=float,
            help="How much more a title counts than an alias where entities share a name, above 0.",
            show_default="the checkpoint's",
        ),
        flag(
            "-k",
            "--k",
            key="k",
            type=int,
            default=5,
            help="Candidates kept per mention, at most 1000.",
        ),
        flag(
            "--beam-size",
            type=int,
            help="beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
            show_default="beam: the larger of k and 10; disc: 1",
        ),
        flag("--seed", type=int, default=0, help="disc: the same seed gives the same answers."),
        flag(
            "--prompt",
            help=PROMPT["help"],
            show_default="the checkpoint's for mentions",
        ),
        flag(
            "--context-chars",
            type=int,
            help="Characters of text on either side of a mention that the model sees.",
            show_default="the template's",
        ),
        flag(
            "--min-logprob",
            type=float,
            help="Mentions whose best candidate has a lower log-probability are NIL.",
            show_default="no limit",
        ),
        flag(
            "--min-probability",
            type=float,
            help="The same for its probability to be the one meant, in [0, 1].",
            show_default="no limit",
        ),
        flag(
            "--min-mass",
            type=float,
            help="disc: NIL when the model's probability that its answer is in the catalogue is below this, "
            "in [0, 1].",
            show_default="no limit",
        ),
        flag(
            "--adaptive",
            is_flag=True,
            help="disc: what the first draws find invalid is left out of later ones; more are accepted.",
        ),
        flag(
            "--exact",
            is_flag=True,
            help="beam: go on until the list is proven, or --exact-budget is spent.",
        ),
        flag(
            "--exact-budget",
            type=int,
            help="beam: most tokens computed for that, at most 1000000.",
            show_default="1024",
        ),
        flag(
            "--length-penalty",
            type=float,
            default=0.0,
            help="beam: rank by log P / length ** this, in [-4, 4]; above 0 favours long titles.",
        ),
        flag(
            "--aggregate",
            type=click.Choice(["sum", "max"]),
            help="beam: an entity's score is the probability of all of its titles and aliases found, or the "
            "score of the best one.",
            show_default="sum; max with a --length-penalty",
        ),
        flag(
            "--filter",
            help="Link to entities for which this is true: kind = 'city' and population > 100000",
            show_default="all entities",
        ),
    ],
    dict,
)


def link_options(find: FindOptions, values: Values, drop_nil: bool) -> LinkOptions:
    """Return how mentions are linked, as the options of the command say.

    Raises:
        InputError: an option is out of range; it is named.
    """
    return LinkOptions(find=find, keep_nil=not drop_nil, **values)
