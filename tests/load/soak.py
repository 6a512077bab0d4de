#!/usr/bin/env python3
"""A sweep of long prompts, then many streams with random cancels, on one process.

    soak.py [--minutes 10] [--sweep 4096,32768,131072,262100] [--streams 64] [--seed 1]
            [--model MODEL] [--device DEVICE] [-- flags of the server]

Held: every request answered as asked, some of them with the ids they had before the crowd came,
resident memory flat, every page and slot back at the end, no file descriptor kept.  On a GPU also:
the device's memory flat, and what the driver gave what was planned."""

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import time

from streams import Counts, Limits, NanoServer, Stream, open_files, random_ids, resident_bytes, say

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name", "count"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def random_request(draw, shared):
    """(path, body, tokens that must come or None)"""
    tokens = int(2 ** draw.uniform(3, 9))
    sampling = draw.choice(
        [{"temperature": 0}, {"seed": draw.randrange(1000)}, {"temperature": 1.2, "min_p": 0.02}]
    )
    kind = draw.randrange(6)
    if kind < 2:
        prompt = random_ids(draw, int(2 ** draw.uniform(2, 11)))
        if kind == 1:
            prompt = shared[: draw.randrange(64, len(shared))] + prompt[:100]
        return "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
                                   **sampling}, tokens
    body = {
        "messages": [{"role": "user", "content": f"What is {draw.randrange(99)} + {draw.randrange(99)}?"}],
        "max_tokens": tokens,
        **sampling,
    }
    if kind == 2:
        body["ignore_eos"] = True
        return "/v1/chat/completions", body, tokens
    if kind == 3:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    if kind == 4:
        body["tools"] = [TOOL]
    if kind == 5:
        body["thinking_budget"] = draw.randrange(1, 40)
    return "/v1/chat/completions", body, None


def fixed_requests():
    """Requests whose ids are known once they were answered: with drafts, sampled and greedy, a
    grammar, a tool, text that repeats itself and a prompt of many blocks."""
    draw = random.Random(7)
    line = random_ids(draw, 40)
    chat = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 96}
    return [
        ("/v1/completions", {"prompt": line * 6, "max_tokens": 160, "temperature": 0}),
        ("/v1/completions", {"prompt": random_ids(draw, 3000), "max_tokens": 64, "seed": 5}),
        ("/v1/completions", {"prompt": random_ids(draw, 70), "max_tokens": 200, "seed": 6,
                             "temperature": 1.2, "min_p": 0.02}),
        ("/v1/chat/completions", {**chat, "temperature": 0, "ignore_eos": True}),
        ("/v1/chat/completions", {**chat, "seed": 3, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
        ("/v1/chat/completions", {**chat, "seed": 4, "tools": [TOOL]}),
    ]


def device_bytes():
    """Of the device's memory, as its driver has given it out; None without one."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True)  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return sum(int(line) for line in asked.stdout.split()) << 20


def planned_and_given(log):
    """Bytes of the device that the server's log says it planned, and got."""
    found = re.search(r"memory: planned ([\d.]+) (\w+), the driver gave ([\d.]+) (\w+)", log)
    units = {"MiB": 1 << 20, "GiB": 1 << 30}
    return [float(found[i]) * units[found[i + 1]] for i in (1, 3)]


class Soak:
    def __init__(self, server, arguments):
        self.server = server
        self.draw = random.Random(arguments.seed)
        self.shared = random_ids(self.draw, 4096)
        self.ended = self.cancelled = 0
        self.memory = []  # (seconds, bytes)
        self.device_memory = []
        self.requests = fixed_requests()
        self.ids = []  # of their replies, before there was a crowd
        self.repeated = self.drifted = 0
        self.arguments = arguments

    async def ids_of(self, request):
        path, body = request
        stream = await Stream(self.server, path, {**body, "return_token_ids": True}).run()
        if len(stream.ids) != stream.usage["completion_tokens"]:
            raise AssertionError(f"{len(stream.ids)} ids of {stream.usage}")
        return stream.ids

    async def learn(self):
        self.ids = [await self.ids_of(request) for request in self.requests]

    async def repeat(self, until):
        while time.monotonic() < until:
            for request, ids in zip(self.requests, self.ids):
                self.repeated += 1
                now = await self.ids_of(request)
                if now != ids:
                    self.drifted += 1
                    say(f"     {request[0]} {request[1]}: {now} instead of {ids}")

    async def worker(self, until, seed):
        draw = random.Random(seed)
        while time.monotonic() < until:
            path, body, tokens = random_request(draw, self.shared)
            leaves = draw.random() < 0.4
            stream = await Stream(self.server, path, body).run(
                cancel_after=draw.randrange(0, 40) if leaves and draw.random() < 0.7 else None,
                cancel_in=draw.uniform(0, 3) if leaves else None,
            )
            if stream.cancelled:
                self.cancelled += 1
                continue
            self.ended += 1
            if tokens is not None and stream.usage["completion_tokens"] != tokens:
                raise AssertionError(f"{stream.usage} for {tokens} tokens of {path}")

    async def watch(self, begin, until):
        while time.monotonic() < until:
            self.memory.append((time.monotonic() - begin, resident_bytes(self.server.process.pid)))
            if self.arguments.device.startswith("cuda"):
                used = await asyncio.get_running_loop().run_in_executor(None, device_bytes)
                self.device_memory.append(used)
            await asyncio.sleep(1)

    async def run(self):
        begin = time.monotonic()
        until = begin + 60 * self.arguments.minutes
        await asyncio.gather(
            self.watch(begin, until),
            self.repeat(until),
            *(
                self.worker(until, self.arguments.seed * 1000 + number)
                for number in range(self.arguments.streams)
            ),
        )


async def sweep(server, lengths, draw):
    for length in lengths:
        stream = await Stream(
            server,
            "/v1/completions",
            {"prompt": random_ids(draw, length), "max_tokens": 16, "ignore_eos": True},
        ).run()
        if stream.usage["prompt_tokens"] != length or stream.usage["completion_tokens"] != 16:
            raise AssertionError(f"{stream.usage} for a prompt of {length}")
        say(f"     prompt of {length} tokens: first token after {stream.first_after:.1f} s")


async def touch_pages(server, tokens, context, draw):
    """So many tokens of new prompts: the prefix cache takes unused pages before it gives up any, so
    each page is touched, and the system gives memory for it, once the pool has been full."""
    length = min(context - 16, 16384)
    for _ in range(max(tokens, 0) // length + 1):
        await Stream(server, "/v1/completions",
                     {"prompt": random_ids(draw, length), "max_tokens": 1}).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--sweep", default="4096,32768,131072,262100")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("flags", nargs="*")
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.sweep.split(",") if length]
    context = max([8192, *(length + 16 for length in lengths)])
    # Pages for the longest prompt and for all streams beside it: 2.5 KiB a token, and 4 MiB a slot.
    megabytes = (context + arguments.streams * 3000) * 3 // 1024
    flags = [arguments.model] if arguments.model else ["--kv-memory", f"{megabytes}MiB"]
    unused = device_bytes() if arguments.device.startswith("cuda") else None
    server = NanoServer(
        *flags, "--device", arguments.device, "--context", str(context),
        "--max-running", str(arguments.streams), *arguments.flags,
    )  # fmt: skip
    limits = Limits()
    try:
        fresh = server.settle()
        used_at_ready = device_bytes() if unused is not None else None
        say(f"     context {context}, {fresh['kv_tokens_total']} tokens of pages")
        draw = random.Random(arguments.seed)
        asyncio.run(sweep(server, lengths, draw))
        asyncio.run(touch_pages(server, fresh["kv_tokens_total"] - sum(lengths), context, draw))
        soak = Soak(server, arguments)
        asyncio.run(soak.learn())
        before = server.settle()
        files = open_files(server.process.pid)
        counts = Counts(server)
        asyncio.run(soak.run())
        after = server.settle()
        counts.take()
        say(f"     {soak.ended} streams to their end, {soak.cancelled} left, in "
            f"{arguments.minutes:g} minutes")
        hold = limits.hold
        hold("streams that ran to their end", soak.ended, arguments.streams, at_most=False)
        hold("streams that were left", soak.cancelled, arguments.streams // 4, at_most=False)
        hold("replies that failed", counts.replies("error"), 0)
        hold("answers with 5xx", counts.server_faults, 0)
        ended = counts.replies("stop", "length", "tool_calls")
        hold("replies by the server's count to those read to their end", ended, soak.ended,
             at_most=False)
        hold("tokens of pages that did not come back", fresh["kv_tokens_free"] - after["kv_tokens_free"], 0)
        hold("replies still held", after["running"] + after["waiting"], 0)
        hold("file descriptors kept", open_files(server.process.pid) - files, 1)
        # All pages were touched before; what else is kept has its size after the first third.
        third = len(soak.memory) // 3
        thirds = [max(memory for _, memory in part) for part in
                  (soak.memory[:third], soak.memory[third:-third], soak.memory[-third:])]
        say(f"     resident, most in each third: {', '.join(str(m >> 20) for m in thirds)} MiB; "
            f"checkpoints {before['checkpoints']}, then {after['checkpoints']}")
        hold("resident memory, last third of the time to the one before", thirds[2] / thirds[1], 1.02)
        hold("requests that were repeated", soak.repeated, len(soak.requests), at_most=False)
        hold("of them with other ids than alone", soak.drifted, 0)
        if soak.device_memory:
            middle = len(soak.device_memory) // 2
            hold("bytes of the device given out, second half of the time less the first",
                 max(soak.device_memory[middle:]) - max(soak.device_memory[:middle]), 0)
            planned, given = planned_and_given(server.log_text())
            at_ready = given + max(soak.device_memory) - used_at_ready
            say(f"     planned {planned / 2**20:.0f} MiB, {given / 2**20:.0f} given when loaded, "
                f"{at_ready / 2**20:.0f} at most; {(used_at_ready - unused - given) / 2**20:.0f} "
                "before the plan, the driver's own")
            hold("bytes given less those planned", abs(at_ready - planned),
                 max(planned / 100, 48 << 20))
    finally:
        server.stop()
    return limits.exit_code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
