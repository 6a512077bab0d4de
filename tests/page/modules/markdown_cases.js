const { MarkdownView, renderMarkdown } = await import('/assets/markdown.js');

function rendered(pieces) {
    const root = document.createElement('div');
    const view = new MarkdownView(root);
    for (const piece of pieces) view.push(piece);
    view.end();
    root.normalize();
    return root;
}

// The markup without the parts that every code block and link has.
function markup(text) {
    return rendered([text]).innerHTML
        .replace(/<div class="code-block"><div class="code-bar"><span>(.*?)<\/span><button.*?<\/button><\/div><pre tabindex="0">/g, '<pre $1>')
        .replaceAll('</pre></div>', '</pre>')
        .replace(/ rel="noopener noreferrer" target="_blank" title="[^"]*"/g, '')
        .replace(/<div class="table-frame" tabindex="0">(.*?)<\/div>/g, '$1');
}

const CASES = [
    ['', ''],
    ['plain', '<p>plain</p>'],
    ['one\ntwo\n\nthree\n', '<p>one\ntwo</p><p>three</p>'],
    ['**bold** and *it* and __b__ and _i_ and ~~s~~',
        '<p><strong>bold</strong> and <em>it</em> and <strong>b</strong> and <em>i</em> and <s>s</s></p>'],
    ['***both*** **a *b* c**', '<p><strong><em>both</em></strong> <strong>a <em>b</em> c</strong></p>'],
    ['2 * 3 * 4, snake_case_name, a** b **', '<p>2 * 3 * 4, snake_case_name, a** b **</p>'],
    ['**open and *never closed', '<p>**open and *never closed</p>'],
    ['`a*b*` ``x`y`` ` z ` `', '<p><code>a*b*</code> <code>x`y</code> <code>z</code> `</p>'],
    ['\\*no\\* \\`no\\`', '<p>*no* `no`</p>'],
    ['# One\n## Two ##\n####### seven', '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4><p>####### seven</p>'],
    ['#no', '<p>#no</p>'],
    ['- a\n- b\n  c\n- d', '<ul><li><p>a</p></li><li><p>b\nc</p></li><li><p>d</p></li></ul>'],
    ['3. a\n4. b', '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'],
    ['1. a\n   - b\n   - c\n2. d', '<ol><li><p>a</p><ul><li><p>b</p></li><li><p>c</p></li></ul></li><li><p>d</p></li></ol>'],
    ['1. a\n\n2. b\n\ntext', '<ol><li><p>a</p></li><li><p>b</p></li></ol><p>text</p>'],
    ['in the year\n1986. After', '<p>in the year\n1986. After</p>'],
    ['- a\n\n  more\n\nout', '<ul><li><p>a</p><p>more</p></li></ul><p>out</p>'],
    ['1. Run:\n   ```sh\n   make\n     deep\n   ```\n2. b', '<ol><li><p>Run:</p><pre sh><code>make\n  deep\n</code></pre></li><li><p>b</p></li></ol>'],
    ['```js\nlet a = `<b>`;\n\n# no\n```\nafter', '<pre js><code>let a = `&lt;b&gt;`;\n\n# no\n</code></pre><p>after</p>'],
    ['~~~\n```\n~~~', '<pre ><code>```\n</code></pre>'],
    ['```\nnever closed', '<pre ><code>never closed\n</code></pre>'],
    ['````\n```\n````', '<pre ><code>```\n</code></pre>'],
    ['> a\n> b\n\nc', '<blockquote><p>a\nb</p></blockquote><p>c</p>'],
    ['> - a\n> > b', '<blockquote><ul><li><p>a</p></li></ul><blockquote><p>b</p></blockquote></blockquote>'],
    ['---\n* * *\n- - -', '<hr><hr><hr>'],
    ['| a | b |\n|---|--:|\n| 1 | **2** |\n| x \\| y |', '<table><thead><tr><th>a</th><th class="right">b</th></tr></thead>' +
        '<tbody><tr><td>1</td><td class="right"><strong>2</strong></td></tr><tr><td>x | y</td><td class="right"></td></tr></tbody></table>'],
    ['a | b\nno table', '<p>a | b\nno table</p>'],
    ['[text](https://example.com/a)', '<p><a href="https://example.com/a">text</a><span class="link-target"> (https://example.com/a)</span></p>'],
    ['[https://example.com/](https://example.com/)', '<p><a href="https://example.com/">https://example.com/</a></p>'],
    ['[https://bank.example](https://evil.example/)', '<p><a href="https://evil.example/">https://bank.example</a><span class="link-target"> (https://evil.example/)</span></p>'],
    // Links do not nest: the outer one stays text.
    ['[a [b](http://h.example/) c](http://i.example/)', '<p>[a <a href="http://h.example/">b</a><span class="link-target"> (http://h.example/)</span> c](http://i.example/)</p>'],
    ['see https://example.com/x_(y), ok', '<p>see <a href="https://example.com/x_(y">https://example.com/x_(y</a>), ok</p>'],
    ['[**b** `c`](http://h.example)', '<p><a href="http://h.example/"><strong>b</strong> <code>c</code></a><span class="link-target"> (http://h.example/)</span></p>'],
];
for (const [text, expected] of CASES) equal(markup(text), expected, JSON.stringify(text));

// ---- nothing but what is allowed ----
const ALLOWED = new Set(['P', 'H3', 'H4', 'H5', 'H6', 'UL', 'OL', 'LI', 'BLOCKQUOTE', 'HR', 'PRE', 'CODE', 'DIV', 'SPAN',
    'BUTTON', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD', 'STRONG', 'EM', 'S', 'A']);
const ATTRIBUTES = new Set(['class', 'href', 'rel', 'target', 'title', 'start', 'tabindex', 'type']);

function problemIn(root) {
    for (const node of root.querySelectorAll('*')) {
        if (!ALLOWED.has(node.tagName)) return `element ${node.tagName}`;
        for (const { name } of node.attributes) if (!ATTRIBUTES.has(name)) return `attribute ${name}`;
        if (node.tagName !== 'A') continue;
        if (!/^https?:$/.test(node.protocol)) return `link to ${node.href}`;
        if (node.username !== '' || node.password !== '') return `link with a user to ${node.href}`;
        if (node.rel !== 'noopener noreferrer') return `link with rel ${node.rel}`;
        if (node.querySelector('a')) return 'a link in a link';
    }
    return '';
}

const REFUSED = ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'java\tscript:alert(1)', ' javascript:alert(1)', 'data:text/html,x',
    'vbscript:x', 'file:///etc/passwd', '//host.example/', '/v1/models', 'blob:https://h.example/1', 'https://good.example@evil.example/',
    'https://user:pass@h.example/', 'ftp://h.example', 'mailto:a@b.example', 'https://', 'http://[', 'about:blank', '\u0001javascript:x'];
for (const address of REFUSED) {
    for (const text of [`[click](${address})`, `[click](<${address}>)`, `![picture](${address})`]) {
        const root = rendered([text]);
        check(root.querySelector('a, img') === null, `${text} became ${root.innerHTML}`);
        check(root.textContent.replace(/\s/g, '').includes(text.replace(/\s/g, '')), `${text} lost text: ${root.textContent}`);
    }
}
{
    const text = '![picture](https://tracker.example/p.png) ![](https://tracker.example/q.png "t")';
    const root = rendered([text]);
    check(root.querySelector('img, a') === null && root.textContent === text, `image: ${root.innerHTML}`);
}

// ---- any split gives the same nodes, and every state on the way is as safe as the end ----
const ATOMS = ['a', 'word ', '\n', '\n\n', '\n', '*', '**', '_', '~~', '`', '```', '```js\n', '\n```\n', '~~~\n', '# ', '- ', '  - ', '1. ',
    '2) ', '> ', '| a | b |\n|--|--|\n| c | d |', '---\n', '[t](https://e.example/)', '[t](javascript:x)', '![i](https://e.example/)',
    'https://e.example/?q=1', '<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '&lt;', '\\', '😀', '漢字', '    ', '\t', '[', '](', ')', '|'];
const random = randomSource(21);
for (let trial = 0; trial < 400; ++trial) {
    const length = 5 + Math.floor(random() * 60);
    const text = Array.from({ length }, () => ATOMS[Math.floor(random() * ATOMS.length)]).join('');
    const whole = rendered([text]);
    check(problemIn(whole) === '', `${problemIn(whole)} out of ${JSON.stringify(text)}`);
    for (const longest of [1, 7, 40]) {
        const root = document.createElement('div');
        const view = new MarkdownView(root);
        for (const piece of randomPieces(text, random, longest)) {
            view.push(piece);
            const problem = problemIn(root);
            if (problem !== '') check(false, `${problem} on the way through ${JSON.stringify(text)}`);
        }
        view.end();
        root.normalize();
        equal(root.innerHTML, whole.innerHTML, `pieces of at most ${longest} of ${JSON.stringify(text)}`);
    }
}
// The same past the length at which segments are cut.
for (let trial = 0; trial < 6; ++trial) {
    const unit = Array.from({ length: 12 }, () => ATOMS[Math.floor(random() * ATOMS.length)]).join('');
    const texts = [unit.repeat(3000), '😀'.repeat(30000), `\`\`\`\n${'x'.repeat(40000)}\n  y\n\`\`\`\n**b**`, `- a\n  \`\`\`\n${'  line\n'.repeat(4000)}  \`\`\`\n- b`];
    for (const text of texts) {
        equal(rendered(randomPieces(text, random, 3000)).innerHTML, rendered([text]).innerHTML, `a long text of ${JSON.stringify(unit)}`);
    }
}
{
    const code = `${'x'.repeat(40000)}\n  y\n`;
    equal(rendered([`\`\`\`\n${code}\`\`\``]).querySelector('code').textContent, code, 'code longer than a segment is kept whole');
}

// ---- linear: 256 KiB of what makes careless parsers quadratic, which then would not end ----
const HOSTILE = ['*', '**a', '_a_', '[', '![', '](', '[a](', '`', '`a``b', '```', '~', '~~~ ', '> ', '- ', '#', '# ', '# a ', ' ', '\t', '|', '|-', '-|-',
    '- - x', '\\', 'http://', 'http://[', 'https://a@', '](a "', '[a](b', '1. ', '\n- ', '\n> ', '\n  - ', '> > ', '\n```\n', '\n\n', '\r', '< ', '&', '(', '"', '*_', '😀'];
for (const unit of HOSTILE) {
    const text = `a${unit.repeat(Math.ceil((1 << 18) / unit.length))}`;
    const root = rendered(randomPieces(text, random, 8192));
    check(problemIn(root) === '', `${problemIn(root)} out of many ${JSON.stringify(unit)}`);
}
{
    // Spaces inside lines that nearly match a pattern.
    const gap = ' '.repeat(16000);
    for (const text of [`# a${gap}x`, `|-|-${gap}x`, `a|b\n-|-${gap}x`, `\`\`\`${gap}\``, `* *${gap}x`, `- ${gap}x`, `[a](${gap}x`, `${'~'.repeat(16000)}x`]) {
        const root = document.createElement('div');
        renderMarkdown(root, `${text}\n`.repeat(30));
        check(problemIn(root) === '', text.slice(0, 10));
    }
}
return outcome;
