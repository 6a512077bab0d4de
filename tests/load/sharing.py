#!/usr/bin/env python3
"""Who waits for whom: a long prompt beside running streams, and a short newcomer.

    sharing.py [--prompt 100000] [--streams 64] [--seed 1]

- While a prompt of 32 chunks is computed beside `--streams` running streams, no stream is silent for
  more than 200 ms.
- While a prompt of `--prompt` tokens is computed, running streams keep at least the documented half
  of the rate that they have by themselves before and after it, and a short newcomer's first token
  comes within twice its time on an idle server and one prefill slice.

Figures of an otherwise idle machine."""

import argparse
import asyncio
import random
import statistics
import sys
import time

from streams import Limits, NanoServer, Stream, random_ids, say

CHUNK = 512  # prompt rows of a step
KEPT_RATE = 0.5  # docs/SCHEDULER.md, S9
PREFILL_SLICE = 0.08  # seconds
SILENCE = 0.2  # seconds


WORDS = " the river walks slowly and seven hills stand still"


def word_ids(server):
    ids = server.post("/tokenize", {"prompt": WORDS})["tokens"]
    return [one for one in ids if server.post("/detokenize", {"tokens": [one]})["prompt"].strip()]


def endless(server, draw, tokens, words):
    """A stream each of whose tokens is a word, so that each brings text."""
    body = {"prompt": random_ids(draw, 32), "max_tokens": tokens, "ignore_eos": True, "draft": False,
            "logit_bias": {str(word): 100 for word in words}}
    return Stream(server, "/v1/completions", body)


async def until_running(streams, events=8):
    while any(len(stream.times) < events for stream in streams):
        await asyncio.sleep(0.01)


def short(server, draw):
    return Stream(server, "/v1/completions",
                  {"prompt": random_ids(draw, 32), "max_tokens": 4, "ignore_eos": True})


async def arrival(server, draw, count, limits):
    """The longest silence of any stream while a prompt of 32 chunks is computed."""
    words = word_ids(server)
    streams = [endless(server, draw, 20_000, words) for _ in range(count)]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    await until_running(streams)
    begin = time.monotonic()
    prompt = Stream(server, "/v1/completions",
                    {"prompt": random_ids(draw, 32 * CHUNK), "max_tokens": 2, "ignore_eos": True})
    await prompt.run()
    end = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    silences = [stream.longest_silence(begin, end) for stream in streams]
    say(f"     {32 * CHUNK} tokens took {end - begin:.1f} s beside {count} streams; longest silences: "
        f"median {1000 * statistics.median(silences):.0f} ms")
    limits.hold("longest silence of a stream, ms", 1000 * max(silences), 1000 * SILENCE)


async def rates_alone(streams):
    begin = time.monotonic()
    await asyncio.sleep(4)
    return [stream.rate(begin, time.monotonic()) for stream in streams]


async def shares(server, draw, length, limits):
    idle = []
    for _ in range(9):
        idle.append((await short(server, draw).run()).first_after)
    idle_first = statistics.median(idle)
    words = word_ids(server)
    streams = [endless(server, draw, 100_000, words) for _ in range(4)]
    tasks = [asyncio.create_task(stream.run()) for stream in streams]
    await until_running(streams, 64)
    before = await rates_alone(streams)
    begin = time.monotonic()
    prompt = Stream(server, "/v1/completions",
                    {"prompt": random_ids(draw, length), "max_tokens": 2, "ignore_eos": True})
    task = asyncio.create_task(prompt.run())
    await asyncio.sleep(1)
    newcomers = []
    while not prompt.times and len(newcomers) < 9:
        newcomers.append((await short(server, draw).run()).first_after)
        await asyncio.sleep(0.3)
    if not prompt.times:
        await task
    end = prompt.times[0]
    beside = [stream.rate(begin, end) for stream in streams]
    # Their texts have grown meanwhile, and with them the time of a token: the mean of both times.
    after = await rates_alone(streams)
    alone = [2 / (1 / one + 1 / other) for one, other in zip(before, after)]
    for running in tasks:
        running.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    say(f"     {length} tokens took {end - begin:.1f} s beside 4 streams: "
        f"{sum(before):.0f} tok/s alone before, {sum(after):.0f} after, {sum(beside):.0f} beside; newcomers' first token "
        f"{1000 * idle_first:.1f} ms idle, {1000 * statistics.median(newcomers):.1f} ms beside "
        f"({len(newcomers)})")
    kept = min(one / other for one, other in zip(beside, alone))
    limits.hold("share of its rate the slowest stream kept", kept, KEPT_RATE, at_most=False)
    limits.hold("newcomer's first token, ms", 1000 * statistics.median(newcomers),
                1000 * (2 * idle_first + PREFILL_SLICE))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("arrival", "shares"))
    arguments = parser.parse_args()
    context = max(arguments.prompt + 1024, 32 * CHUNK + 1024)
    server = NanoServer("--context", str(context), "--kv-memory", "2GiB",
                        "--max-running", str(arguments.streams + 8))
    limits = Limits()
    draw = random.Random(arguments.seed)
    try:
        if arguments.only != "shares":
            asyncio.run(arrival(server, draw, arguments.streams, limits))
            server.settle()
        if arguments.only != "arrival":
            asyncio.run(shares(server, draw, arguments.prompt, limits))
    finally:
        server.stop()
    return limits.exit_code


if __name__ == "__main__":
    sys.exit(main())
