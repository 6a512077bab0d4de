#!/usr/bin/env python3
"""The prefix cache's files behind a real server: killed at any moment and started again it gives the
same replies and has read what it need not compute; a disk that takes no more, damaged files and a second
server on the folder cost nothing else.

  prefix_disk_test.py PERCHERON
"""
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

from served_model import ServedModel

WORDS = "the quick brown fox jumps over a lazy dog while seven grey geese watch from the old barn".split()


def chat(seed, words=400, **fields):
    chosen = random.Random(seed)
    text = " ".join(chosen.choice(WORDS) for _ in range(words))
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 1,
            "seed": seed, "thinking_budget": 8, **fields}


def facts(reply):
    message = reply["choices"][0]["message"]
    return message.get("reasoning_content"), message.get("content"), reply["usage"]["completion_tokens"]


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve(binary, folder, *more, **popen):
    return ServedModel(binary, "--prefix-disk", str(folder), "--kv-memory", "64MiB", "--threads", "1",
                       *more, **popen)


def settle(server):
    """Waits until replies are reusable and all of it is on disk."""
    while True:
        status = server.get("/status")
        if status["reprefill_pending"] == 0 and status["prefix_disk"]["queued_bytes"] == 0:
            return status["prefix_disk"]
        time.sleep(0.02)


def ask(server, body):
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    return reply


def kill(server):
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def killed_and_started_again(binary, folder):
    with ServedModel(binary, "--prefix-cache", "off", "--kv-memory", "64MiB", "--threads", "1") as cold:
        wanted = {seed: facts(ask(cold, chat(seed))) for seed in range(6)}
    server = serve(binary, folder)
    lengths = {}
    for seed, expected in wanted.items():
        reply = ask(server, chat(seed))
        assert facts(reply) == expected and cached(reply) == 0
        lengths[seed] = reply["usage"]["prompt_tokens"]
    written = settle(server)
    assert written["written"] > 0 and written["entries"] >= 6, written
    kill(server)
    with serve(binary, folder) as again:
        for seed, expected in wanted.items():
            reply = ask(again, chat(seed))
            assert facts(reply) == expected, f"prompt {seed} has another reply after the restart"
            assert cached(reply) == (lengths[seed] - 1) // 64 * 64, (cached(reply), lengths[seed])
        disk = settle(again)
        assert disk["restored"] > 0 and disk["restores"] == 6 and disk["refused"] == 0, disk
        metrics = again.text("/metrics")
        assert f'percheron:prefix_disk_restored_bytes_total{{model_name="nano"}} {disk["restored"]}\n' in metrics
        with_progress(again, chat(77, words=1500, stream=True, return_progress=True))


def with_progress(server, body):
    """Progress of a long prompt on the real engine, all of it new but what it shares."""
    _, text = server.post("/v1/chat/completions", body)
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert len(progress) >= 4, progress
    processed = [part["processed"] for part in progress]
    assert processed == sorted(set(processed)) and processed[0] == progress[0]["cache"]
    assert processed[-1] == progress[0]["total"] > 1400
    first_text = next(i for i, event in enumerate(events) if event["choices"])
    assert all("prompt_progress" not in event for event in events[first_text:])


def killed_at_any_moment(binary, folder):
    """Whatever half of it is on disk, what is read is whole."""
    with ServedModel(binary, "--prefix-cache", "off", "--kv-memory", "64MiB", "--threads", "1") as cold:
        wanted = {seed: facts(ask(cold, chat(100 + seed, words=900))) for seed in range(4)}
    chosen = random.Random(5)
    found = 0
    for _ in range(8):
        server = serve(binary, folder)
        for seed in chosen.sample(sorted(wanted), 2):
            reply = ask(server, chat(100 + seed, words=900))
            assert facts(reply) == wanted[seed]
            found += cached(reply)
        # In the middle of another prompt's writing.
        def cut_off():
            try:
                ask(server, chat(chosen.randrange(10**6), words=900))
            except (OSError, json.JSONDecodeError):
                pass
        other = threading.Thread(target=cut_off)
        other.start()
        time.sleep(chosen.random() * 0.4)
        kill(server)
        other.join()
    assert found > 1000, found


def disk_that_takes_no_more(binary, folder):
    limit = 40_000
    log = tempfile.TemporaryFile("w+")
    server = serve(binary, folder, stderr=log, preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (limit, limit)))
    with server:
        first = ask(server, chat(7))
        assert cached(first) == 0
        disk = settle(server)
        assert disk["paused"] and disk["dropped"] > 0, disk
        again = ask(server, chat(7))
        assert facts(again) == facts(first) and cached(again) > 0
        assert all(path.stat().st_size <= limit for path in folder.iterdir())
    log.seek(0)
    assert sum("nothing is written for a while" in line for line in log) == 1


def damaged_files(binary, folder):
    with serve(binary, folder) as server:
        first = ask(server, chat(8))
        settle(server)
    for path in folder.glob("*.pages"):
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(content)
    log = tempfile.TemporaryFile("w+")
    with serve(binary, folder, stderr=log) as server:
        again = ask(server, chat(8))
        assert facts(again) == facts(first) and cached(again) == 0
        assert settle(server)["refused"] > 0
        assert ask(server, chat(8))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    log.seek(0)
    assert "is damaged in piece" in log.read()


def one_server_a_folder(binary, folder):
    with serve(binary, folder):
        second = subprocess.run([binary, "serve", "--port", "0", "--kv-memory", "64MiB", "--prefix-disk",
                                 str(folder)], capture_output=True, text=True)
        assert second.returncode == 1
        last = second.stderr.strip().splitlines()[-1]
        assert "is in use by another process" in last and "give every server a folder of its own" in last, last
    for more in (["--prefix-cache", "off"], ["--prefix-disk-size", "0"], ["--prefix-disk-size", "1MiB"]):
        refused = subprocess.run([binary, "serve", "--port", "0", "--kv-memory", "64MiB", "--prefix-disk",
                                  str(folder), *more], capture_output=True, text=True)
        assert refused.returncode in (1, 2) and "--prefix-disk" in refused.stderr, refused.stderr


def main():
    (binary,) = sys.argv[1:]
    for check in (killed_and_started_again, killed_at_any_moment, disk_that_takes_no_more, damaged_files,
                  one_server_a_folder):
        with tempfile.TemporaryDirectory() as folder:
            check(binary, pathlib.Path(folder) / "prefixes")
        print(f"{check.__name__}: ok", flush=True)


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    main()
