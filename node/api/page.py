"""The web page at ``/``: the files in ``assets``, and nothing else.

The page sends requests to this node alone. Its content security policy enforces that: no script, style, font or image
from elsewhere loads, and no script in a stranger's text runs. Its buttons that change the node send the token that the
owner typed, or that the link in the owner's terminal has behind #; serving the page needs none.
"""

from __future__ import annotations

from aiohttp import web

from node.api.page_files import ASSETS

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # the browser asks again each time, and the answer is "not modified"
}


def add_page(router: web.UrlDispatcher) -> None:
    """Adds ``/`` and the files that it loads."""
    files = {path.name: path for path in ASSETS.iterdir() if path.is_file()}

    async def on_index(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(files["index.html"], headers=HEADERS)

    async def on_asset(request: web.Request) -> web.StreamResponse:
        path = files.get(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text="the page has no such file")
        return web.FileResponse(path, headers=HEADERS)

    router.add_get("/", on_index)
    router.add_get("/assets/{name}", on_asset)
