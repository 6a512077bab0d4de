"""percheron top in a pseudo-terminal, against replay: its figures, keys, sizes, errors, restarts."""

import fcntl
import http.client
import http.server
import json
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
import unittest

import figures
from replay_server import HANG_GUARD_S, ReplayServer

BINARY = os.environ["PERCHERON_BINARY"]
THINKING = {
    "match": "think",
    "steps": ["One ", "two ", "three"],
    "finish": "hang",
    "draft": {"drafted": 3, "accepted": 2},
}
ANSWERING = {"match": "answer", "steps": ["Hm.", "</think>", "A word"], "finish": "hang"}
QUICK = {"match": "quick", "steps": ["Hm.</think>", "ok"]}
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A program in a pseudo-terminal of its own, and what it has written."""

    def __init__(self, arguments, rows=40, columns=140, env=()):
        self.written = ""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "COLUMNS", "LC_ALL", "LC_CTYPE")
        }
        environment |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", **dict(env)}
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # some tests make it fail
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(BINARY, [BINARY, "top", *arguments], environment)
        self.status = None

    def read(self):
        """More of what the program writes; False at its end."""
        ready, _, _ = select.select([self.descriptor], [], [], HANG_GUARD_S)
        if not ready:
            raise AssertionError(f"nothing came; so far: {self.written[-3000:]!r}")
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            data = b""
        self.written += data.decode(errors="replace")
        return bool(data)

    def frames(self):
        """The whole pictures so far, each a list of lines without colours."""
        pictures = re.findall(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", self.written, re.DOTALL)
        return [
            [
                re.sub(r"\x1b\[[0-9;]*m", "", line.replace("\x1b[2K", ""))
                for line in re.split(r"\r+\n", re.sub(r"(?:\r+\n)?\x1b\[J", "", picture))
            ]
            for picture in pictures
        ]

    def wait_for(self, holds):
        """The first picture, of those to come and the last one there, for which `holds` is true."""
        seen = max(0, len(self.frames()) - 1)
        while True:
            for frame in self.frames()[seen:]:
                seen += 1
                if holds("\n".join(frame)):
                    return frame
            if not self.read():
                raise AssertionError(f"the program has ended: {self.written[-3000:]!r}")

    def settings(self):
        return termios.tcgetattr(self.descriptor)

    def resize(self, rows, columns):
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.descriptor, keys.encode())

    def kill(self, number):
        os.kill(self.process, number)

    def wait(self):
        """The exit status; negative: the signal that ended the program."""
        while self.read():
            pass
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return self.status

    def close(self):
        if self.status is None:
            self.kill(signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.descriptor)


class Top(unittest.TestCase):
    def serve(self, *replies, **options):
        server = ReplayServer(replies, **options)
        self.addCleanup(server.stop)
        return server

    def top(self, *arguments, **options):
        terminal = Terminal(arguments, **options)
        self.addCleanup(terminal.close)
        return terminal

    def run_top(self, *arguments, env=(), stdout=subprocess.PIPE):
        return subprocess.run(
            [BINARY, "top", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_GUARD_S,
            env=os.environ | {"LANG": "C.UTF-8", **dict(env)},
        )

    def ask(self, server, text):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_GUARD_S)
        self.addCleanup(connection.close)
        body = {"messages": [{"role": "user", "content": text}], "stream": text != "quick"}
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        return connection

    def working_server(self, **options):
        """Two replies that hang, one of them with drafts, and some that are over."""
        server = self.serve(THINKING, ANSWERING, QUICK, **options)
        for _ in range(3):
            self.ask(server, "quick").getresponse().read()
        for count, text in enumerate(("think", "answer"), 1):
            self.ask(server, text)
            guard = time.monotonic() + HANG_GUARD_S
            while len(server.status()["requests"]) < count:
                self.assertLess(time.monotonic(), guard)
        while server.status()["requests"][1]["phase"] != "answer":
            self.assertLess(time.monotonic(), guard)
        return server

    def assert_restored(self, terminal, settings):
        self.assertEqual(terminal.written.count(ENTER), terminal.written.count(LEAVE))
        after = terminal.written[terminal.written.rindex(LEAVE) :]
        self.assertEqual(after.replace(LEAVE, "").replace("^C", "").strip(), "")
        self.assertLess(terminal.written.rindex("\x1b[?25l"), terminal.written.rindex("\x1b[?25h"))
        self.assertLess(terminal.written.rindex("\x1b[?7l"), terminal.written.rindex("\x1b[?7h"))
        self.assertEqual(terminal.settings(), settings)

    def figures_of(self, server):
        said = figures.Figures(server.get("/metrics"), json.loads(server.get("/status")))
        used, total = said.of("kv_tokens_used"), said.of("kv_tokens_total")
        first = [
            figures.latency(said.quantile("time_to_first_token_seconds", part))
            for part in (0.5, 0.9, 0.99)
        ]
        parts = [
            f"{said.status['model']}   {server.url}   context {figures.whole(said.status['context_tokens'])}",
            f"running {figures.whole(said.of('num_requests_running'))}   ",
            f"waiting {figures.whole(said.of('num_requests_waiting'))}   ",
            f"KV {figures.whole(used)} of {figures.whole(total)} tokens ({figures.share(used, total)})",
            f"checkpoints {figures.whole(said.of('checkpoints'))}   ",
            f"cache hits {said.share('prefix_cache_hits_total', 'prefix_cache_queries_total')}   ",
            "draft acceptance "
            + said.share(
                "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
            )
            + "   ",
            f"images {figures.whole(said.of('images_encoded_total'))} encoded, "
            f"{figures.whole(said.of('images_reused_total'))} reused",
            f"first token {' / '.join(first)}",
            f"disconnects {figures.whole(said.of('disconnects_total'))}   ",
            f"loops {figures.whole(said.of('loops_total'))}   ",
            f"preemptions {figures.whole(said.of('preemptions_total'))}",
            f"prefill {figures.rate(said.of('prefill_tokens_per_second'))} tok/s",
            f"decode {figures.rate(said.of('decode_tokens_per_second'))} tok/s",
        ]
        rows = [
            [
                row["id"].rsplit("-", 1)[-1],
                row["route"],
                row["phase"],
                figures.whole(row["choices"]),
                figures.whole(row["prompt_tokens"]),
                figures.whole(row["cached_tokens"]),
                figures.whole(row["generated_tokens"]),
            ]
            for row in said.status["requests"]
        ]
        return parts, rows

    def test_figures_are_those_of_metrics(self):
        server = self.working_server()
        terminal = self.top(server.url, "--interval", "0.2")
        # At rest: two replies hang, and the rates have come down.
        frame = terminal.wait_for(
            lambda text: "prefill 0.0 tok/s" in text and "decode 0.0 tok/s" in text
        )
        parts, rows = self.figures_of(server)
        text = "\n".join(frame) + "\n"
        self.assertIn("draft acceptance 66.7 %   ", parts)
        for part in parts:
            self.assertIn(part, text)
        shown = [re.split(r"  +", line)[:7] for line in frame[-len(rows) :]]
        self.assertEqual(shown, rows)
        self.assertEqual([row[2] for row in rows], ["thinking", "answer"])
        self.assertEqual(re.split(r"  +", frame[-1])[-1], "-")
        self.assertEqual(re.split(r"  +", frame[-2])[-1], "66.7 %")

        once = self.run_top(server.url, "--once", env={"COLUMNS": "140"})
        self.assertEqual((once.returncode, once.stderr), (0, ""))
        self.assertNotIn("\x1b", once.stdout)
        for part in parts:
            self.assertIn(part, once.stdout)

    def test_rates_rise_and_stand_in_sparklines(self):
        streaming = {"match": "stream", "steps": ["word "] * 4000, "delay_ms": 20}
        server = self.serve(streaming)
        terminal = self.top(server.url, "--interval", "0.1")
        terminal.wait_for(
            lambda text: "decode 0.0 tok/s" in text and "Nothing runs or waits." in text
        )
        self.ask(server, "stream")
        frame = terminal.wait_for(lambda text: re.search(r"decode [1-9].*[▂-█]{3}", text))
        self.assertIn("thinking", "\n".join(frame))

    def test_every_way_out_gives_the_terminal_back(self):
        server = self.working_server()
        ways = {
            "q": lambda terminal: terminal.press("q"),
            "Q after other keys": lambda terminal: terminal.press("x\x1b[AyQ"),
            "Ctrl-C": lambda terminal: terminal.press("\x03"),
            "SIGTERM": lambda terminal: terminal.kill(signal.SIGTERM),
            "SIGQUIT": lambda terminal: terminal.kill(signal.SIGQUIT),
            "SIGSEGV": lambda terminal: terminal.kill(signal.SIGSEGV),
            "SIGABRT": lambda terminal: terminal.kill(signal.SIGABRT),
        }
        for name, leave in ways.items():
            with self.subTest(name):
                terminal = self.top(server.url)
                settings = terminal.settings()
                terminal.wait_for(lambda text: "running 2" in text)
                self.assertNotEqual(terminal.settings(), settings)
                leave(terminal)
                fault = getattr(signal, name) if name in ("SIGSEGV", "SIGABRT") else 0
                self.assertEqual(terminal.wait(), -fault)
                self.assert_restored(terminal, settings)

    def test_a_stop_gives_the_terminal_back_for_its_time(self):
        server = self.working_server()
        terminal = self.top(server.url)
        settings = terminal.settings()
        terminal.wait_for(lambda text: "running 2" in text)
        terminal.press("\x1a")
        _, status = os.waitpid(terminal.process, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))
        while not terminal.written.endswith(LEAVE):
            terminal.read()
        self.assertEqual(terminal.settings(), settings)
        before = len(terminal.frames())
        terminal.kill(signal.SIGCONT)
        while len(terminal.frames()) == before:
            terminal.read()
        self.assertEqual(terminal.written.count(ENTER), 2)
        terminal.press("q")
        self.assertEqual(terminal.wait(), 0)
        self.assert_restored(terminal, settings)

    def test_follows_the_size_of_the_terminal(self):
        server = self.working_server()
        terminal = self.top(server.url, "--interval", "3600", rows=40, columns=140)
        terminal.wait_for(lambda text: "running 2" in text)
        for rows, columns in ((24, 80), (10, 40), (3, 20), (1, 5), (60, 200)):
            before = len(terminal.frames())
            terminal.resize(rows, columns)
            while len(terminal.frames()) == before:
                terminal.read()
            frame = terminal.frames()[-1]
            self.assertLessEqual(len(frame), rows)
            self.assertLessEqual(max(map(len, frame)), columns)
        self.assertIn("/v1/chat/completions", "\n".join(frame))

    def loading_server(self):
        """A server's figures behind an address that says 503 until `loaded` is set."""
        server = self.serve(QUICK)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                address.asked += 1
                self.send_response(200 if address.loaded else 503)
                body = server.get(self.path).encode() if address.loaded else b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        address = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        address.loaded, address.asked = False, 0
        threading.Thread(target=address.serve_forever, daemon=True).start()
        self.addCleanup(address.server_close)
        self.addCleanup(address.shutdown)
        address.url = f"http://127.0.0.1:{address.server_address[1]}"
        return address

    def test_waits_for_a_server_that_loads(self):
        for rounds in (1, 4):
            with self.subTest(rounds):
                server = self.loading_server()
                terminal = self.top(server.url, "--interval", "0.1")
                frame = terminal.wait_for(lambda text: "is not ready" in text)
                self.assertNotIn("running", "\n".join(frame))
                while server.asked < rounds:
                    terminal.read()
                server.loaded = True
                frame = terminal.wait_for(lambda text: "running 0" in text)
                self.assertNotIn("is not ready", "\n".join(frame))
                terminal.press("q")
                self.assertEqual(terminal.wait(), 0)
        # Where there is no terminal: said once, then lines.
        server = self.loading_server()
        lines = subprocess.Popen(
            [BINARY, "top", server.url, "--interval", "0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.assertIn("is not ready", lines.stderr.readline())
        while server.asked < 3:
            time.sleep(0.01)
        server.loaded = True
        self.assertIn("running 0", lines.stdout.readline())
        lines.terminate()
        self.assertEqual(lines.communicate()[1], "")
        # One picture is asked for now, and there is none.
        server.loaded = False
        once = self.run_top(server.url, "--once")
        self.assertEqual((once.returncode, once.stdout), (1, ""))
        self.assertIn("is not ready", once.stderr)

    def test_goes_on_when_the_server_restarts(self):
        server = self.working_server()
        terminal = self.top(server.url, "--interval", "0.1")
        terminal.wait_for(lambda text: "running 2" in text)
        os.kill(server.process_id, signal.SIGKILL)  # its replies hang, and would have their time
        server.stop()
        frame = terminal.wait_for(lambda text: "cannot reach" in text)
        self.assertIn(
            f"cannot reach {server.url} (Connection refused); check that percheron serve",
            "\n".join(frame),
        )
        self.assertIn("running 2", "\n".join(frame))
        self.serve(QUICK, port=server.port)
        frame = terminal.wait_for(lambda text: "running 0" in text)
        self.assertNotIn("cannot reach", "\n".join(frame))
        terminal.press("q")
        self.assertEqual(terminal.wait(), 0)

    def test_quits_at_once_while_the_server_is_silent(self):
        server = self.working_server()
        terminal = self.top(server.url, "--interval", "0.1")
        settings = terminal.settings()
        terminal.wait_for(lambda text: "running 2" in text)
        os.kill(server.process_id, signal.SIGSTOP)
        self.addCleanup(os.kill, server.process_id, signal.SIGCONT)
        terminal.press("q")
        self.assertEqual(terminal.wait(), 0)
        self.assert_restored(terminal, settings)
        os.kill(server.process_id, signal.SIGCONT)

    def test_colour_only_where_it_is_welcome(self):
        server = self.working_server()
        for environment, coloured in (
            ({}, True),
            ({"NO_COLOR": "1"}, False),
            ({"NO_COLOR": ""}, True),
        ):
            terminal = self.top(server.url, env=environment)
            terminal.wait_for(lambda text: "running 2" in text)
            self.assertEqual(bool(re.search(r"\x1b\[[1-9][0-9;]*m", terminal.written)), coloured)
        terminal = self.top(server.url, env={"LANG": "C"})
        frame = terminal.wait_for(lambda text: "running 2" in text)
        self.assertTrue("\n".join(frame).isascii())

    def test_without_a_terminal_it_writes_lines(self):
        server = self.working_server()
        for terminal_kind in ("xterm", "dumb"):
            command = [BINARY, "top", server.url, "--interval", "0.1"]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TERM": terminal_kind}
            )
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_GUARD_S)
            for line in lines:
                self.assertRegex(
                    line,
                    r"^up [\d.]+ s  running 2  waiting 0  prefill [\d.,]+ tok/s  decode [\d.,]+ tok/s  "
                    r"KV 0\.0 %  cache hits 0\.0 %  draft acceptance 66\.7 %\n$",
                )
        terminal = self.top(server.url, "--interval", "0.1", env={"TERM": "dumb"})
        while terminal.written.count("\n") < 2:
            terminal.read()
        self.assertNotIn("\x1b", terminal.written)

    def test_what_is_wrong_is_one_sentence(self):
        server = self.serve(QUICK, key="sk-right")
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("# mine\nme sk-right\n")
            keys.flush()
            good = self.run_top(server.url, "--once", "--api-key-file", keys.name)
            self.assertEqual((good.returncode, good.stderr), (0, ""))
            self.assertIn("running 0", good.stdout)
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("sk-wrong\n")
            keys.flush()
            cases = [
                ([server.url], 1, "wants a key; name a file with one by --api-key-file"),
                (
                    [server.url, "--api-key-file", keys.name],
                    1,
                    "does not know the key of --api-key-file",
                ),
                ([server.url, "--api-key-file", "/nonexistent"], 1, "cannot read the key file"),
                (["http://127.0.0.1:1"], 1, "cannot reach http://127.0.0.1:1 (Connection refused)"),
                (
                    ["http://no-such-host.invalid"],
                    1,
                    "cannot reach http://no-such-host.invalid:8000",
                ),
                ([server.url + "/elsewhere"], 1, "wants a key"),
                (["https://localhost"], 2, "https is not spoken here"),
                ([server.url, "--interval", "0"], 2, "--interval"),
                ([server.url, "more"], 2, "more"),
            ]
            for arguments, code, words in cases:
                for once in (["--once"], []):
                    outcome = self.run_top(*arguments, *once)
                    self.assertEqual((outcome.returncode, outcome.stdout), (code, ""), arguments)
                    self.assertIn(words, outcome.stderr)
                    if code == 1:
                        self.assertRegex(outcome.stderr, r"^percheron top: [^\n]+\n$")
                # In a terminal too, and the screen was never taken.
                terminal = self.top(*arguments)
                self.assertEqual(terminal.wait(), code)
                self.assertNotIn("\x1b[?1049h", terminal.written)

    def test_help_is_complete(self):
        text = self.run_top("--help").stdout
        for part in (
            "URL",
            "--interval",
            "--once",
            "--api-key-file",
            "Example: percheron top http",
        ):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
