"""A local web server: files by their paths, parts of them if it can, and what was asked of it."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What a server has, and how it answers; changed while it runs."""

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """More headers, by paths."""
    redirects: dict[str, str] = field(default_factory=dict)
    parts: bool = True
    """Whether it can send a part of a file."""
    most: int | None = None
    """Bytes of an answer after which the connection breaks off."""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """Each request's path, range and authorization."""
    url: str = ""
    hold: threading.Event | None = None
    """Keeps a connection that broke off open until then."""
    held: threading.Event = field(default_factory=threading.Event)

    def ranges(self, path):
        return [ranged for asked, ranged, _ in self.asked if asked == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def site(self):
        return self.server.site

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.site.asked.append((path, self.headers["Range"], self.headers["Authorization"]))
        if path in self.site.redirects:
            self.answer(302, b"", {"Location": self.site.redirects[path]})
        elif path not in self.site.files:
            self.answer(404, b"nothing here", {})
        else:
            self.send_file(self.site.files[path], self.site.headers.get(path, {}))

    def send_file(self, content, headers):
        ranged = self.headers["Range"]
        if ranged and self.site.parts:
            begin = int(ranged.removeprefix("bytes=").removesuffix("-"))
            place = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
            self.answer(206, content[begin:], headers | place)
        else:
            self.answer(200, content, headers)

    def answer(self, code, body, headers):
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: self.site.most])
        if self.site.most is not None and len(body) > self.site.most:
            self.close_connection = True
            if self.site.hold:
                self.wfile.flush()
                self.site.held.set()
                self.site.hold.wait(60)


class Serving:
    """A site that is served; a context manager that gives the site."""

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.site = Site(url=f"http://127.0.0.1:{self.server.server_port}")
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return self.server.site

    def __exit__(self, *_):
        if self.server.site.hold:
            self.server.site.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
