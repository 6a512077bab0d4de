"""What a model writes, a server says or a store holds never becomes more than text."""

import json
import unittest
import urllib.error
import urllib.request

from page_case import PageCase

HOSTILE = """<script>alert('script')</script><img src=x onerror="alert('image')">
<svg onload=alert(1)></svg><iframe src="javascript:alert(1)"></iframe><style>body{display:none}</style>

![tracker](http://tracker.invalid/pixel.png) ![](//tracker.invalid/b.png)
[one](javascript:alert(1)) [two](JaVaScRiPt:alert(1)) [three](data:text/html,<script>alert(1)</script>)
[four](https://good.invalid@evil.invalid/) <a href="javascript:alert(1)" onclick=alert(1)>five</a>

```html
<script>alert('code')</script>
```

| <b>a</b> | b |
|---|---|
| <img src=x onerror=alert(1)> | [c](vbscript:x) |

# <u>heading</u>

- <form action=http://evil.invalid><button>go</button></form>

> &lt;script&gt; <meta http-equiv=refresh content="0;url=http://evil.invalid">

[honest](https://example.com/path) `</code><script>alert(1)</script>`
"""
# Every piece that carries danger must be there to read.
PIECES = [
    "<script>alert('script')</script>",
    "<img src=x onerror=\"alert('image')\">",
    "![tracker](http://tracker.invalid/pixel.png)",
    "[one](javascript:alert(1))",
    '<iframe src="javascript:alert(1)"></iframe>',
    "<script>alert('code')</script>",
    "[four](https://good.invalid@evil.invalid/)",
    "<u>heading</u>",
    "</code><script>alert(1)</script>",
    "&lt;script&gt;",
]
NO_NODES = "script, img, svg:not(.icon), iframe, style, form, meta, u, b, [onclick], [onerror], [onload], [style]"


class Hostile(PageCase):
    def check_page(self, page, server):
        self.assertEqual(page.dialogs, [])
        self.assertEqual(
            page.run(f"document.querySelectorAll('#transcript :is({NO_NODES})').length"), 0
        )
        links = page.run(
            "Array.from(document.querySelectorAll('#transcript a'), (link) => "
            "[link.href, link.rel, link.target, `${link.textContent}/${link.nextSibling?.textContent}`])"
        )
        self.assertEqual(
            {link[0] for link in links}, {"https://example.com/path", "http://evil.invalid/"}
        )
        for address, rel, target, shown in links:
            self.assertEqual((rel, target), ("noopener noreferrer", "_blank"))
            self.assertIn(address, shown)
        outside = [
            url for url in page.requests if not url.startswith((server.url, "data:", "about:"))
        ]
        self.assertEqual(outside, [])
        self.assert_clean(page)

    def test_reply_full_of_markup_stays_text(self):
        steps = [{"plain": HOSTILE[i : i + 7]} for i in range(0, len(HOSTILE), 7)]
        server = self.serve(
            {
                "match": "attack",
                "steps": [{"plain": "<b>why</b><script>alert(0)</script>"}, "</think>", *steps],
            }
        )
        page = self.open(server)
        self.send(page, "attack <script>alert(2)</script><img src=x onerror=alert(3)>")
        self.wait_end(page)
        text = page.text(".prose")
        for piece in PIECES:
            self.assertIn(piece, text)
        self.assertEqual(page.text(".reasoning-text"), "<b>why</b><script>alert(0)</script>")
        self.assertEqual(
            page.text(".bubble"), "attack <script>alert(2)</script><img src=x onerror=alert(3)>"
        )
        self.assertIn("(https://example.com/path)", text)  # a link shows where it leads
        self.check_page(page, server)
        page.run("document.getElementById('scroll').scrollTop = 0")
        self.shoot(page, "hostile-light-1280")
        page.reload()  # the same out of the store
        for piece in PIECES:
            self.assertIn(piece, page.text(".prose"))
        self.check_page(page, server)

    def test_title_error_and_tool_names_stay_text(self):
        call = "<tool_call><img src=x onerror=alert(1)><arg_key><b>k</b></arg_key><arg_value><script>alert(1)</script></arg_value></tool_call>"
        server = self.serve({"match": "call", "steps": ["Hm.</think>", call]})
        page = self.open(server)
        self.send(page, "call <img src=x onerror=alert(1)>")
        self.wait_end(page)
        self.assertEqual(page.text(".conversation"), "call <img src=x onerror=alert(1)>")
        self.assertEqual(
            page.run("document.querySelectorAll('main img, nav img, main script').length"), 0
        )
        self.assert_clean(page)

    def test_a_poisoned_store_does_no_harm(self):
        server = self.serve()
        page = self.open(server)
        poison = "<img src=x onerror=alert(1)>"
        conversation = {
            "id": "p",
            "title": poison,
            "created": 1,
            "updated": 1,
            "system": poison,
            "messages": [
                {
                    "role": "user",
                    "content": poison,
                    "images": [
                        {"url": "javascript:alert(1)", "name": poison},
                        {"url": "http://tracker.invalid/", "name": ""},
                    ],
                },
                {"role": "tool", "name": poison, "content": poison, "tool_call_id": poison},
            ],
        }
        page.run(
            f"localStorage.setItem('percheron.conversation.p', {json.dumps(json.dumps(conversation))})"
        )
        page.run("localStorage.setItem('percheron.conversation.q', '{broken')")
        page.run("localStorage.setItem('percheron.settings', '[1, 2')")
        page.run("localStorage.setItem('percheron.current', 'p')")
        page.reload()
        self.assertEqual(page.text(".bubble"), poison)
        self.assertEqual(page.text(".conversation"), poison)
        self.assertEqual(page.dialogs, [])
        self.assertEqual(
            page.run("document.querySelectorAll('main [onerror], nav [onerror]').length"), 0
        )
        # The policy keeps even a stored picture from calling home.
        self.assertEqual(
            page.run("Array.from(document.images, (image) => image.naturalWidth)"), [0, 0]
        )

    def test_policy_forbids_inline_script_and_strings_as_markup(self):
        server = self.serve()
        with urllib.request.urlopen(server.url + "/", timeout=300) as reply:
            policy = reply.headers["Content-Security-Policy"]
            self.assertEqual(reply.headers["Content-Type"], "text/html; charset=utf-8")
            self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
            etag = reply.headers["ETag"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        again = urllib.request.Request(server.url + "/", headers={"If-None-Match": etag})
        with self.assertRaises(urllib.error.HTTPError) as unchanged:
            urllib.request.urlopen(again, timeout=300)
        self.assertEqual(unchanged.exception.code, 304)
        unchanged.exception.close()
        page = self.open(server)
        self.assertEqual(
            page.run("""(() => {
            const script = document.createElement('script');
            try { script.text = 'window.ran = true'; } catch { return 'refused'; }
            document.body.append(script);
            return window.ran ? 'ran' : 'blocked';
        })()"""),
            "refused",
        )
        self.assertEqual(
            page.run("try { document.body.innerHTML = '<p>'; 'taken' } catch { 'refused' }"),
            "refused",
        )


if __name__ == "__main__":
    unittest.main()
