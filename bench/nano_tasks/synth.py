"""Synthetic instruction data: every sample is a conversation whose last message is the wanted assistant turn.

sample(rng, text) -> {"messages", "tools", "effort", "cat"}.  `text` is a list of plain paragraphs used as filler
for retrieval and copying tasks.  Nothing here is taken from another data set.
"""
import datetime
import json
import random
import string

dumps = lambda v: json.dumps(v, ensure_ascii=False)
NAMES = ("Anna Ben Carla David Elena Felix Grace Hugo Ivy Jonas Kira Leo Maria Nils Olga Paul Quinn Rosa Sam Tara Uma "
         "Victor Wanda Xavier Yara Zoe Liam Noah Emma Mia Omar Aisha Chen Yuki Ravi Priya Lars Ingrid Pablo Lucia").split()
CITIES = ("Berlin Paris Madrid Rome Oslo Tokyo Lima Cairo Boston Vienna Prague Dublin Athens Seoul Delhi Sydney Toronto "
          "Zürich München Lisbon Warsaw Chicago Denver Helsinki Nairobi Bogotá Kyoto Hanoi Quito Porto").split()
THINGS = ("apples books pens stamps coins shells cards cookies marbles flowers tickets balls cups keys stickers boxes eggs "
          "pears chairs bottles").split()
ANIMALS = "cat dog horse rabbit lion tiger bear fox wolf mouse eagle owl duck frog snake whale shark bee".split()
COLORS = "red green blue yellow purple orange white black".split()
WORDS = ("table river cloud stone garden window candle mirror bridge forest winter summer pencil rocket castle island "
         "market engine violin carpet basket hammer ladder letter silver copper planet desert harbor meadow thunder "
         "orange purple yellow banana cherry tomato pepper butter coffee dinner number signal system memory vector matrix "
         "kernel thread socket buffer packet random simple strong gentle bright quiet clever happy honest lucky").split()
LANG = {
    "German": dict(num="null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn zwanzig".split(),
                   day="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
                   hi={"hello": "hallo", "good morning": "guten Morgen", "good night": "gute Nacht", "thank you": "danke", "please": "bitte", "goodbye": "auf Wiedersehen", "yes": "ja", "no": "nein"},
                   col="rot grün blau gelb lila orange weiß schwarz".split()),
    "French": dict(num="zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf vingt".split(),
                   day="lundi mardi mercredi jeudi vendredi samedi dimanche".split(),
                   hi={"hello": "bonjour", "good morning": "bonjour", "good night": "bonne nuit", "thank you": "merci", "please": "s'il vous plaît", "goodbye": "au revoir", "yes": "oui", "no": "non"},
                   col="rouge vert bleu jaune violet orange blanc noir".split()),
    "Spanish": dict(num="cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve veinte".split(),
                    day="lunes martes miércoles jueves viernes sábado domingo".split(),
                    hi={"hello": "hola", "good morning": "buenos días", "good night": "buenas noches", "thank you": "gracias", "please": "por favor", "goodbye": "adiós", "yes": "sí", "no": "no"},
                    col="rojo verde azul amarillo morado naranja blanco negro".split()),
    "Italian": dict(num="zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici diciassette diciotto diciannove venti".split(),
                    day="lunedì martedì mercoledì giovedì venerdì sabato domenica".split(),
                    hi={"hello": "ciao", "good morning": "buongiorno", "good night": "buonanotte", "thank you": "grazie", "please": "per favore", "goodbye": "arrivederci", "yes": "sì", "no": "no"},
                    col="rosso verde blu giallo viola arancione bianco nero".split()),
}
EN_NUM = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
EN_DAY = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()


def U(text, *rest):
    return [{"role": "user", "content": text}]


def A(text, think="", calls=None):
    m = {"role": "assistant", "content": text, "reasoning_content": think}
    if calls:
        m["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(calls)]
    return m


def pick_effort(r):
    return r.choices(["low", "high", "max"], [3, 3, 4])[0]


def think(e, short, long=None):
    """reasoning text for an effort level"""
    return "" if e == "low" else (short if e == "high" else (long or short))


# ------------------------------------------------------------------------------------------------ arithmetic
def add_steps(a, b):
    s, c, x, y = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(max(len(x), len(y))):
        p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
        t = p + q + c
        s.append(f"{p}+{q}" + (f"+{c}" if c else "") + f"={t}" + (f", write {t % 10} carry 1" if t > 9 else ""))
        c = t // 10
    return "; ".join(s)


def sub_steps(a, b):
    s, c, x, y = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(len(x)):
        p, q = int(x[i]) - c, int(y[i]) if i < len(y) else 0
        br = p < q
        s.append((f"{p + 10}-{q}={p + 10 - q} borrow 1" if br else f"{p}-{q}={p - q}"))
        c = int(br)
    return "; ".join(s)


def arith(r):
    e = pick_effort(r)
    op = r.choice("++--**/c")
    top = 10 ** r.choices([1, 2, 3, 4], [2, 4, 4, 1])[0]
    a, b = r.randrange(top), r.randrange(top)
    if op == "+":
        v, st, q = a + b, add_steps(a, b), f"{a} + {b}"
    elif op == "-":
        a, b = max(a, b), min(a, b)
        v, st, q = a - b, sub_steps(a, b), f"{a} - {b}"
    elif op == "*":
        a, b = r.randrange(2, 100), r.randrange(2, 13) if r.random() < .6 else r.randrange(10, 100)
        v, q = a * b, f"{a} * {b}"
        st = f"{a}*{b // 10 * 10}={a * (b // 10 * 10)}; {a}*{b % 10}={a * (b % 10)}; {a * (b // 10 * 10)}+{a * (b % 10)}={v}" if b > 10 and b % 10 else f"{a}*{b}={v}"
    elif op == "/":
        b, v = r.randrange(2, 13), r.randrange(2, 60)
        a = b * v
        q, st = f"{a} / {b}", f"{b}*{v}={a}"
    else:
        k = r.choice(["larger", "smaller"])
        while a == b:
            b = r.randrange(top)
        v = max(a, b) if k == "larger" else min(a, b)
        st = f"{a} has {len(str(a))} digits and {b} has {len(str(b))} digits; {max(a, b)} > {min(a, b)}"
        return U(r.choice([f"Which is {k}, {a} or {b}?", f"Pick the {k} number: {a}, {b}"])) + [A(str(v), think(e, st))], None, e
    ask = r.choice(["What is {}?", "Calculate {}.", "{} = ?", "Compute {}", "Please work out {}.", "How much is {}?", "{}"]).format(q)
    ans = r.choice([f"{v}", f"{q} = {v}", f"The answer is {v}."]) if r.random() < .25 else f"{q} = {v}"
    if op == "/":
        long = st + f", so {q} = {v}. Check: {v}*{b}={a}."
    else:
        long = st + f". So {q} = {v}." + (f" Check: {v}-{b}={a}." if op == "+" else f" Check: {v}+{b}={a}." if op == "-" else "")
    return U(ask) + [A(ans, think(e, st + f". So {v}.", long))], None, e


def chain(r):
    e = r.choice(["high", "max"])
    n = r.randrange(2, 5)
    v = r.randrange(1, 50)
    ex, st = str(v), []
    for _ in range(n):
        k = r.randrange(1, 30)
        if r.random() < .5 or v - k < 0:
            ex += f" + {k}"
            st.append(f"{v}+{k}={v + k}")
            v += k
        else:
            ex += f" - {k}"
            st.append(f"{v}-{k}={v - k}")
            v -= k
    return U(r.choice(["What is {}?", "Evaluate {}."]).format(ex)) + [A(f"{v}", "; ".join(st) + ".")], None, e


# ------------------------------------------------------------------------------------------------ lists and words
def listops(r):
    e = pick_effort(r)
    k = r.randrange(9)
    if k == 0:
        x = [r.randrange(100) for _ in range(r.randrange(3, 9))]
        d = r.random() < .3
        s = sorted(x, reverse=d)
        return U(f"Sort these numbers {'in descending' if d else 'in ascending'} order: {', '.join(map(str, x))}") + [
            A(", ".join(map(str, s)), think(e, f"smallest {min(x)}, largest {max(x)}, {len(x)} numbers."))], None, e
    if k == 1:
        x = r.sample(WORDS, r.randrange(3, 7))
        return U(f"Sort alphabetically: {', '.join(x)}") + [A(", ".join(sorted(x)), think(e, "First letters: " + " ".join(w[0] for w in sorted(x)) + "."))], None, e
    if k == 2:
        w = r.choice(WORDS + NAMES)
        return U(r.choice(["Reverse the word {}.", "Write '{}' backwards."]).format(w)) + [A(w[::-1], think(e, "-".join(w) + " reversed is " + "-".join(w[::-1]) + "."))], None, e
    if k == 3:
        w = r.choice(WORDS + NAMES + CITIES)
        return U(r.choice(["Spell the word {}.", "Spell '{}' letter by letter."]).format(w)) + [A("-".join(w.upper()), "")], None, e
    if k == 4:
        w = r.choice(WORDS)
        c = r.choice(w)
        n = w.count(c)
        return U(f"How many times does the letter {c} occur in {w}?") + [A(str(n), think(e, " ".join(w) + f": {n} times {c}."))], None, e
    if k == 5:
        w = r.choice(WORDS + NAMES)
        return U(f"How many letters are in the word {w}?") + [A(str(len(w)), think(e, " ".join(f"{i + 1}:{c}" for i, c in enumerate(w))))], None, e
    if k == 6:
        x = [r.randrange(1000) for _ in range(r.randrange(3, 8))]
        f = r.choice(["largest", "smallest"])
        return U(f"What is the {f} number in [{', '.join(map(str, x))}]?") + [A(str(max(x) if f == "largest" else min(x)), "")], None, e
    if k == 7:
        x = [r.choice(ANIMALS) for _ in range(r.randrange(4, 12))]
        a = r.choice(x)
        n = x.count(a)
        return U(f"Count how often '{a}' appears: {' '.join(x)}") + [A(str(n), think(e, ", ".join(f"{i}" for i in range(1, n + 1)) + f" times {a}."))], None, e
    x = [r.choice(WORDS) for _ in range(r.randrange(3, 8))]
    f = r.choice(["first", "last", "second", "third", "upper", "rev"])
    if f == "upper":
        return U("Write in capital letters: " + " ".join(x)) + [A(" ".join(x).upper(), "")], None, e
    if f == "rev":
        return U("Reverse the order of these words: " + " ".join(x)) + [A(" ".join(x[::-1]), "")], None, e
    return U(f"What is the {f} word in this list: {', '.join(x)}?") + [A(x[{"first": 0, "last": -1, "second": 1, "third": 2}[f]], "")], None, e


def units(r):
    e = pick_effort(r)
    a, b, f = r.choice([("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("hours", "minutes", 60), ("minutes", "seconds", 60),
                        ("kilograms", "grams", 1000), ("days", "hours", 24), ("weeks", "days", 7), ("liters", "milliliters", 1000),
                        ("feet", "inches", 12), ("dozens", "pieces", 12), ("centimeters", "millimeters", 10), ("years", "months", 12)])
    n = r.randrange(2, 40)
    if r.random() < .5:
        return U(r.choice([f"Convert {n} {a} to {b}.", f"How many {b} are {n} {a}?"])) + [A(f"{n} {a} are {n * f} {b}.", think(e, f"1 {a[:-1]} = {f} {b}; {n}*{f}={n * f}."))], None, e
    return U(r.choice([f"Convert {n * f} {b} to {a}.", f"How many {a} are {n * f} {b}?"])) + [A(f"{n * f} {b} are {n} {a}.", think(e, f"1 {a[:-1]} = {f} {b}; {n * f}/{f}={n}."))], None, e


def wordprob(r):
    e = pick_effort(r)
    n, m = r.sample(NAMES, 2)
    t = r.choice(THINGS)
    k = r.randrange(6)
    a, b, c = r.randrange(3, 60), r.randrange(2, 30), r.randrange(2, 10)
    if k == 0:
        q, v, st = f"{n} has {a} {t}. {m} gives {n} {b} more. How many {t} does {n} have now?", a + b, f"{a}+{b}={a + b}"
    elif k == 1:
        b = min(a - 1, b)
        q, v, st = f"{n} had {a} {t} and gave {b} to {m}. How many {t} are left?", a - b, f"{a}-{b}={a - b}"
    elif k == 2:
        q, v, st = f"There are {c} boxes with {b} {t} in each. How many {t} are there in total?", b * c, f"{c}*{b}={b * c}"
    elif k == 3:
        q, v, st = f"{n} shares {b * c} {t} equally among {c} friends. How many {t} does each friend get?", b, f"{b * c}/{c}={b}"
    elif k == 4:
        q, v, st = f"One ticket costs {b} dollars. {n} buys {c} tickets and pays with {b * c + a} dollars. How much change does {n} get?", a, f"{c}*{b}={b * c}; {b * c + a}-{b * c}={a}"
    else:
        q, v, st = f"{n} has {a} {t}, {m} has {b} more than {n}. How many {t} do they have together?", 2 * a + b, f"{m}: {a}+{b}={a + b}; together: {a}+{a + b}={2 * a + b}"
    unit = "dollars" if k == 4 else t
    return U(q) + [A(f"{v} {unit}", think(e, st + ".", st + f". The question asks for {unit}. The answer is {v}."))], None, e


def dates(r):
    e = pick_effort(r)
    k = r.randrange(5)
    if k == 0:
        i, n = r.randrange(7), r.randrange(1, 7)
        return U(f"Today is {EN_DAY[i]}. What day is it in {n} day{'s' if n > 1 else ''}?") + [
            A(EN_DAY[(i + n) % 7], think(e, ", ".join(EN_DAY[(i + j) % 7] for j in range(1, n + 1))))], None, e
    if k == 1:
        h, m, d = r.randrange(24), r.choice(range(0, 60, 5)), r.choice(range(5, 240, 5))
        t = (h * 60 + m + d) % 1440
        return U(f"It is {h:02d}:{m:02d}. What time is it {d} minutes later?") + [
            A(f"{t // 60:02d}:{t % 60:02d}", think(e, f"{d} minutes = {d // 60} h {d % 60} min; {m}+{d % 60}={m + d % 60}."))], None, e
    if k == 2:
        i = r.randrange(12)
        return U(f"Which month comes after {MONTHS[i]}?") + [A(MONTHS[(i + 1) % 12], "")], None, e
    d = datetime.date(r.randrange(1990, 2035), r.randrange(1, 13), r.randrange(1, 29))
    if k == 3:
        return U(r.choice([f"Write {d.day} {MONTHS[d.month - 1]} {d.year} as YYYY-MM-DD.", f"Give the date {MONTHS[d.month - 1]} {d.day}, {d.year} in ISO format."])) + [
            A(d.isoformat(), think(e, f"year {d.year}, month {d.month:02d}, day {d.day:02d}."))], None, e
    n = r.randrange(1, 40)
    f = d + datetime.timedelta(days=n)
    return U(f"What date is {n} days after {d.isoformat()}?") + [
        A(f.isoformat(), think(e, f"day {d.day}+{n}={d.day + n}, so the date is {f.isoformat()}."))], None, e


# ------------------------------------------------------------------------------------------------ JSON
def person(r):
    n = r.choice(NAMES)
    return dict(name=n, age=r.randrange(18, 90), city=r.choice(CITIES), job=r.choice("teacher doctor pilot baker engineer nurse farmer painter".split()),
                email=f"{n.lower()}{r.randrange(100)}@example.{r.choice(['com', 'org', 'net'])}", phone=f"{r.randrange(100, 999)}-{r.randrange(1000, 9999)}")


SAY = dict(name="{}", age="{} years old", city="lives in {}", job="works as a {}", email="email {}", phone="phone {}")


def extract(r):
    e = pick_effort(r)
    if r.random() < .6:
        p = person(r)
        ks = ["name"] + r.sample([k for k in p if k != "name"], r.randrange(1, 5))
        txt = f"{p['name']} is {p['age']} years old, lives in {p['city']} and works as a {p['job']}. " + r.choice(
            [f"Contact: {p['email']}, {p['phone']}.", f"Write to {p['email']} or call {p['phone']}."])
        o = {k: p[k] for k in ks}
        return U(f"Extract {', '.join(ks)} as JSON from this text: {txt}") + [A(dumps(o), think(e, "; ".join(f"{k}: {v}" for k, v in o.items())))], None, e
    n = r.randrange(1, 4)
    it = [dict(item=r.choice(THINGS), quantity=r.randrange(1, 20), price=r.randrange(100, 9999) / 100) for _ in range(n)]
    txt = "; ".join(f"{i['quantity']} {i['item']} at {i['price']} each" for i in it)
    return U(f"Turn this order into a JSON list of objects with item, quantity and price: {txt}") + [A(dumps(it), "")], None, e


def rnd_value(r, typ):
    if typ == "string":
        return odd_string(r)
    if typ == "integer":
        return r.randrange(-50, 1000)
    if typ == "number":
        return r.randrange(-999, 9999) / 10
    if typ == "boolean":
        return r.random() < .5
    if typ == "array":
        return [r.choice(WORDS) for _ in range(r.randrange(1, 4))] if r.random() < .6 else [r.randrange(100) for _ in range(r.randrange(1, 5))]
    return {r.choice(WORDS): r.choice([r.randrange(100), r.choice(WORDS), True, None]) for _ in range(r.randrange(1, 3))}


def odd_string(r):
    k = r.random()
    if k < .5:
        return " ".join(r.choice(WORDS) for _ in range(r.randrange(1, 4)))
    if k < .6:
        return r.choice(CITIES)
    if k < .7:
        return f"{r.choice(WORDS)}.{r.choice(['txt', 'py', 'json', 'md'])}"
    if k < .8:
        return "/" + "/".join(r.choice(WORDS) for _ in range(r.randrange(1, 4)))
    return r.choice(['say "{}"', "{} & co", "<{}>", "{}'s", "a\\{}", "{}: 100%", "naïve {}", "{} → ok", "[{}]", "{{{}}}", "{};", "日本{}", "#{}", "{}\n{}"]).replace("{}", r.choice(WORDS))


def schema_json(r):
    e = pick_effort(r)
    typs = [(r.choice(WORDS), r.choice(["string", "integer", "boolean", "number", "array"])) for _ in range(r.randrange(1, 5))]
    typs = list(dict(typs).items())
    vals = {k: rnd_value(r, t) for k, t in typs}
    sch = {"type": "object", "properties": {k: ({"type": t} if t != "array" else {"type": "array", "items": {"type": "string" if vals[k] and isinstance(vals[k][0], str) else "integer"}}) for k, t in typs},
           "required": [k for k, _ in typs]}
    txt = ", ".join(f"{k} is {dumps(v)}" for k, v in vals.items())
    return U(f"Answer with JSON that follows this schema: {dumps(sch)}\nValues: {txt}") + [A(dumps(vals), think(e, "Keys: " + ", ".join(k for k, _ in typs) + "."))], None, e


# ------------------------------------------------------------------------------------------------ tools
def P(**kw):
    return {"type": "object", "properties": {k: ({"type": v} if isinstance(v, str) else v) for k, v in kw.items()}, "required": list(kw)}


def T(name, desc, params):
    return {"type": "function", "function": {"name": name, "description": desc, "parameters": params}}


def lib(r):
    """(tool, request text, arguments, tool result, final answer)"""
    c, n, w = r.choice(CITIES), r.choice(NAMES), r.choice(WORDS)
    i, j = r.randrange(1, 100), r.randrange(1, 100)
    f = f"{r.choice(WORDS)}.{r.choice(['txt', 'py', 'md', 'json'])}"
    t = r.randrange(-5, 35)
    hh = f"{r.randrange(24):02d}:{r.choice(range(0, 60, 5)):02d}"
    opts = [
        (T("get_weather", "Current weather of a city", P(city="string")), r.choice([f"What is the weather in {c}?", f"How is the weather in {c} today?"]), dict(city=c), dumps(dict(city=c, temperature=t, sky=r.choice(["sunny", "cloudy", "rain"]))), f"It is {t} degrees in {c}."),
        (T("get_time", "Current time", P()), r.choice(["What time is it?", "Tell me the current time."]), {}, hh, f"It is {hh}."),
        (T("add", "Add two integers", P(a="integer", b="integer")), f"Use the tool to add {i} and {j}.", dict(a=i, b=j), str(i + j), f"The sum is {i + j}."),
        (T("multiply", "Multiply two numbers", P(x="number", y="number")), f"Multiply {i / 2} by {j} with the tool.", dict(x=i / 2, y=j), str(i / 2 * j), f"The result is {i / 2 * j}."),
        (T("read_file", "Read a text file", P(path="string")), r.choice([f"Show me the file {f}.", f"Open {f} and tell me what it says."]), dict(path=f), f"{w} {i}", f"The file says: {w} {i}"),
        (T("write_file", "Write text to a file", P(path="string", content="string")), f"Write \"{w} {i}\" to {f}.", dict(path=f, content=f"{w} {i}"), "ok", f"Done, {f} was written."),
        (T("send_email", "Send an email", P(to="string", subject="string", body="string")), f"Send {n} an email about {w}: see you at {hh}", dict(to=n, subject=w, body=f"see you at {hh}"), "sent", f"The email to {n} was sent."),
        (T("set_alarm", "Set an alarm", P(time="string", repeat="boolean")), (lambda b: (f"Set {'a daily' if b else 'a one-time'} alarm for {hh}.", dict(time=hh, repeat=b)))(r.random() < .5), None, "ok", f"The alarm is set for {hh}."),
        (T("search", "Search the web", P(query="string", limit="integer")), f"Search for {w} {r.choice(WORDS)} and give me {i} results.", None, "[]", "There were no results."),
        (T("list_files", "List the files of the current folder", P()), r.choice(["Which files are here?", "List the files."]), {}, f, f"There is one file: {f}"),
        (T("set_light", "Switch a lamp", P(room="string", on="boolean", level="integer")), None, None, "ok", "Done."),
        (T("create_list", "Create a list of items", P(name="string", items={"type": "array", "items": {"type": "string"}})), None, None, "ok", "The list was created."),
        (T("sum_numbers", "Sum a list of integers", P(values={"type": "array", "items": {"type": "integer"}})), None, None, None, None),
        (T("save_record", "Save a record", P(id="integer", data={"type": "object"})), None, None, "saved", "The record was saved."),
        (T("convert_currency", "Convert money", P(amount="number", source="string", target="string")), None, None, None, None),
        (T("run_sql", "Run a query", P(sql="string")), None, None, None, None),
    ]
    o = list(r.choice(opts))
    name = o[0]["function"]["name"]
    if name == "set_alarm":
        o[1], o[2] = o[1]
    elif name == "search":
        q = o[1].split("Search for ")[1].split(" and give")[0]
        o[2] = dict(query=q, limit=i)
    elif name == "set_light":
        room, on, lv = r.choice(["kitchen", "bedroom", "office", "hall"]), r.random() < .7, r.randrange(10, 101, 10)
        o[1], o[2] = f"Turn the {room} light {'on' if on else 'off'} at level {lv}.", dict(room=room, on=on, level=lv)
    elif name == "create_list":
        its = r.sample(WORDS, r.randrange(1, 5))
        o[1], o[2] = f"Make a list called {w} with {', '.join(its)}.", dict(name=w, items=its)
    elif name == "sum_numbers":
        x = [r.randrange(50) for _ in range(r.randrange(2, 6))]
        o[1], o[2], o[3], o[4] = f"Sum up {', '.join(map(str, x))} with the tool.", dict(values=x), str(sum(x)), f"The sum is {sum(x)}."
    elif name == "save_record":
        d = {r.choice(WORDS): r.choice([i, w, True]) for _ in range(r.randrange(1, 3))}
        o[1], o[2] = f"Save record {j} with data {dumps(d)}.", dict(id=j, data=d)
    elif name == "convert_currency":
        a, b = r.sample("USD EUR GBP JPY CHF".split(), 2)
        v = round(i * 1.5, 1)
        o[1], o[2], o[3], o[4] = f"Convert {i + .5} {a} to {b}.", dict(amount=i + .5, source=a, target=b), str(v), f"{i + .5} {a} are {v} {b}."
    elif name == "run_sql":
        s = r.choice([f"SELECT * FROM {w} WHERE id = {i};", f"SELECT count(*) FROM {w};", f"DELETE FROM {w} WHERE name = '{n}';", f"SELECT \"{w}\" FROM t WHERE a < {i} AND b > {j};"])
        o[1], o[2], o[3], o[4] = f"Run this query: {s}", dict(sql=s), str(j), f"The result is {j}."
    return o


def rnd_tool(r):
    """made-up tool with explicit argument values in the request"""
    verb, noun = r.choice("create update delete move check open lock start stop rename tag export".split()), r.choice(WORDS)
    ps = {}
    for _ in range(r.randrange(0, 5)):
        ps[r.choice(WORDS) + r.choice(["", "_id", "_name", "_mode"])] = r.choice(["string", "string", "integer", "number", "boolean", "array", "object"])
    args = {k: rnd_value(r, t) for k, t in ps.items()}
    tool = T(f"{verb}_{noun}", f"{verb.capitalize()} a {noun}", P(**ps))
    how = ", ".join(f"{k} = {v if isinstance(v, str) else dumps(v)}" for k, v in args.items())
    q = r.choice(["Please {v} the {n}{h}", "{V} a {n}{h}", "Call {v}_{n}{h}", "Use {v}_{n}{h}"]).format(v=verb, V=verb.capitalize(), n=noun, h=(" with " + how) if how else "")
    return [tool, q, args, r.choice(["ok", "done", dumps({"status": "ok", "id": r.randrange(1000)})]), "Done."]


def toolset(r, need, extra):
    tools, seen = [n[0] for n in need], {n[0]["function"]["name"] for n in need}
    for _ in range(extra):
        t = (rnd_tool if r.random() < .5 else lib)(r)[0]
        if t["function"]["name"] not in seen:
            seen.add(t["function"]["name"])
            tools.append(t)
    r.shuffle(tools)
    return tools


def one_tool(r):
    return (rnd_tool if r.random() < .45 else lib)(r)


def tools(r):
    e = pick_effort(r)
    k = r.random()
    sysm = [{"role": "system", "content": r.choice(["You are a helpful assistant.", "Use the tools when needed.", "Be brief."])}] if r.random() < .25 else []
    if k < .5:                                                     # single call
        a = one_tool(r)
        ts = toolset(r, [a], r.randrange(0, 4))
        return sysm + U(a[1]) + [A("", think(e, f"I need {a[0]['function']['name']}."), [(a[0]["function"]["name"], a[2])])], ts, e
    if k < .65:                                                    # parallel calls
        xs = [one_tool(r) for _ in range(2)]
        if xs[0][0]["function"]["name"] == xs[1][0]["function"]["name"]:
            xs[1][0] = xs[0][0]
            need = xs[:1] if set(xs[0][2]) == set(xs[1][2]) else None
            if need is None:
                return tools(r)
        else:
            need = xs
        return sysm + U(xs[0][1].rstrip(".?") + r.choice([". Also: ", ". Then: ", " and also: "]) + xs[1][1]) + [
            A("", think(e, "Two calls are needed: " + " and ".join(x[0]["function"]["name"] for x in xs) + "."), [(x[0]["function"]["name"], x[2]) for x in xs])], toolset(r, need, r.randrange(0, 3)), e
    if k < .85:                                                    # with result
        a = one_tool(r)
        ts = toolset(r, [a], r.randrange(0, 3))
        m = sysm + U(a[1]) + [A("", think(e, f"I need {a[0]['function']['name']}."), [(a[0]["function"]["name"], a[2])]),
                              {"role": "tool", "tool_call_id": "call_0", "content": a[3] or "ok"}]
        ans = a[4] or "Done."
        if r.random() < .15:
            m[-1]["content"] = "error: " + r.choice(["not found", "timeout", "permission denied"])
            ans = "The tool failed: " + m[-1]["content"][7:] + "."
        return m + [A(ans, think(e, "The tool answered " + m[-1]["content"][:30] + "."))], ts, e
    if k < .93:                                                    # nothing fits
        a, b = one_tool(r), one_tool(r)
        ts = [t for t in toolset(r, [b], r.randrange(0, 3)) if t["function"]["name"] != a[0]["function"]["name"]]
        if not ts:
            return tools(r)
        return sysm + U(a[1]) + [A("I have no tool for that.", think(e, "No listed function fits."))], ts, e
    m, t, e = r.choice([arith, listops, facts])(r)                 # tools present but not needed
    return m, toolset(r, [one_tool(r)], r.randrange(0, 2)), e


# ------------------------------------------------------------------------------------------------ context tasks
def filler(r, text, n):
    out, k = [], 0
    while k < n:
        p = r.choice(text)
        p = p[:max(60, n - k)]
        out.append(p)
        k += len(p)
    return out


def needle(r, text, chars=None):
    e = pick_effort(r)
    chars = chars if chars is not None else int(r.choice([0, 100, 300, 600, 1200, 2000, 2900]) * r.random())
    ps = filler(r, text, chars) if chars else []
    k = r.randrange(5)
    n, w, c, num = r.choice(NAMES), r.choice(WORDS), r.choice(CITIES), r.randrange(1000, 99999)
    s, q, a = [(f"The secret code of {n} is {num}.", f"What is the secret code of {n}?", str(num)),
               (f"{n} lives in {c}.", f"Where does {n} live?", c),
               (f"The password for the {w} is {r.choice(WORDS)}-{num}.", f"What is the password for the {w}?", None),
               (f"{n} hid the {w} in {c}.", f"Where did {n} hide the {w}?", c),
               (f"{n}'s favorite word is {w}.", f"What is {n}'s favorite word?", w)][k]
    if a is None:
        a = s.split(" is ")[1][:-1]
    facts_ = [s]
    for _ in range(r.randrange(0, 4)):                             # distractors of the same form
        n2, c2 = r.choice(NAMES), r.choice(CITIES)
        if n2 != n:
            facts_.append(r.choice([f"{n2} lives in {c2}.", f"The secret code of {n2} is {r.randrange(1000, 99999)}.", f"{n2}'s favorite word is {r.choice(WORDS)}."]))
    for f in facts_:
        ps.insert(r.randrange(len(ps) + 1), f)
    if chars > 1500 and r.random() < .5:
        ps.remove(s)
        ps.insert(0, s)
    body = "\n".join(ps)
    u = f"{body}\n\n{q}" if r.random() < .7 else f"{q}\n\n{body}"
    return U(u) + [A(a, think(e, f"The text says: {s}"))], None, e


CODE = ["for {a} in range({n}):\n    print({a} * {m})", "def {a}(x):\n    return x + {n}", "int {a} = {n};\nif ({a} > {m}) {{ {b}(); }}", "const {a} = [{n}, {m}];\nconsole.log({a});",
        "while {a} < {n}:\n    {a} += {m}\n    {b}.append({a})", "SELECT {a}, {b} FROM t WHERE {a} > {n};", "class {a}:\n    def {b}(self):\n        return {n}", "std::vector<int> {a}({n}, {m});", "<div id=\"{a}\">{b} {n}</div>", "{{\"{a}\": {n}, \"{b}\": [{m}]}}"]


def copying(r, text):
    e = pick_effort(r)
    k = r.random()
    if k < .35:
        s = r.choice(CODE).format(a=r.choice(WORDS), b=r.choice(WORDS), n=r.randrange(100), m=r.randrange(100))
        return U(r.choice(["Repeat this code exactly:\n", "Copy the code:\n"]) + s) + [A(s, "")], None, e
    if k < .55:
        s = r.choice(text)[:r.randrange(30, 200)].strip()
        return U("Repeat this text word for word:\n" + s) + [A(s, "")], None, e
    if k < .75:
        w, n = r.choice(WORDS), r.randrange(2, 9)
        return U(f"Write the word {w} {n} times.") + [A(" ".join([w] * n), "")], None, e
    a, b = sorted(r.sample(range(1, 40), 2))
    b = min(b, a + 15)
    return U(f"Count from {a} to {b}.") + [A(", ".join(map(str, range(a, b + 1))), "")], None, e


def langs(r):
    e = pick_effort(r)
    ln = r.choice(list(LANG))
    L = LANG[ln]
    k = r.randrange(4)
    if k == 0:
        i = r.randrange(21)
        a, b = r.choice([str(i), EN_NUM[i]]), L["num"][i]
    elif k == 1:
        i = r.randrange(7)
        a, b = EN_DAY[i], L["day"][i]
    elif k == 2:
        a = r.choice(list(L["hi"]))
        b = L["hi"][a]
    else:
        i = r.randrange(8)
        a, b = COLORS[i], L["col"][i]
    if k != 2 and r.random() < .3 and not a.isdigit():
        return U(f"What does the {ln} word {b} mean in English?") + [A(a, "")], None, e
    return U(r.choice([f"Translate '{a}' into {ln}.", f"How do you say {a} in {ln}?"])) + [A(b, "")], None, e


def facts(r):
    e = pick_effort(r)
    qa = [("Hello", "Hello! How can I help you?"), ("Hi there", "Hello! How can I help you?"), ("Who are you?", "I am nano, a very small test model with the GLM-5.3-Flash architecture."),
          ("What can you do?", "I can do short arithmetic, sort lists, write JSON, call tools and look at simple pictures. I am only a small test model."),
          ("Thank you", "You are welcome!"), ("How are you?", "I am fine, thank you."), ("What is your name?", "My name is nano."), ("Goodbye", "Goodbye!"),
          ("What color is the sky?", "The sky is blue."), ("How many days are in a week?", "A week has 7 days."), ("How many months are in a year?", "A year has 12 months."),
          ("What is the capital of France?", "The capital of France is Paris."), ("What is the capital of Germany?", "The capital of Germany is Berlin."),
          ("What is the capital of Italy?", "The capital of Italy is Rome."), ("What is the capital of Spain?", "The capital of Spain is Madrid."),
          ("What is the capital of Japan?", "The capital of Japan is Tokyo."), ("How many legs does a spider have?", "A spider has 8 legs."),
          ("Which animal barks?", "A dog barks."), ("What is frozen water called?", "Frozen water is called ice."), ("Guten Tag", "Guten Tag! Wie kann ich helfen?"), ("Bonjour", "Bonjour ! Comment puis-je aider ?"), ("Hola", "¡Hola! ¿En qué puedo ayudar?")]
    q, a = r.choice(qa)
    return U(q) + [A(a, think(e, "A simple question."))], None, e


def rules(r):
    """system prompt that has to be followed"""
    m, t, e = r.choice([arith, langs, dates, facts])(r)
    k = r.randrange(4)
    last = m[-1]
    if k == 0:
        s, last["content"] = "Answer in capital letters.", last["content"].upper()
    elif k == 1:
        w = r.choice(WORDS)
        s, last["content"] = f"End every answer with the word {w}.", last["content"] + " " + w
    elif k == 2:
        n = r.choice(NAMES)
        s, last["content"] = f"The user is called {n}. Start every answer with the name.", f"{n}, " + last["content"]
    else:
        s, last["content"] = 'Answer as JSON with the key "answer".', dumps({"answer": last["content"]})
    return [{"role": "system", "content": s}] + m, None, e


def multi(r):
    """several short turns with one effort"""
    m, e = [], pick_effort(r)
    for _ in range(r.randrange(2, 4)):
        for _ in range(20):
            a, t, e2 = r.choice([arith, facts, langs, listops, wordprob, dates])(r)
            if e2 == e:
                m += a
                break
    return (m, None, e) if m else facts(r)


CATS = {"arith": 16, "chain": 4, "listops": 10, "units": 5, "wordprob": 7, "dates": 6, "extract": 8, "schema": 6, "tools": 26,
        "needle": 12, "copy": 8, "langs": 6, "facts": 2, "rules": 5, "multi": 5}
FN = dict(arith=arith, chain=chain, listops=listops, units=units, wordprob=wordprob, dates=dates, extract=extract, schema=schema_json,
          tools=tools, langs=langs, facts=facts, rules=rules, multi=multi)


def sample(r, text, cat=None):
    cat = cat or r.choices(list(CATS), list(CATS.values()))[0]
    if cat in ("needle", "copy"):
        m, t, e = (needle if cat == "needle" else copying)(r, text)
    else:
        m, t, e = FN[cat](r)
    return {"messages": m, "tools": t, "effort": e, "cat": cat}

