"""Random schemas, random texts under their grammars, and another's validator over the texts."""
import json
import os
import random
import subprocess
import sys

import jsonschema

names = ["name", "age", "tags", "a", "b", "id", "unit price", "na", "nam", "ü"]
words = ["red", "green", "x y", "\"quoted\"", "back\\slash", "", "né", "línea\n"]


class Schemas:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def string(self):
        kind = self.random.randrange(5)
        if kind == 0:
            low = self.random.randrange(5)
            return {"type": "string", "minLength": low, "maxLength": low + self.random.randrange(40)}
        if kind == 1:
            return {"type": "string", "pattern": self.random.choice([
                "^[a-z]{2,5}$", "^(?:ab|c\\d)+$", "\\d{3}", "^\\S+@\\w+\\.(com|org)$", "^a.b", "z$", "^[^\"]{1,4}$",
                "^[^x]{0,9}$", "^\\\\[nt]\"$", "[\\s\\S]", "^x|y$", "^\\u00e9[\\u4e00-\\u9fff]?$"])}
        if kind == 2:
            return {"type": "string", "format": self.random.choice(
                ["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"])}
        if kind == 3:
            return {"enum": self.random.sample(words, self.random.randrange(1, 5))}
        return {"type": "string"}

    def number(self):
        kind = self.random.choice(["integer", "number"])
        schema = {"type": kind}
        scale = self.random.choice([1, 10, 1000, 100000])

        def bound():
            value = self.random.uniform(-scale, scale)
            return round(value) if kind == "integer" or self.random.random() < 0.4 else round(value, self.random.randrange(1, 4))
        low, high = sorted([bound(), bound()])
        if self.random.random() < 0.6:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.6:
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        return schema

    def array(self, depth):
        schema = {"type": "array"}
        if self.random.random() < 0.7:
            schema["items"] = self.schema(depth + 1)
        if self.random.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth + 1) for _ in range(self.random.randrange(1, 4))]
            if self.random.random() < 0.4:
                schema["items"] = False
        least = self.random.randrange(3)
        if self.random.random() < 0.5:
            schema["minItems"] = least
        if self.random.random() < 0.5:
            schema["maxItems"] = least + self.random.randrange(4)
        return schema

    def object(self, depth):
        schema = {"type": "object"}
        chosen = self.random.sample(names, self.random.randrange(5))
        if chosen:
            schema["properties"] = {name: self.schema(depth + 1) for name in chosen}
            schema["required"] = [name for name in chosen if self.random.random() < 0.5]
        choice = self.random.random()
        if choice < 0.3:
            schema["additionalProperties"] = False
        elif choice < 0.6:
            schema["additionalProperties"] = self.schema(depth + 1)
        elif choice < 0.7:
            schema["additionalProperties"] = True
        if not chosen and choice >= 0.3 and self.random.random() < 0.5:
            schema["minProperties"] = self.random.randrange(2)
            schema["maxProperties"] = self.random.randrange(1, 4)
        return schema

    def schema(self, depth=0):
        kind = self.random.randrange(12 if depth < 4 else 7)
        if kind < 2:
            return self.string()
        if kind < 4:
            return self.number()
        if kind == 4:
            return {"type": self.random.choice(["boolean", "null"])}
        if kind == 5:
            return {"const": self.random.choice([1, -2.5, None, True, "x", [1, {"k": "v"}], {"a": None}])}
        if kind == 6:
            return self.random.choice([{}, True, {"type": ["string", "null"], "maxLength": 9},
                                       {"type": ["integer", "boolean"], "minimum": 3, "title": "t"}])
        if kind == 7:
            return {"anyOf": [self.schema(depth + 1) for _ in range(self.random.randrange(1, 4))]}
        if kind == 8:
            return {"oneOf": [
                {"type": "object", "properties": {"kind": {"const": str(i)}, "value": self.schema(depth + 1)},
                 "required": ["kind"], "additionalProperties": False} for i in range(self.random.randrange(1, 4))]}
        if kind == 9:
            return self.array(depth)
        return self.object(depth)


def root(seed):
    schemas = Schemas(seed)
    schema = schemas.object(0) if seed % 3 else schemas.schema()
    if isinstance(schema, dict) and seed % 5 == 0 and schema.get("type") == "object":
        schema.setdefault("properties", {})["child"] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
        schema["$defs"] = {"node": {"type": "object", "properties": {
            "value": schemas.schema(2), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["value", "next"], "additionalProperties": False}}
        for counted in ("minProperties", "maxProperties"):
            schema.pop(counted, None)
    return schema


def parameters(seed):
    """Of a tool: an object with parameters of every kind, strings and unions more than their share."""
    schemas = Schemas(seed)
    pick = schemas.random

    def parameter():
        return pick.choice([schemas.string, schemas.string, schemas.number, lambda: schemas.schema(2), lambda: {
            "anyOf": [{"type": "string"}, {"type": "null"}]}, lambda: {"type": ["string", "integer"]}, lambda: {
            "enum": ["a", "true", 1, None, "two words"][:pick.randrange(1, 6)]}, lambda: {
            "type": "string", "enum": [" padded ", "null", "{\"k\": 1}", "</arg_value>"]}, lambda: {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 3}}]}])()
    chosen = pick.sample(names, pick.randrange(5))
    schema = {"type": "object", "properties": {name: parameter() for name in chosen},
              "required": [name for name in chosen if pick.random() < 0.5], "additionalProperties": False}
    return schema if chosen or seed % 2 else None


def tools(seed):
    chosen = ["get", "get_weather", "write-file"][:seed % 3 + 1]
    offered = []
    for i, name in enumerate(chosen):
        function = {"name": name, "strict": seed % 2 == 0}
        schema = parameters(10 * seed + i)
        if schema is not None:
            function["parameters"] = schema
        offered.append({"type": "function", "function": function})
    return offered


def samples(lines):
    run = subprocess.run([sys.argv[1], "8"], input="".join(json.dumps(line) + "\n" for line in lines),
                         capture_output=True, text=True, check=True)
    replies = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    assert len(replies) == len(lines)
    for line, reply in zip(lines, replies):
        assert "fault" not in reply, (line, reply)
        if "error" in reply:
            # Ranges without a number and the like are refused by name, by a pointer.
            assert reply["reason"] in ("invalid_value", "unsupported_parameter"), (line, reply)
            assert reply["error"].startswith("#"), (line, reply)
    return replies


def check(schema, text):
    value = json.loads(text)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    errors = list(validator.iter_errors(value))
    assert not errors, (schema, text, errors[0].message)


def main():
    count = int(os.environ.get("SCHEMAS", "120"))
    schemas = [root(seed) for seed in range(count)]
    checked = refused = unfinished = 0
    for schema, reply in zip(schemas, samples([{"schema": schema} for schema in schemas])):
        refused += "error" in reply
        unfinished += reply.get("open", 0)
        for text in reply.get("texts", []):
            check(schema, text)
            checked += 1
    print(f"{checked} texts of {count} schemas are valid; {refused} schemas refused, {unfinished} texts unfinished")
    assert checked > 6 * count, checked
    assert refused < count / 8, refused

    lines = [{"tools": tools(seed), "one": seed % 4 == 0} for seed in range(count)]
    calls = refused = several = 0
    for line, reply in zip(lines, samples(lines)):
        refused += "error" in reply
        offered = {tool["function"]["name"]: tool["function"] for tool in line["tools"]}
        for made in reply.get("texts", []):
            assert isinstance(made, list) and made, (line, made)
            assert len(made) == 1 or not line["one"], made
            several += len(made) > 1
            for call in made:
                schema = offered[call["name"]].get("parameters", {"type": "object", "maxProperties": 0})
                # Only strict tools are held to what a call cannot always tell apart.
                if offered[call["name"]]["strict"]:
                    check(schema, call["arguments"])
                else:
                    given = json.loads(call["arguments"])
                    assert set(schema.get("required", [])) <= set(given), (schema, given)
                    assert set(given) <= set(schema.get("properties", {})), (schema, given)
                calls += 1
    print(f"{calls} calls of {count} lists of tools are valid, {several} replies with several; {refused} lists refused")
    assert calls > 6 * count, calls
    assert several > count // 2, several
    assert refused < count / 4, refused


main()
