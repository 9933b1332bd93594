"""``starling peers``: the peers that this node knows."""

from __future__ import annotations

import os

import typer

from node.cli.options import HomeOption, JsonOption


def peers(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the peers that the node knows, connected ones first.

    Example: starling peers --json
    """
    from node.api.node_client import ask_peers
    from node.home import home_at

    answer = ask_peers(home_at(home, os.environ))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(answer))
        return
    from node.cli.wording import peer_lines

    for line in peer_lines(answer.peers) or ["No peers yet: starling status shows what the node is trying."]:
        typer.echo(line)
