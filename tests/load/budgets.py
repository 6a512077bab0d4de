#!/usr/bin/env python3
"""Thinking budgets against the embedded model: 100 prompts under each of three budgets.

    budgets.py [--prompts 100] [--budgets 2,16,48] [--seed 1]

Every second prompt is kept from closing its thinking itself, so that the budget has to.  Held of each
reply: the thinking is closed within a token of its budget, an answer follows, and the usage is what
its token ids say."""

import argparse
import collections
import concurrent.futures
import json
import random
import sys

from streams import Limits, NanoServer, say

QUESTIONS = (
    "What is {a} + {b}?",
    "What is {a} - {b}?",
    "Write the numbers from {a} to {c}.",
    "Which is larger, {a} or {b}?",
    "How many days are {a} weeks and {b} days?",
    "What color is the sky?",
    "Convert {a} meters to centimeters.",
    "What is the capital of {country}?",
)


def question(draw):
    a = draw.randrange(2, 90)
    return draw.choice(QUESTIONS).format(
        a=a, b=draw.randrange(2, 90), c=a + draw.randrange(3, 9),
        country=draw.choice(["France", "Italy", "Japan", "Spain", "Kenya", "Peru"]))


def ask(server, body, stream):
    """(token ids, reasoning text, answer, finish_reason, usage)"""
    if not stream:
        reply = server.post("/v1/chat/completions", body)
        choice = reply["choices"][0]
        message = choice["message"]
        return (choice["token_ids"], message.get("reasoning_content") or "", message["content"] or "",
                choice["finish_reason"], reply["usage"])
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text = server.post_text("/v1/chat/completions", body)
    ids, reasoning, content, finish, usage = [], "", "", None, None
    for event in text.split("\n\n")[:-1]:
        if event == "data: [DONE]":
            continue
        event = json.loads(event.removeprefix("data: "))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            ids += choice.get("token_ids", [])
            reasoning += choice["delta"].get("reasoning_content") or ""
            content += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    return ids, reasoning, content, finish, usage


def check(server, close, number, budget, prompt, tokens):
    """What is wrong with the reply, and whether the budget ended its thinking."""
    held_open = number % 2 == 1
    body = {
        "messages": [{"role": "user", "content": prompt}], "thinking_budget": budget,
        "max_tokens": budget + 400, "seed": number, "return_token_ids": True,
        "temperature": [0, 1][number // 2 % 2],
    }
    if held_open:
        body["logit_bias"] = {str(close): -100}
        body["min_tokens"] = budget + 2  # nor may it end before that
    ids, _, content, finish, usage = ask(server, body, stream=number % 3 == 0)
    if close not in ids:
        return "the thinking was never closed", False
    thought = ids.index(close)
    spent = thought >= budget
    wrong = []
    if thought > budget + 1:
        wrong.append(f"closed after {thought} tokens")
    if held_open and not spent:
        wrong.append(f"closed by itself after {thought} tokens, though it could not")
    if not content.strip() and finish == "stop":
        wrong.append("no answer")
    if len(ids) <= thought + 1:
        wrong.append("nothing after the thinking")
    if finish not in ("stop", "length"):
        wrong.append(f"finish_reason {finish}")
    if usage["completion_tokens"] != len(ids):
        wrong.append(f"{usage['completion_tokens']} tokens counted of {len(ids)}")
    if usage["completion_tokens_details"]["reasoning_tokens"] != thought:
        wrong.append(f"{usage['completion_tokens_details']} for {thought} tokens of thinking")
    if usage["prompt_tokens"] != tokens:
        wrong.append(f"{usage['prompt_tokens']} prompt tokens instead of {tokens}")
    if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        wrong.append("a total that is none")
    return "; ".join(wrong), spent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--budgets", default="2,16,48")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    server = NanoServer("--context", "4096", "--kv-memory", "256MiB")
    limits = Limits()
    try:
        (close,) = server.post("/tokenize", {"prompt": "</think>"})["tokens"]
        prompts = [question(draw) for _ in range(arguments.prompts)]
        tokens = [
            server.post("/tokenize", {"messages": [{"role": "user", "content": prompt}]})["count"]
            for prompt in prompts
        ]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for budget in map(int, arguments.budgets.split(",")):
                results = list(
                    pool.map(
                        lambda number, budget=budget: check(
                            server, close, number, budget, prompts[number], tokens[number]
                        ),
                        range(arguments.prompts),
                    )
                )
                wrong = [(number, fault) for number, (fault, _) in enumerate(results) if fault]
                for number, fault in wrong[:10]:
                    say(f"     {prompts[number]!r}: {fault}")
                spent = collections.Counter(spent for _, spent in results)[True]
                say(f"     budget {budget}: spent by {spent} of {arguments.prompts} replies")
                limits.hold(f"replies with a fault under a budget of {budget}", len(wrong), 0)
                limits.hold("replies whose thinking the budget closed", spent,
                            arguments.prompts // 2, at_most=False)
        if server.settle()["running"]:
            limits.exit_code = 1
    finally:
        server.stop()
    return limits.exit_code


if __name__ == "__main__":
    sys.exit(main())
