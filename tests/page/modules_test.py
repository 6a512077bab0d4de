"""The page's modules, each alone, inside Chromium: cases lie in modules/*_cases.js."""

import pathlib
import unittest

from page_case import PageCase

CASES = pathlib.Path(__file__).parent / "modules"


class Modules(PageCase):
    def check(self, name):
        page = self.open(self.serve())
        source = (CASES / "harness.js").read_text() + (CASES / name).read_text()
        outcome = page.run(f"(async () => {{ {source} }})()")
        self.assertEqual(outcome["failures"], [])
        self.assertGreater(outcome["checks"], 50)
        self.assert_clean(page)

    def test_event_stream_survives_every_chunking(self):
        self.check("sse_cases.js")

    def test_markdown_is_safe_and_linear(self):
        self.check("markdown_cases.js")

    def test_replies_requests_settings_and_store(self):
        self.check("chat_cases.js")

    def test_figures_charts_and_rows_of_the_dashboard(self):
        self.check("dashboard_cases.js")


if __name__ == "__main__":
    unittest.main()
