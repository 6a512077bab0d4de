"""aiperf over every form of the API: each request counted, none failed, tokens as asked for by the
server's usage, and its own scrape of /metrics succeeded."""

import json
import unittest

from served_nano import NANO, NanoCase, say

PROMPT, REPLY, REQUESTS, STREAMS = 96, 24, 12, 4


class AIPerf(NanoCase):
    # Offline the tool looks for the tokenizer in the hub's cache and not in the folder it is given;
    # nothing is fetched either way.
    # `usage`: whether it reads the usage of this form.
    def profile(self, name, endpoint, *flags, streamed=True, usage=True):
        folder = self.folder / name
        self.run_tool(
            "aiperf", "profile", "--model", "nano", "--url", self.server.url,
            "--endpoint-type", endpoint, *(["--streaming"] if streamed else []),
            "--synthetic-input-tokens-mean", PROMPT, "--synthetic-input-tokens-stddev", 0,
            "--output-tokens-mean", REPLY, "--output-tokens-stddev", 0,
            "--extra-inputs", "ignore_eos:true", "--concurrency", STREAMS,
            "--request-count", REQUESTS, "--tokenizer", NANO, "--artifact-dir", folder,
            "--ui", "none", "--workers-max", 1, "--record-processors", 1, "--no-gpu-telemetry",
            *flags, HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="",
        )  # fmt: skip
        report = json.loads((folder / "profile_export_aiperf.json").read_text())
        self.assertEqual(report["error_summary"], [])
        self.assertTrue(report["is_complete"])
        self.assertEqual(report["request_count"]["avg"], REQUESTS)
        self.assertEqual(report["request_error_rate"]["avg"], 0)
        if streamed:
            self.assertGreater(report["time_to_first_token"]["min"], 0)
            self.assertGreater(report["inter_token_latency"]["avg"], 0)
        records = [json.loads(l) for l in (folder / "profile_export.jsonl").read_text().splitlines()]
        self.assertEqual(len(records), REQUESTS)
        scrape = json.loads((folder / "server_metrics_export.json").read_text())
        (endpoint,) = scrape["summary"]["endpoint_info"].values()
        self.assertGreater(endpoint["unique_updates"], 1)
        counts = self.counts.take()
        self.assertEqual(counts.replies("length"), REQUESTS)
        generated, prompts = (
            counts.of(f"vllm:{kind}_tokens_total") for kind in ("generation", "prompt")
        )
        self.assertEqual(generated, REQUESTS * REPLY)
        self.assertGreaterEqual(prompts, REQUESTS * (PROMPT - 2))
        self.assertEqual("usage_completion_tokens" in report, usage)
        if usage:
            self.assertEqual(report["usage_completion_tokens"]["min"], REPLY)
            self.assertEqual(report["usage_completion_tokens"]["max"], REPLY)
            self.assertGreaterEqual(report["usage_prompt_tokens"]["min"], PROMPT - 2)
            self.assertEqual(report["total_usage_completion_tokens"]["avg"], generated)
            self.assertEqual(report["total_usage_prompt_tokens"]["avg"], prompts)
        say(f"aiperf {name}: {REQUESTS} requests, {REPLY} tokens each, as the server counted")
        return report

    def test_chat_stream(self):
        self.profile("chat-stream", "chat")

    def test_chat_whole(self):
        self.profile("chat", "chat", streamed=False)

    def test_completions(self):
        self.profile("completions", "completions")

    # Of a stream the tool reads the usage in response.completed alone, and a reply that its limit
    # ended closes with response.incomplete.
    def test_responses(self):
        self.profile("responses", "responses", usage=False)

    def test_messages(self):
        self.profile("messages", "messages")

    def test_pictures(self):
        self.profile(
            "pictures", "chat", "--image-width-mean", 64, "--image-width-stddev", 0,
            "--image-height-mean", 64, "--image-height-stddev", 0,
        )  # fmt: skip
        images = self.counts.take()
        self.assertGreaterEqual(
            images.of("percheron:images_encoded_total") + images.of("percheron:images_reused_total"),
            REQUESTS,
        )


if __name__ == "__main__":
    unittest.main()
