"""llama-benchy over a grid of prompts, depths and streams: every request of the grid ran, counted
as many tokens as were asked for, and the prefix cache was seen where it was used and only there."""

import functools
import http.server
import json
import random
import threading
import unittest

from served_nano import NANO, NanoCase, say

PROMPTS, REPLIES, DEPTHS, STREAMS, RUNS = (128, 512), (16, 32), (0, 1024), (1, 4), 2


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class LlamaBenchy(NanoCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The tool wants a book over HTTP for its prompts.
        draw = random.Random(5)
        words = ["river", "stone", "walks", "the", "a", "slowly", "bread", "and", "seven", "hills"]
        text = ". ".join(" ".join(draw.choices(words, k=9)) for _ in range(20_000))
        (cls.folder / "book.txt").write_text(text, encoding="utf-8")
        handler = functools.partial(QuietHandler, directory=str(cls.folder))
        books = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=books.serve_forever, daemon=True).start()
        cls.addClassCleanup(books.server_close)
        cls.addClassCleanup(books.shutdown)
        cls.book = f"http://127.0.0.1:{books.server_address[1]}/book.txt"

    def grid(self, name, *flags):
        """The report, and the ends of all requests that count."""
        report = self.folder / f"{name}.json"
        progress = self.folder / f"{name}.jsonl"
        self.run_tool(
            "llama-benchy", "--base-url", self.server.url + "/v1", "--model", "nano",
            "--tokenizer", NANO, "--book-url", self.book, "--exact-tg", "--exit-on-first-fail",
            "--pp", *PROMPTS, "--tg", *REPLIES, "--depth", *DEPTHS, "--concurrency", *STREAMS,
            "--runs", RUNS, "--save-result", report, "--format", "json",
            "--emit-progress", progress, *flags, no_proxy="127.0.0.1",
        )  # fmt: skip
        events = [json.loads(line) for line in progress.read_text().splitlines()]
        starts = {e["request_id"]: e for e in events if e["type"] == "request_start"}
        ends = [e for e in events if e["type"] == "request_end"]
        self.assertEqual(len(ends), len(starts))
        whole = sum(end["total_tokens"] == starts[end["request_id"]]["response_size"] for end in ends)
        self.assertGreater(whole, len(ends) * 0.8)
        for end in ends:
            start = starts[end["request_id"]]
            self.assertFalse(end.get("error"), end)
            # It counts the ids of chunks with text: where a reply is cut behind a closing tag or inside
            # a character, its last tokens have none.
            self.assertLessEqual(end["total_tokens"], start["response_size"])
            self.assertGreaterEqual(end["total_tokens"], start["response_size"] - 3)
            self.assertGreaterEqual(end["prompt_tokens"], start["prompt_size"] // 2)
        return json.loads(report.read_text()), ends

    def check_rows(self, report, rows):
        self.assertEqual(len(report["benchmarks"]), rows)
        for row in report["benchmarks"]:
            for figure in ("pp_throughput", "tg_throughput", "ttfr", "e2e_ttft"):
                self.assertEqual(
                    len(row[figure]["values"]),
                    RUNS if figure.endswith("_throughput") else RUNS * row["concurrency"],
                    (figure, row),
                )
                self.assertGreater(min(row[figure]["values"]), 0)

    def test_grid_without_cache(self):
        report, ends = self.grid("plain", "--no-cache", "--latency-mode", "generation")
        cells = len(PROMPTS) * len(REPLIES) * len(DEPTHS)
        self.check_rows(report, cells * len(STREAMS))
        self.assertEqual(len(ends), cells * RUNS * sum(STREAMS))
        counts = self.counts.take()
        self.assertEqual(counts.of("vllm:prefix_cache_hits_total"), 0)
        # Each cell has a round of warm-up; before the grid come two prompts of one token, the
        # question that must name Paris, and three measurements of latency.
        of_grid = len(PROMPTS) * len(DEPTHS) * sum(STREAMS) * (RUNS + 1)
        self.assertEqual(counts.replies("stop", "length"), of_grid * len(REPLIES) + 6)
        say(f"llama-benchy, no cache: {len(report['benchmarks'])} cells, {len(ends)} requests, "
            "each with the tokens asked for")

    def test_grid_with_prefix_cache(self):
        report, ends = self.grid("cached", "--enable-prefix-caching", "--latency-mode", "api")
        cells = len(PROMPTS) * len(REPLIES) * (1 + 2 * (len(DEPTHS) - 1))
        self.check_rows(report, cells * len(STREAMS))
        self.assertEqual(len(ends), cells * RUNS * sum(STREAMS))
        counts = self.counts.take()
        # The second phase of a depth finds the context that the first computed, up to a block.
        deep = len(PROMPTS) * len(REPLIES) * sum(STREAMS) * (RUNS + 1)
        least = deep * (max(DEPTHS) - 64)
        hits = counts.of("vllm:prefix_cache_hits_total")
        self.assertGreaterEqual(hits, least)
        say(f"llama-benchy, prefix cache: {len(ends)} requests, {hits:.0f} tokens from the cache "
            f"(limit {least})")


if __name__ == "__main__":
    unittest.main()
