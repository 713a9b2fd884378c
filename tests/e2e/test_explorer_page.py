"""The explorer page in a real browser, over the real gateway with answers whose every figure is known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.security.authority import Authority
from genret.service.security.bearer_tokens import new_token
from genret.service.serving.served import ServedIndex
from tests.e2e.explorer_answers import ATTACK, CannedRetrieval, canned_server
from tests.e2e.headless_browser import Page, headless_page
from tests.service.http_gateway import serving_in_a_thread
from tests.service.secured_server import tokens_in


@pytest.fixture(scope="module")
def retrieval() -> CannedRetrieval:
    return CannedRetrieval()


@pytest.fixture(scope="module")
def url(retrieval: CannedRetrieval) -> Iterator[str]:
    with canned_server(retrieval) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with headless_page(tmp_path_factory.mktemp("profile"), "--window-size=1280,900") as page:
        yield page


@pytest.fixture
def page(browser: Page, url: str) -> Iterator[Page]:
    """The page, open; afterwards nothing was complained of and nobody else was asked."""
    browser.open(url)
    browser.until(lambda: len(browser.all("#index option")) == 2, "the indexes")
    browser.log()
    yield browser
    # The browser notes every HTTP status above 399; those belong to tests of errors.
    said = [entry for entry in browser.log() if "status of 4" not in entry["message"]]
    assert said == []
    assert {urlsplit(name).netloc for name in browser.fetched()} <= {urlsplit(url).netloc}


def ask(page: Page, query: str, status: str = "2 candidates") -> None:
    """Send a query and wait for what is said of it."""
    box = page.one("#query")
    box.clear()
    box.send_keys(query, Keys.ENTER)
    page.wait_text("#status", status)


def asked(retrieval: CannedRetrieval) -> pb.RetrieveRequest:
    """Return the last request."""
    return retrieval.requests[-1]


def test_search_by_keyboard_alone_shows_the_candidates_and_markup_as_text(
    page: Page, retrieval: CannedRetrieval
) -> None:
    assert page.focused("id") == "query"
    page.press("prince of denmark", Keys.ENTER)
    page.wait_text("#status", "2 candidates in 18 ms.")
    request = asked(retrieval)
    assert (request.query, request.index, request.explain) == ("prince of denmark", "plays", True)
    assert page.texts(".candidate h3") == ["Hamlet", ATTACK]
    wanted = ["38 % probability of this entity", "13 % probability of this entity"]
    assert page.texts(".how-likely p:first-child") == wanted
    assert "written as another name" in page.texts(".ids")[1]
    assert page.text('[data-rank="1"] .metadata') == "kind<b>Hamlet</b>year1152921504606846977"
    assert page.text("[data-verdict=certified]").startswith("Proven")
    figures = page.text(".figures")
    shown = "queue 0.5 ms, prefill 4.0 ms, decode 13 ms, 20260101, sha256:abc, 3 decode steps"
    assert all(figure in figures for figure in shown.split(", "))
    assert ATTACK.replace(" ", "␣") in page.texts(".tree .token")
    assert page.all("#results img") == page.all("#results b") == []
    assert page.driver.execute_script("return window.attacked") is None


def test_suggestions_come_while_typing_and_are_chosen_by_keyboard(
    page: Page, retrieval: CannedRetrieval
) -> None:
    box = page.one("#query")
    box.clear()
    box.send_keys("ham")
    page.until(lambda: len(page.all("#suggestions li")) == 2, "the suggestions")
    assert page.texts("#suggestions mark") == ["Ham", "ham"]
    assert box.get_attribute("aria-expanded") == "true"
    box.send_keys(Keys.ESCAPE)
    assert page.all("#suggestions li") == []
    box.send_keys("l", Keys.BACKSPACE)
    page.until(lambda: len(page.all("#suggestions li")) == 2, "the suggestions")
    box.send_keys(Keys.ARROW_UP)
    assert box.get_attribute("aria-activedescendant") == "suggestion-1"
    box.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    page.wait_text("#status", "2 candidates")
    assert asked(retrieval).query == "Hamlet"
    assert page.all("#suggestions li") == []
    assert page.driver.execute_script("return window.attacked") is None


def test_the_tree_is_walked_with_the_arrow_keys_and_bars_are_its_masses(page: Page) -> None:
    ask(page, "prince")
    ratio = page.driver.execute_script(
        "const bar = document.querySelector('[data-state=expanded] [data-state=expanded] .mass');"
        "return [...bar.children].map((part) => part.getBoundingClientRect().width / bar.clientWidth)"
    )
    assert ratio == pytest.approx([0.75, 0.25], abs=0.02)
    page.tab_to("[role=treeitem]")

    def label() -> str:
        return page.focused("aria-label") or ""

    assert label() == "End of the query; 90 % of what follows is valid, 3 valid tokens; the model starts here"
    page.press(Keys.ARROW_RIGHT)
    assert label().startswith("Token “Ham”, 50 %; 75 % of what follows is valid")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert label() == "End of “Hamlet”, 100 %; a title ends here, candidate 1"
    assert "“Hamlet”" in page.text(".detail")
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert label().startswith("Token “let”")
    assert page.focused("aria-expanded") == "false"
    page.press(Keys.END)
    assert label() == "2 more that gave no candidate: 2 left for better ones; at most 10 %"
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert label() == "Token “Oth”, 10 %; seen, and left for better ones"
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_UP)
    assert label().startswith("Token “Mac”")
    assert label().endswith("no candidate came of it")
    page.press(Keys.HOME)
    assert label().startswith("End of the query")
    assert len(page.all('.tree [tabindex="0"]')) == 1
    assert page.all(".tree [role=treeitem]:not([aria-label])") == []


def test_a_candidate_is_shown_in_the_tree_and_a_title_of_the_tree_among_the_candidates(page: Page) -> None:
    ask(page, "prince")
    page.all(".candidate button")[1].click()
    assert page.texts("[data-marked] > .card > .token") == ["query", ATTACK.replace(" ", "␣"), "end"]
    assert page.one(".candidate[aria-current]").get_attribute("data-rank") == "2"
    page.one('[aria-label^="End of “Hamlet”"] > .card').click()
    assert page.one(".candidate[aria-current]").get_attribute("data-rank") == "1"
    assert page.one("[role=treeitem][aria-selected]").get_attribute("aria-label") is not None


def test_scored_candidates_show_their_similarity_and_where_they_are_from(
    page: Page, retrieval: CannedRetrieval
) -> None:
    facts = page.text("#index-facts")
    assert facts.endswith("evidence: names · vectors cannot be used: the encoder cannot be loaded")
    page.one("#shortlist_size").send_keys("50")
    ask(page, "scored")
    request = asked(retrieval)
    assert (request.method, request.shortlist_size) == (pb.RETRIEVAL_METHOD_AUTO, 50)
    assert page.texts(".how-likely p:first-child") == ["60 % among the scored", "20 % among the scored"]
    first, second = page.texts(".how-likely")
    for shown in ("log P −0.98", "score 0.02", "similarity 0.50"):
        assert shown in first
    assert "from the shortlist alone" not in first
    assert "from the shortlist alone" in second
    assert len(page.all(".candidate button")) == 1
    assert page.text("[data-verdict=scored]") == (
        "120 titles scored, of 100 entities proposed and of what was written; "
        "together the model gives them 63 % of its probability."
    )
    figures = page.text(".figures")
    for shown in ("shortlist 2.5 ms", "score 6.5 ms", "120 titles scored"):
        assert shown in figures
    assert "similarity counts in this order" in page.text("[data-verdict=uncertified]")


def bar_lengths(page: Page, bars: str) -> list[float]:
    """Filled parts of bars, in [0, 1]."""
    found: list[float] = page.driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((bar) =>"
        " bar.firstElementChild.getBoundingClientRect().width / bar.clientWidth)",
        bars,
    )
    return found


def test_bars_never_contradict_the_order_of_the_list(page: Page) -> None:
    ask(page, "scored")
    assert bar_lengths(page, ".how-likely .bar") == pytest.approx([0.6, 0.2], abs=0.02)
    ask(page, "reordered")
    assert page.texts(".how-likely p:first-child") == ["20 % among the scored", "60 % among the scored"]
    by_score = math.exp(math.log(0.125 / 0.375) + 2 * (0.875 - 0.5))
    assert bar_lengths(page, ".how-likely .bar") == pytest.approx([1, by_score], abs=0.02)
    assert all("the bar is by score" in text for text in page.texts(".how-likely"))


def test_methods_are_compared_side_by_side(page: Page, retrieval: CannedRetrieval, url: str) -> None:
    before = len(retrieval.requests)
    page.one("#tab-compare").click()
    page.one("#compare-k").send_keys("2")
    page.one("#compare-filter").send_keys("kind = 'play'")
    ask(page, "compared", "All 3 methods that answered name the same entity first.")
    requests = retrieval.requests[before:]
    methods = {"AUTO", "BEAM", "DISC", "SHORTLIST"}
    assert {pb.RetrievalMethod.Name(one.method) for one in requests} == {
        f"RETRIEVAL_METHOD_{name}" for name in methods
    }
    assert {(one.query, one.k, one.filter, one.explain) for one in requests} == {
        ("compared", 2, "kind = 'play'", False)
    }
    assert page.texts(".comparison h2") == ["Auto", "Beam search", "DISC samples", "Shortlist"]
    columns = [column.text.splitlines() for column in page.all(".comparison > section")]
    assert [one[1] for one in columns] == [
        "18 ms · proven",
        "18 ms · proven",
        "18 ms · in the catalogue: 50 %",
        "Not answered: method: shortlist needs evidence, which this index has not",
    ]
    assert columns[1][2:5] == ["Hamlet", "38 % probability of this entity", "also Auto 1, DISC samples 1"]
    assert columns[2][2:4] == ["Hamlet", "50 % of samples"]
    page.all(".compared button")[3].click()  # the second of beam search
    assert page.texts(".compared[data-same] button") == [ATTACK] * 3
    assert page.texts(".compared [aria-pressed=true]") == [ATTACK] * 3
    shared = page.driver.current_url
    browser_state = "tab=compare&query=compared&index=plays&k=2&filter=kind+%3D+%27play%27"
    assert urlsplit(shared).fragment == browser_state
    page.open(url)
    page.open(shared)
    page.wait_text("#status", "All 3 methods")
    page.one("#compare-filter").clear()
    page.one("#compare-filter").send_keys("kid = 1", Keys.ENTER)
    page.wait_text("#compare-filter-error", "no column 'kid' <i>here</i>")
    assert page.all(".comparison") == []


def test_ranked_candidates_say_what_their_scores_are_made_of(page: Page) -> None:
    ask(page, "ranked")
    said = [f"{share} probability that this one is meant" for share in ("75 %", "6.3 %")]
    assert page.texts(".how-likely p:first-child") == said
    assert page.texts(".shares summary") == ["score 7.25, most by names", "score 0.50, most by texts"]
    assert "similarity" not in page.text(".candidates")
    page.all(".shares summary")[0].click()
    rows = [" ".join(row.text.split()) for row in page.all('[data-rank="1"] .shares tr')]
    assert rows == ["names +6.50", "queries +2.00", "model −1.25"]
    meant = "With probability 13 % nothing in the catalogue is meant."
    assert page.text("[data-verdict=nothing-fits]") == meant
    assert page.text("[data-verdict=missing-evidence]").startswith("Answered without its vectors")
    assert not page.all("[data-verdict=certified]")


def test_a_shortlist_asks_for_no_tree(page: Page, retrieval: CannedRetrieval) -> None:
    # The service refuses `explain` with it: nothing is walked.
    page.one("input[value=RETRIEVAL_METHOD_SHORTLIST]").click()
    ask(page, "scored")
    request = asked(retrieval)
    assert (request.method, request.explain) == (pb.RETRIEVAL_METHOD_SHORTLIST, False)
    assert "from the shortlist alone" not in page.text(".candidates")
    scored = page.text("[data-verdict=scored]")
    assert scored.startswith("120 titles scored, of 100 entities proposed; together")


def test_options_are_those_of_the_method_and_of_what_decodes_for_it(page: Page) -> None:
    def shown() -> str:
        return " ".join(name for name in names if page.one(f"#panel-search [name={name}]").is_displayed())

    page.one("#more-search summary").click()
    names = ("shortlist_size", "decoder", "vector_weight", "beam_size", "exact", "num_samples", "min_mass")
    names = (*names, "title_weight")  # of every method
    assert shown() == "shortlist_size decoder vector_weight beam_size exact title_weight"
    page.one("#decoder [value=RETRIEVAL_METHOD_DISC]").click()
    assert shown() == "shortlist_size decoder vector_weight beam_size num_samples min_mass title_weight"
    page.one("input[value=RETRIEVAL_METHOD_AUTO]").click()
    for method, options in (
        ("BEAM", "beam_size exact title_weight"),
        ("DISC", "beam_size num_samples min_mass title_weight"),
        ("SHORTLIST", "shortlist_size vector_weight title_weight"),
    ):
        page.press(Keys.ARROW_RIGHT)
        assert page.focused("value") == f"RETRIEVAL_METHOD_{method}"
        assert shown() == options


def test_draws_are_told_apart_and_lead_to_their_paths(page: Page, retrieval: CannedRetrieval) -> None:
    page.one("input[value=RETRIEVAL_METHOD_DISC]").click()
    page.one("#seed").send_keys(str(2**62 + 1))
    page.one("#num_samples").send_keys("2")
    ask(page, "prince")
    request = asked(retrieval)
    assert (request.seed, request.num_samples) == (2**62 + 1, 2)
    assert page.texts(".drawn-chance") == [
        "rejected, chance 0.45",
        "accepted, chance 0.68",
        "rejected, chance 0.45",
        "chosen by weight, weight 0.45",
    ]
    assert page.text("#draws-words") == (
        "2 samples: 1 draw accepted, 2 rejected. The first one accepted is the sample. For 1 sample none was "
        "accepted: one of 1 further draw was chosen by weight."
    )
    assert page.texts("tbody .mark") == ["✗", "✓", "✗", "◆"]
    page.all(".draw")[1].send_keys(Keys.ENTER)
    assert page.texts("[data-marked] > .card > .token") == ["query", "Ham", "let", "end"]
    assert page.all(".draw")[1].get_attribute("aria-pressed") == "true"
    assert "0.50 ± 0.05, and surely between 0.25 and 0.75" in page.text("[data-verdict=mass]")
    assert page.texts(".how-likely p:first-child") == ["50 % of samples", "50 % of samples"]
    assert str(2**62 + 1) in page.text(".figures")


def test_a_tree_of_thousands_of_places_is_drawn_as_it_is_opened(page: Page) -> None:
    ask(page, "large")
    assert len(page.all("[role=treeitem]")) < 400
    assert page.driver.execute_script("return document.querySelectorAll('.draw').length") == 4096
    assert "too large to be sent whole" in page.text(".walk")
    page.one("tbody tr:nth-child(8) td:nth-child(4) .draw").send_keys(Keys.ENTER)
    assert len(page.all("[data-marked]")) == 33


def test_a_folded_place_is_found_again_after_its_fold_was_closed(page: Page) -> None:
    ask(page, "prince")
    page.tab_to("[role=treeitem]")
    page.press(Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    assert page.texts("[data-marked] > .card > .token") == ["query", "Oth"]
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert not page.one('[aria-label^="Token “Oth”"]').is_displayed()
    page.all(".tree-tools button")[0].click()
    assert page.all("[role=treeitem][aria-expanded=false]") == []
    page.all(".tree-tools button")[1].click()
    assert not page.one('[aria-label^="Token “Oth”"]').is_displayed()
    assert page.one('[aria-label^="End of “Hamlet”"]').is_displayed()


def test_an_empty_answer_is_said_in_words(page: Page) -> None:
    for query, verdict, words in (
        ("nothing", "no-match", "No match: nothing in the catalogue answers this query (NO_MATCH)."),
        (
            "unsure",
            "abstained",
            "less likely to be in the catalogue than was asked for (abstained, NO_MATCH)",
        ),
    ):
        ask(page, query, "")
        page.wait_text(f"[data-verdict={verdict}]", words)
        assert page.all(".candidate") == page.all(".tree") == []


def test_an_error_stands_at_its_field_and_goes_with_the_next_query(page: Page) -> None:
    page.one("#more-search summary").click()
    page.all(".column")[2].click()
    assert page.one("#filter").get_attribute("value") == "kind"
    page.press(Keys.BACKSPACE, Keys.BACKSPACE, "d = 'x'")
    page.one("#more-search summary").click()
    assert page.text("#more-count") == " (1 set)"
    ask(page, "prince", "")
    page.wait_text("#filter-error", "no column 'kid' <i>here</i>")
    assert page.focused("id") == "filter"
    assert page.focused("aria-invalid") == "true"
    assert page.text("#failure") == ""
    page.one("#filter").clear()
    ask(page, "prince")
    assert page.text("#filter-error") == ""
    ask(page, "", "")
    page.wait_text("#query-error", "must not be blank")


def test_a_number_that_is_none_is_not_sent(page: Page, retrieval: CannedRetrieval) -> None:
    num_requests = len(retrieval.requests)
    page.one("#k").send_keys("2.5")
    ask(page, "prince", "")
    page.wait_text("#k-error", "must be a whole number, got 2.5")
    assert len(retrieval.requests) == num_requests


def test_an_overloaded_server_says_when_to_come_back(page: Page) -> None:
    ask(page, "overload", "")
    page.wait_text("#failure", "RESOURCE_EXHAUSTED: the queue is full Worth another try in 1.5 s.")


def test_escape_gives_a_query_up_and_a_new_query_takes_its_place(
    page: Page, retrieval: CannedRetrieval
) -> None:
    retrieval.cancelled.clear()
    ask(page, "slow", "Asking…")
    assert page.one("#stop").is_displayed()
    page.press(Keys.ESCAPE)
    page.wait_text("#status", "Stopped.")
    assert retrieval.cancelled.wait(60)
    assert not page.one("#stop").is_displayed()
    retrieval.cancelled.clear()
    ask(page, "slow", "Asking…")
    ask(page, "prince")
    assert retrieval.cancelled.wait(60)


def test_the_address_carries_the_query_and_the_back_button_returns_to_it(page: Page, url: str) -> None:
    page.one("#k").send_keys("3")
    ask(page, "prince & co")
    first = page.driver.current_url
    assert "query=prince+%26+co" in first
    assert "k=3" in first
    ask(page, "nothing", "Nothing in the catalogue matches")
    page.driver.back()
    page.wait_text("#status", "2 candidates")
    assert page.one("#query").get_attribute("value") == "prince & co"
    page.open(first)
    page.wait_text("#status", "2 candidates")
    assert page.one("#k").get_attribute("value") == "3"
    page.open(f"{url}#query=x&index=gone")
    page.wait_text("#index-error", "this server has no index “gone”")


def test_json_answers_with_the_entities_behind_their_titles(page: Page, retrieval: CannedRetrieval) -> None:
    page.tab_to("#tab-search")
    page.press(Keys.ARROW_RIGHT)
    assert page.focused("id") == "tab-compare"
    page.press(Keys.ARROW_RIGHT)
    assert page.focused("id") == "tab-json"
    ask(page, "prince", "An answer is there.")
    assert page.text(".json").splitlines() == [
        "{",
        '  "title": "Hamlet",',
        '  "n": 12345678901234567890.10,',
        '  "s": "a,{b}",',
        '  "e": []',
        "}",
    ]
    assert page.texts(".entities tbody td") == ["/title", "Hamlet", "Q1", "100 %", "year: 1603", "titles"]
    assert "x-genret-index" in retrieval.requests[-1].schema_json
    box = page.one("#schema_json")
    box.clear()
    box.send_keys("no schema")
    ask(page, "prince", "")
    page.wait_text("#schema_json-error", "no JSON: line 1 column 1")
    assert page.focused("id") == "schema_json"


def test_nothing_overflows_the_window(page: Page) -> None:
    page.one("input[value=RETRIEVAL_METHOD_DISC]").click()
    page.one("#more-search summary").click()
    ask(page, "prince")
    try:
        for width in (360, 390, 768, 1280, 1920):
            page.driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
            )
            assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_may_not_run_what_stands_in_it(page: Page) -> None:
    """The policy that the gateway sends is in force, and the page lives with it."""
    page.driver.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.attacked = true';"
        "document.body.append(script)"
    )
    (violation,) = page.log()
    assert "Content Security Policy" in violation["message"]
    assert page.driver.execute_script("return window.attacked") is None


def test_a_server_with_tokens_is_asked_with_the_one_that_was_typed(
    browser: Page, tmp_path: Path, retrieval: CannedRetrieval
) -> None:
    token = new_token()
    with canned_server(retrieval, Authority(tokens_in(tmp_path, f"read {token}"))) as url:
        browser.open(url)
        browser.wait_text("#failure", "UNAUTHENTICATED")
        assert browser.focused("id") == "token"
        browser.press(token, Keys.ENTER)
        browser.until(lambda: len(browser.all("#index option")) == 2, "the indexes")
        ask(browser, "prince")
        assert token not in browser.driver.current_url
        kept = "return [localStorage.length, sessionStorage.length, document.cookie]"
        assert browser.driver.execute_script(kept) == [0, 0, ""]
        browser.driver.get("about:blank")
        browser.log()


def test_a_server_that_is_gone_is_said_to_be(browser: Page, retrieval: CannedRetrieval) -> None:
    with canned_server(retrieval) as url:
        browser.open(url)
        browser.until(lambda: len(browser.all("#index option")) == 2, "the indexes")
    ask(browser, "prince", "That did not work.")
    browser.wait_text("#failure", "The server cannot be reached.")
    assert not browser.one("#stop").is_displayed()
    browser.driver.get("about:blank")
    browser.log()


def test_a_real_server_and_model_fill_the_page(browser: Page, tiny: ServedIndex) -> None:
    with serving_in_a_thread(indexes={"tiny": tiny}) as url:
        browser.open(url)
        browser.until(lambda: len(browser.all("#index option")) == 1, "the index")
        browser.log()
        browser.one("#k").send_keys("3")
        ask(browser, "a play", "3 candidates")
        assert all(" most by " in summary for summary in browser.texts(".shares summary"))
        assert "nothing in the catalogue is meant" in browser.text("[data-verdict=nothing-fits]")
        buttons = browser.all(".candidate button")
        assert buttons
        for show in buttons:
            show.click()
            end = browser.one("[data-marked=end]").get_attribute("aria-label") or ""
            rank = browser.one(".candidate[aria-current]").get_attribute("data-rank")
            assert end.endswith(f"a title ends here, candidate {rank}")
        browser.one("input[value=RETRIEVAL_METHOD_DISC]").click()
        browser.one("#seed").send_keys("5")
        ask(browser, "a play", "")
        browser.until(lambda: browser.all(".draw"), "the draws")
        assert len(browser.texts(".draws tbody th")) == 16
        assert "probability" in browser.text("[data-verdict=mass]")
        shares = browser.texts(".how-likely p:first-child")
        assert 1 <= len(shares) <= 3
        assert all(share.endswith("of samples") for share in shares)
        browser.one("#tab-json").click()
        ask(browser, "a play", "An answer is there.")
        assert json.loads(browser.text(".json"))["best"] == browser.texts(".entities strong")[0]
        browser.one("#schema_json").clear()
        browser.one("#schema_json").send_keys("[")
        ask(browser, "a play", "")
        browser.until(lambda: browser.text("#schema_json-error"), "the error at the schema")
        browser.driver.get("about:blank")
        said = [entry["message"] for entry in browser.log()]
        assert [message for message in said if "status of 400" not in message] == []
