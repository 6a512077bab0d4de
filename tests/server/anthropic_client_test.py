"""Anthropic's official Python client against the server over replayed replies: messages, streams,
tools, images, counting, errors.  Needs the package `anthropic` and PERCHERON_BINARY."""

import base64
import pathlib
import unittest

import anthropic

from replayed_server import Server

TOOL = {
    "name": "set_alarm",
    "description": "Sets an alarm.",
    "input_schema": {
        "type": "object",
        "properties": {"hour": {"type": "integer"}, "label": {"type": "string"}},
    },
}
REPLIES = [
    {"match": "plain", "steps": ["I think.", "</think>", "The answer", " is 42."]},
    {
        "match": "alarm",
        "steps": [
            "Hm.</think>Soon.<tool_call>set_alarm<arg_key>hour</arg_key>",
            "<arg_value>7</arg_value><arg_key>label</arg_key><arg_value>gym",
            " bag</arg_value></tool_call>",
            "<|observation|>",
        ],
    },
    {"match": "broken", "steps": ["</think>some"], "finish": "error"},
]


class AnthropicClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = Server("sk-test", REPLIES)
        cls.addClassCleanup(server.stop)
        cls.url = server.url
        cls.client = anthropic.Anthropic(base_url=server.url, api_key="sk-test", max_retries=0)

    def ask(self, content, **options):
        return self.client.messages.create(
            model="nano",
            max_tokens=200,
            messages=[{"role": "user", "content": content}],
            **options,
        )

    def test_message(self):
        message = self.ask("plain", system="Be brief.", stop_sequences=["ZZ"])
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertEqual(message.content[0].thinking, "I think.")
        self.assertTrue(message.content[0].signature)
        self.assertEqual(message.content[1].text, "The answer is 42.")
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.input_tokens, 5)
        self.assertEqual(self.ask("plain", stop_sequences=["is 4"]).stop_sequence, "is 4")

    def test_stream(self):
        with self.client.messages.stream(
            model="nano", max_tokens=200, messages=[{"role": "user", "content": "plain"}]
        ) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, "The answer is 42.")
        self.assertEqual(message.content[0].thinking, "I think.")
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 4)

    def test_tool_loop(self):
        first = self.ask("alarm", tools=[TOOL])
        call = first.content[-1]
        self.assertEqual(first.stop_reason, "tool_use")
        self.assertEqual((call.name, call.input), ("set_alarm", {"hour": 7, "label": "gym bag"}))
        with self.client.messages.stream(
            model="nano",
            max_tokens=200,
            tools=[TOOL],
            messages=[{"role": "user", "content": "alarm"}],
        ) as stream:
            streamed = stream.get_final_message()
        self.assertEqual(streamed.content[-1].input, call.input)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "plain done"}
        answer = self.client.messages.create(
            model="nano",
            max_tokens=200,
            tools=[TOOL],
            messages=[
                {"role": "user", "content": "alarm"},
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ],
        )
        self.assertEqual(answer.content[-1].text, "The answer is 42.")

    def test_images_and_counting(self):
        path = pathlib.Path(__file__).parents[1] / "data" / "vision" / "image_a.png"
        source = {
            "type": "base64",
            "media_type": "image/png",
            "data": base64.b64encode(path.read_bytes()).decode(),
        }
        content = [{"type": "image", "source": source}, {"type": "text", "text": "plain"}]
        seen = self.ask(content)
        self.assertGreater(seen.usage.input_tokens, self.ask("plain").usage.input_tokens + 15)
        counted = self.client.messages.count_tokens(
            model="nano", messages=[{"role": "user", "content": content}]
        )
        self.assertEqual(counted.input_tokens, seen.usage.input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask("7" * 50000)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.BadRequestError):
            self.ask("plain", extra_body={"temperature": 7})
        with self.assertRaises(anthropic.InternalServerError):
            self.ask("broken")
        with self.assertRaises(anthropic.APIStatusError):
            with self.client.messages.stream(
                model="nano", max_tokens=20, messages=[{"role": "user", "content": "broken"}]
            ) as stream:
                stream.get_final_message()
        stranger = anthropic.Anthropic(base_url=self.url, api_key="wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            stranger.messages.count_tokens(
                model="nano", messages=[{"role": "user", "content": "x"}]
            )


if __name__ == "__main__":
    unittest.main()
