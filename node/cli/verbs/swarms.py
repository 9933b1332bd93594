"""``starling swarms``: the swarms that this machine knows."""

from __future__ import annotations

from node.cli.options import HomeOption, JsonOption, ListOption, home_of, print_answer


def swarms(lists: ListOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the swarms that this machine knows: the data directory's own, those of invitations, of signed lists, and of
    the local network.

    A list names swarms with their tasks and addresses. It is a file that
    anybody can host, signed by the key of a node (starling swarm publish). It
    is kept, so that its swarms can be joined by their names later. Whether to
    trust the signer is for you to judge: a key that is new here is called so.
    No address is dialled before you join, with starling up and the swarm's name.

    Examples:

    starling swarms

    starling swarms --list https://example.org/swarms.list
    """
    from node.cli.meeting import known_swarms, swarm_lines

    known, refused = known_swarms(home_of(home), lists or [])
    print_answer({"swarms": known, "left_out": refused}, as_json, lambda: swarm_lines(known, refused))
