"""A reader of streams like that of `vllm bench serve`, which strips every network read: it loses
nothing, and reads the numbers that were asked for."""

import http.client
import json
import unittest

from served_nano import NanoCase, say


class StreamReader:
    """Takes network reads as they come, each stripped; an event counts when its JSON is whole."""

    def __init__(self):
        self.buffer = ""
        self.messages = []

    def add(self, read):
        self.buffer += read.strip().decode()
        while "\n\n" in self.buffer:
            message, self.buffer = self.buffer.split("\n\n", 1)
            self.take(message.strip())
        if self.buffer.startswith("data: ") and self.take(self.buffer.strip()):
            self.buffer = ""

    def take(self, message):
        content = message.removeprefix("data: ").strip()
        if content != "[DONE]":
            try:
                content = json.loads(content)
            except json.JSONDecodeError:
                return False
        self.messages.append(content)
        return True


class Streams(NanoCase):
    def read_stream(self, path, body):
        connection = http.client.HTTPConnection(self.server.host, self.server.port)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        reader = StreamReader()
        while read := reply.read1(4096):
            reader.add(read)
        connection.close()
        self.assertEqual(reader.buffer, "")
        self.assertEqual(reader.messages[-1], "[DONE]")
        return reader.messages[:-1]

    def test_stripped_reads_lose_nothing(self):
        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        for path, body in (
            (
                "/v1/chat/completions",
                {
                    "messages": [
                        {"role": "user", "content": [{"type": "text", "text": "Tell me more."}]}
                    ],
                    "max_completion_tokens": 40,
                },
            ),
            (
                "/v1/completions",
                {"prompt": "One two", "repetition_penalty": 1.0, "max_tokens": 40, "logprobs": None},
            ),
        ):
            messages = self.read_stream(path, {"model": "nano", **body, **options})
            with_choices = [message for message in messages if message["choices"]]
            self.assertTrue(with_choices)
            self.assertEqual(messages[-1]["choices"], [])
            self.assertEqual(messages[-1]["usage"]["completion_tokens"], 40)
            self.assertGreater(messages[-1]["usage"]["prompt_tokens"], 1)
        say("streams: stripped reads of chat and completions lose nothing")


if __name__ == "__main__":
    unittest.main()
