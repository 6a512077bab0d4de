"""A conversation in the page, from the first token to the last, over `percheron serve --replay`."""

import json
import unittest

from page_case import PageCase

WEATHER = (
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bergen</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]


def last_body(page):
    """The body of the last chat request the page has sent."""
    return json.loads(page.bodies[-1])


class Chat(PageCase):
    def test_reply_appears_while_it_is_written(self):
        server = self.serve(
            {
                "match": "story",
                "steps": ["Plan.</think>", "Once ", "upon ", "a ", "time"],
                "finish": "hang",
            }
        )
        page = self.open(server)
        self.send(page, "Tell a story")
        # The reply never ends, so whatever shows has come on the way.
        page.wait_for("document.querySelector('.prose')?.textContent === 'Once upon a time'")
        self.assertEqual(page.text(".bubble"), "Tell a story")
        self.assertEqual(
            page.run("document.querySelector('.assistant').getAttribute('aria-busy')"), "true"
        )
        self.assertRegex(
            page.wait_for("document.getElementById('live-figures').textContent"), r"^\d+ tokens"
        )
        self.assertEqual(server.status()["running"], 1)
        page.wait_for("document.querySelector('#server-line span')?.textContent === '1 running'")
        self.assert_clean(page)

    def test_stop_ends_the_work_and_keeps_the_text(self):
        server = self.serve(
            {"match": "go", "steps": ["Hm.</think>", "First part"], "finish": "hang"},
            {"match": "again", "steps": ["Hm.</think>", "Second"]},
        )
        page = self.open(server)
        self.send(page, "go")
        page.wait_for("document.querySelector('.prose')?.textContent === 'First part'")
        page.click("#stop")
        self.wait_end(page)
        self.assertEqual(page.text(".ending"), "Stopped.")
        self.assertEqual(page.text(".prose"), "First part")
        server.wait_idle()
        page.wait_for("document.querySelector('#server-line span')?.textContent === '0 running'")
        self.send(page, "again")
        self.wait_end(page, 2)
        sent = last_body(page)["messages"]
        self.assertEqual(
            [(m["role"], m["content"]) for m in sent],
            [("user", "go"), ("assistant", "First part"), ("user", "again")],
        )
        self.assert_clean(page)

    def test_reasoning_is_folded_counted_and_opens(self):
        server = self.serve(
            {"match": "hm", "steps": ["First ", "thought"], "finish": "hang"},
            {"match": "ok", "steps": ["Some ", "more ", "thought", "</think>", "Answer"]},
        )
        page = self.open(server)
        self.send(page, "hm")
        page.wait_for("document.querySelector('.reasoning-text')?.textContent === 'First thought'")
        self.assertRegex(page.text(".reasoning summary"), r"^Thinking… [1-9]\d* tokens?$")
        self.assertFalse(page.run("document.querySelector('.reasoning').open"))
        page.click(".reasoning summary")
        self.assertTrue(page.run("document.querySelector('.reasoning-text').checkVisibility()"))
        page.click("#stop")
        self.wait_end(page)
        self.send(page, "ok")
        self.wait_end(page, 2)
        self.assertRegex(
            page.text("li:last-child .reasoning summary"), r"^Thought .* · \d+ tokens$"
        )
        self.assertEqual(page.text("li:last-child .reasoning-text"), "Some more thought")
        self.assertEqual(page.text("li:last-child .prose"), "Answer")
        reasoning = last_body(page)["messages"][1]["reasoning_content"]
        self.assertEqual(reasoning, "First thought")
        self.assert_clean(page)

    def test_tool_call_is_shown_and_answered(self):
        server = self.serve(
            {"match": "weather", "steps": ["Look.</think>", "Let me see.", WEATHER]},
            {"match": "7 degrees", "steps": ["So.</think>", "It is 7 degrees in Bergen."]},
        )
        page = self.open(server)
        page.click("#toggle-settings")
        page.run("document.querySelector('[name=tools]').focus()")
        page.type(json.dumps(TOOLS))
        self.send(page, "weather in Bergen?")
        self.wait_end(page)
        self.assertEqual(last_body(page)["tools"], TOOLS)
        self.assertEqual(page.text(".call h4"), "get_weather")
        self.assertEqual(
            page.text(".call pre"), json.dumps({"city": "Bergen", "days": 3}, indent=2)
        )
        self.assertNotIn("tool_call", page.text(".prose"))
        self.shoot(page, "tool-call-light-1280")
        page.run("document.querySelector('.results textarea').focus()")
        page.type("7 degrees")
        page.click(".results button")
        self.wait_end(page, 2)
        self.assertEqual(page.text("li:last-child .prose"), "It is 7 degrees in Bergen.")
        call, result = last_body(page)["messages"][-2:]
        self.assertEqual(call["tool_calls"][0]["function"]["name"], "get_weather")
        self.assertEqual((result["role"], result["content"]), ("tool", "7 degrees"))
        self.assertEqual(result["tool_call_id"], call["tool_calls"][0]["id"])
        self.assertEqual(page.run("document.querySelectorAll('.results').length"), 0)
        self.assert_clean(page)

    def test_errors_are_sentences(self):
        server = self.serve(
            {"match": "break", "steps": ["Hm.</think>", "So far"], "finish": "error"}
        )
        page = self.open(server)
        self.send(page, "break")
        self.wait_end(page)
        self.assertEqual(page.text(".prose"), "So far")
        self.assertRegex(page.text(".error"), r"^[A-Z].{15,}\.$")
        self.assertFalse(page.run("document.querySelector('.error').hidden"))
        self.send(page, "nothing left for this")  # 500 replay_exhausted
        self.wait_end(page, 2)
        self.assertRegex(page.text("li:last-child .error"), r"^[A-Z].{15,}\.$")
        self.shoot(page, "error-light-1280")
        server.stop()
        self.send(page, "anybody there?")
        self.wait_end(page, 3)
        self.assertIn("cannot be reached", page.text("li:last-child .error"))
        page.wait_for(
            "document.getElementById('server-line').textContent === 'Server not reachable'"
        )
        self.assertEqual(page.dialogs, [])

    def test_why_it_ended_is_shown_when_it_matters(self):
        server = self.serve(
            {
                "match": "long",
                "steps": ["Hm.</think>", "one ", "two ", "three"],
                "finish": "length",
            },
            {
                "match": "plain",
                "steps": ["Hm.</think>", "done"],
                "draft": {"drafted": 4, "accepted": 3},
            },
        )
        page = self.open(server)
        self.send(page, "long")
        self.wait_end(page)
        self.assertRegex(page.text(".ending"), r"^Cut off")
        self.send(page, "plain")
        self.wait_end(page, 2)
        self.assertTrue(page.run("document.querySelector('li:last-child .ending').hidden"))
        figures = page.text("li:last-child .figures")
        self.assertRegex(figures, r"^\d+ in · \d+ tokens · .*75 % accepted.* · seed \d+$")
        self.assert_clean(page)

    def test_settings_go_into_the_request(self):
        server = self.serve({"match": ".", "steps": ["Hm.</think>", "ok"]})
        page = self.open(server)
        self.send(page, "defaults")
        self.wait_end(page)
        body = last_body(page)
        self.assertEqual(set(body), {"model", "messages", "stream", "stream_options"})
        self.assertEqual(body["model"], page.text("#model-name"))
        page.click("#toggle-settings")
        values = {
            "#system-prompt": "Be brief.",
            "[name=temperature]": "0.5",
            "[name=top_p]": "0.9",
            "[name=max_tokens]": "50",
            "[name=seed]": "18446744073709551615",
        }
        for selector, value in values.items():
            page.run(f"document.querySelector('{selector}').focus()")
            page.type(value)
        page.run("document.querySelector('[name=reasoning_effort]').value = 'low'")
        page.click("[name=draft]")
        self.send(page, "mine")
        self.wait_end(page, 2)
        body = last_body(page)
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        expected = {
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 50,
            "seed": 18446744073709551615,
            "reasoning_effort": "low",
            "draft": False,
        }
        self.assertEqual({name: body[name] for name in expected}, expected)
        self.assertIn("seed 18446744073709551615", page.text("li:last-child .figures"))
        self.shoot(page, "settings-light-1280")

        page.reload()
        self.assertEqual(page.run("document.querySelector('[name=temperature]').value"), "0.5")
        self.assertFalse(page.run("document.querySelector('[name=draft]').checked"))
        page.run(
            "const field = document.querySelector('[name=top_p]'); field.focus(); field.select()"
        )
        page.type("7")
        sent = len(page.bodies)
        self.send(page, "refused before it is sent")
        self.assertRegex(page.text("#settings-notice"), r"^Top p must be a number .*\.$")
        self.assertEqual(page.run("document.activeElement.name"), "top_p")
        self.assertEqual(
            page.run("document.getElementById('message-input').value"), "refused before it is sent"
        )
        self.assertEqual(len(page.bodies), sent)
        self.assert_clean(page)

    def test_retry_and_edit_replace_the_end(self):
        server = self.serve(
            {"match": "better", "steps": ["Hm.</think>", "edited"]},
            {"steps": ["Hm.</think>", "one"]},
            {"steps": ["Hm.</think>", "two"]},
        )
        page = self.open(server)
        self.send(page, "question")
        self.wait_end(page)
        self.assertEqual(page.text(".prose"), "one")
        page.run("document.querySelector('.assistant .actions').lastChild.click()")
        page.wait_for("document.querySelector('.prose')?.textContent === 'two'")
        self.wait_end(page)
        self.assertEqual(len(last_body(page)["messages"]), 1)
        page.click(".user .actions button")
        self.assertEqual(page.run("document.getElementById('message-input').value"), "question")
        self.assertFalse(page.run("document.getElementById('editing').hidden"))
        page.press("Escape")  # takes the edit back and nothing else
        self.assertTrue(page.run("document.getElementById('editing').hidden"))
        self.assertEqual(page.text(".bubble"), "question")
        page.click(".user .actions button")
        page.run("document.getElementById('message-input').select()")
        page.type("a better question")
        page.press("Enter")
        page.wait_for("document.querySelector('.prose')?.textContent === 'edited'")
        self.wait_end(page)
        self.assertEqual(page.run("document.querySelectorAll('.message').length"), 2)
        self.assertEqual([m["content"] for m in last_body(page)["messages"]], ["a better question"])
        self.assert_clean(page)


if __name__ == "__main__":
    unittest.main()
