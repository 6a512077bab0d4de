"""tool-eval-bench to the end, hard scenarios included: every scenario has a result, none for a fault
of the server.  What the small model scores is not judged, nor how often it calls a tool: among the
twelve that each prompt of some 1,500 tokens describes it rarely finds one."""

import collections
import json
import unittest

from served_nano import NanoCase, say

SCENARIOS = 97


class ToolEvalBench(NanoCase):
    # The small model may think without end over tasks that it cannot do.
    flags = ("--kv-memory", "512MiB", "--thinking-budget", "256")

    def test_all_scenarios(self):
        report = self.folder / "report.json"
        self.run_tool(
            "tool-eval-bench", "run", "--hardmode", "--seed", 42, "--base-url", self.server.url,
            "--json-file", report, "--no-live", "--parallel", 4, "--timeout", 1800,
            "--backend-kwargs", json.dumps({"max_tokens": 768}),
            "--output-dir", self.folder / "runs",
        )  # fmt: skip
        result = json.loads(report.read_text())
        self.assertEqual((result["status"], result["total_scenarios"]), ("completed", SCENARIOS))
        scores = result["scores"]
        scenarios = scores["scenario_results"]
        self.assertEqual(len({scenario["scenario_id"] for scenario in scenarios}), SCENARIOS)
        kinds = collections.Counter(scenario.get("failure_kind") for scenario in scenarios)
        for fault in ("server_error", "connection_error", "timeout", "model_crash"):
            self.assertEqual(kinds[fault], 0, kinds)
        self.assertEqual(scores.get("excluded_scenarios", []), [])
        self.assertGreater(scores["total_tokens"], 10 * SCENARIOS)
        counts = self.counts.take()
        self.assertGreaterEqual(counts.replies("stop", "length", "tool_calls"), SCENARIOS)
        # The tool calls a request that was refused a wrong answer: there are none.
        self.assertEqual(counts.of('percheron:http_replies_total{status="400"}'), 0)
        passed = sum(scenario["status"] == "pass" for scenario in scenarios)
        say(f"tool-eval-bench: {SCENARIOS} scenarios to their end, no fault of the server; the small "
            f"model passed {passed}")


if __name__ == "__main__":
    unittest.main()
