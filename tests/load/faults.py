#!/usr/bin/env python3
"""Clients that vanish and requests that are wrong, against the embedded model.

    faults.py [--disconnects 1000] [--malformed 10000] [--seed 1]

Held: every request that was sent whole is answered, nothing wrong is answered with 5xx, errors have
their form, and afterwards the server holds nothing and answers as before."""

import argparse
import base64
import collections
import concurrent.futures
import copy
import json
import random
import re
import socket
import struct
import sys
import time
import zlib

from streams import Counts, Limits, NanoServer, open_files, say



def plain_png(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\x28\x46\xdc" * side) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


IMAGE = "data:image/png;base64," + base64.b64encode(plain_png(56)).decode()
CHAT = {
    "model": "nano",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is 2 + 3?"},
                                     {"type": "image_url", "image_url": {"url": IMAGE}}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": False}}}],
    "tool_choice": "auto",
    "max_tokens": 8, "min_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.01,
    "stop": ["zz"], "seed": 3, "n": 1, "stream": True, "stream_options": {"include_usage": True},
    "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": -1}, "reasoning_effort": "low",
    "thinking_budget": 6, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "cache_salt": "s", "priority": 1, "deadline_s": 20,
    "chat_template_kwargs": {"enable_thinking": False},
}
SEEDS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True,
            "schema": {"type": "object", "properties": {
                "a": {"type": "string", "pattern": "^a{1,9}$"},
                "b": {"type": "array", "items": {"enum": [1, "x", None]}, "maxItems": 3},
                "c": {"$ref": "#/$defs/c"}}, "$defs": {"c": {"type": "number", "minimum": 0}},
                "required": ["a"]}}}}),
    ("/v1/completions", {"prompt": ["One two", [5, 6, 7]], "max_tokens": 8, "echo": True,
                         "logprobs": 1, "n": 2, "stream": False}),
    ("/v1/responses", {
        "instructions": "Be brief.", "max_output_tokens": 8, "store": True, "stream": True,
        "input": [{"type": "message", "role": "user", "content": [
                      {"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": IMAGE}]},
                  {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
                  {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": "5"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}},
                  {"type": "custom", "name": "g"}, {"type": "web_search"}],
        "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}}),
    ("/v1/messages", {
        "max_tokens": 8, "system": [{"type": "text", "text": "Be brief."}], "stream": True,
        "messages": [{"role": "user", "content": [
                         {"type": "text", "text": "Hi"},
                         {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                                      "data": IMAGE.split(",")[1]}}]},
                     {"role": "assistant", "content": [
                         {"type": "thinking", "thinking": "x", "signature": "s"},
                         {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                     {"role": "user", "content": [
                         {"type": "tool_result", "tool_use_id": "c", "content": "5"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 6}}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/tokenize", {"prompt": "One two", "add_special_tokens": False, "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], "tools": []}),
    ("/detokenize", {"tokens": [1, 2, 300]}),
]
STRANGE = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 1e308, -1e-308, 0.5, "", "x", "\0",
    "<|user|>", "</think>", "\U0001f600", "a" * 5000, [], {}, [[]], [None], [{}], {"": {}}, ["x"] * 500,
    "\ud800", "data:image/png;base64,AAAA", "http://127.0.0.1:1/a.png", {"type": "text"}, "1e400",
    [1, "a", None], {"$ref": "#"}, "(a+)+$", "NaN",
]


CLOSE = "Connection: close\r\n"


def http_request(method, path, body, headers=""):
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def places(value, path=()):
    """Every place inside a JSON value, the value's own left out."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        return
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(draw, value):
    """A JSON value with something wrong, or only strange, at some of its places."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        spots = list(places(value))
        if not spots:
            return copy.deepcopy(draw.choice(STRANGE))
        spot = draw.choice(spots)
        holder = value
        for key in spot[:-1]:
            holder = holder[key]
        what = draw.randrange(6)
        if what == 0:
            del holder[spot[-1]]
        elif what == 1 and isinstance(holder, dict):
            holder[draw.choice(["", "x", "\0", spot[-1] + "s", "type", "role"])] = holder.pop(spot[-1])
        elif what == 2 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[spot[-1]]) for _ in range(draw.randrange(1, 40)))
        elif what == 3:
            deep = holder[spot[-1]]
            for _ in range(draw.randrange(1, 80)):
                deep = draw.choice([[deep], {"a": deep}])
            holder[spot[-1]] = deep
        else:
            holder[spot[-1]] = copy.deepcopy(draw.choice(STRANGE))
    return value


def malformed(draw):
    """The bytes of a request, and whether they say truly where it ends."""
    path, seed = draw.choice(SEEDS)
    kind = draw.randrange(10)
    if kind < 6:
        text = json.dumps(changed(draw, seed), ensure_ascii=draw.random() < 0.5)
        return http_request("POST", path, text.encode("utf-8", "surrogatepass"), CLOSE), True
    if kind < 8:
        body = bytearray(json.dumps(seed).encode())
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(body))
            what = draw.randrange(4)
            if what == 0:
                body[at] = draw.randrange(256)
            elif what == 1:
                del body[at : at + draw.randrange(1, 20)]
            elif what == 2:
                body[at:at] = body[draw.randrange(len(body)) :][: draw.randrange(1, 30)]
            else:
                body[at:at] = bytes(draw.choice([b'"', b"\\", b"{", b"]", b"\xff", b"\\ud800", b"\0"]))
            if not body:
                body = bytearray(b"?")
        return http_request("POST", path, bytes(body), CLOSE), True
    if kind == 8:
        method = draw.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "x", "POST"])
        target = draw.choice([path, "/", "/v1", "/v1/responses/x", "//", "/%00", "/../etc/passwd",
                              "/v1/models/" + "a" * 3000, "*", "/?" + "q" * 2000])
        return http_request(method, target, b"", CLOSE), True
    whole = bytearray(http_request("POST", path, json.dumps(seed).encode(),
                                   draw.choice(["", "Accept: */*\r\n", "Expect: 100-continue\r\n"])))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(min(len(whole), 160))
        whole[at : at + draw.randrange(0, 3)] = draw.choice(
            [b"\r\n", b"\n", b"\0", b":", b" ", b"\xff", b"99999999999999999999", b"chunked", b"-1"]
        )
    return bytes(whole), False


class Connection:
    def __init__(self, server):
        self.socket = socket.create_connection((server.host, server.port))
        self.socket.settimeout(300)

    def answer(self, request, whole):
        """(status, body) of the first reply.  What is not a whole request ends with the connection's
        sending side, which of a whole one would say that its client has gone."""
        try:
            self.socket.sendall(request)
            if not whole:
                self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all there; the answer lies ready
        data = b""
        try:
            while piece := self.socket.recv(65536):
                data += piece
        except (ConnectionResetError, socket.timeout):
            pass
        finally:
            self.socket.close()
        while data.startswith(b"HTTP/1.1 100"):
            data = data.split(b"\r\n\r\n", 1)[1]
        if not data.startswith(b"HTTP/1.1 "):
            return 0, data
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        # Behind it may stand the answer to what the request's end was taken for.
        return int(head[9:12]), body[: int(length[1])] if length else body


def control(server):
    """What a well-behaved client gets: the same before, between and after."""
    reply = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0,
        "return_token_ids": True, "cache_prompt": False, "deadline_s": 600})
    return reply["choices"][0]["token_ids"]


def vanish(server, draw):
    """A request whose client goes, at a random moment and in a random way."""
    path, body = draw.choice(SEEDS[:5])
    body = {**body, "stream": draw.random() < 0.7}
    for limit in ("max_tokens", "max_output_tokens"):
        if limit in body:
            body[limit] = draw.choice([50, 600])
    if path in ("/v1/chat/completions", "/v1/completions"):
        body["ignore_eos"] = draw.random() < 0.7
    request = http_request("POST", path, json.dumps(body).encode())
    if draw.random() < 0.2:
        request = request[: draw.randrange(len(request))]
    connection = socket.create_connection((server.host, server.port))
    connection.settimeout(draw.choice([0.001, 0.01, 0.1, 0.3]))
    connection.sendall(request)
    wanted = draw.choice([0, 1, 200, 5000])
    got = b""
    try:
        while len(got) < wanted:
            piece = connection.recv(wanted - len(got))
            if not piece:
                break
            got += piece
    except socket.timeout:
        pass
    way = draw.randrange(3)
    if way == 0:  # a reset instead of an orderly end
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == 1:
        connection.shutdown(socket.SHUT_WR)
    connection.close()


UNANSWERED, FORMLESS = 0, 1  # beside the statuses


def answered(server, draw):
    """The status that one malformed request got, if all is well with it."""
    request, whole = malformed(draw)
    status, body = Connection(server).answer(request, whole)
    if status == 0 or status >= 500:
        say(f"     {status} for {request[:3000]!r}: {body[:300]!r}")
        return status
    if status < 400 or request.startswith(b"HEAD"):
        return status
    try:
        if isinstance(json.loads(body)["error"]["code"], str):
            return status
    except (ValueError, KeyError, TypeError):
        pass
    say(f"     {status} without an error's form for {request[:3000]!r}: {body[:300]!r}")
    return FORMLESS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disconnects", type=int, default=1000)
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    server = NanoServer("--context", "1024", "--kv-memory", "128MiB", "--deadline", "5")
    limits = Limits()
    try:
        for path, body in SEEDS:
            status, reply = Connection(server).answer(
                http_request("POST", path, json.dumps(body).encode(), CLOSE), True)
            if status != 200:
                raise AssertionError(f"{path}: {status} {reply[:500]!r}")
        wanted = control(server)
        fresh = server.settle()
        files = open_files(server.process.pid)
        counts = Counts(server)
        strays = 0
        for number in range(arguments.disconnects):
            vanish(server, draw)
            if number % 100 == 99:
                strays += control(server) != wanted
        after = server.settle()
        counts.take()
        say(f"     {arguments.disconnects} clients vanished; {counts.of('percheron:disconnects_total'):.0f} "
            "replies were under way then")
        hold = limits.hold
        hold("replies ended by a vanished client", counts.of("percheron:disconnects_total"),
             arguments.disconnects // 10, at_most=False)
        hold("control replies that changed", strays, 0)
        hold("tokens of pages that did not come back",
             fresh["kv_tokens_free"] - after["kv_tokens_free"], 0)
        hold("file descriptors kept", open_files(server.process.pid) - files, 1)
        hold("answers with 5xx", counts.server_faults, 0)

        counts = Counts(server)
        strays = 0
        statuses = collections.Counter()
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for start in range(0, arguments.malformed, 1000):
                statuses.update(pool.map(
                    lambda number: answered(server, random.Random(f"{arguments.seed} {number}")),
                    range(start, min(start + 1000, arguments.malformed))))
                strays += control(server) != wanted
        unanswered, formless = statuses[UNANSWERED], statuses[FORMLESS]
        server.settle()
        counts.take()
        say(f"     {arguments.malformed} requests in {time.monotonic() - begin:.0f} s: "
            + ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items())))
        hold("requests without an answer", unanswered, 0)
        hold("answers with 5xx", sum(n for s, n in statuses.items() if s >= 500)
             + counts.server_faults, 0)
        hold("errors without a code", formless, 0)
        hold("control replies that changed", strays, 0)
        hold("share refused", sum(n for s, n in statuses.items() if s >= 400) / arguments.malformed,
             0.3, at_most=False)
        hold("share accepted", statuses.get(200, 0) / arguments.malformed, 0.02, at_most=False)
        hold("file descriptors kept", open_files(server.process.pid) - files, 1)
    finally:
        server.stop()
    return limits.exit_code


if __name__ == "__main__":
    sys.exit(main())
