"""What /metrics and /status say, and how people are shown it: the definitions of docs/WATCHING.md,
once more and on their own."""

import math
import re

LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Figures:
    def __init__(self, metrics, status):
        self.lines = []  # (name, labels, value)
        for line in metrics.splitlines():
            if line and not line.startswith("#"):
                name, labels, value = LINE.fullmatch(line).groups()
                self.lines.append((name, dict(LABEL.findall(labels or "")), float(value)))
        self.status = status

    def of(self, name, **labels):
        [value] = [
            value
            for other, own, value in self.lines
            if other == f"percheron:{name}" and labels.items() <= own.items()
        ]
        return value

    def share(self, part, whole):
        return share(self.of(part), self.of(whole))

    def replies(self):
        return {
            labels["status"]: int(value)
            for name, labels, value in self.lines
            if name == "percheron:http_replies_total"
        }

    def quantile(self, name, part):
        count = self.of(f"{name}_count")
        if count == 0:
            return None
        below, bound_below = 0, 0
        for other, labels, value in self.lines:
            if other != f"percheron:{name}_bucket" or labels["le"] == "+Inf":
                continue
            bound = float(labels["le"])
            if value >= part * count and value > below:
                return bound_below + (bound - bound_below) * (part * count - below) / (
                    value - below
                )
            below, bound_below = value, bound
        return bound_below


def fixed(number, digits):
    """Halves go up."""
    return f"{math.floor(number * 10**digits + 0.5) / 10**digits:.{digits}f}"


def whole(number):
    return f"{int(number):,}"


def rate(number):
    return f"{float(fixed(number, 1)):,.1f}"


def share(part, of):
    return f"{fixed(part / of * 100, 1)} %" if of > 0 else "-"


def latency(seconds):
    if seconds is None:
        return "-"
    if seconds < 0.00995:
        return f"{fixed(seconds * 1000, 1)} ms"
    if seconds < 0.9995:
        return f"{fixed(seconds * 1000, 0)} ms"
    return f"{fixed(seconds, 2)} s"


def duration(seconds):
    if seconds < 9.95:
        return f"{fixed(seconds, 1)} s"
    number = math.floor(seconds + 0.5)
    if number < 120:
        return f"{number} s"
    if number // 60 < 120:
        return f"{number // 60} min"
    hours = number // 3600
    if hours < 48:
        return f"{hours} h {number // 60 % 60:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def memory(number):
    mebibytes = number / 1024**2
    return f"{fixed(mebibytes, 0)} MiB" if mebibytes < 1024 else f"{fixed(mebibytes / 1024, 1)} GiB"
