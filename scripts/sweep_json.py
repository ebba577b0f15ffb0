# Reads the JSON of plans and configurations as `train` reads it: comments, trailing commas, every place known, no key given twice.
import json
import json.decoder
import re


class TextError(Exception):
    """What is wrong with a text: `file:line:column: message`."""


class Placed(dict):
    """An object of the text; `at` maps each key to "file:line:column" of that key."""

    def __init__(self):
        super().__init__()
        self.at = {}


NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
SKIPPED = re.compile(r"(?:[ \t\r\n]|(?://|#)[^\n]*|/\*.*?\*/)*", re.DOTALL)  # blanks and comments
MAX_DEPTH = 32


class Reader:
    """One text being read. Methods take a position and return (value, position behind it)."""

    def __init__(self, name, text):
        self.name, self.text = name, text

    def place(self, position):
        line = self.text.count("\n", 0, position) + 1
        return f"{self.name}:{line}:{position - (self.text.rfind(chr(10), 0, position) + 1) + 1}"

    def fail(self, position, message):
        raise TextError(f"{self.place(position)}: {message}")

    def skip(self, i):
        i = SKIPPED.match(self.text, i).end()
        return self.fail(i, "this comment does not end") if self.text.startswith("/*", i) else i

    def value(self, i, depth):
        if depth > MAX_DEPTH:
            self.fail(i, f"nested deeper than {MAX_DEPTH}")
        if i >= len(self.text):
            self.fail(i, "the text ends where a value belongs")
        if self.text[i] in "{[":
            return self.container(i, depth)
        if self.text[i] == '"':
            return self.string(i)
        if match := NUMBER.match(self.text, i):
            number = float(match[0]) if match[1] or match[2] else int(match[0])
            if number in (float("inf"), float("-inf")) or isinstance(number, int) and abs(number) >= 2**63:
                self.fail(i, f"{match[0][:40]} is too large")
            return number, match.end()
        if match := re.compile(r"[A-Za-z]+").match(self.text, i):
            if match[0] in WORDS:
                return WORDS[match[0]], match.end()
            self.fail(i, f"{match[0]!r} is no value; text needs quotes")
        return self.fail(i, f"{self.text[i]!r} where a value belongs")

    def string(self, i):
        try:
            return json.decoder.scanstring(self.text, i + 1, True)
        except ValueError as e:
            return self.fail(getattr(e, "pos", i), "bad text: " + str(e).split(":")[0])

    def container(self, i, depth):
        """An object or a list: entries between commas up to its end, before which a comma may stand."""
        opened, end, found = i, *(("}", Placed()) if self.text[i] == "{" else ("]", []))
        i = self.skip(i + 1)
        while not self.text.startswith(end, i):
            if end == "}":
                key, i = self.key(i, found)
                found[key], i = self.value(i, depth + 1)
            else:
                item, i = self.value(i, depth + 1)
                found.append(item)
            i = self.skip(i)
            if self.text.startswith(",", i):
                i = self.skip(i + 1)
            elif i >= len(self.text):
                self.fail(opened, f"this has no closing {end}")
            elif not self.text.startswith(end, i):
                self.fail(i, f"a comma or {end} belongs here")
        return found, i + 1

    def key(self, i, found):
        """A key of the object `found`, up to where its value begins."""
        if not self.text.startswith('"', i):
            self.fail(i, 'a key in quotes belongs here')
        key, behind = self.string(i)
        if key in found:
            self.fail(i, f'key "{key}" is given twice; the first is at {found.at[key]}')
        found.at[key] = self.place(i)
        behind = self.skip(behind)
        if not self.text.startswith(":", behind):
            self.fail(behind, f'a colon belongs behind the key "{key}"')
        return key, self.skip(behind + 1)


def parse(name, text):
    """The value of a text; objects are Placed. Raises TextError."""
    reader = Reader(name, text)
    value, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        reader.fail(end, f"{text[end]!r} behind the end")
    return value


def read(path, shown=None):
    """parse of a file; one that cannot be read is a TextError too."""
    try:
        with open(path, encoding="utf-8-sig") as f:  # editors of Windows put a mark in front, which `train` skips, too
            text = f.read()
    except OSError as e:
        raise TextError(f"{shown or path}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise TextError(f"{shown or path}: byte {e.start} is no UTF-8") from None
    value = parse(shown or path, text)
    if not isinstance(value, dict):
        raise TextError(f"{shown or path}: holds no object {{ ... }}")
    return value
