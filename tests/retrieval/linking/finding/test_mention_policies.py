"""What counts as a mention: examples of every rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.finder import LONGEST_NAME_CHARS, LOOK_BACK_CHARS, MentionFinder
from genret.retrieval.linking.finding.folding import fold_name
from genret.retrieval.linking.finding.name_table import build_table
from tests.e2e.pages import blocks, examples, run, text_of
from tests.index_fixtures import build, character_tokenizer
from tests.retrieval.linking.finding.name_oracle import NameIndex

CITIES = [["New York City", "NYC", "Big Apple"], ["New York", "NY"], ["York"], ["Paris"]]
CITIES.append(["Paris", "Paris, Texas"])


def make_finder(names: list[list[str]], **options: Any) -> MentionFinder:
    index = NameIndex(names)
    return MentionFinder(build_table(index), index, FindOptions(**options))  # type: ignore[arg-type]


def found(names: list[list[str]], text: str, **options: Any) -> list[str]:
    return [text[span.start : span.end] for span in make_finder(names, **options).find(text)]


def test_a_name_is_likelier_than_those_inside_it() -> None:
    text = "From New York City to New York, York and back; Paris, Texas; Paris."
    assert found(CITIES, text) == ["New York City", "New York", "York", "Paris, Texas", "Paris"]


def test_names_may_begin_and_end_with_punctuation() -> None:
    assert found([[".NET"], ["C++"], ["Yahoo!"], ["¿Qué?"]], "C++, .NET (Yahoo!) ¿Qué? C++x") == [
        *("C++", ".NET", "Yahoo!", "¿Qué?", "C++")
    ]


def test_smart_case() -> None:
    names = [["Apple"], ["iPhone"], ["US"], ["apple pie"], ["3M"], ["covid19"], ["東京"]]
    text = "apple Apple APPLE iphone IPhone us US Apple Pie apple pie 3m covid19 COVID19 東京"
    assert found(names, text) == [
        *("Apple", "APPLE", "IPhone", "US", "Apple Pie", "apple pie", "covid19", "COVID19", "東京")
    ]


def test_the_pronoun_is_no_capital() -> None:
    names = [["And I"], ["I'm Alive"], ["World War I"], ["I"], ["I\u0307z"], ["type I"]]
    text = "and I And I i'm alive I'm alive World War I, world war I, I I\u0307z type I"
    assert found(names, text, stop_words="none", min_chars=1) == ["And I", "World War I", "I\u0307z"]
    assert found(names, text, stop_words="none", case="insensitive")[-1] == "type I"


RED_SEA = [["The Red"], ["Red Sea"], ["Sea"], ["The Canadian"], ["Canadian Pacific"], ["Pacific"], ["Red"]]


@pytest.mark.parametrize("case", ["smart", "sensitive"])
def test_an_article_before_a_name_is_not_its_beginning(case: str) -> None:
    text = "From the Red Sea to the Canadian Pacific, the sea is red."
    assert found(RED_SEA, text, case=case) == ["Red Sea", "Canadian Pacific"]


def test_an_article_begins_a_name_where_the_text_writes_it_so() -> None:
    names = [["The Alps"], ["Alps"], ["The Times"]]
    text = "Across the Alps, across The Alps, in the Times"
    assert found(names, text) == ["Alps", "The Alps", "the Times"]


def test_a_name_that_lost_its_capitals_needs_others() -> None:
    names = [["The Bank"], ["Mississippi River"], ["He Said"], ["In Hollywood"], ["Hollywood"]]
    text = "The bank of the Mississippi river is not in Hollywood. He said so."
    assert found(names, text) == ["Mississippi river", "Hollywood"]


def test_short_capitals_that_no_name_has_make_another_name() -> None:
    text = "The US is not us, NASA is not Nasa, and ASARCO may be Asarco."
    assert found([["Us"], ["Nasa"], ["Asarco"]], text) == ["NASA", "Nasa", "ASARCO", "Asarco"]
    assert found([["US"], ["NASA"]], text) == ["US", "NASA", "Nasa"]


def test_letter_case_says_nothing_where_there_is_but_one() -> None:
    names = [["Us"], ["Life on a Leaf"], ["Leaf"], ["New York"]]
    assert found(names, "LIFE ON A LEAF BY US\n\nIt is by US.") == ["LIFE ON A LEAF", "US"]
    text = "cheap flights new york, new york\n\nflights to new york from Rome"
    assert found(names, text) == ["new york"] * 2
    text = "all of this is in small letters, but for one. " * 20
    assert len(found(names, f"{text} new york")) == 1
    assert len(found(names, f"{text[:480]} new york")) == 1
    assert found(names, f"X {text[:480]} new york") == []


def test_names_of_common_words_are_found_in_lower_case_where_all_names_have_a_capital() -> None:
    of = [[f"{kind} {word}"] for kind in ("Folk", "House", "Pop", "Rock") for word in ("music", "damage")]
    of += [[f"Type of brain {word}"] for word in ("scan", "cell", "stem", "wave", "tumour")]
    names = [["Brain damage"], ["Damage"], ["Brain Salad"], *of]
    text = "Of brain damage, damage, brain salad and Brain damage."
    assert found(names, text) == ["brain damage", "Brain damage"]
    assert found([*names, ["eBay"]], text) == ["Brain damage"]  # capitals are for some names only


def test_a_word_beside_capitals_may_be_part_of_a_longer_name() -> None:
    hospitals = [[f"{place} Hospital"] for place in (f"Saint {i}" for i in range(200))]
    names = [["Hospital"], ["Dublin"], ["Dublin, Ohio"], *hospitals]
    text = "At the Hospital: a Royal Hospital Group, Dublin City Council, Mr Hospital"
    assert found(names, text) == ["Hospital", "Dublin", "Hospital"]


def test_numbers_are_names_where_the_catalogue_has_many() -> None:
    text = "In 1984, 1984 was read by 12."
    assert found([["1984"], ["Paris"]], text) == ["1984", "1984"]
    others = [[f"City {chr(65 + i)}"] for i in range(24)]
    for case in ("smart", "sensitive", "insensitive"):
        assert found([["1984"], *others], text, case=case) == []
        assert found([["1984 (film)", "1984 film"], *others], "1984 film", case=case) == ["1984 film"]


def test_stop_words_alone_are_no_mentions() -> None:
    names = [["The Who"], ["The"], ["Who"], ["It"]]
    text = "Who saw The Who? IT and The Rest"
    assert found(names, text) == ["The Who"]
    assert found(names, text, stop_words="none") == ["The Who"]
    assert found(names, text, stop_words="none", case="insensitive") == ["Who", "The Who", "IT", "The"]


def test_names_nobody_writes_out_are_not_looked_for_but_known() -> None:
    longest, longer = "x" * LONGEST_NAME_CHARS, "y" * (LONGEST_NAME_CHARS + 1)
    finder = make_finder([[longest], [longer], ["Paris"]])
    assert [s.end - s.start for s in finder.find(f"{longest} {longer} Paris")] == [LONGEST_NAME_CHARS, 5]
    assert finder.entity_ids(longer.upper()) == ("e1",)


def test_entities_behind_a_name() -> None:
    finder = make_finder(CITIES, max_entities=1, case="sensitive", min_chars=9)
    assert finder.entity_ids("paris") == ("e3", "e4")
    assert finder.entity_ids(" BIG\napple ") == ("e0",)
    assert finder.entity_ids("Berlin") == finder.entity_ids("") == finder.entity_ids("Pari") == ()


def test_an_index_of_one_nameless_entity_has_no_mentions() -> None:
    finder = make_finder([["\u00ad"]])
    assert finder.find("a \u00ad b") == []
    assert finder.entity_ids("\u00ad") == ()


def test_no_blank_line_far_before_a_part() -> None:
    # Without a paragraph break, the search starts a fixed distance before the part.
    finder = make_finder([["New York City"], ["York City"]])
    text = "x " * LOOK_BACK_CHARS + "New York City"
    assert finder.find(text, len(text) - 9) == []
    glued = "x" * 2 * LOOK_BACK_CHARS + " York City"
    assert [s.start for s in finder.find(glued, len(glued) - 9)] == [len(glued) - 9]
    assert finder.find("x" * 2 * LOOK_BACK_CHARS + "York City", 2 * LOOK_BACK_CHARS) == []


def test_options_are_checked() -> None:
    wrong = [("case", "upper"), ("min_chars", 0), ("min_chars", True), ("max_entities", 0)]
    wrong += [("max_entities", 2.5), ("max_short_entities", -1), ("stop_words", ""), ("stop_words", None)]
    for field, value in wrong:
        with pytest.raises(ValueError, match=f"^{field}: must be .*[,;] got {value!r}"):
            FindOptions(**{field: value})  # type: ignore[arg-type]


def test_the_english_list_is_folded_words() -> None:
    words = load_stop_words("english")
    assert {"the", "of", "it", "who", "s", "t"} <= words
    assert all(word == fold_name(word) and word.isalpha() for word in words)
    assert not words & {"us", "america", "paris", "apple"}
    assert load_stop_words("none") == frozenset()


def test_a_file_has_one_word_per_line(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes("\ufeffDer\r\n\r\n  Die \nStraße\nL’\nzum  Beispiel".encode())
    assert load_stop_words(str(file)) == {"der", "die", "strasse", "l'", "zum beispiel"}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"stop words: .*missing\.txt: cannot be read: No such file"):
        load_stop_words(str(tmp_path / "missing.txt"))
    with pytest.raises(SourceError, match=r"cannot be read: Is a directory"):
        load_stop_words(str(tmp_path))
    file = tmp_path / "words.txt"
    file.write_bytes(b"der\nstra\xdfe\n")
    with pytest.raises(SourceError, match=r"words\.txt, line 2: not valid UTF-8"):
        load_stop_words(str(file))
    with file.open("r+b") as opened:
        opened.truncate((16 << 20) + 1)
    with pytest.raises(SourceError, match="expected at most 16 MiB"):
        load_stop_words(str(file))


PAGE = text_of("docs/finding-mentions.md")


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (catalogue,), ((code, output),) = blocks(PAGE, "json"), examples(PAGE)
    build(tmp_path, catalogue.splitlines(), character_tokenizer(catalogue.replace("\n", "")), "cities.index")
    assert run(code, tmp_path) == output


def test_the_table_has_the_defaults() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| `(\w+)` \| `?(\w+)`? \|", PAGE, flags=re.M)
    fields = FindOptions.__dataclass_fields__
    assert [field for _, field, _ in rows] == list(fields)
    for flag, field, default in rows:
        assert flag == "--" + field.replace("_", "-")
        assert default == str(fields[field].default)


def test_the_page_has_the_limits() -> None:
    assert f"more than {LONGEST_NAME_CHARS:,} characters" in PAGE
    assert f"{LOOK_BACK_CHARS:,} characters back" in PAGE
