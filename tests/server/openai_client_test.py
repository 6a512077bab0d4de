"""The official Python client against the server over replayed replies: models, chat, completions,
responses, streams, tools, images, errors.  Needs the package `openai` and PERCHERON_BINARY."""

import base64
import json
import pathlib
import unittest

import openai

from replayed_server import Server

TOOL = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "integer"}, "label": {"type": "string"}},
        },
    },
}
REPLIES = [
    {"match": "plain", "steps": ["I think.", "</think>", "The answer", " is 42."]},
    {
        "match": "alarm",
        "steps": [
            "Hm.</think><tool_call>set_alarm<arg_key>hour</arg_key>",
            "<arg_value>7</arg_value><arg_key>label</arg_key><arg_value>gym",
            " bag</arg_value></tool_call>",
            "<|observation|>",
        ],
    },
    {"match": "broken", "steps": ["</think>some"], "finish": "error"},
    {"match": "once more", "steps": ["</think>", "x"], "logprob": -0.5},
]


class OpenAIClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = Server("sk-test", REPLIES)
        cls.addClassCleanup(server.stop)
        cls.url = server.url
        cls.client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-test", max_retries=0)

    def ask(self, text, **options):
        return self.client.chat.completions.create(
            model="nano", messages=[{"role": "user", "content": text}], **options
        )

    def test_models(self):
        models = list(self.client.models.list())
        self.assertEqual([model.id for model in models], ["nano"])
        self.assertEqual(models[0].owned_by, "percheron")
        self.assertEqual(self.client.models.retrieve("nano").id, "nano")

    def test_chat(self):
        reply = self.ask("plain", seed=5, reasoning_effort="low")
        choice = reply.choices[0]
        self.assertEqual(choice.message.content, "The answer is 42.")
        self.assertEqual(choice.message.reasoning_content, "I think.")
        self.assertEqual(choice.finish_reason, "stop")
        self.assertGreater(reply.usage.prompt_tokens, 5)
        self.assertEqual(reply.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(reply.usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertEqual(reply.seed, 5)

    def test_stream(self):
        content = reasoning = ""
        last = usage = None
        for chunk in self.ask("plain", stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage
            if not chunk.choices:
                continue
            last = chunk.choices[0]
            content += last.delta.content or ""
            reasoning += getattr(last.delta, "reasoning_content", None) or ""
        self.assertEqual((content, reasoning), ("The answer is 42.", "I think."))
        self.assertEqual(last.finish_reason, "stop")
        self.assertGreater(usage.completion_tokens, 4)

    def test_tools(self):
        reply = self.ask("alarm", tools=[TOOL])
        call = reply.choices[0].message.tool_calls[0]
        self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
        self.assertEqual(call.function.name, "set_alarm")
        self.assertEqual(json.loads(call.function.arguments), {"hour": 7, "label": "gym bag"})
        with self.client.chat.completions.stream(
            model="nano", messages=[{"role": "user", "content": "alarm"}], tools=[TOOL]
        ) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0].message
        self.assertEqual(len(final.tool_calls), 1)
        self.assertEqual(
            json.loads(final.tool_calls[0].function.arguments), {"hour": 7, "label": "gym bag"}
        )
        answer = self.client.chat.completions.create(
            model="nano",
            tools=[TOOL],
            messages=[
                {"role": "user", "content": "alarm"},
                reply.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "plain done"},
            ],
        )
        self.assertEqual(answer.choices[0].message.content, "The answer is 42.")

    def test_images(self):
        path = pathlib.Path(__file__).parents[1] / "data" / "vision" / "image_a.png"
        url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
        text = self.ask("plain")
        part = {"type": "image_url", "image_url": {"url": url}}
        seen = self.ask([part, part, {"type": "text", "text": "plain"}])
        self.assertEqual(seen.choices[0].message.content, "The answer is 42.")
        images = seen.usage.prompt_tokens_details.image_tokens
        self.assertGreater(images, 31)
        # Each stands between a begin and an end.
        self.assertEqual(seen.usage.prompt_tokens, text.usage.prompt_tokens + images + 4)
        for bad in ("https://127.0.0.1/a.png", "data:image/png;base64,AAAA"):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask([{"type": "image_url", "image_url": {"url": bad}}])
            self.assertEqual(caught.exception.code, "invalid_value")
            self.assertEqual(caught.exception.param, "messages[0].content[0]")

    def test_logprobs(self):
        entries = self.ask("once more", logprobs=True, top_logprobs=1).choices[0].logprobs.content
        self.assertEqual([entry.token for entry in entries], ["</think>", "x"])
        self.assertEqual(entries[1].logprob, -0.5)

    def test_completions(self):
        reply = self.client.completions.create(
            model="nano", prompt=["plain one", "plain two"], echo=True, logprobs=1, max_tokens=3
        )
        self.assertEqual([choice.index for choice in reply.choices], [0, 1])
        for choice, prompt in zip(reply.choices, ("plain one", "plain two")):
            self.assertTrue(choice.text.startswith(prompt))
            self.assertIsNone(choice.logprobs.token_logprobs[0])
            self.assertEqual(choice.finish_reason, "length")
            for name in ("tokens", "top_logprobs", "text_offset"):
                self.assertEqual(
                    len(getattr(choice.logprobs, name)), len(choice.logprobs.token_logprobs)
                )
        stream = self.client.completions.create(
            model="nano", prompt="plain", stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        self.assertEqual(text, "I think.</think>The answer is 42.")
        self.assertGreater(chunks[-1].usage.completion_tokens, 4)

    def test_responses(self):
        reply = self.client.responses.create(model="nano", input="plain")
        self.assertEqual(reply.status, "completed")
        self.assertEqual(reply.output_text, "The answer is 42.")
        self.assertEqual([item.type for item in reply.output], ["reasoning", "message"])
        self.assertGreater(reply.usage.output_tokens_details.reasoning_tokens, 0)
        self.assertEqual(self.client.responses.retrieve(reply.id), reply)
        self.client.responses.delete(reply.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(reply.id)

    def test_responses_tool_loop(self):
        tools = [{"type": "web_search"}, {"type": "function", **TOOL["function"], "strict": False}]
        with self.client.responses.stream(model="nano", input="alarm", tools=tools) as stream:
            events = list(stream)
            first = stream.get_final_response()
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(events[-1].type, "response.completed")
        call = first.output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "set_alarm"))
        self.assertEqual(json.loads(call.arguments), {"hour": 7, "label": "gym bag"})
        answer = self.client.responses.create(
            model="nano",
            previous_response_id=first.id,
            tools=tools,
            input=[
                {"type": "function_call_output", "call_id": call.call_id, "output": "plain done"}
            ],
        )
        self.assertEqual(answer.output_text, "The answer is 42.")
        self.assertGreater(answer.usage.input_tokens, first.usage.input_tokens)

    def test_responses_image(self):
        path = pathlib.Path(__file__).parents[1] / "data" / "vision" / "image_a.png"
        url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
        text = self.client.responses.create(model="nano", input="plain")
        parts = [
            {"type": "input_image", "image_url": url},
            {"type": "input_text", "text": "plain"},
        ]
        seen = self.client.responses.create(
            model="nano", input=[{"role": "user", "content": parts}]
        )
        self.assertEqual(seen.output_text, "The answer is 42.")
        self.assertGreater(seen.usage.input_tokens, text.usage.input_tokens + 15)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("plain", temperature=7)
        self.assertEqual(caught.exception.code, "invalid_value")
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.InternalServerError) as caught:
            self.ask("broken")
        self.assertEqual(caught.exception.code, "numerical_fault")
        with self.assertRaises(openai.APIError) as caught:
            list(self.ask("broken", stream=True))
        self.assertIn("numbers", str(caught.exception))
        stranger = openai.OpenAI(base_url=self.url + "/v1", api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("7" * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
