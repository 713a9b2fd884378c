"""Options of finding: which stretches of a text are mentions, and the words that are none on their own."""

from __future__ import annotations

from dataclasses import dataclass

from genret.retrieval.arguments import check_least, check_words, small_lines
from genret.retrieval.errors import InputError
from genret.retrieval.linking.finding.folding import fold_name

STOP_WORD_LISTS = ("english", "none")  # any other name is that of a file
CASES = ("smart", "sensitive", "insensitive")
_MOST_BYTES = 16 << 20

# Words that carry grammar rather than content, and what is left of them before or behind an apostrophe.
# "us" is not among them: its letter case tells the pronoun from the name that a catalogue writes "US".
_ENGLISH = """
a about above across after afterwards again against ain albeit all almost along already also although always
am amid among amongst an and another any anybody anyhow anyone anything anyway anywhere apart are aren
around as aside at away back be became because become becomes been before beforehand behind being below
beneath beside besides between beyond both but by came can cannot come comes could couldn despite did didn
do does doesn doing don done down due during each either else elsewhere enough especially etc even ever
every everybody everyone everything everywhere except far few fewer for former formerly from further
furthermore gave get gets getting give given gives go goes going gone got had hadn has hasn have haven
having he hence her here hereby herein hers herself him himself his how however i if in indeed instead into
is isn it its itself just keep kept last least less lest let like likely ll made mainly make makes making
many may maybe me meanwhile might mightn mine more moreover most mostly much must mustn my myself namely
near nearly needn neither never nevertheless next no nobody none nonetheless nor not nothing now nowhere of
off often oh ok on once one ones only onto or other others otherwise ought our ours ourselves out over own
per perhaps please put quite rather re really said same saw say says see seem seemed seems seen several
shall shan she should shouldn since so some somebody somehow someone something sometimes somewhat somewhere
soon still such take taken takes than that the their theirs them themselves then thence there thereafter
thereby therefore therein thereupon these they thing things this those though through throughout thus to
together too took toward towards two under unless unlike until up upon used using usually ve very via was
wasn we well went were weren what whatever when whence whenever where whereas whereby wherein wherever
whether which whichever while who whoever whole whom whose why will with within without won would wouldn yes
yet you your yours yourself yourselves b c d e f g h j k l m n o p q r s t u v w x y z
"""
ENGLISH_STOP_WORDS = frozenset(_ENGLISH.split())


@dataclass(frozen=True, slots=True)
class FindOptions:
    """How names are found in text. A field that is out of range is an `InputError`, which names it."""

    # "sensitive": as the index writes it; "insensitive": in any letter case; "smart": where the letter case
    # and the words of the mention make the name more likely than other words.
    case: str = "smart"
    min_chars: int = 2  # least number of characters of a name
    max_entities: int | None = 100  # most entities of a name; None: any number
    max_short_entities: int | None = 10  # the same for names of one word with at most 3 characters
    # Names that are one such word alone are not looked for, in any letter case; "english": a built-in list;
    # "none"; or a path to a file with one word per line.
    stop_words: str = "english"

    def __post_init__(self) -> None:
        check_words(self, case=CASES)
        check_least(self, min_chars=1, max_entities=1, max_short_entities=1)
        if not isinstance(self.stop_words, str) or not self.stop_words or "\0" in self.stop_words:
            expected = "must be 'english', 'none' or the path of a file"
            raise InputError("stop_words", f"{expected}, got {self.stop_words!r}")


def load_stop_words(name: str) -> frozenset[str]:
    """Return folded stop words: "english", "none", or those of a UTF-8 file with one word per line.

    A file that cannot be read, is too large, or is not UTF-8 is a SourceError that names the line.
    """
    if name == "none":
        return frozenset()
    if name == "english":
        return ENGLISH_STOP_WORDS
    lines = small_lines(name, f"stop words: {name}", _MOST_BYTES)
    return frozenset(filter(None, map(fold_name, lines)))
