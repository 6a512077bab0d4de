"""Anthropic's official package against the embedded model: messages, streams, tools, pictures and
counted tokens come out of the package's own objects."""

import base64
import pathlib
import unittest

import anthropic

from served_nano import NanoCase, say

PICTURES = pathlib.Path(__file__).resolve().parents[1] / "data" / "nano_vision_golden"
TOOL = {
    "name": "get_weather",
    "description": "Get the current weather for a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
QUESTION = "What is 17 + 25?"


class AnthropicPackage(NanoCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = anthropic.Anthropic(
            base_url=cls.server.url, api_key="unused", max_retries=0
        )

    def options(self, content, **options):
        return {
            "model": "nano",
            "max_tokens": 600,
            "messages": [{"role": "user", "content": content}],
            "extra_body": {"temperature": 0, "cache_prompt": False},
            **options,
        }

    def text_of(self, message):
        return "".join(block.text for block in message.content if block.type == "text")

    def test_message_and_stream_are_one(self):
        whole = self.client.messages.create(**self.options(QUESTION))
        self.assertIn("42", self.text_of(whole))
        self.assertEqual(whole.stop_reason, "end_turn")
        with self.client.messages.stream(**self.options(QUESTION)) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, self.text_of(whole))
        self.assertEqual([b.type for b in final.content], [b.type for b in whole.content])
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_counted_tokens_are_the_prompts(self):
        counted = self.client.messages.count_tokens(
            model="nano", messages=[{"role": "user", "content": QUESTION}]
        )
        usage = self.client.messages.create(**self.options(QUESTION)).usage
        self.assertEqual(usage.input_tokens, counted.input_tokens)

    def test_tool_loop(self):
        options = self.options(
            "What is the weather in Paris?", tools=[TOOL], tool_choice={"type": "any"}
        )
        first = self.client.messages.create(**options)
        (call,) = [block for block in first.content if block.type == "tool_use"]
        self.assertEqual(first.stop_reason, "tool_use")
        self.assertEqual((call.name, list(call.input)), ("get_weather", ["city"]))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21}'}
        options["messages"] += [
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        options["tool_choice"] = {"type": "auto"}
        last = self.client.messages.create(**options)
        self.assertEqual(last.stop_reason, "end_turn")
        self.assertIn("21", self.text_of(last))

    def test_pictures(self):
        parts = [
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": base64.b64encode((PICTURES / f"{name}.png").read_bytes()).decode(),
                },
            }
            for name in ("image_a", "image_b")
        ]
        text = "Look at the second image. Which number is shown?"
        reply = self.client.messages.create(**self.options([*parts, {"type": "text", "text": text}]))
        self.assertEqual(self.text_of(reply), "84")
        self.assertEqual(self.counts.take().of("percheron:images_encoded_total"), 2)

    @classmethod
    def tearDownClass(cls):
        say(f"anthropic {anthropic.__version__}: messages, stream, tools, pictures, counted tokens")


if __name__ == "__main__":
    unittest.main()
