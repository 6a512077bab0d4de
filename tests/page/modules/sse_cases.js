const { EventStreamParser } = await import('/assets/sse.js');

const STREAMS = [
    ['', []],
    ['data: one\n\n', ['one']],
    ['data: one\n\ndata: two\n\ndata: [DONE]\n\n', ['one', 'two', '[DONE]']],
    ['data: one\r\n\r\ndata: two\r\n\r\n', ['one', 'two']],
    ['data: one\r\rdata: two\r\r', ['one', 'two']],
    ['data: one\r\n\ndata: two\n\r\n', ['one', 'two']],
    [': ping\n\ndata: a\n\n: ping\n\n', ['a']],
    [': ping\ndata: a\n: between\ndata: b\n\n', ['a\nb']],
    ['\ufeffdata: after a mark\n\n', ['after a mark']],
    ['data:no space\n\ndata:  two spaces\n\n', ['no space', ' two spaces']],
    ['data\n\ndata:\n\n', ['', '']],
    ['event: chunk\nid: 7\nretry: 10\ndata: x\n\n', ['x']],
    ['event: nothing\n\n\n\n\ndata: x\n\n', ['x']],
    ['datax: no\ndata : no\ndata: yes\n\n', ['yes']],
    ['data: {"a": "é 😀 \u2028 漢"}\n\n', ['{"a": "é 😀 \u2028 漢"}']],
    ['data: 😀\r\ndata: 👩‍👩‍👧\r\n\r\n', ['😀\n👩‍👩‍👧']],
    ['data: whole\n\ndata: cut off', ['whole']],
    ['data: whole\n\ndata: no empty line\n', ['whole']],
];

function parsed(pieces) {
    const parser = new EventStreamParser();
    return pieces.flatMap((piece) => parser.push(piece));
}

for (const [text, expected] of STREAMS) {
    const bytes = new TextEncoder().encode(text);
    equal(parsed([bytes]), expected, `whole ${JSON.stringify(text)}`);
    equal(parsed(Array.from(bytes, (byte) => Uint8Array.of(byte))), expected, `bytes of ${JSON.stringify(text)}`);
    for (let i = 0; i <= bytes.length; ++i) {
        for (let j = i; j <= bytes.length; ++j) {
            const pieces = [bytes.slice(0, i), bytes.slice(i, j), bytes.slice(j)];
            equal(parsed(pieces), expected, `cut at ${i} and ${j} of ${JSON.stringify(text)}`);
        }
    }
}

const random = randomSource(20);
for (let trial = 0; trial < 200; ++trial) {
    const endings = ['\n', '\r\n', '\r'];
    const letters = ['a', 'é', '漢', '😀', ':', ' ', '{', '"'];
    let text = '';
    const expected = [];
    for (let event = 0; event < 30; ++event) {
        const end = endings[Math.floor(random() * 3)];
        const lines = Array.from({ length: 1 + Math.floor(random() * 3) }, () =>
            Array.from({ length: Math.floor(random() * 12) }, () => letters[Math.floor(random() * letters.length)]).join(''));
        text += lines.map((line) => `data: ${line}${end}`).join('') + end;
        expected.push(lines.join('\n'));
    }
    const bytes = new TextEncoder().encode(text);
    equal(parsed(randomPieces(bytes, random, 1 + trial)), expected, `random stream ${trial}`);
}

// One event of 8 MiB in small pieces: a parser that looks at earlier pieces again does not end.
const long = 'x'.repeat(1 << 23);
const bytes = new TextEncoder().encode(`data: ${long}\n\n`);
const pieces = [];
for (let start = 0; start < bytes.length; start += 64) pieces.push(bytes.subarray(start, start + 64));
const events = parsed(pieces);
check(events.length === 1 && events[0] === long, 'a long event in small pieces');
return outcome;
