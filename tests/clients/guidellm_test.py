"""guidellm over synthetic text and pictures: every request completed, with the tokens asked for, and
the server counted the same."""

import json
import unittest

from served_nano import NANO, NanoCase, say

PROMPT, REPLY = 96, 24


class GuideLLM(NanoCase):
    # Of /v1/responses the tool takes only an answer's text for tokens, so there has to be some.
    flags = ("--kv-memory", "256MiB", "--thinking-budget", "8")

    def run_format(self, name, requests, profile, *data, path):
        report = self.folder / f"{name}.json"
        self.run_tool(
            "guidellm", "run",
            "--backend", f"kind=openai_http,target={self.server.url},request_format={path}",
            "--profile", profile, "--constraint", f"kind=max_requests,count={requests}",
            "--tokenizer", f"kind=huggingface_auto,model={NANO}", *data,
            "--output", f"kind=json,path={report}", "--disable-console-interactive",
        )  # fmt: skip
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        done = benchmark["requests"]
        self.assertEqual((done["errored"], done["incomplete"]), ([], []))
        self.assertEqual(len(done["successful"]), requests)
        for request in done["successful"]:
            self.assertEqual(request["output_metrics"]["total_tokens"], REPLY, request)
            timings = request["info"]["timings"]
            self.assertLess(timings["request_start"], timings["first_token_iteration"])
            self.assertLess(timings["first_token_iteration"], timings["last_token_iteration"])
        counts = self.counts.take()
        self.assertEqual(counts.replies("length"), requests)
        self.assertEqual(counts.of("vllm:generation_tokens_total"), requests * REPLY)
        asked = sum(request["input_metrics"]["total_tokens"] for request in done["successful"])
        self.assertEqual(counts.of("vllm:prompt_tokens_total"), asked)
        say(f"guidellm {name}: {requests} requests, {asked} tokens in, {requests * REPLY} out, "
            "as the server counted")
        return done["successful"]

    def text(self):
        return "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={REPLY}"

    def test_chat(self):
        for request in self.run_format(
            "chat", 12, "kind=concurrent,streams=4", *self.text(), path="/v1/chat/completions"
        ):
            self.assertGreater(request["input_metrics"]["total_tokens"], PROMPT)

    def test_completions(self):
        # The text as it stands, so the tokens are those the tool made it of, give or take a merge
        # where it begins.
        for request in self.run_format(
            "completions", 4, "kind=synchronous", *self.text(), path="/v1/completions"
        ):
            self.assertLessEqual(abs(request["input_metrics"]["total_tokens"] - PROMPT), 2)

    def test_responses(self):
        self.run_format(
            "responses", 6, "kind=concurrent,streams=2", *self.text(), path="/v1/responses"
        )


if __name__ == "__main__":
    unittest.main()
