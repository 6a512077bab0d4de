"""What the page's tests share: one browser a class, one server and page a test."""

import os
import pathlib
import unittest

from browser import Browser
from replay_server import ReplayServer

SCREENSHOTS = pathlib.Path(os.environ["PERCHERON_SCREENSHOTS"])


class PageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def serve(self, *replies, **options):
        server = ReplayServer(replies, **options)
        self.addCleanup(server.stop)
        return server

    def open(self, server, path="/", before="", **options):
        """A page of the server; `before` is JavaScript that runs ahead of the page's own."""
        page = self.browser.new_page(**options)
        self.addCleanup(page.close)
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        page.open(server.url + path)
        return page

    def send(self, page, text):
        page.run("document.getElementById('message-input').focus()")
        page.type(text)
        page.press("Enter")

    def wait_end(self, page, replies=1):
        """Waits until that many replies have ended and none is running."""
        page.wait_for(
            f"document.querySelectorAll('.assistant[aria-busy=false]').length === {replies} && "
            "document.getElementById('stop').hidden"
        )

    def shoot(self, page, name):
        page.screenshot(SCREENSHOTS / f"{name}.png")

    def assert_clean(self, page):
        self.assertEqual(page.errors, [])
        self.assertEqual(page.dialogs, [])
