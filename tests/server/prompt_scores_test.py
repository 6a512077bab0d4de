#!/usr/bin/env python3
"""Log-probs of prompts from a real server against `percheron score`, which shares neither server nor
scheduler with it: alone, several in one request, twice (what the cache holds is not used), and with
others under way.

  prompt_scores_test.py PERCHERON
"""
import concurrent.futures
import json
import subprocess
import sys
import tempfile
import urllib.request

TEXTS = [
    "The sky is blue",
    "12 + 30 = 42. " * 12,
    "Once upon a time there was a small town by the sea. " * 14,
    "caf\u00e9 \u65e5\u672c \U0001f600 x",
]


def main():
    (binary,) = sys.argv[1:]
    process = subprocess.Popen([binary, "serve", "--port", "0", "--kv-memory", "64MiB", "--threads", "1"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = process.stdout.readline().split()[1]

    def post(path, body):
        request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def scores(prompt):
        reply = post("/v1/completions", {"prompt": prompt, "echo": True, "logprobs": 1,
                                         "max_tokens": 1, "temperature": 0})
        if reply["usage"]["prompt_tokens_details"]["cached_tokens"] != 0:
            sys.exit("a scored prompt was taken from the cache")
        return [choice["logprobs"] for choice in reply["choices"]]

    def check(lists, ids, wanted, what):
        got = lists["token_logprobs"]
        if len(got) != len(ids) + 1 or got[0] is not None:
            sys.exit(f"{what}: {len(got)} entries for {len(ids)} tokens and one more")
        for place, (one, other) in enumerate(zip(got[1:-1], wanted["logprobs"][1:]), 1):
            if abs(one - other) > 1e-5:
                sys.exit(f"{what}: token {place} has {one} instead of {other}")
        for place, (one, top) in enumerate(zip(got[1:-1], wanted["top"]), 1):
            best = max(lists["top_logprobs"][place].values())
            if (one == best) != (ids[place] == top[0][0]):
                sys.exit(f"{what}: token {place} is greedy in one of the two alone")

    try:
        ids = [post("/tokenize", {"prompt": text})["tokens"] for text in TEXTS]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(ids, file)
            file.flush()
            wanted = json.loads(subprocess.run(
                [binary, "score", "--ids", file.name, "--json", "--top", "1"], check=True,
                stdout=subprocess.PIPE, text=True).stdout)["sequences"]
        # Into the cache first, by requests that may use it.
        for one in ids:
            post("/v1/completions", {"prompt": one, "max_tokens": 2})
        for what, prompt in (("texts", TEXTS), ("ids", ids)):
            for lists, one, expected in zip(scores(prompt), ids, wanted):
                check(lists, one, expected, what)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            others = [pool.submit(post, "/v1/completions", {"prompt": "Go", "max_tokens": 30})
                      for _ in range(4)]
            crowd = list(pool.map(scores, ids))
            for other in others:
                other.result()
        for lists, one, expected in zip(crowd, ids, wanted):
            check(lists[0], one, expected, "in a crowd")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
