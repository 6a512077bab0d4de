"""The dashboard: its figures against /metrics and /status, keyboard, themes, widths, restarts."""

import http.client
import json
import pathlib
import time
import unittest

import figures
from page_case import PageCase
from replay_server import HANG_GUARD_S

CONTRAST = pathlib.Path(__file__).parent / "modules" / "contrast.js"

# Keeps what the page has read, so that what it shows can be held against that.
KEEP_READ = """window.read = {};
const realFetch = window.fetch;
window.fetch = async (path, options) => {
    const response = await realFetch(path, options);
    window.read[path] = await response.clone().text();
    return response;
};"""

# Timers run when the test says so.
HOLD_TIMERS = """window.timers = new Map();
let timerCount = 0;
window.setTimeout = (run, delay) => { timers.set(++timerCount, {run, delay}); return timerCount; };
window.clearTimeout = (number) => { timers.delete(number); };
window.fire = () => { for (const [number, {run}] of [...timers]) { timers.delete(number); run(); } };"""

THINKING = {
    "match": "think",
    "steps": ["One ", "two ", "three"],
    "finish": "hang",
    "draft": {"drafted": 3, "accepted": 2},
}
ANSWERING = {"match": "answer", "steps": ["Hm.", "</think>", "A word"], "finish": "hang"}
QUICK = {"match": "quick", "steps": ["Hm.</think>", "ok"]}
STREAMING = {"match": "stream", "steps": ["word "] * 4000, "delay_ms": 20}
SLOW = {"match": "slow", "steps": ["x"], "prefill_ms": 600000}


class Dashboard(PageCase):
    def ask(self, server, text, path="/v1/chat/completions"):
        """Sends a request and leaves it running; returns its connection."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_GUARD_S)
        self.addCleanup(connection.close)
        body = {"messages": [{"role": "user", "content": text}], "stream": text != "quick"}
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def busy_server(self, **options):
        """Requests in every phase, and some replies with errors."""
        server = self.serve(
            THINKING, ANSWERING, QUICK, SLOW, STREAMING, flags=("--max-running", "4"), **options
        )
        for _ in range(3):
            self.ask(server, "quick").getresponse().read()
        for path in ("/nothing", "/v1/models/other", "/tokenize"):
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request("GET", path)
            connection.getresponse().read()
            connection.close()
        for count, text in enumerate(("think", "answer", "slow", "stream", "think"), 1):
            self.ask(server, text)
            self.wait(lambda: len(server.status()["requests"]) == count)
        self.wait(lambda: server.status()["requests"][3]["generated_tokens"] > 0)
        return server

    def wait(self, holds):
        guard = time.monotonic() + HANG_GUARD_S
        while not holds():
            self.assertLess(time.monotonic(), guard, "waited in vain")

    def dashboard(self, server, **options):
        page = self.open(server, path="/dashboard", **options)
        page.wait_for("document.getElementById('running').textContent !== '-'")
        return page

    SHOWN = """(() => {
        const text = (id) => document.getElementById(id).textContent;
        const cells = (id) => Array.from(document.getElementById(id).rows, (row) =>
            Array.from(row.cells, (cell) => cell.textContent));
        const ids = ['model-name', 'uptime', 'running', 'waiting', 'kv', 'kv-tokens', 'cache', 'acceptance',
            'prefill', 'decode', 'context', 'checkpoints', 'memory', 'images', 'disconnects', 'loops',
            'preemptions', 'requests-note'];
        return {
            ...Object.fromEntries(ids.map((id) => [id, text(id)])),
            requests: cells('requests'),
            latencies: cells('latencies'),
            replies: Object.fromEntries(Array.from(document.getElementById('replies').children,
                (row) => [row.dataset.status, row.lastChild.textContent])),
            charts: ['prefill', 'decode'].map((name) =>
                document.querySelector(`#${name}-chart svg`).getAttribute('aria-label')),
        };
    })()"""

    def expected(self, read):
        said = figures.Figures(read["/metrics"], json.loads(read["/status"]))
        status = said.status
        rows = [
            [
                row["id"].rsplit("-", 1)[-1],
                row["phase"],
                figures.whole(row["choices"]),
                figures.whole(row["prompt_tokens"]),
                figures.whole(row["cached_tokens"]),
                figures.whole(row["generated_tokens"]),
                figures.rate(row["tok_s"]),
                figures.duration(row["seconds"]),
                figures.share(row["accepted"], row["drafted"]),
                row["route"],
            ]
            for row in status["requests"]
        ]
        latencies = [
            [label]
            + [figures.latency(said.quantile(name, part)) for part in (0.5, 0.9, 0.99)]
            + [figures.whole(said.of(f"{name}_count"))]
            for label, name in (
                ("First token", "time_to_first_token_seconds"),
                ("Next token", "inter_token_latency_seconds"),
                ("Whole request", "e2e_request_latency_seconds"),
            )
        ]
        used, total = said.of("kv_tokens_used"), said.of("kv_tokens_total")
        left_out = status["requests_left_out"]
        return {
            "model-name": status["model"],
            "uptime": f"up {figures.duration(said.of('uptime_seconds'))}",
            "running": figures.whole(said.of("num_requests_running")),
            "waiting": figures.whole(said.of("num_requests_waiting")),
            "kv": figures.share(used, total),
            "kv-tokens": f"{figures.whole(used)} of {figures.whole(total)} tokens",
            "cache": said.share("prefix_cache_hits_total", "prefix_cache_queries_total"),
            "acceptance": said.share(
                "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
            ),
            "prefill": figures.rate(said.of("prefill_tokens_per_second")),
            "decode": figures.rate(said.of("decode_tokens_per_second")),
            "context": figures.whole(status["context_tokens"]),
            "checkpoints": figures.whole(said.of("checkpoints")),
            "memory": figures.memory(said.of("resident_memory_bytes")),
            "images": f"{figures.whole(said.of('images_encoded_total'))} encoded, "
            f"{figures.whole(said.of('images_reused_total'))} reused",
            "disconnects": figures.whole(said.of("disconnects_total")),
            "loops": figures.whole(said.of("loops_total")),
            "preemptions": figures.whole(said.of("preemptions_total")),
            "requests-note": (
                "Nothing runs or waits." if not rows else f"and {left_out} more" if left_out else ""
            ),
            "requests": rows,
            "latencies": latencies,
            "replies": {
                status: figures.whole(count)
                for status, count in said.replies().items()
                if count > 0 or status == "200"
            },
        }

    def assert_shows_what_it_read(self, page):
        """Once what was on its way has come: the page is paused."""
        guard = time.monotonic() + HANG_GUARD_S
        while True:
            state = page.run(f"({{shown: {self.SHOWN}, read: window.read}})")
            charts = state["shown"].pop("charts")
            expected = self.expected(state["read"])
            if state["shown"] == expected or time.monotonic() > guard:
                break
        self.assertEqual(state["shown"], expected)
        for chart, name in zip(charts, ("prefill", "decode")):
            self.assertIn(f"now {expected[name]},", chart)
        return expected

    def test_figures_are_those_of_metrics_and_status(self):
        server = self.busy_server()
        page = self.dashboard(server, before=KEEP_READ)
        page.wait_for("document.getElementById('decode').textContent !== '0.0'")
        page.click("#pause")
        expected = self.assert_shows_what_it_read(page)
        self.assertEqual((expected["running"], expected["waiting"]), ("4", "1"))
        phases = [row[1] for row in expected["requests"]]
        self.assertEqual(phases, ["thinking", "answer", "prefill", "thinking", "queued"])
        self.assertEqual(expected["acceptance"], "66.7 %")
        self.assertEqual(expected["replies"]["404"], "2")
        self.assertEqual(expected["replies"]["405"], "1")
        self.assertNotEqual(expected["decode"], "0.0")
        self.assertEqual(expected["latencies"][0][4], "6")
        self.assert_clean(page)

    def test_figures_at_rest_are_those_of_metrics_now(self):
        server = self.serve(THINKING, ANSWERING, QUICK)
        self.ask(server, "quick").getresponse().read()
        for count, text in enumerate(("think", "answer"), 1):
            self.ask(server, text)
            self.wait(lambda: len(server.status()["requests"]) == count)
        self.wait(lambda: server.status()["requests"][1]["phase"] == "answer")
        page = self.dashboard(server)
        tokens = [figures.whole(row["generated_tokens"]) for row in server.status()["requests"]]
        cells = "Array.from(document.querySelectorAll('#requests td:nth-child(6)'), (cell) => cell.textContent)"
        page.run_until(cells, lambda value: value == tokens)
        page.wait_for("document.getElementById('decode').textContent === '0.0'")
        shown = page.run(self.SHOWN)
        now = self.expected({"/metrics": server.get("/metrics"), "/status": server.get("/status")})
        for moving in ("uptime", "memory", "replies"):
            del now[moving], shown[moving]
        for rows in (now["requests"], shown["requests"]):
            for row in rows:
                del row[6:8]  # tok/s and time go on
        self.assertEqual({name: shown[name] for name in now}, now)
        self.assert_clean(page)

    def test_rows_come_stay_and_go(self):
        server = self.serve(ANSWERING)
        page = self.dashboard(server)
        self.assertEqual(page.text("#requests-note"), "Nothing runs or waits.")
        connections = []
        for count in range(1, 4):
            connections.append(self.ask(server, "answer"))
            page.wait_for(f"document.querySelectorAll('#requests tr').length === {count}")
            page.run("for (const row of document.querySelectorAll('#requests tr')) row.seen = true")
        connections.pop(1).close()
        page.wait_for("document.querySelectorAll('#requests tr').length === 2")
        self.assertTrue(
            page.run(
                "Array.from(document.querySelectorAll('#requests tr')).every((row) => row.seen)"
            )
        )
        for connection in connections:
            connection.close()
        page.wait_for(
            "document.getElementById('requests-note').textContent === 'Nothing runs or waits.'"
        )
        page.wait_for("document.getElementById('disconnects').textContent === '3'")
        self.assert_clean(page)

    def test_asks_once_a_second_and_only_while_somebody_looks(self):
        server = self.serve(QUICK)
        page = self.open(server, path="/dashboard", before=HOLD_TIMERS)
        asked = lambda: sum(url.endswith("/metrics") for url in page.requests)
        page.run(
            "window.hide = (hidden) => { Object.defineProperty(document, 'hidden', {configurable: true, "
            "get: () => hidden}); document.dispatchEvent(new Event('visibilitychange')); }"
        )
        waits = "Array.from(timers.values(), (timer) => timer.delay)"
        for round in range(1, 5):
            [wait] = page.run_until(waits, lambda value: len(value) == 1)
            self.assertGreater(wait, 0)
            self.assertLessEqual(wait, 1000)
            self.assertEqual(asked(), round)
            page.run("fire()")
        # Hidden, or paused, and nothing waits for its time.
        for leave, come in (
            ("hide(true)", "hide(false)"),
            (
                "document.getElementById('pause').click()",
                "document.getElementById('pause').click()",
            ),
        ):
            page.run_until(waits, lambda value: len(value) == 1)
            before = asked()
            page.run(leave)
            self.assertEqual(page.run("timers.size"), 0)
            page.run("fire()")
            self.assertEqual(asked(), before)
            page.run(come)  # at once
            page.run_until(waits, lambda value: len(value) == 1)
            self.assertEqual(asked(), before + 1)
        # Coming back while an answer is on its way asks no second time.
        before = asked()
        page.run("fire(); hide(true); hide(false); hide(true); hide(false)")
        page.run_until(waits, lambda value: len(value) == 1)
        self.assertEqual(asked(), before + 1)

    def test_a_server_that_restarts_is_watched_again(self):
        server = self.serve(QUICK)
        for _ in range(3):
            self.ask(server, "quick").getresponse().read()
        page = self.dashboard(server)
        page.wait_for("document.querySelector('#latencies td:last-child').textContent === '3'")
        page.run("document.getElementById('pause').focus()")
        server.stop()
        page.wait_for("!document.getElementById('trouble').hidden")
        self.assertIn("cannot be reached", page.text("#trouble"))
        self.assertEqual(page.run("document.getElementById('server-line').dataset.state"), "down")
        self.shoot(page, "dashboard-down")
        again = self.serve(QUICK, port=server.port)
        self.ask(again, "quick").getresponse().read()
        page.wait_for("document.querySelector('#latencies td:last-child').textContent === '1'")
        self.assertTrue(page.run("document.getElementById('trouble').hidden"))
        self.assertEqual(page.run("document.activeElement.id"), "pause")
        self.assertEqual([error for error in page.errors if "ERR_" not in error], [])

    def test_asks_for_the_key_and_again_when_it_changes(self):
        server = self.serve(QUICK, key="sk-first")
        page = self.open(server, path="/dashboard")
        page.wait_for("document.getElementById('key-dialog').open")
        page.type("sk-wrong")
        page.press("Enter")
        page.wait_for("!document.getElementById('key-notice').hidden")
        page.run("document.getElementById('key-input').select()")
        page.type("sk-first")
        page.press("Enter")
        page.wait_for("document.getElementById('running').textContent === '0'")
        self.assertFalse(page.run("document.getElementById('key-dialog').open"))
        server.change_key("sk-second")
        page.wait_for("document.getElementById('key-dialog').open")
        page.run("document.getElementById('key-input').select()")
        page.type("sk-second")
        page.press("Enter")
        page.wait_for("document.getElementById('trouble').hidden")
        self.assertEqual([error for error in page.errors if "401" not in error], [])

    def test_is_linked_from_the_chat_and_back(self):
        server = self.serve(QUICK, key="sk-first")
        page = self.open(server)
        page.wait_for("document.getElementById('key-dialog').open")
        page.type("sk-first")
        page.press("Enter")
        page.wait_for("document.getElementById('server-line').dataset.state === 'idle'")
        page.click("#open-dashboard")
        target = page.wait_for_tab(server.url + "/dashboard")
        # It is another tab, which knows the key of this one.
        other = self.browser.new_page(context=page.context, target=target)
        self.addCleanup(other.close)
        other.wait_for("document.getElementById('running')?.textContent === '0'")
        self.assertFalse(other.run("document.getElementById('key-dialog').open"))
        other.open(other.run("document.getElementById('open-chat').href"))
        other.wait_for("document.getElementById('message-input')")

    def test_focus_goes_round_in_order_and_stays(self):
        page = self.dashboard(self.busy_server())
        describe = """(() => {
            const node = document.activeElement, style = getComputedStyle(node);
            const outline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
            return {name: node.id || node.className, label: node.getAttribute('aria-labelledby'), outline,
                tag: node.tagName};
        })()"""
        page.run("document.querySelector('.skip').focus()")
        stops = [page.run(describe)]
        while True:
            page.press("Tab")
            stop = page.run(describe)
            if stop["tag"] == "BODY" or stop["name"] == stops[0]["name"]:
                break
            stops.append(stop)
            self.assertLess(len(stops), 20)
        self.assertEqual(
            [stop["label"] or stop["name"] for stop in stops],
            ["skip", "open-chat", "pause", "toggle-theme", "requests-heading", "latency-heading"],
        )
        for stop in stops:
            self.assertTrue(stop["outline"], stop)
        # Figures come and go, and the focus stays where it was.
        for selector in (".table-frame", "#pause", "#open-chat"):
            page.run(f"(window.here = document.querySelector({json.dumps(selector)})).focus()")
            uptime = page.text("#uptime")
            page.wait_for(f"document.getElementById('uptime').textContent !== {json.dumps(uptime)}")
            self.assertTrue(page.run("document.activeElement === here"), selector)
        page.run("document.getElementById('pause').focus()")
        for label in ("Go on", "Pause"):
            page.press("Enter")
            self.assertEqual(page.run("document.activeElement.getAttribute('aria-label')"), label)
        self.assert_clean(page)

    def test_everything_has_a_name_for_screen_readers(self):
        page = self.dashboard(self.busy_server())
        nodes = [
            node
            for node in page.call("Accessibility.getFullAXTree")["nodes"]
            if not node["ignored"]
        ]
        roles = [node["role"]["value"] for node in nodes]
        for node in nodes:
            if node["role"]["value"] in ("button", "link", "region", "image", "img"):
                self.assertTrue(node["name"]["value"].strip(), node)
        self.assertLessEqual(
            {"banner", "main", "heading", "table", "columnheader", "rowheader"}, set(roles)
        )
        self.assertGreater(roles.count("link"), 0)
        self.assertGreaterEqual(sum(role in ("image", "img") for role in roles), 2)
        # Numbers that change every second are not read out.
        self.assertEqual(
            page.run(
                "Array.from(document.querySelectorAll('[aria-live], [role=status]'), (node) => node.id)"
            ),
            [],
        )
        self.assertEqual(page.run("document.documentElement.lang"), "en")
        self.assertEqual(page.run("document.querySelectorAll('h1').length"), 1)

    def test_text_has_contrast_in_both_themes(self):
        page = self.dashboard(self.busy_server())
        page.run(
            "document.getElementById('trouble').textContent = 'Something.'; document.getElementById('trouble').hidden = false"
        )
        page.click("#pause")
        for theme in ("light", "dark"):
            page.look(1280, 900, theme)
            result = page.run(CONTRAST.read_text())
            self.assertGreater(result["count"], 80)
            self.assertEqual(result["found"], [], theme)

    def test_nothing_sticks_out_at_any_width(self):
        server = self.busy_server()
        for width in (320, 360, 600, 768, 1024, 1280, 1920):
            for theme in ("light", "dark"):
                page = self.dashboard(server, width=width, height=900, theme=theme)
                page.wait_for("document.querySelectorAll('#requests tr').length === 5")
                out = page.run("""Array.from(document.querySelectorAll('body *')).filter((node) => {
                    if (!node.checkVisibility()) return false;
                    if (node.closest('table, .hidden-label, .skip, svg')) return false;
                    const box = node.getBoundingClientRect();
                    return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
                }).map((node) => `${node.tagName}.${node.className}`)""")
                self.assertEqual(out, [], width)
                self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
                top = page.run(
                    "Array.from(document.querySelectorAll('.brand h1, .server-line, .top .icon-button'), (node) => "
                    "[node.getBoundingClientRect().left, node.getBoundingClientRect().right])"
                )
                for (_, right), (left, _) in zip(sorted(top), sorted(top)[1:]):
                    self.assertLessEqual(right, left, f"the top bar overlaps at {width}")
                if width in (320, 768, 1280):
                    page.wait_for(
                        "document.querySelector('#decode-chart .line').getAttribute('d').split('L').length > 4"
                    )
                    self.shoot(page, f"dashboard-{theme}-{width}")
                    page.run("window.scrollTo(0, document.body.scrollHeight)")
                    self.shoot(page, f"dashboard-end-{theme}-{width}")
                self.assert_clean(page)
                page.run("document.getElementById('pause').click()")

    def test_nothing_moves_when_motion_is_unwelcome(self):
        page = self.dashboard(self.busy_server(), reduced_motion=True)
        self.assertEqual(page.run("document.getAnimations().length"), 0)


if __name__ == "__main__":
    unittest.main()
