"""``starling peers``: the peers that this node knows."""

from __future__ import annotations

from node.cli.options import HomeOption, JsonOption, home_of, print_answer


def peers(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the peers that the node knows, connected ones first.

    Example: starling peers --json
    """
    from node.api.node_client import ask_peers
    from node.cli.wording import peer_lines

    answer = ask_peers(home_of(home))
    none = ["No peers yet: starling status shows what the node is trying."]
    print_answer(answer, as_json, lambda: peer_lines(answer.peers) or none)
