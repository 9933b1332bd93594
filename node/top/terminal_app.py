"""``starling top``: five views of a running node in a terminal, redrawn when the node's answers change.

It works at 80 by 24, over ssh, on light and dark terminals: it uses only the terminal's own colours and background.
Text of peers is shown as text: every span is escaped by ``node.printable``, and no markup is read anywhere.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, Static

from node.quantities import duration
from node.top.node_view import node_lines
from node.top.peers_table import PeersPage
from node.top.rewards_view import rewards_lines
from node.top.rollouts_view import rollouts_lines
from node.top.styled import content
from node.top.swarm_view import swarm_lines
from node.top.text import Line, Span, fitted
from node.top.watch import Seen, View, Watch

REDRAW_SECONDS = 0.1  # how often the watch's newest answers are compared with those drawn
SCROLLBAR_CELLS = 1
KEYS = " 1–5 tab: views   ↑ ↓: move   s r: sort peers   ?: help   q: quit"
HELP = """\
starling top shows a running node, every second.

 1 2 3 4 5   Rewards, Node, Peers, Swarm, Rollouts
 tab → ←     next view, previous view
 ↑ ↓         move by a line; PgUp PgDn by a page
 s           Peers: sort by the next column
 r           Peers: reverse the order
 ?           this help
 q  Ctrl-C   quit; the node keeps running

taught      of the change of the mean reward, by a peer
used of     groups of a peer that were trained on, of
            those that it announced
fetched     groups of this node that it fetched
unused      its groups that were not trained on; the
            reasons are below the table
reputation  1 trusted, 0 banned

Any key closes this help.
"""
THEME = "ansi-dark"  # the terminal's own colours and background; ``styled`` chooses all other colours


class Page(VerticalScroll, can_focus=True):
    """A page of text that scrolls, drawn for its width. ``lines_of`` takes what was seen, cells and rows."""

    def __init__(self, view: View, lines_of: Callable[[Seen, int, int], Sequence[Line] | None]) -> None:
        super().__init__(id=view)
        self._lines_of = lines_of
        self._text = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._text

    def take_focus(self) -> None:
        self.focus()

    def draw(self, seen: Seen) -> None:
        lines = self._lines_of(seen, self.size.width - SCROLLBAR_CELLS, self.size.height)
        self._text.update(content(lines if lines is not None else [(Span("waiting for the node …", "faint"),)]))


class Help(ModalScreen[None]):
    """Lists the keys, and explains columns."""

    def compose(self) -> ComposeResult:
        yield Static(HELP, markup=False, id="help")

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss()


class Top(App[None]):
    """The user interface of one ``Watch``, which it starts and stops."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title, #views, #keys { height: 1; }
    ContentSwitcher { height: 1fr; }
    Page, DataTable { scrollbar-size-vertical: 1; scrollbar-background: ansi_default; scrollbar-color: ansi_blue; }
    Help { align: center middle; background: ansi_default; }
    #help { width: 62; height: auto; border: round ansi_blue; padding: 0 1; }
    """
    BINDINGS: ClassVar = [
        *(Binding(str(number), f"view('{view}')") for number, view in enumerate(View, 1)),
        Binding("tab,right", "next_view(1)", priority=True),
        Binding("shift+tab,left", "next_view(-1)", priority=True),
        Binding("s", "sort"),
        Binding("r", "reverse"),
        Binding("question_mark,h", "help"),
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._drawn: Seen | None = None
        self._view = View.REWARDS
        self._title = Static(markup=False, id="title")
        self._views = Static(markup=False, id="views")
        self._pages: dict[View, Page | PeersPage] = {
            View.REWARDS: Page(
                View.REWARDS, lambda seen, cells, _: rewards_lines(seen.gains, cells) if seen.gains else None
            ),
            View.NODE: Page(
                View.NODE,
                lambda seen, cells, rows: node_lines(seen.status, seen.history, seen.at_seconds, cells, rows),
            ),
            View.PEERS: PeersPage(),
            View.SWARM: Page(
                View.SWARM,
                lambda seen, cells, _: swarm_lines(seen.swarm, cells) if seen.swarm else None,
            ),
            View.ROLLOUTS: Page(
                View.ROLLOUTS,
                lambda seen, cells, _: rollouts_lines(seen.rollouts, seen.at_seconds, cells) if seen.rollouts else None,
            ),
        }
        self.theme = THEME

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._views
        with ContentSwitcher(initial=View.REWARDS):
            yield from self._pages.values()
        yield Static(content([(Span(KEYS, "faint"),)]), markup=False, id="keys")

    def on_mount(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # so that the terminal is restored
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._watch.start()
        self.set_interval(REDRAW_SECONDS, self._on_interval)
        self.call_after_refresh(self._draw)

    def on_unmount(self) -> None:
        self._watch.stop()

    def on_resize(self, _: Resize) -> None:
        self.call_after_refresh(self._draw)

    def action_view(self, view: str) -> None:
        self._view = View(view)
        self._watch.show(self._view)
        self.query_one(ContentSwitcher).current = view
        self.call_after_refresh(self._draw)

    def action_next_view(self, by: int) -> None:
        views = list(View)
        self.action_view(views[(views.index(self._view) + by) % len(views)])

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_sort(self) -> None:
        if self._view is View.PEERS:
            self.query_one(PeersPage).sort_by_next()

    def action_reverse(self) -> None:
        if self._view is View.PEERS:
            self.query_one(PeersPage).reverse()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While the help is open, only quitting works."""
        return action == "quit" or not isinstance(self.screen, Help)

    def _on_interval(self) -> None:
        if self._watch.seen is not self._drawn:
            self._draw()

    def _draw(self) -> None:
        if not self.is_running:  # Textual ends its screens before the timers that draw on them
            return
        self._drawn = seen = self._watch.seen
        self._title.update(content([_title(seen, self.size.width)]))
        self._views.update(content([_views(self._view)]))
        page = self._pages[self._view]
        page.draw(seen)
        if not isinstance(self.screen, Help):
            page.take_focus()


def _title(seen: Seen, cells: int) -> Line:
    status = seen.status
    name = Span(f" {fitted(status.name or 'starling', 16).rstrip()} ", "title")
    if seen.away is not None:
        return name, Span(fitted(seen.away, cells - len(name.text)), "bad")
    state = Span(f" {status.state}  ", "good" if status.state == "training" else "warn")
    swarm = f", swarm {status.swarm.swarm}" if status.swarm is not None else ""
    about = f"{status.model}{swarm}, up {duration(status.uptime_seconds)}"
    return name, state, Span(fitted(about, max(0, cells - len(name.text) - len(state.text))), "faint")


def _views(current: View) -> Line:
    return tuple(
        Span(f" {number} {view.capitalize()} ", "title" if view is current else "faint")
        for number, view in enumerate(View, 1)
    )
