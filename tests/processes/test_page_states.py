"""The web page in a real browser, with made-up answers: starting, alone, running, ended, with few peers and with many.

It needs Debian's ``chromium`` and ``chromium-driver``, or their like elsewhere on PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from selenium.webdriver.remote.webdriver import WebDriver

from scripts.bench.common.browser import barriers, opened_browser, pixels_beyond, requests_elsewhere, set_screen
from scripts.page_answers import State
from scripts.page_states import TOKEN, served_page
from tests.hang_guard import HANG_SECONDS
from tests.processes.browser_page import text_of, until

pytestmark = pytest.mark.processes

OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
COMMA_IN_NUMBER = re.compile(r"\d,\d")
LAYOUT = """const done = arguments[1];
import('/assets/graph.js').then(({ layout }) => {
  const us = { id: 'us', name: 'us', model: 'm0', connected: true, used: 0 };
  const peer = (n) => ({ id: `p${n}`, name: `n${n}`, model: `m${n % 5}`, connected: n % 6 !== 0, used: n });
  const peers = Array.from({ length: arguments[0] }, (_, n) => peer(n));
  const places = (of) => Object.fromEntries(layout(us, of).map(({ id, x, y }) => [id, [x, y]]));
  done([places(peers), places([...peers].reverse())]);
});"""
ALARMS = """const done = arguments[1];
import('/assets/views.js').then(({ alarms }) => done(alarms(arguments[0]).map(({ children }) => children[0].text)));"""
CHOOSE = """const choice = document.getElementById('choose-node');
choice.selectedIndex = 2; // the first after ours
choice.dispatchEvent(new Event('change'));"""
PARTS = """const done = arguments[1];
import('/assets/skills.js').then(({ parts }) => done(parts(arguments[0])));"""

PAUSED = """const done = arguments[1];
import('/assets/skills.js').then(({ headline }) => {
  const words = (part) => part.text ?? part.children.map(words).join('');
  done(words(headline('ann', arguments[0], null, { isPaused: true })[0]));
});"""
CHART = "document.querySelector('#chart-skills svg')"
PRESS = f"{CHART}.dispatchEvent(new KeyboardEvent('keydown', {{ key: arguments[0] }}))"
POINT = f"""const svg = {CHART};
const {{ left, width }} = svg.getBoundingClientRect();
const at = {{ pointerType: arguments[0], clientX: left + arguments[1] * width }};
for (const kind of ['pointerdown', 'pointerleave']) svg.dispatchEvent(new PointerEvent(kind, at));"""
OWN_QUESTION = """const choice = document.getElementById('try-task');
choice.value = '';
choice.dispatchEvent(new Event('change'));"""
PLACES = "return [...document.querySelectorAll(arguments[0])].map((each) => each.getBoundingClientRect().toJSON())"
SCROLLED = """return [...document.querySelectorAll('main *')].filter((each) => each.scrollWidth > each.clientWidth + 1
  && /auto|scroll/.test(getComputedStyle(each).overflowX)).map((each) => each.outerHTML.slice(0, 200))"""
SENTENCES = """const done = arguments[1];
import('/assets/skills.js').then(({ headline }) => {
  const words = (part) => part.text ?? part.children.map(words).join('');
  done(headline('ann', arguments[0], null).map(words).join(' | '));
});"""
PICTURE = """const done = arguments[1];
import('/assets/skills.js').then(({ picture }) => {
  const words = (part) => part.text ?? (part.children ?? []).map(words).join('');
  done(picture(arguments[0]).map(words).join(' | '));
});"""


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    browser = opened_browser()
    browser.set_script_timeout(HANG_SECONDS)
    try:
        yield browser
    finally:
        browser.quit()


def opened(browser: WebDriver, port: int, width: int = 1440, scheme: str = "light") -> None:
    set_screen(browser, width, scheme)
    browser.get(f"http://127.0.0.1:{port}/")


def test_first_sentence_says_what_it_gained_from_whom_and_what_it_lost(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        said = until(browser, "#headline", lambda said: "rose" in said)
        assert "ann rose from 0.27 to 0.42 with others." in said
        assert "+0.15 it has from wren (rotate_matrix +0.80) and heron" in said
        assert "Lost: number_sorting fell from 0.76 to 0.11" in said
        moment = until(browser, "#moment", bool)
        assert moment.startswith("rotate_matrix rose from 0.") and "ren came" in moment
        assert "peers came" in text_of(browser, "#signs")
        browser.execute_script("document.querySelector('[data-by=step]').click()")
        assert "rounds" in until(browser, "#moment", lambda said: "rounds" in said)


def test_what_happened_is_a_list_that_needs_no_pointer(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "#marks-of", bool)
        browser.execute_script("document.querySelector('#marks-of summary').click()")
        lines = until(browser, "#marks", lambda said: "came" in said).splitlines()
        clocks = [found.groups() for line in lines if (found := re.search(r"(\d\d):(\d\d):(\d\d)", line))]
        seconds = [(int(h) * 60 + int(m)) * 60 + int(s) for h, m, s in clocks]
        assert len(seconds) == len(lines) > 1
        # Midnight may lie between two of them.
        assert all((later - earlier) % 86_400 < 43_200 for later, earlier in pairwise(seconds)), "the newest first"


def test_what_each_donor_did_stands_among_the_figures(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        browser.execute_script(OPEN_ALL)
        figures = " ".join(until(browser, "#now", lambda said: "Donors" in said).split())
        assert "8 of 16 groups 48 % of tokens, 2 310 tokens/s, 7 in time" in figures
        assert "lost cut off" in figures


def test_links_of_a_node_stand_out_among_200_by_keyboard_or_touch(browser: WebDriver) -> None:
    chosen = "return document.querySelector('.graph .link.chosen').getAttribute('d').split('M').length - 1"
    out = "return document.querySelectorAll('.graph .node.out').length"
    with served_page("running", 200) as port:
        opened(browser, port, 375)
        until(browser, "#links-count", lambda said: "of 200" in said)
        assert browser.execute_script(out) == 0
        browser.execute_script(CHOOSE)
        said = until(browser, "#links-of", lambda said: "known" in said)
        links = int(re.search(r"(\d+) connections? known", said)[1])  # type: ignore[index]
        assert links > 1 and browser.execute_script(chosen) == links
        assert browser.execute_script(out) == 200 - links
        browser.execute_script(
            "document.querySelector('[data-peer]:last-child circle').dispatchEvent(TAP)".replace(
                "TAP", "new MouseEvent('click', { bubbles: true })"
            )
        )
        assert "Nothing" not in until(browser, "#links-of", lambda now: now not in ("", said))
        browser.execute_script(
            "document.querySelector('.graph').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        until(browser, "#links-of", lambda now: now == "")
        assert browser.execute_script(out) == 0


def test_node_without_peers_is_told_how_a_friend_joins_and_claims_nothing_from_others(browser: WebDriver) -> None:
    with served_page("alone", 0) as port:
        opened(browser, port)
        said = until(browser, "#headline", lambda said: "rose" in said)
        assert "by itself" in said and "nothing from others yet" in said
        until(browser, "#skills", lambda said: "number_sorting" in said and "learnt by itself" in said)
        assert "Alone: no address is known" in until(browser, "#join", lambda said: "Alone" in said)
        assert text_of(browser, "#join-line").startswith("starling up --peer /ip4/")


def test_node_that_starts_shows_no_empty_chart_and_says_what_it_does(browser: WebDriver) -> None:
    with served_page("starting", 0) as port:
        opened(browser, port)
        assert "Loading the model" in until(browser, "#headline", lambda said: "starting" in said)
        browser.execute_script(OPEN_ALL)
        until(browser, "#now", lambda said: "none yet" in said)
        shown = "return [...document.querySelectorAll('.chart')].filter((chart) => chart.offsetParent !== null).length"
        assert browser.execute_script(shown) == 0


def test_node_that_ended_keeps_its_last_state_and_offers_no_button(browser: WebDriver) -> None:
    with served_page("ended", 3) as port:
        opened(browser, port)
        until(browser, "#link", lambda said: said == "ended")
        assert "This is its last state." in until(browser, "#doing", bool)
        assert text_of(browser, "header .buttons") == ""


def test_page_of_a_node_in_whose_place_another_answers_says_so_and_shows_and_stops_nothing_of_it(
    browser: WebDriver,
) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "header .buttons", lambda said: "Stop" in said)
        bookmark = browser.current_url
        assert bookmark.startswith(f"http://127.0.0.1:{port}/#12D3Koo")
        browser.get("about:blank")
        browser.get(f"http://127.0.0.1:{port}/#12D3KooWAnother")
        until(browser, "#link", lambda said: said == "another node answers here now")
        assert "ann" in until(browser, "#alarms", lambda said: "Another node" in said)
        assert text_of(browser, "header .buttons") == "" and text_of(browser, "#headline") == ""
        asked = "return performance.getEntriesByType('resource').map(({ name }) => name)"
        assert not [name for name in browser.execute_script(asked) if "/api/v1/" in name and "events" not in name]
        browser.execute_script("document.querySelector('#alarms a').click()")
        until(browser, "header .buttons", lambda said: "Stop" in said)
        assert browser.current_url == bookmark


def test_owner_asks_the_model_and_the_answers_before_and_after_stand_side_by_side(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "#try-task option", lambda said: "rotate_matrix" in said)  # what was learnt most
        browser.execute_script("document.getElementById('try-do').click()")
        for given in ("guess", TOKEN):
            until(browser, "#ask", lambda said: "api.token" in said)
            browser.execute_script("document.getElementById('ask-token').value = arguments[0]", given)
            browser.execute_script("document.getElementById('ask-do').click()")
            if given != TOKEN:
                until(browser, "#ask-failed", lambda said: "not this node's token" in said)
        answers = until(browser, "#tried .beside", lambda said: "after" in said)
        assert re.search(r"before training ✗ wrong.*after 320 rounds ✓ right", answers, re.DOTALL)
        places = browser.execute_script(PLACES, "#tried figure")
        assert len(places) == 2 and places[0]["top"] == places[1]["top"] and places[0]["left"] < places[1]["left"]
        browser.execute_script("document.getElementById('try-do').click()")  # the page keeps the token
        until(browser, "#tried", lambda said: "0 of 2 right" in said and "2 of 2 right" in said)
        browser.execute_script(OWN_QUESTION)
        assert until(browser, "#try-own", lambda said: "question" in said)
        browser.execute_script("document.getElementById('try-do').click()")
        until(browser, "#try-doing", lambda said: "Write a question" in said)


def test_a_point_is_read_by_keyboard_and_by_tap_and_a_mouse_that_leaves_shows_the_newest_again(
    browser: WebDriver,
) -> None:
    read = f"return {CHART}.getAttribute('aria-valuetext')"
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "#chart-skills .legend", lambda said: "0.93" in said)
        newest = browser.execute_script(read)
        browser.execute_script(PRESS, "Home")
        first = browser.execute_script(read)
        assert "rotate_matrix 0.0" in first and first != newest
        browser.execute_script(PRESS, "ArrowRight")
        assert browser.execute_script(read) not in (first, newest)
        assert browser.execute_script("return document.querySelectorAll('#chart-skills .dot[d^=M]').length") == 6
        browser.execute_script(PRESS, "Escape")
        assert browser.execute_script(read) == newest
        for kind, stays in (("mouse", False), ("touch", True)):
            browser.execute_script(POINT, kind, 0.1)
            assert (browser.execute_script(read) != newest) == stays
        browser.execute_script(f"{CHART}.dispatchEvent(new FocusEvent('blur'))")
        assert browser.execute_script(read) == newest
        browser.execute_script(POINT, "touch", 0.45)  # in the pause
        assert "not training" in text_of(browser, "#chart-skills .at")
        assert "–" in text_of(browser, "#chart-skills .legend")


def test_lines_break_where_the_node_rested_and_what_must_be_known_stands_in_the_first_sentences(
    browser: WebDriver,
) -> None:
    pieces = "return document.querySelector('#chart-skills [data-line]').getAttribute('d').split('M').length - 1"
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "#chart-skills .legend", lambda said: "0.93" in said)
        assert browser.execute_script(pieces) == 2
        assert browser.execute_script("return document.querySelectorAll('#chart-skills .gap').length") == 1
        assert "not training" in text_of(browser, "#signs") and "best checkpoint" in text_of(browser, "#signs")
        assert "taken back" in until(browser, "#headline .news", bool)
        rise = until(browser, "#moment .key.others", bool)  # in the colour that the bar has
        assert rise.startswith("rotate_matrix")
        assert browser.execute_script("return document.querySelectorAll('.moment.others, .moment.lost').length") == 2
        browser.execute_script("document.querySelector('[data-by=step]').click()")
        assert browser.execute_script(pieces) == 1, "no round is missing"


def test_first_sentence_says_that_the_node_is_paused(browser: WebDriver) -> None:
    with served_page("starting", 0) as port:
        opened(browser, port)
        known: dict[str, object] = {
            "mean_now": 0.5,
            "mean_before": 0.5,
            "mean_first": 0.5,
            "others_since_round": None,
            "change": None,
        }
        known |= {"tasks": [], "losses": [], "peers": []}
        for gains in (known, None):
            said = browser.execute_async_script(PAUSED, gains)
            assert "paused" in said and "starting" not in said


def test_text_of_a_stranger_is_text_in_a_frame_that_says_whose_it_is(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, ".sample.foreign", lambda said: "<b>heron</b>" in said)
        assert "A stranger's answer" in text_of(browser, ".sample.foreign figcaption")
        assert browser.execute_script("return document.querySelectorAll('.sample b').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("state", "peers"), [("running", 3), ("running", 200), ("starting", 0)])
def test_no_reader_is_shut_out_no_number_has_a_comma_and_no_phone_scrolls_sideways(
    browser: WebDriver, state: State, peers: int, scheme: str
) -> None:
    with served_page(state, peers) as port:
        opened(browser, port, 375, scheme)
        browser.execute_script(OPEN_ALL)
        until(browser, "#settings", lambda said: "peer id" in said)
        until(browser, "#rollouts", bool)
        assert barriers(browser) == []
        assert pixels_beyond(browser) == 0
        assert browser.execute_script(SCROLLED) == []
        assert requests_elsewhere(browser) == []
        assert not COMMA_IN_NUMBER.search(text_of(browser, "main"))


def test_stop_asks_for_the_token_and_says_when_it_is_wrong(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        opened(browser, port)
        until(browser, "header .buttons", lambda said: "Stop" in said and "Pause" in said)
        browser.execute_script("document.getElementById('stop').click()")
        assert "api.token" in text_of(browser, "#ask")
        browser.execute_script("document.getElementById('ask-token').value = 'guess'")
        browser.execute_script("document.getElementById('ask-do').click()")
        until(browser, "#ask-failed", lambda said: "not this node's token" in said)
        browser.execute_script("document.getElementById('ask-token').value = arguments[0]", TOKEN)
        browser.execute_script("document.getElementById('ask-do').click()")
        until(browser, "#told", lambda said: "stopping" in said)


def test_the_link_of_the_owners_terminal_needs_no_token_and_leaves_none_in_the_address(browser: WebDriver) -> None:
    with served_page("running", 3) as port:
        browser.get(f"http://127.0.0.1:{port}/#token={TOKEN}")
        until(browser, "header .buttons", lambda said: "Stop" in said and "Pause" in said)
        assert TOKEN not in browser.execute_script("return location.href")
        browser.execute_script("document.getElementById('stop').click()")
        assert browser.execute_script("return document.getElementById('ask-token-part').hidden")
        browser.execute_script("document.getElementById('ask-do').click()")
        until(browser, "#told", lambda said: "stopping" in said)


@pytest.mark.parametrize("peers", [1, 14, 200, 256])
def test_same_peers_in_another_order_stand_in_the_same_places_inside_the_picture(
    browser: WebDriver, peers: int
) -> None:
    with served_page("starting", 0) as port:
        opened(browser, port)
        places, again = browser.execute_async_script(LAYOUT, peers)
    assert places == again and len({tuple(place) for place in places.values()}) == peers + 1
    if peers > 14:
        assert all(0 < x < 440 and 0 < y < 440 for x, y in places.values())


def test_parts_of_a_bar_end_at_the_reward_of_now_whatever_their_signs(browser: WebDriver) -> None:
    task = {"before": 0.2, "now": 0.5, "best": 0.7, "from_others": 0.6, "from_itself": -0.3, "not_attributed": 0.0}
    fallen = {"before": 0.6, "now": 0.1, "best": 0.6, "from_others": -0.5, "from_itself": 0.0, "not_attributed": 0.0}
    with served_page("starting", 0) as port:
        opened(browser, port)
        rising = browser.execute_async_script(PARTS, task)
        falling = browser.execute_async_script(PARTS, fallen)
    assert {kind: round(width, 6) for kind, _, width in rising} == {
        "alone": 0.2, "itself": 0, "others": 0.3, "unknown": 0, "lost": 0.2,
    }  # fmt: skip
    assert [(kind, start, round(width, 6)) for kind, start, width in falling if width] == [
        ("alone", 0, 0.1),
        ("lost", 0.1, 0.5),
    ]


def test_a_sentence_says_what_fell_where_a_number_is_red_and_nothing_of_what_may_be_chance(browser: WebDriver) -> None:
    task = {"before": 0.5, "first": 0.5, "from_others": 0.0, "from_itself": 0.0, "not_attributed": 0.0, "peers": []}
    gains = {
        "others_since_round": 3, "mean_first": 0.5, "mean_before": 0.5, "mean_now": 0.42, "from_others": -0.08,
        "from_itself": 0.0, "not_attributed": 0.0, "peers": [], "losses": [], "change": None,
    }  # fmt: skip
    tasks = [task | {"task": "add", "now": 0.33, "change": -0.17}, task | {"task": "sort", "now": 0.51, "change": None}]
    with served_page("starting", 0) as port:
        opened(browser, port)
        fallen = browser.execute_async_script(SENTENCES, gains | {"tasks": tasks})
        calm = browser.execute_async_script(SENTENCES, gains | {"tasks": tasks[1:]})
        chance = browser.execute_async_script(PARTS, tasks[1] | {"best": 0.51, "from_others": 0.01})
    assert "Lower than before: add." in fallen and "forgotten nothing" not in fallen
    assert "may be chance but for add −0.17" in fallen and "ann stands at" in fallen
    assert "forgotten nothing" in calm and not set(calm) & set("+−±")
    assert [(kind, width) for kind, _, width in chance if width] == [("alone", 0.51)]


@pytest.mark.parametrize(
    ("measured", "named", "is_drawn"), [("practice", "add", True), ("held-out", "add (greedy answers)", False)]
)
def test_fall_of_greedy_answers_is_named_so_and_not_drawn_on_a_bar_of_sampled_ones(
    browser: WebDriver, measured: str, named: str, is_drawn: bool
) -> None:
    task = {"task": "add", "first": 0.2, "before": 0.2, "now": 0.5, "change": 0.3, "peers": []}
    task |= {"from_others": 0.0, "from_itself": 0.3, "not_attributed": 0.0}
    gains = {
        "others_since_round": None, "mean_first": 0.2, "mean_before": 0.2, "mean_now": 0.5, "from_others": 0.0,
        "from_itself": 0.3, "not_attributed": 0.0, "peers": [], "change": 0.3, "tasks": [task],
        "losses": [{"task": "add", "measured": measured, "best": 0.8, "now": 0.5}],
    }  # fmt: skip
    with served_page("starting", 0) as port:
        opened(browser, port)
        said = browser.execute_async_script(SENTENCES, gains)
        drawn = browser.execute_async_script(PICTURE, gains)
    assert f"Lost: {named} fell from 0.80 to 0.50." in said
    assert ("below its best" in drawn) is is_drawn


def test_what_the_owner_must_know_at_once_is_told_in_words(browser: WebDriver) -> None:
    status = {
        "not_saved": {"round": 12, "saved_round": 10, "because": "the disk is full"},
        "damaged": {"damaged": [{"name": "step-9"}], "continues_from": None},
        "nothing_learnt": "nothing was learnt",
        "reward_falls": "the mean reward only falls",
        "hangs": "the learner has reported nothing for 1 min 15 s",
        "clock": "this machine's clock is 9 min fast",
    }
    with served_page("starting", 0) as port:
        opened(browser, port)
        unsaved, damaged, idle, falls, hangs, clock = browser.execute_async_script(ALARMS, status)
        assert browser.execute_async_script(ALARMS, {}) == []
    assert unsaved == "Not saved: rounds 11 to 12 are in memory alone: the disk is full"
    assert damaged == "Damaged: step-9, kept aside; no checkpoint was left"
    assert (idle, falls) == ("Nothing was learnt", "The mean reward only falls")
    assert hangs.endswith("nothing for 1 min 15 s")
    assert clock.endswith("9 min fast")
