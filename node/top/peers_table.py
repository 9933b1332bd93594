"""The peers as a table with a cursor, and below it everything that is known about the peer under the cursor."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static

from node.api.types import PeerView
from node.top.peers_view import GAP_CELLS, PeerColumn, columns, ordered, peer_detail_lines
from node.top.styled import cell, content
from node.top.text import Span, Style, fitted, widths
from node.top.watch import Seen, View

NONE_YET = "No peer is known yet. Others join with the address that starling up prints."
SCROLLBAR_CELLS = 1


class PeersPage(Vertical):
    """Keeps the cursor on its peer when the order changes, and draws only what has changed."""

    DEFAULT_CSS = """
    PeersPage DataTable { height: 1fr; background: ansi_default; }
    PeersPage DataTable:ansi > .datatable--header { background: ansi_default; text-style: bold; }
    PeersPage DataTable > .datatable--even-row, PeersPage DataTable > .datatable--hover { background: ansi_default; }
    PeersPage DataTable > .datatable--cursor, PeersPage DataTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    PeersPage #peer { height: auto; max-height: 12; border-top: solid ansi_blue; }
    """

    def __init__(self) -> None:
        super().__init__(id=View.PEERS)
        self._table: DataTable[object] = DataTable(cursor_type="row", zebra_stripes=False, cell_padding=0)
        self._one = Static(markup=False, id="peer")
        self._columns: tuple[PeerColumn, ...] = ()
        self._sort_column: int | None = None  # index
        self._reversed = False
        self._peers: list[PeerView] = []
        self._shown: list[tuple[str, list[Span]]] = []

    def compose(self) -> ComposeResult:
        yield self._table
        yield self._one

    def take_focus(self) -> None:
        self._table.focus()

    def draw(self, seen: Seen) -> None:
        self._columns = columns(self.size.width)
        if self._sort_column is not None and self._sort_column >= len(self._columns):
            self._sort_column = None
        known = seen.peers.peers if seen.peers is not None else ()
        if seen.peers is not None and not known:
            self._one.update(content([(Span(NONE_YET, "faint"),)]))
        self._peers = list(known)
        self._arrange()

    def sort_by_next(self) -> None:
        """Sorts by the next column; after the last column, restores the node's own order."""
        following = 0 if self._sort_column is None else self._sort_column + 1
        self._sort_column = following if following < len(self._columns) else None
        self._reversed = False
        self._arrange_from_top()

    def reverse(self) -> None:
        self._reversed = not self._reversed
        self._arrange_from_top()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        self._reversed = self._sort_column == event.column_index and not self._reversed
        self._sort_column = event.column_index
        self._arrange_from_top()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._describe()

    def _arrange_from_top(self) -> None:
        """Arranges the rows and moves the cursor to the first of the new order."""
        self._arrange()
        self._table.move_cursor(row=0, animate=False)

    def _arrange(self) -> None:
        by = None if self._sort_column is None else self._columns[self._sort_column]
        peers = ordered(self._peers, by, backwards=self._reversed)
        room = self.size.width - SCROLLBAR_CELLS - GAP_CELLS
        cells = widths([shown.column for shown in self._columns], room, GAP_CELLS)
        rows = [
            (peer.peer, [_cell(shown, peer, width) for shown, width in zip(self._columns, cells, strict=True)])
            for peer in peers
        ]
        heads = self._heads(cells)
        under, top = self._under_cursor(), self._table.scroll_y
        rebuilt = heads != [str(column.label) for column in self._table.ordered_columns]
        if rebuilt:
            self._shown = []
            self._table.clear(columns=True)
            for head, width in zip(heads, cells, strict=True):
                self._table.add_column(cell(Span(head)), width=width + GAP_CELLS)
        if [key for key, _ in rows] == [key for key, _ in self._shown]:
            self._update(rows)
        else:
            self._table.clear()
            for key, spans in rows:
                self._table.add_row(*map(cell, spans), key=key)
            self._shown = rows
            keys = [key for key, _ in rows]
            if under in keys:
                self._table.move_cursor(row=keys.index(under), animate=False, scroll=rebuilt)
                if not rebuilt:
                    self._table.scroll_to(y=top, animate=False)
        self._describe()

    def _heads(self, cells: list[int]) -> list[str]:
        """Returns the titles. In the gap after the title of the sorted column stands a mark."""
        heads = []
        for index, (shown, width) in enumerate(zip(self._columns, cells, strict=True)):
            mark = ("▼" if shown.descending != self._reversed else "▲") if index == self._sort_column else " "
            title = f"{shown.column.title}{mark}"
            heads.append(fitted(title, width + GAP_CELLS, right=shown.column.right))
        return heads

    def _update(self, rows: list[tuple[str, list[Span]]]) -> None:
        """Updates the cells that differ; the order of the rows is the same."""
        for at, ((_, new), (_, old)) in enumerate(zip(rows, self._shown, strict=True)):
            for column, span in enumerate(new):
                if span != old[column]:
                    self._table.update_cell_at(Coordinate(at, column), cell(span))
        self._shown = rows

    def _under_cursor(self) -> str | None:
        at = self._table.cursor_row
        return self._shown[at][0] if 0 <= at < len(self._shown) else None

    def _describe(self) -> None:
        under = self._under_cursor()
        peer = next((peer for peer in self._peers if peer.peer == under), None)
        if peer is not None:
            self._one.update(content(peer_detail_lines(peer, self.size.width)))


def _cell(column: PeerColumn, peer: PeerView, width: int) -> Span:
    span = column.of(peer)
    style: Style = "faint" if not peer.connected and not span.style else span.style
    return Span(fitted(span.text, width, right=column.column.right), style)
