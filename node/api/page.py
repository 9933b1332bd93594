"""The web page at ``/``: the files in ``assets``, and nothing else.

The page asks this node and nobody else, which its content security policy holds it to: no script, style, font or image
from elsewhere, no markup of a stranger run. It changes nothing, so it needs no token.
"""

from __future__ import annotations

from aiohttp import web

from node.api.page_files import ASSETS

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked again each time, and answered "not modified"
}


def add_page(router: web.UrlDispatcher) -> None:
    """Adds ``/`` and what it loads."""
    files = {path.name: path for path in ASSETS.iterdir() if path.is_file()}

    async def index(_: web.Request) -> web.StreamResponse:
        return web.FileResponse(files["index.html"], headers=HEADERS)

    async def asset(request: web.Request) -> web.StreamResponse:
        path = files.get(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text="no such file of the page")
        return web.FileResponse(path, headers=HEADERS)

    router.add_get("/", index)
    router.add_get("/assets/{name}", asset)
