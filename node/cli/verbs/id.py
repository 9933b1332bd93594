"""``starling id``: the peer id of this node."""

from __future__ import annotations

import os

import typer

from node.cli.options import HomeOption, JsonOption


def identity(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print the node's peer id, which its key file determines.

    Example: starling id --json
    """
    from node.home import home_at
    from protocol.identity import NodeKey

    where = home_at(home, os.environ)
    key = NodeKey.load(where.key)
    if as_json:
        import json

        typer.echo(json.dumps({"peer": key.peer_id, "key_file": str(where.key)}))
        return
    typer.echo(key.peer_id)
