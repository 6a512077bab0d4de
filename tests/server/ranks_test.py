#!/usr/bin/env python3
"""A server whose network runs in a rank process: replies are those of a server of one process; a killed
rank is a 503 with its stage for those that were not begun, an error on the stream for those that were, and
is there again by itself; a killed server takes its rank along; what cannot start is said in one sentence.

  ranks_test.py PERCHERON
"""
import http.client
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error

from served_model import ServedModel

BASE = ("--kv-memory", "64MiB", "--threads", "1")


def chat(seed, **fields):
    return {"messages": [{"role": "user", "content": f"Tell me about the number {seed}."}], "max_tokens": 24,
            "temperature": 1, "seed": seed, "thinking_budget": 8, **fields}


def bodies():
    yield from (chat(seed) for seed in range(3))
    yield chat(3, n=3)
    yield chat(4, logprobs=True, top_logprobs=3)
    yield chat(5, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"],
        "additionalProperties": False}}}, max_tokens=60)
    yield chat(6, temperature=5000, top_p=2)
    yield chat(7, max_tokens=10**7)


def rank(server):
    return server.get("/status")["ranks"][0]


def until(holds):
    while not holds():
        pass


def up_again(server, restarts):
    def is_up():
        try:
            return rank(server)["restarts"] >= restarts and server.get("/health")["status"] == "ok"
        except urllib.error.HTTPError as error:
            told = json.load(error)["error"]
            assert error.code == 503 and told["code"] == "engine_dead" and "rank 0 " in told["message"], told
            assert int(error.headers["Retry-After"]) > 0
            return False
    until(is_up)


def replies_of_one_process(binary):
    with ServedModel(binary, *BASE, "--ranks", "in-process") as server:
        assert server.get("/status")["ranks"] == []
        wanted = [server.post("/v1/chat/completions", body) for body in bodies()]
    with ServedModel(binary, *BASE, "--ranks", "process") as server:
        for body, (status, reply) in zip(bodies(), wanted):
            came_status, came = server.post("/v1/chat/completions", body)
            assert came_status == status, came
            if status == 200:
                assert came["choices"] == reply["choices"], (came, reply)
            else:
                assert came == reply, (came, reply)
        names = pathlib.Path(f"/proc/{rank(server)['pid']}/fd")
        kinds = sorted(os.readlink(name) for name in names.iterdir())
        assert sum("socket" in kind for kind in kinds) == 1, f"more than its connection: {kinds}"


def killed_with_requests_in_flight(binary):
    """Those that stream get an error, those that wait a 503, and each of them exactly one end."""
    with ServedModel(binary, *BASE, "--ranks", "process", "--max-running", "2") as server:
        probe = server.post("/v1/chat/completions", chat(1))
        host = server.url.removeprefix("http://")
        for kills in range(1, 4):
            body = json.dumps({"prompt": list(range(300, 330)), "max_tokens": 4000, "stream": True,
                               "ignore_eos": True, "model": "x"})
            streams = []
            for _ in range(2):
                connection = http.client.HTTPConnection(host)
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                assert reply.status == 200 and reply.readline().startswith(b"data: ")
                streams.append((connection, reply))
            ended = []
            waiting = [threading.Thread(target=lambda: ended.append(
                server.post("/v1/chat/completions", chat(9, stream=stream)))) for stream in (False, True)]
            for thread in waiting:
                thread.start()
            until(lambda: server.get("/status")["waiting"] == 2)
            process = rank(server)["pid"]
            os.kill(process, signal.SIGKILL)
            for connection, reply in streams:
                text = reply.read().decode()
                assert text.count('"engine_dead"') == 1 and "rank 0 was ended by signal 9" in text, text[-400:]
                connection.close()
            for thread in waiting:
                thread.join()
            assert [status for status, _ in ended] == [503, 503], ended
            assert all(reply["error"]["code"] == "engine_dead" for _, reply in ended)
            assert not os.path.exists(f"/proc/{process}/fd/0") or rank(server)["pid"] != process
            up_again(server, kills)
            again = server.post("/v1/chat/completions", chat(1))
            assert again[1]["choices"] == probe[1]["choices"]
        metrics = server.text("/metrics")
        assert 'percheron:rank_restarts_total{model_name="nano",rank="0"} 3\n' in metrics
        assert 'percheron:rank_up{model_name="nano",rank="0"} 1\n' in metrics
        assert "signal 9" in rank(server)["last_end"]


def prefix_files_outlive_the_rank(binary):
    with tempfile.TemporaryDirectory() as folder:
        with ServedModel(binary, *BASE, "--ranks", "process", "--prefix-disk", folder + "/p") as server:
            long_one = chat(2)
            long_one["messages"][0]["content"] = "one two three four five " * 80
            first = server.post("/v1/chat/completions", long_one)[1]
            until(lambda: (lambda status: status["reprefill_pending"] == 0 and
                           status["prefix_disk"]["entries"] > 0 and
                           status["prefix_disk"]["queued_bytes"] == 0)(server.get("/status")))
            os.kill(rank(server)["pid"], signal.SIGKILL)
            up_again(server, 1)
            again = server.post("/v1/chat/completions", long_one)[1]
            assert again["choices"] == first["choices"]
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 300, again["usage"]


def server_and_rank_end_together(binary):
    for how in (signal.SIGKILL, signal.SIGTERM):
        server = ServedModel(binary, *BASE, "--ranks", "process")
        process = rank(server)["pid"]
        handle = os.pidfd_open(process)
        server.process.send_signal(how)
        assert server.process.wait() == (0 if how == signal.SIGTERM else -how)
        # Readable when the process has ended.
        select.select([handle], [], [])
        os.close(handle)


def what_cannot_start_is_said(binary):
    for arguments, code, words in ((["--device", "abacus"], 2, "--device abacus is unknown"),
                                   (["--kv-memory", "1MiB"], 1, "--kv-memory"),
                                   (["/no/such/folder"], 1, "there is no such folder")):
        ended = subprocess.run([binary, "serve", "--port", "0", "--ranks", "process", *arguments],
                               capture_output=True, text=True)
        last = ended.stderr.strip().splitlines()[-1]
        assert ended.returncode == code and words in last and last.startswith("percheron serve: "), (code, last)
    helped = subprocess.run([binary, "rank", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0 and "Example:" in helped.stdout


def main():
    (binary,) = sys.argv[1:]
    for check in (replies_of_one_process, killed_with_requests_in_flight, prefix_files_outlive_the_rank,
                  server_and_rank_end_together, what_cannot_start_is_said):
        check(binary)
        print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
