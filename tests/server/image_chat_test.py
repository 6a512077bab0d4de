#!/usr/bin/env python3
"""A real server and real pictures: replies that transformers gives too, tokens to the number, and a
model without a vision part that says so.

  image_chat_test.py PERCHERON SOURCE_DIR
"""
import base64
import json
import struct
import sys
import urllib.request
import zlib

from served_model import ServedModel

BLIND = ("synth:layers=4,hidden=256,vocabulary=8192,experts=4,experts-per-token=2,vision=0,mtp=0,"
         "format=bf16,seed=1")


def plain_png(side, colour):
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))
    rows = (b"\0" + bytes(colour) * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Server(ServedModel):
    def __init__(self, binary, *model):
        super().__init__(binary, *model, "--kv-memory", "64MiB", "--threads", "1")

    def ask(self, question, *pictures, **fields):
        """(status, reply)"""
        content = [{"type": "image_url", "image_url": {
            "url": "data:image/png;base64," + base64.b64encode(png).decode()}} for png in pictures]
        content.append({"type": "text", "text": question})
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0,
                "max_tokens": 24, **fields}
        return self.post("/v1/chat/completions", body)


def check(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: got {got!r} instead of {wanted!r}")


def main():
    binary, source = sys.argv[1:]

    def golden(name):
        with open(f"{source}/tests/data/nano_vision_golden/{name}.png", "rb") as f:
            return f.read()

    with Server(binary) as server:
        # Replies of transformers to the same prompts, tests/golden/README.md.
        for question, names, answer in (
                ("What color is the shape?", ["image_a"], "white"),
                ("Look at the second image. Which number is shown?", ["image_a", "image_b"], "84")):
            for _ in range(2):  # encoded, then from the features that were kept
                status, reply = server.ask(question, *map(golden, names))
                check(status, 200, question)
                check(reply["choices"][0]["message"]["content"], answer, question)
        # A picture costs its cells and the two tokens around them.
        question = "What do you see?"
        text_alone = server.ask(question)[1]["usage"]["prompt_tokens"]
        replies = set()
        for side, tokens in ((224, 64), (448, 256)):
            for colour in ((220, 30, 30), (40, 70, 220)):
                status, reply = server.ask(question, plain_png(side, colour))
                check(status, 200, "a plain picture")
                check(reply["usage"]["prompt_tokens"], text_alone + tokens + 2, f"{side} x {side}")
                status, reply = server.ask("What color is the background?",
                                           plain_png(side, colour))
                replies.add(reply["choices"][0]["message"]["content"])
        # Two pictures of the goldens and four plain ones; whatever came again was not encoded again.
        with urllib.request.urlopen(server.url + "/metrics") as reply:
            metrics = reply.read().decode()
        for name, number in (("encoded", 6), ("reused", 4 + 4)):
            line = f'percheron:images_{name}_total{{model_name="nano"}} {number}'
            if line not in metrics.splitlines():
                sys.exit(f"no {line!r} in {[x for x in metrics.splitlines() if 'images' in x]}")
        if len(replies) < 2:
            sys.exit(f"the same answer whatever the colour: {replies}")

    with Server(binary, BLIND) as server:
        status, reply = server.ask("What color is the shape?", golden("image_a"))
        check(status, 400, "a picture for a model without a vision part")
        check(reply["error"]["code"], "vision_unavailable", "the error")
        check(server.ask("Hello")[0], 200, "text for the same model")


if __name__ == "__main__":
    main()
