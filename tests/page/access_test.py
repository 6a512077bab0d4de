"""Keyboard, screen reader, themes, narrow screens, motion."""

import pathlib
import unittest

from page_case import PageCase

REPLY = """Here is what to do:

1. Install the packages with `scripts/setup`.
2. Build:
   ```sh
   cmake --preset release
   ```

## Why it works

A **percheron** pulls; the *drafters* run ahead. Read [the page](https://example.com/percheron) for more.

| Model | tok/s | Size |
|:--|--:|:-:|
| nano | 1,204 | small |
| flash | 250 | large |

```python
def accept(draft: list[int], target: list[int]) -> int:
    \"\"\"How many drafted tokens the target model keeps, which is the length of the common prefix.\"\"\"
    return next((i for i, (a, b) in enumerate(zip(draft, target)) if a != b), len(draft))
```

> Nothing is lost: a refused draft costs a little time, never a token.

Averyveryveryveryveryveryveryveryveryveryveryverylongwordthatfitsnowhereonanarrowscreenatallever.
"""
STEPS = [
    "The user wants ",
    "to know how. ",
    "Keep it short.",
    "</think>",
    *({"plain": REPLY[i : i + 20]} for i in range(0, len(REPLY), 20)),
]


CONTRAST = pathlib.Path(__file__).parent / "modules" / "contrast.js"


class Access(PageCase):
    def open_with_reply(self, **options):
        server = self.serve({"match": ".", "steps": STEPS, "draft": {"drafted": 4, "accepted": 3}})
        page = self.open(server, **options)
        page.wait_for("document.getElementById('server-line').dataset.state")
        self.send(page, "How do I build it?")
        self.wait_end(page)
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")
        return page

    def test_everything_by_keyboard_alone(self):
        server = self.serve(
            {"match": "go", "steps": ["Hm.</think>", "going"], "finish": "hang"},
            {"match": "line two", "steps": ["Hm.</think>", "both lines"]},
        )
        page = self.open(server)
        self.assertEqual(page.run("document.activeElement.id"), "message-input")
        page.type("line one")
        page.press("Enter", shift=True)
        page.type("line two")
        self.assertEqual(
            page.run("document.getElementById('message-input').value"), "line one\nline two"
        )
        page.press("Enter")
        page.wait_for("document.querySelector('.prose')?.textContent === 'both lines'")
        self.wait_end(page)
        page.type("go")  # the focus never left the box
        page.press("Enter")
        page.wait_for("document.querySelectorAll('.prose')[1]?.textContent === 'going'")
        page.press("Escape")
        self.wait_end(page, 2)
        self.assertEqual(page.run("document.activeElement.id"), "message-input")
        page.press("Enter")  # an empty box sends nothing
        self.assertEqual(len(page.bodies), 2)
        self.assert_clean(page)

    def test_focus_goes_round_in_order_and_is_seen(self):
        page = self.open_with_reply()
        describe = """(() => {
            const node = document.activeElement, style = getComputedStyle(node);
            const outline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
            return {name: node.id || node.className || node.tagName, tag: node.tagName, outline};
        })()"""
        page.run("document.querySelector('.skip').focus()")
        stops = [page.run(describe)]
        for _ in range(60):
            page.press("Tab")
            stop = page.run(describe)
            if stop["tag"] == "BODY" or stop["name"] == stops[0]["name"]:
                break
            stops.append(stop)
        names = [stop["name"] for stop in stops]
        order = [
            "skip",
            "toggle-conversations",
            "toggle-theme",
            "toggle-settings",
            "new-conversation",
            "message-input",
            "add-image",
            "send",
        ]
        self.assertEqual([name for name in names if name in order], order, names)
        for stop in stops:
            # The message box shows its focus on the frame around it.
            self.assertTrue(stop["outline"] or stop["name"] == "message-input", stop)
        self.assertIn("SUMMARY", {stop["tag"] for stop in stops})

    def test_focus_stays_on_the_jump_button_when_the_end_comes_into_sight(self):
        page = self.open_with_reply(height=400)
        jump = "document.getElementById('jump')"
        scroll = "document.getElementById('scroll')"
        page.run(f"{scroll}.scrollTop = 0")
        page.wait_for(f"!{jump}.hidden")
        page.run(f"{jump}.focus()")
        page.run(
            f"""(() => {{
                {scroll}.addEventListener('scroll', () => {{ window.scrolled = true; }});
                {scroll}.scrollTop = {scroll}.scrollHeight;
            }})()"""
        )
        page.wait_for("window.scrolled")
        self.assertEqual(page.run("document.activeElement.id"), "jump")
        page.press("Tab")
        self.assertEqual(page.run("document.activeElement.id"), "message-input")
        self.assertTrue(page.run(f"{jump}.hidden"))
        page.run(f"{scroll}.scrollTop = 0")
        page.wait_for(f"!{jump}.hidden")
        page.run(f"{jump}.focus()")
        page.press("Enter")
        page.wait_for(f"{jump}.hidden")
        self.assert_clean(page)

    def test_focus_stays_when_the_list_of_conversations_is_shown_anew(self):
        server = self.serve({"match": ".", "steps": ["Hm.</think>", "going"], "finish": "hang"})
        page = self.open(server)
        for control in (".conversation", ".remove"):
            self.send(page, "go")
            page.wait_for("!document.getElementById('stop').hidden")
            button = f"document.querySelector('#conversation-list {control}')"
            page.wait_for(button)
            # The end of a reply is saved, which shows the list anew, a moment after the press.
            page.run(
                f"""(() => {{
                    const button = {button};
                    button.seen = true;
                    document.getElementById('stop').click();
                    button.focus();
                }})()"""
            )
            page.wait_for(f"{button}.seen === undefined")
            self.assertTrue(page.run(f"document.activeElement === {button}"), control)
            page.wait_for("document.getElementById('stop').hidden")
        self.assert_clean(page)

    def test_every_control_has_a_name_for_screen_readers(self):
        page = self.open_with_reply()
        page.click("#toggle-settings")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "link", "textbox", "combobox", "checkbox", "DisclosureTriangle"}
        controls = [
            node for node in nodes if not node["ignored"] and node["role"]["value"] in roles
        ]
        self.assertGreater(len(controls), 15)
        for node in controls:
            self.assertTrue(node["name"]["value"].strip(), node)
        landmarks = {node["role"]["value"] for node in nodes if not node["ignored"]}
        self.assertLessEqual(
            {"banner", "navigation", "main", "complementary", "heading"}, landmarks
        )
        self.assertEqual(page.run("document.documentElement.lang"), "en")
        self.assertEqual(page.run("document.querySelectorAll('h1').length"), 1)

    def test_the_reply_is_announced_in_parts_and_not_by_token(self):
        parts = [f"Part {number} of the reply has some words.\n\n" for number in range(5)]
        steps = [word for part in parts for word in part.split(" ")]
        server = self.serve(
            {"match": ".", "steps": ["Hm.</think>", *({"plain": f"{step} "} for step in steps)]}
        )
        page = self.open(server)
        page.run(
            """window.announced = []; new MutationObserver((changes) => {
            for (const change of changes) for (const node of change.addedNodes) announced.push(node.textContent);
        }).observe(document.getElementById('announcer'), {childList: true, subtree: true, characterData: true})"""
        )
        self.send(page, "go")
        self.wait_end(page)
        announced = page.wait_for("announced.includes('The reply is complete.') && announced")
        self.assertEqual(
            page.run("document.getElementById('announcer').getAttribute('aria-live')"), "polite"
        )
        self.assertEqual(page.run("document.querySelectorAll('#transcript [aria-live]').length"), 0)
        self.assertLessEqual(len(announced), len(parts) + 2)
        text = " ".join(" ".join(announced).split())
        for part in parts:
            self.assertIn(part.strip(), text)

    def test_text_has_contrast_in_both_themes(self):
        page = self.open_with_reply()
        page.click("#toggle-settings")
        page.run("document.querySelector('.reasoning').open = true")
        page.run("document.getElementById('scroll').scrollTop = 0")
        for theme in ("light", "dark"):
            page.look(1280, 800, theme)
            result = page.run(CONTRAST.read_text())
            self.assertGreater(result["count"], 40)
            self.assertEqual(result["found"], [], theme)
            self.shoot(page, f"reply-{theme}-1280")

    def test_theme_button_overrules_the_system_and_is_remembered(self):
        page = self.open(self.serve(), theme="dark")
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.run(background)
        page.click("#toggle-theme")
        self.assertEqual(
            page.run("document.getElementById('toggle-theme').getAttribute('aria-label')"),
            "Theme: light",
        )
        light = page.run(background)
        self.assertNotEqual(light, dark)
        page.reload()
        self.assertEqual(page.run(background), light)
        page.look(1280, 800, "light")
        page.click("#toggle-theme")
        self.assertEqual(page.run(background), dark)
        page.click("#toggle-theme")
        self.assertEqual(page.run(background), light)
        self.assert_clean(page)

    def test_nothing_sticks_out_of_a_narrow_screen(self):
        for width, theme in (
            (320, "light"),
            (360, "dark"),
            (360, "light"),
            (768, "light"),
            (1280, "light"),
        ):
            page = self.open_with_reply(width=width, height=720, theme=theme)
            self.shoot(page, f"end-{theme}-{width}")
            page.run("document.getElementById('scroll').scrollTop = 0")
            self.shoot(page, f"start-{theme}-{width}")
            # Only code and tables may be wider than the screen, and those scroll inside their frames.
            out = page.run("""Array.from(document.querySelectorAll('body *')).filter((node) => {
                if (!node.checkVisibility()) return false;
                if (node.closest('pre, .table-frame, .hidden-label, .skip')) return false;
                const box = node.getBoundingClientRect();
                return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
            }).map((node) => `${node.tagName}.${node.className}`)""")
            self.assertEqual(out, [], width)
            top = page.run(
                "Array.from(document.querySelectorAll('.brand h1, .server-line, .top button'), (node) => "
                "[node.getBoundingClientRect().left, node.getBoundingClientRect().right])"
            )
            for (_, right), (left, _) in zip(sorted(top), sorted(top)[1:]):
                self.assertLessEqual(right, left, f"the top bar overlaps at {width}")
            for button in page.run(
                "Array.from(document.querySelectorAll('.top button, .composer button'))"
                ".map((button) => button.getBoundingClientRect().height).filter((height) => height > 0)"
            ):
                self.assertGreaterEqual(button, 40)
            if width < 900:
                for panel in ("conversations", "settings"):
                    page.click(f"#toggle-{panel}")
                    self.assertTrue(page.run("document.querySelector('main').inert"))
                    self.shoot(page, f"{panel}-{theme}-{width}")
                    page.press("Escape")
                    self.assertFalse(page.run("document.querySelector('main').inert"))
                    self.assertEqual(page.run("document.activeElement.id"), f"toggle-{panel}")
            self.assert_clean(page)

    def test_nothing_moves_when_motion_is_unwelcome(self):
        server = self.serve({"match": ".", "steps": ["Hm."], "prefill_ms": 600000})
        page = self.open(server, reduced_motion=True)
        self.send(page, "wait")
        page.wait_for("document.querySelector('.waiting')?.checkVisibility()")
        self.assertEqual(page.run("document.getAnimations().length"), 0)
        page.press("Escape")
        self.wait_end(page)
        self.assertEqual(page.text(".ending"), "Stopped.")


if __name__ == "__main__":
    unittest.main()
