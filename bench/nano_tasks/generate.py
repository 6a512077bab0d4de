#!/usr/bin/env python3
"""Draws the fixed items of the nano tasks: 2,000 a task, one JSON object a line.

  generate.py OUT.jsonl.zst [ITEMS_PER_TASK [SEED]]

An item has `task`, `messages` (without the wanted turn), `tools`, `reasoning_effort`, `check` and `want`.
`check` says how a greedy reply is judged: `text`, the text after the reasoning equals `want`, tool calls in the
model's own syntax included; `number`, the last number in it equals the last number of `want`.
Filler paragraphs come from public-domain books (see README.md).
"""
import json
import pathlib
import random
import subprocess
import sys

import synth

here = pathlib.Path(__file__).parent


def argument(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def wanted_text(turn):
    """The wanted turn as the chat template writes it after the reasoning."""
    calls = ""
    for call in turn.get("tool_calls") or []:
        function = call["function"]
        pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{argument(value)}</arg_value>"
                        for key, value in function["arguments"].items())
        calls += f"<tool_call>{function['name']}{pairs}</tool_call>"
    return (turn["content"].strip() + calls).strip()


def draw(count, seed):
    paragraphs = (here / "paragraphs.txt").read_text(encoding="utf-8").splitlines()
    generator = random.Random(seed)
    plain = ("arith", "chain", "listops", "units", "wordprob", "dates", "extract", "schema", "langs", "copy", "rules")
    tasks = {name: [synth.sample(generator, paragraphs, name) for _ in range(count)] for name in plain}

    by_calls = {0: [], 1: [], 2: []}
    while min(map(len, by_calls.values())) < count:
        sample = synth.sample(generator, paragraphs, "tools")
        by_calls[len(sample["messages"][-1].get("tool_calls") or [])].append(sample)
    for name, calls in (("tool call", 1), ("tool parallel", 2), ("tool answer", 0)):
        tasks[name] = by_calls[calls][:count]

    for tokens in (100, 500, 900):
        samples = []
        for _ in range(count):
            messages, tools, effort = synth.needle(generator, paragraphs, tokens * 3)
            samples.append({"messages": messages, "tools": tools, "effort": effort})
        tasks[f"needle {tokens}"] = samples
    return tasks


def main():
    target = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 20261129
    lines = []
    for task, samples in draw(count, seed).items():
        for sample in samples:
            lines.append(json.dumps({
                "task": task, "messages": sample["messages"][:-1], "tools": sample["tools"],
                "reasoning_effort": sample["effort"],
                "check": "number" if task in ("arith", "chain", "wordprob") else "text",
                "want": wanted_text(sample["messages"][-1])}, ensure_ascii=False) + "\n")
    subprocess.run(["zstd", "-q", "-19", "--long=24", "-f", "-o", target], input="".join(lines).encode(), check=True)
    print(f"{len(lines)} items -> {target}")


if __name__ == "__main__":
    main()
