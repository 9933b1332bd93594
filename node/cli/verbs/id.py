"""``starling id``: the peer id of this node."""

from __future__ import annotations

from node.cli.options import HomeOption, JsonOption, home_of, print_answer


def identity(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print the node's peer id, which its key file determines.

    Example: starling id --json
    """
    from protocol.identity import NodeKey

    path = home_of(home).key
    peer = NodeKey.load(path).peer_id
    print_answer({"peer": peer, "key_file": str(path)}, as_json, lambda: [peer])
