"""A headless Chromium and its pages, driven over the DevTools protocol with nothing but Python.

The browser talks through a pair of pipes (--remote-debugging-pipe), one JSON object per NUL.
"""

import base64
import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

HANG_GUARD_S = 600  # against a hang alone: a busy machine has taken over a minute


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            raise BrowserError("chromium is not installed: run scripts/setup --tests")
        self._profile = tempfile.TemporaryDirectory(
            prefix="percheron-page-", ignore_cleanup_errors=True
        )
        commands, self._commands = _high_pipe()
        self._replies, replies = _high_pipe()
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            f"--user-data-dir={self._profile.name}",
        ]
        if os.geteuid() == 0:
            options.append(
                "--no-sandbox"
            )  # Chromium's sandbox refuses root, which containers run as
        # The browser wants descriptors 3 and 4 by number.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{replies}', "bash", program, *options],
            pass_fds=(commands, replies),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._numbers = itertools.count(1)
        self._waiting = {}  # number of a command -> queue of its reply
        self._pages = {}  # session -> Page
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method, session=None, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        answer = self._waiting[number] = queue.Queue()
        with self._lock:
            _write_all(self._commands, json.dumps(message).encode() + b"\0")
        try:
            reply = answer.get(timeout=HANG_GUARD_S)
        except queue.Empty:
            raise BrowserError(f"{method} was not answered") from None
        if "error" in reply:
            raise BrowserError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def new_page(self, context=None, **options):
        """A page with storage of its own, or one more in the context of another."""
        if context is not None:
            return Page(self, context, **options)
        context = self.call("Target.createBrowserContext", disposeOnDetach=True)
        return Page(self, context["browserContextId"], **options)

    def close(self):
        try:
            self.call("Browser.close")
            self._process.wait(timeout=HANG_GUARD_S)
        except (BrowserError, subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=HANG_GUARD_S)
        os.close(self._commands)
        os.close(self._replies)
        self._profile.cleanup()

    def _read(self):
        pending = b""
        while piece := os.read(self._replies, 1 << 20):
            *messages, pending = (pending + piece).split(b"\0")
            for text in messages:
                message = json.loads(text)
                if "id" in message:
                    self._waiting.pop(message["id"]).put(message)
                else:
                    for page in self._pages_of(message):
                        page._note(message["method"], message["params"])

    def _pages_of(self, message):
        # What concerns the whole browser, downloads for one, is told to every page.
        if "sessionId" not in message:
            return list(self._pages.values())
        page = self._pages.get(message["sessionId"])
        return [page] if page else []


class Page:
    """One tab.  What went wrong or out on it is kept: `errors`, `dialogs`, `requests`, `bodies`."""

    def __init__(
        self,
        browser,
        context,
        width=1280,
        height=800,
        theme="light",
        reduced_motion=False,
        target=None,
    ):
        self._browser = browser
        self.context = context
        self.errors = []
        self.dialogs = []
        self.requests = []  # addresses
        self.bodies = []  # of POST requests
        self._loaded = threading.Event()
        self._events = queue.Queue()  # of the kind somebody waits for
        self.target = (
            target
            or browser.call("Target.createTarget", url="about:blank", browserContextId=context)[
                "targetId"
            ]
        )
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)[
            "sessionId"
        ]
        browser._pages[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.look(width, height, theme, reduced_motion)

    def call(self, method, **params):
        return self._browser.call(method, session=self.session, **params)

    def look(self, width, height, theme, reduced_motion=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": theme},
                {
                    "name": "prefers-reduced-motion",
                    "value": "reduce" if reduced_motion else "no-preference",
                },
            ],
        )

    def open(self, url):
        self._loaded.clear()
        self.call("Page.navigate", url=url)
        self._wait_loaded()

    def reload(self):
        self._loaded.clear()
        self.call("Page.reload")
        self._wait_loaded()

    def run(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in result:
            raise BrowserError(_exception_text(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition):
        """Waits until a JavaScript condition holds; returns its value."""
        try:
            return self.run(f"""new Promise((resolve, reject) => {{
                const guard = setTimeout(() => reject(new Error('waited in vain')), {HANG_GUARD_S * 500});
                const look = () => {{
                    const value = ({condition});
                    if (!value) return setTimeout(look, 10);
                    clearTimeout(guard);
                    resolve(value);
                }};
                look();
            }})""")
        except BrowserError as error:
            state = self.run("document.body.innerText")
            raise BrowserError(
                f"{condition}: {error}\nThe page shows:\n{state}\nErrors: {self.errors}"
            ) from None

    def run_until(self, expression, accept):
        """The value of an expression, once `accept` takes it; needs no timers of the page."""
        guard = time.monotonic() + HANG_GUARD_S
        while not accept(value := self.run(expression)):
            if time.monotonic() > guard:
                raise BrowserError(f"{expression} stayed {value}")
        return value

    def wait_for_tab(self, url):
        """The target of another tab, once one of this page's context shows `url`."""
        guard = time.monotonic() + HANG_GUARD_S
        while time.monotonic() < guard:
            for target in self._browser.call("Target.getTargets")["targetInfos"]:
                if target["url"] == url and target.get("browserContextId") == self.context:
                    return target["targetId"]
        raise BrowserError(f"no tab shows {url}")

    def wait_for_event(self, method, accept):
        """The parameters of the first event of that kind that `accept` takes."""
        try:
            while True:
                name, params = self._events.get(timeout=HANG_GUARD_S)
                if name == method and accept(params):
                    return params
        except queue.Empty:
            raise BrowserError(f"{method} did not come") from None

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? null")

    def click(self, selector):
        box = self.run(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: 'nearest'}});
            const box = element.getBoundingClientRect();
            const x = box.x + box.width / 2, y = box.y + box.height / 2;
            const hit = document.elementFromPoint(x, y);
            return {{x, y, hit: element.contains(hit)}};
        }})()""")
        if not box["hit"]:
            raise BrowserError(f"{selector} is covered by something else")
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box["x"],
                y=box["y"],
                button="left",
                clickCount=1,
            )

    def type(self, text):
        self.call("Input.insertText", text=text)

    KEYS = {
        "Enter": ("Enter", 13, "\r"),
        "Tab": ("Tab", 9, ""),
        "Escape": ("Escape", 27, ""),
        " ": ("Space", 32, " "),
        "ArrowDown": ("ArrowDown", 40, ""),
    }

    def press(self, key, shift=False):
        code, number, text = self.KEYS[key]
        common = {
            "key": key,
            "code": code,
            "windowsVirtualKeyCode": number,
            "modifiers": 8 if shift else 0,
        }
        self.call(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self.target)
        self._browser._pages.pop(self.session)

    def _wait_loaded(self):
        if not self._loaded.wait(HANG_GUARD_S):
            raise BrowserError("the page did not load")

    def _note(self, method, params):
        self._events.put((method, params))
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            self.errors.append(_exception_text(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            if params["request"]["method"] == "POST":
                self.bodies.append(params["request"].get("postData", ""))


def _exception_text(details):
    return details.get("exception", {}).get("description") or details["text"]


def _high_pipe():
    """A pipe whose descriptors do not collide with 3 and 4."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20))
        os.close(end)
    return ends


def _write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]
