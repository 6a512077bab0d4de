"""The official `openai` package against the embedded model: what the model can do comes out of the
package's own objects.  (The whole wire form is held by tests/server over replayed replies.)"""

import base64
import json
import pathlib
import unittest

import openai

from served_nano import NanoCase, say

PICTURES = pathlib.Path(__file__).resolve().parents[1] / "data" / "nano_vision_golden"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
QUESTION = "What is 17 + 25?"


class OpenAIPackage(NanoCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", max_retries=0)

    def ask(self, content, **options):
        return self.client.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": content}],
            **{"temperature": 0, **options},
        )

    def test_chat_and_stream_are_one(self):
        whole = self.ask(QUESTION)
        message = whole.choices[0].message
        self.assertIn("42", message.content)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        content = reasoning = ""
        usage = None
        for chunk in self.ask(QUESTION, stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                content += chunk.choices[0].delta.content or ""
                reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
            usage = chunk.usage or usage
        self.assertEqual(content, message.content)
        self.assertEqual(reasoning, message.reasoning_content or "")
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(self.counts.take().replies("stop"), 2)

    def test_tool_loop(self):
        history = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = self.client.chat.completions.create(
            model="nano", messages=history, tools=[TOOL], tool_choice="required", temperature=0
        )
        (call,) = first.choices[0].message.tool_calls
        self.assertEqual(first.choices[0].finish_reason, "tool_calls")
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(list(json.loads(call.function.arguments)), ["city"])
        history += [
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'},
        ]
        last = self.client.chat.completions.create(
            model="nano", messages=history, tools=[TOOL], temperature=0
        )
        self.assertEqual(last.choices[0].finish_reason, "stop")
        self.assertIn("21", last.choices[0].message.content)

    def test_structured_output(self):
        schema = {
            "type": "object",
            "properties": {"sum": {"type": "integer"}, "even": {"type": "boolean"}},
            "required": ["sum", "even"],
            "additionalProperties": False,
        }
        reply = self.ask(
            QUESTION,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "sum", "schema": schema, "strict": True},
            },
        )
        answer = json.loads(reply.choices[0].message.content)
        self.assertEqual({key: type(value) for key, value in answer.items()},
                         {"sum": int, "even": bool})

    def test_completions(self):
        reply = self.client.completions.create(
            model="nano", prompt=["One two three", "A B C"], max_tokens=8, logprobs=1, echo=True,
            temperature=0, extra_body={"ignore_eos": True},
        )
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        self.assertEqual(reply.usage.completion_tokens, 16)
        for choice, prompt in zip(reply.choices, ("One two three", "A B C")):
            self.assertTrue(choice.text.startswith(prompt))
            self.assertIsNone(choice.logprobs.token_logprobs[0])

    def test_responses(self):
        first = self.client.responses.create(model="nano", input=QUESTION, temperature=0)
        self.assertIn("42", first.output_text)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        with self.client.responses.stream(model="nano", input=QUESTION, temperature=0) as stream:
            deltas = "".join(
                event.delta for event in stream if event.type == "response.output_text.delta"
            )
            final = stream.get_final_response()
        self.assertEqual(deltas, first.output_text)
        self.assertEqual(final.output_text, first.output_text)
        self.assertEqual(final.usage.output_tokens, first.usage.output_tokens)
        second = self.client.responses.create(
            model="nano", input="And what is 3 + 4?", previous_response_id=first.id, temperature=0
        )
        self.assertIn("7", second.output_text)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_pictures(self):
        parts = [
            {
                "type": "image_url",
                "image_url": {
                    "url": "data:image/png;base64,"
                    + base64.b64encode((PICTURES / f"{name}.png").read_bytes()).decode()
                },
            }
            for name in ("image_a", "image_b")
        ]
        text = "Look at the second image. Which number is shown?"
        reply = self.ask([*parts, {"type": "text", "text": text}])
        self.assertEqual(reply.choices[0].message.content, "84")
        self.assertEqual(self.counts.take().of("percheron:images_encoded_total"), 2)

    @classmethod
    def tearDownClass(cls):
        say(f"openai {openai.__version__}: chat, stream, tools, schema, completions, responses, "
            "pictures")


if __name__ == "__main__":
    unittest.main()
