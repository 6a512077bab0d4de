"""Draws the embedded model's two reading tasks: a number or a word in a picture.

    python3 text_pictures.py OUT.jsonl [COUNT [SEED]]       2,000 items a task, seed 20261129

Needs Pillow and the DejaVu fonts (Debian: python3-pil fonts-dejavu-core).  One JSON object a line as
`percheron eval --items` takes them; each picture is a data: URL.  Sizes, colours, fonts and words are
those the model was trained with.  The pictures depend on Pillow's version, so two models must be
asked about one OUT.jsonl.
"""

import base64
import io
import json
import random
import sys

from PIL import Image, ImageDraw, ImageFont

from synth import NAMES, WORDS

SIZES = [(112, 112), (112, 168), (168, 112), (168, 168), (224, 224)]  # (height, width)
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 70, 220),
    "yellow": (240, 220, 40),
    "purple": (140, 50, 170),
    "orange": (245, 140, 20),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
}
FONT_FOLDER = "/usr/share/fonts/truetype/dejavu"
FONTS = ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf"]
QUESTIONS = {
    "vision digits": ["Which number is shown?", "Read the number."],
    "vision word": ["What does the text say?", "Read the word."],
}


def near(rng, colour):
    return tuple(max(0, min(255, value + rng.randint(-18, 18))) for value in colour)


# Too near to each other to be read.
ALIKE = [{"orange", "yellow"}, {"yellow", "white"}, {"purple", "blue"}, {"red", "orange"}]


def two_colours(rng):
    while True:
        front, ground = rng.sample(list(COLOURS), 2)
        if {front, ground} not in ALIKE:
            return COLOURS[front], COLOURS[ground]


def text_of(rng, task):
    if task == "vision digits":
        return str(rng.randrange(10 ** rng.randrange(1, 5)))
    if rng.random() < 0.8:
        text = rng.choice(WORDS + NAMES)
    else:
        letters = "abcdefghijklmnopqrstuvwxyz"
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(2, 5)))
    return text.upper() if rng.random() < 0.3 else text


def picture(rng, text):
    height, width = rng.choice(SIZES)
    front, ground = two_colours(rng)
    image = Image.new("RGB", (width, height), near(rng, ground))
    draw = ImageDraw.Draw(image)
    size = rng.choice([24, 28, 32, 40, 48])
    while True:
        font = ImageFont.truetype(f"{FONT_FOLDER}/{rng.choice(FONTS)}", size)
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        size -= 4
        if right - left <= width - 6 or size <= 14:
            break
    x = rng.randrange(2, max(3, width - (right - left) - 2))
    y = rng.randrange(2, max(3, height - (bottom - top) - 6))
    draw.text((x - left, y - top), text, fill=near(rng, front), font=font)
    return image


def item(rng, task):
    text = text_of(rng, task)
    file = io.BytesIO()
    picture(rng, text).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": rng.choice(QUESTIONS[task])},
    ]
    return {
        "task": task,
        "messages": [{"role": "user", "content": content}],
        "tools": None,
        "reasoning_effort": rng.choice(["low", "high", "max"]),
        "check": "text",
        "want": text,
    }


def main():
    out = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 20261129)
    with open(out, "w", encoding="utf-8") as file:
        for task in QUESTIONS:
            for _ in range(count):
                file.write(json.dumps(item(rng, task)) + "\n")


if __name__ == "__main__":
    main()
