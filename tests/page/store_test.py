"""Conversations are kept in the browser: reload, several, delete, export, images, keys."""

import json
import pathlib
import struct
import tempfile
import unittest
import urllib.error
import urllib.request
import zlib

from page_case import PageCase


def png(width, height, colour):
    """A plain picture as the bytes of a PNG file."""

    def block(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + bytes(colour) * width) * height
    return (
        b"\x89PNG\r\n\x1a\n"
        + block(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + block(b"IDAT", zlib.compress(rows))
        + block(b"IEND", b"")
    )


class Store(PageCase):
    def serve_greetings(self):
        return self.serve(
            {"match": "first", "steps": ["Hm.</think>", "**one**"]},
            {"match": "second", "steps": ["Hm.</think>", "two"]},
        )

    def test_reload_keeps_the_conversation(self):
        page = self.open(self.serve_greetings())
        self.send(page, "first")
        self.wait_end(page)
        before = page.run("document.getElementById('transcript').innerHTML")
        page.reload()
        self.assertEqual(page.run("document.getElementById('transcript').innerHTML"), before)
        self.assertEqual(page.text(".prose strong"), "one")
        self.send(page, "second")
        self.wait_end(page, 2)
        self.assertEqual(len(json.loads(page.bodies[-1])["messages"]), 3)
        self.assert_clean(page)

    def test_reload_in_the_middle_keeps_what_came(self):
        server = self.serve({"match": "go", "steps": ["Hm.</think>", "so far"], "finish": "hang"})
        page = self.open(server)
        self.send(page, "go")
        page.wait_for("document.querySelector('.prose')?.textContent === 'so far'")
        page.reload()
        self.assertEqual(page.text(".prose"), "so far")
        self.assertEqual(page.text(".ending"), "Stopped.")
        server.wait_idle()
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")
        self.assert_clean(page)

    def test_two_tabs_see_one_another(self):
        server = self.serve_greetings()
        page = self.open(server)
        other = self.browser.new_page(context=page.context)
        self.addCleanup(other.close)
        other.open(server.url + "/")
        self.send(page, "first")
        self.wait_end(page)
        other.wait_for("document.querySelector('.conversation')?.textContent === 'first'")
        other.click(".conversation")
        self.send(page, "second")
        self.wait_end(page, 2)
        # What one tab adds shows in the other, and is not lost when that one goes on.
        other.wait_for("document.querySelectorAll('.assistant').length === 2")
        self.send(other, "first again")
        self.wait_end(other, 3)
        self.assertEqual(len(json.loads(other.bodies[-1])["messages"]), 5)
        self.assert_clean(page)
        self.assert_clean(other)

    def test_several_conversations_and_deleting(self):
        page = self.open(self.serve_greetings())
        self.send(page, "first")
        self.wait_end(page)
        page.click("#new-conversation")
        self.assertFalse(page.run("document.getElementById('welcome').hidden"))
        self.send(page, "second")
        self.wait_end(page)
        titles = (
            "Array.from(document.querySelectorAll('.conversation'), (entry) => entry.textContent)"
        )
        self.assertEqual(page.run(titles), ["second", "first"])
        page.click("li:last-child > .conversation")
        self.assertEqual(page.text(".prose"), "one")
        page.click("li:last-child > .remove")
        self.assertEqual(page.run(titles), ["second", "first"])  # it asks first
        page.click("li:last-child > .remove")
        self.assertEqual(page.run(titles), ["second"])
        self.assertEqual(
            page.run(
                "Object.keys(localStorage).filter((key) => key.startsWith('percheron.conversation')).length"
            ),
            1,
        )
        self.assertEqual(page.run("document.querySelectorAll('.message').length"), 0)
        self.assert_clean(page)

    def test_a_reply_goes_on_behind_another_conversation(self):
        server = self.serve(
            {"match": "go", "steps": ["Hm.</think>", "behind"], "finish": "hang"},
            {"match": "second", "steps": ["Hm.</think>", "two"]},
        )
        page = self.open(server)
        self.send(page, "go")
        page.wait_for("document.querySelector('.prose')?.textContent === 'behind'")
        page.click("#new-conversation")
        self.send(page, "second")
        self.wait_end(page)
        self.assertEqual(server.status()["running"], 1)
        page.click("li:last-child > .conversation")
        self.assertEqual(page.text(".prose"), "behind")
        page.click("#stop")
        self.wait_end(page)
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")
        self.assert_clean(page)

    def test_export_is_the_whole_conversation(self):
        page = self.open(self.serve_greetings())
        self.send(page, "first")
        self.wait_end(page)
        with tempfile.TemporaryDirectory() as folder:
            page.call(
                "Browser.setDownloadBehavior",
                behavior="allow",
                downloadPath=folder,
                eventsEnabled=True,
                browserContextId=page.context,
            )
            page.click("#export-conversation")
            page.wait_for_event(
                "Browser.downloadProgress", lambda event: event["state"] == "completed"
            )
            [file] = pathlib.Path(folder).iterdir()
            exported = json.loads(file.read_text())
        self.assertRegex(file.name, r"^percheron-\d{4}-\d\d-\d\d-\w{8}\.json$")
        self.assertEqual(
            [(m["role"], m["content"]) for m in exported["messages"]],
            [("user", "first"), ("assistant", "**one**")],
        )
        self.assertEqual(exported["messages"][1]["reasoning"], "Hm.")
        self.assert_clean(page)

    def test_pasted_dropped_and_picked_images_are_sent(self):
        server = self.serve({"match": "pictures", "steps": ["Hm.</think>", "seen"]})
        page = self.open(server)
        with tempfile.TemporaryDirectory() as folder:
            picked = pathlib.Path(folder, "picked.png")
            picked.write_bytes(png(8, 8, (200, 30, 30)))
            node = page.call(
                "Runtime.evaluate", expression="document.getElementById('image-file')"
            )["result"]["objectId"]
            page.call("DOM.setFileInputFiles", files=[str(picked)], objectId=node)
            page.wait_for("document.querySelectorAll('.attachments img').length === 1")
        bring = """(kind, name, type, bytes) => {
            const files = new DataTransfer();
            files.items.add(new File([Uint8Array.from(bytes)], name, {type}));
            const input = document.getElementById('message-input');
            input.dispatchEvent(kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: files, bubbles: true, cancelable: true})
                : new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}));
        }"""
        for count, (kind, colour) in enumerate(
            [("paste", (30, 200, 30)), ("drop", (30, 30, 200))], start=2
        ):
            page.run(f"({bring})('{kind}', '{kind}.png', 'image/png', {list(png(8, 8, colour))})")
            page.wait_for(f"document.querySelectorAll('.attachments img').length === {count}")
        page.run(f"({bring})('drop', 'notes.pdf', 'application/pdf', [37])")
        self.assertIn(
            "notes.pdf cannot be sent",
            page.wait_for("document.getElementById('composer-notice').textContent"),
        )
        self.assertEqual(
            page.run(
                "Array.from(document.querySelectorAll('.attachments img'), (image) => image.naturalWidth)"
            ),
            [8, 8, 8],
        )
        page.click("[aria-label='Remove paste.png']")
        self.send(page, "pictures")
        self.wait_end(page)
        parts = json.loads(page.bodies[-1])["messages"][0]["content"]
        self.assertEqual([part["type"] for part in parts], ["image_url", "image_url", "text"])
        for part in parts[:2]:
            self.assertRegex(part["image_url"]["url"], r"^data:image/png;base64,iVBOR")
        self.assertEqual(page.run("document.querySelector('.prose').textContent"), "seen")
        self.assertTrue(page.run("document.querySelector('.error').hidden"))
        self.shoot(page, "images-light-1280")
        page.reload()
        self.assertEqual(page.run("document.querySelectorAll('.user img').length"), 2)

    def test_key_is_asked_for_and_the_message_sent_again(self):
        reply = {"match": "hello", "steps": ["Hm.</think>", "welcome"]}
        server = self.serve(reply, key="first-key")
        page = self.open(server)
        page.wait_for("document.getElementById('key-dialog').open")
        self.assertEqual(page.run("document.activeElement.id"), "key-input")
        self.shoot(page, "key-light-1280")
        page.type("first-key")
        page.press("Enter")
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")

        server.change_key("open-sesame")
        self.send(page, "hello")
        page.wait_for("document.getElementById('key-dialog').open")
        page.press("Escape")
        page.wait_for("!document.getElementById('key-dialog').open")
        self.assertIn("API key", page.text(".error"))
        page.run("document.querySelector('.assistant .actions').lastChild.click()")  # Retry
        page.wait_for("document.getElementById('key-dialog').open")
        page.type("wrong")
        page.press("Enter")
        page.wait_for(
            "document.getElementById('key-dialog').open && "
            "document.getElementById('key-input').value === 'wrong'"
        )
        self.assertIn("not accept", page.text("#key-notice"))
        page.run("document.getElementById('key-input').select()")
        page.type("open-sesame")
        page.press("Enter")
        page.wait_for("document.querySelector('.prose')?.textContent === 'welcome'")
        self.wait_end(page)
        self.assertEqual(page.run("document.querySelectorAll('.message').length"), 2)
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")
        stored = (
            "['percheron.api-key'].map((key) => [sessionStorage[key], localStorage[key] ?? null])"
        )
        # Forgotten with the tab unless asked otherwise.
        self.assertEqual(page.run(stored), [["open-sesame", None]])
        self.assertNotIn("open-sesame", page.run("JSON.stringify(Object.entries(localStorage))"))
        self.assertEqual(page.dialogs, [])

    def test_nothing_but_the_page_is_given_without_the_key(self):
        server = self.serve(key="first-key")
        for path in ("/", "/v1/models", "/status", "/metrics"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(server.url + path, timeout=300)
            self.assertEqual(refused.exception.code, 401)
            page = refused.exception.headers["Content-Type"] == "text/html; charset=utf-8"
            self.assertEqual(page, path == "/")
            refused.exception.close()


if __name__ == "__main__":
    unittest.main()
