"""A coding agent's loop over /v1/responses, as opencode and Codex run it: everything is streamed and
nothing stored, each turn sends all items so far, tools of kinds the server cannot run stand beside
functions, and the files the model writes and reads are real."""

import http.client
import json
import pathlib
import random
import unittest

from served_nano import NanoCase, say

TOOLS = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Read a text file",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
    {
        "type": "function",
        "name": "write_file",
        "description": "Write text to a file",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
    {"type": "web_search", "external_web_access": False},
]
WORDS = ["copper", "bridge", "lucky", "window", "cherry", "forest", "candle", "winter"]
ERRANDS = 6


class ResponsesLoop(NanoCase):
    def setUp(self):
        super().setUp()
        self.files = self.folder / "files"
        self.files.mkdir(exist_ok=True)
        self.connection = http.client.HTTPConnection(self.server.host, self.server.port)
        self.addCleanup(self.connection.close)

    def events(self, items):
        body = {
            "model": "nano",
            "instructions": "You are a coding agent. Be brief.",
            "input": items,
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "019a",
            "text": {"verbosity": "low"},
            "temperature": 0,
        }
        self.connection.request(
            "POST", "/v1/responses", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = self.connection.getresponse()
        self.assertEqual(reply.status, 200, reply.status)
        for number, event in enumerate(reply.read().decode().split("\n\n")[:-1]):
            if event == "data: [DONE]":
                continue
            kind, data = event.split("\n")
            data = json.loads(data.removeprefix("data: "))
            self.assertEqual(kind, "event: " + data["type"])
            self.assertEqual(data["sequence_number"], number)
            yield data

    def turn(self, items):
        """The items of one reply, as the deltas and the final object have them."""
        added, deltas, done = [], {}, []
        for event in self.events(items):
            kind = event["type"]
            if kind == "response.output_item.added":
                added.append(event["item"]["id"])
            elif kind.endswith(".delta"):
                key = event["item_id"]
                deltas[key] = deltas.get(key, "") + event["delta"]
            elif kind == "response.output_item.done":
                done.append(event["item"])
            last = event
        self.assertEqual(last["type"], "response.completed")
        self.assertEqual([item["id"] for item in done], added)
        self.assertEqual(last["response"]["output"], done)
        for item in done:
            if item["type"] == "function_call":
                self.assertEqual(deltas[item["id"]], item["arguments"])
            elif item["type"] == "message":
                self.assertEqual(deltas[item["id"]], item["content"][0]["text"])
        return done, last["response"]["usage"]

    def run_tool_call(self, call):
        arguments = json.loads(call["arguments"])
        path = self.files / pathlib.PurePath(arguments["path"]).name
        if call["name"] == "write_file":
            path.write_text(arguments["content"], encoding="utf-8")
            return "ok"
        self.assertEqual(call["name"], "read_file")
        return path.read_text(encoding="utf-8") if path.exists() else "no such file"

    def errand(self, items, request):
        """Turns until the model answers; the answer and the calls it made."""
        items.append(
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": request}]}
        )
        calls = []
        for _ in range(4):
            done, usage = self.turn(items)
            self.turns += 1
            self.cached += usage["input_tokens_details"]["cached_tokens"]
            self.sent += usage["input_tokens"]
            items += done
            wanted = [item for item in done if item["type"] == "function_call"]
            if not wanted:
                (message,) = [item for item in done if item["type"] == "message"]
                return message["content"][0]["text"], calls
            self.assertEqual(len(wanted), 1)  # parallel_tool_calls is false
            calls.append(wanted[0]["name"])
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": wanted[0]["call_id"],
                    "output": self.run_tool_call(wanted[0]),
                }
            )
        self.fail(f"no answer to {request!r} after {calls}")

    def test_write_then_read(self):
        draw = random.Random(7)
        self.turns = self.cached = self.sent = 0
        for _ in range(ERRANDS):
            items = []
            name = draw.choice(WORDS) + draw.choice([".txt", ".md", ".json"])
            text = f"{draw.choice(WORDS)} {draw.randrange(100)}"
            _, calls = self.errand(items, f'Write "{text}" to {name}.')
            self.assertEqual(calls, ["write_file"])
            self.assertEqual((self.files / name).read_text(encoding="utf-8"), text)
            answer, calls = self.errand(items, f"Open {name} and tell me what it says.")
            self.assertEqual(calls, ["read_file"])
            self.assertIn(text, answer)
        self.assertEqual(self.turns, 4 * ERRANDS)
        # Turns go on from what was computed for the ones before.
        self.assertGreater(self.cached, self.sent // 2)
        say(f"responses loop: {ERRANDS} errands, {self.turns} turns, files written and read; "
            f"{self.cached} of {self.sent} prompt tokens from the cache (limit half)")


if __name__ == "__main__":
    unittest.main()
