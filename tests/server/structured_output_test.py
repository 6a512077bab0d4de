#!/usr/bin/env python3
"""A real server and the embedded model: answers that are what was asked for, calls that are forced.

  structured_output_test.py PERCHERON          (needs jsonschema: tests/grammar/with_jsonschema)
"""
import json
import random
import re
import sys

import jsonschema

from served_model import ServedModel


class Server(ServedModel):
    def __init__(self, binary):
        super().__init__(binary, "--context", "4096", "--kv-memory", "96MiB")

    def chat(self, question, **fields):
        """The one choice of a reply."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 400,
                "thinking_budget": 24, **fields}
        status, reply = self.post("/v1/chat/completions", body)
        assert status == 200, reply
        return reply["choices"][0]

    def refusal(self, **fields):
        """(param, message) of a 400."""
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **fields}
        status, reply = self.post("/v1/chat/completions", body)
        assert status == 400, (status, reply)
        return reply["error"]["param"], reply["error"]["message"]


ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"],
          "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "set_alarm", "strict": True, "parameters": {
        "type": "object", "properties": {
            "hour": {"type": "integer", "minimum": 0, "maximum": 23},
            "label": {"type": "string", "maxLength": 12},
            "days": {"type": "array", "items": {"enum": ["mon", "tue", "wed"]}, "maxItems": 2}},
        "required": ["hour"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "list_rooms"}},
    {"type": "function", "function": {"name": "paint", "parameters": {
        "type": "object", "properties": {"colour": {"enum": ["red", "green"]},
                                         "alpha": {"type": ["number", "null"]}},
        "required": ["colour", "alpha"], "additionalProperties": False}}},
]


def check_calls(choice, offered):
    if choice["finish_reason"] == "length":
        return 0
    assert choice["finish_reason"] == "tool_calls", choice
    assert not choice["message"]["content"], choice
    calls = choice["message"]["tool_calls"]
    for call in calls:
        schema = offered[call["function"]["name"]].get("parameters", {"maxProperties": 0})
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    return len(calls)


def questions(count):
    pick = random.Random(4)
    return [f"What is {pick.randrange(90)} + {pick.randrange(90)}?" if i % 2 else
            f"Please {pick.choice(['paint it', 'wake me', 'show the rooms'])} at {pick.randrange(24)}."
            for i in range(count)]


def forced_calls(server):
    offered = {tool["function"]["name"]: tool["function"] for tool in TOOLS}
    made = whole = 0
    for i, question in enumerate(questions(50)):
        choice = server.chat(question, tools=TOOLS, tool_choice="required", seed=i,
                             temperature=[0, 1][i % 2], parallel_tool_calls=i % 3 != 0)
        calls = check_calls(choice, offered)
        assert calls <= 1 or i % 3 != 0
        made += calls
        whole += calls > 0
    # A string without a limit may take all tokens there are; nothing else keeps a call from its end.
    assert whole >= 48, whole
    named = {"type": "function", "function": {"name": "paint"}}
    for i in range(4):
        choice = server.chat("What is 1 + 1?", tools=TOOLS, tool_choice=named, seed=i)
        assert check_calls(choice, {"paint": offered["paint"]}) == 1
    return made


def formats(server):
    schema = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": ANSWER}}
    for i, question in enumerate(questions(8)):
        fields = {"response_format": schema, "temperature": i % 2, "seed": i}
        choice = server.chat(question, **fields)
        jsonschema.validate(json.loads(choice["message"]["content"]), ANSWER)
        assert choice["message"]["reasoning_content"], choice
        # Beside three others in a batch, and streamed, it is the same.
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 400,
                "thinking_budget": 24, **fields}
        text = server.post("/v1/chat/completions", {**body, "stream": True})[1]
        pieces = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        joined = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
        assert joined == choice["message"]["content"], (joined, choice)
        batch = server.post("/v1/chat/completions", {**body, "n": 4})[1]["choices"]
        assert batch[0]["message"]["content"] == choice["message"]["content"]
        for other in batch:
            jsonschema.validate(json.loads(other["message"]["content"]), ANSWER)
    any_object = server.chat("What is 2 + 2?", response_format={"type": "json_object"}, max_tokens=700)
    if any_object["finish_reason"] == "stop":
        assert isinstance(json.loads(any_object["message"]["content"]), dict)
    for fields, pattern in [
            ({"response_format": {"type": "regex", "pattern": "[a-c]{3}-\\d{2}"}}, "[a-c]{3}-\\d{2}"),
            ({"structured_outputs": {"regex": "x+"}, "max_tokens": 80}, "x+"),
            ({"guided_choice": ["yes", "no"]}, "yes|no"),
            ({"grammar": "root ::= \"(\" [0-9]{2,4} \")\""}, r"\(\d{2,4}\)"),
            ({"guided_json": json.dumps({"const": 7})}, "7")]:
        choice = server.chat("What is 3 + 4?", **fields)
        text = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, text), (fields, text)
    status, reply = server.post("/v1/completions", {
        "prompt": "The answer is", "guided_regex": " (yes|no)", "max_tokens": 20})
    assert status == 200 and reply["choices"][0]["text"] in (" yes", " no"), reply
    # A complete text ends, whatever was asked for beside it.
    choice = server.chat("What is 3 + 4?", guided_choice=["seven"], ignore_eos=True, min_tokens=60)
    assert choice["message"]["content"] == "seven" and choice["finish_reason"] == "stop", choice


def refusals(server):
    broken = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}
    param, message = server.refusal(response_format={
        "type": "json_schema", "json_schema": {"name": "a", "schema": broken}})
    assert param == "response_format.json_schema.schema", param
    assert "#/properties/a/multipleOf" in message, message
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": broken}}
    param, message = server.refusal(tools=[TOOLS[1], strict])
    assert param == "tools[1].function.parameters" and "#/properties/a/multipleOf" in message, (param, message)
    assert server.refusal(tool_choice="required")[0] == "tool_choice"
    assert server.refusal(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}})[0] == "tool_choice"
    assert server.refusal(response_format={"type": "structural_tag"})[0] == "response_format"
    assert server.refusal(guided_regex="(a")[0] == "guided_regex"
    assert server.refusal(guided_regex="a", guided_choice=["a"])[0] == "guided_choice"
    assert server.refusal(grammar="root ::= nothing")[0] == "grammar"
    assert server.refusal(structured_outputs={"structural_tag": "x"})[0] == "structured_outputs.structural_tag"
    # Hostile ones are refused or held, and the next request is answered.
    deep = {"type": "null"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert "deeper" in server.refusal(guided_json=deep)[1]
    assert "multiplied" in server.refusal(guided_regex="(((a{99}){99}){99}){99}")[1]
    assert server.chat("What is 1 + 1?", max_tokens=4)["finish_reason"] == "length"


with Server(sys.argv[1]) as running:
    refusals(running)
    formats(running)
    print(forced_calls(running), "forced calls are valid")
