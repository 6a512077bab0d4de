// Inline Markdown (code, emphasis, links) as DOM nodes in one pass over the text.
//
// What a model writes is never markup: nodes are created here one by one, and their text is set as
// text.  Links are http and https only and show where they lead; images are not loaded but stay the
// text they are.  Whatever does not parse stays as it was written.

const SPECIAL = /\\[!-/:-@[-`{-~]|`+|\*+|_+|~~|!?\[|\]|https?:\/\//g;
const DESTINATION =
    // (address) or (<address> "title"), with one pair of brackets inside the address at most
    /\( ?<?([^\s<>()]{0,2048}(?:\([^\s<>()]{0,256}\)[^\s<>()]{0,256})?)>?(?: {1,3}"[^"]{0,256}")? ?\)/y;
const BARE_LINK = /https?:\/\/[^\s<>[\]"'`]{0,2048}[^\s<>[\]"'`.,;:!?)}*_~]/y;
const LONGEST_TARGET = 72;

export function appendInline(parent, text) {
    appendItems(parent, new InlineParser(text).parse(), 0);
}

// The address if a link may lead there, else null.
export function safeAddress(text) {
    let address;
    try {
        address = new URL(text);
    } catch {
        return null;  // relative addresses too: a reply has no place to be relative to
    }
    const web = address.protocol === 'http:' || address.protocol === 'https:';
    // user@host is refused because it reads as another host.
    return web && address.username === '' && address.password === '' ? address.href : null;
}

// Appends items[first..]; neighbouring strings become one text node.
function appendItems(parent, items, first) {
    let text = [];
    for (let i = first; i < items.length; ++i) {
        if (typeof items[i] === 'string') {
            text.push(items[i]);
            continue;
        }
        if (text.length > 0) parent.append(text.join(''));
        text = [];
        parent.append(items[i]);
    }
    if (text.length > 0) parent.append(text.join(''));
}

class InlineParser {
    #text;
    #items = [];           // nodes and strings so far
    #open = new Map();     // '*1', '*2', '_1', '_2', '~2' -> index of its opening marker in items
    #brackets = [];        // {item, image} of '[' that may become links
    #lastLink = -1;        // index of the last [text](address) in items: links do not nest
    #codeEnds;             // length of a run of backticks -> its positions, ascending

    constructor(text) {
        this.#text = text;
    }

    parse() {
        const text = this.#text;
        let end = 0;
        SPECIAL.lastIndex = 0;
        for (let match; (match = SPECIAL.exec(text)) !== null;) {
            if (match.index > end) this.#items.push(text.slice(end, match.index));
            end = this.#take(match[0], match.index);
            SPECIAL.lastIndex = end;
        }
        if (end < text.length) this.#items.push(text.slice(end));
        return this.#items;
    }

    // Handles the mark at `start`; returns where to read on.
    #take(mark, start) {
        const end = start + mark.length;
        switch (mark[0]) {
        case '\\':
            this.#items.push(mark[1]);
            return end;
        case '`':
            return this.#takeCode(mark.length, start);
        case '*': case '_': case '~':
            this.#takeEmphasis(mark, start);
            return end;
        case 'h':
            return this.#takeBareLink(mark, start);
        case ']':
            return this.#takeBracketEnd(end);
        default:  // '[' or '!['
            this.#brackets.push({ item: this.#items.length, image: mark[0] === '!' });
            this.#items.push(mark);
            return end;
        }
    }

    #takeCode(length, start) {
        const from = start + length;
        // An escaped backtick shortens its run, so there may be none of this length.
        const ends = this.#endsOfCode().get(length) ?? { positions: [], next: 0 };
        while (ends.positions[ends.next] < from) ends.next += 1;
        const end = ends.positions[ends.next];
        if (end === undefined) {
            this.#items.push(this.#text.slice(start, from));
            return from;
        }
        let content = this.#text.slice(from, end).replaceAll('\n', ' ');
        if (content.startsWith(' ') && content.endsWith(' ') && content.trim() !== '') {
            content = content.slice(1, -1);
        }
        this.#items.push(element('code', content));
        return end + length;
    }

    // Where runs of backticks of each length begin, found once: a run without its match would
    // otherwise cost a search to the end of the text each time.
    #endsOfCode() {
        if (!this.#codeEnds) {
            this.#codeEnds = new Map();
            for (const run of this.#text.matchAll(/`+/g)) {
                const { length } = run[0];
                const ends = this.#codeEnds.get(length) ?? { positions: [], next: 0 };
                ends.positions.push(run.index);
                this.#codeEnds.set(length, ends);
            }
        }
        return this.#codeEnds;
    }

    #takeEmphasis(run, start) {
        const before = this.#text[start - 1] ?? ' ';
        const after = this.#text[start + run.length] ?? ' ';
        const mark = run[0];
        let mayOpen = !/\s/.test(after);
        let mayClose = !/\s/.test(before);
        if (mark === '_') {  // snake_case is a name
            mayOpen &&= !/[\p{L}\p{N}]/u.test(before);
            mayClose &&= !/[\p{L}\p{N}]/u.test(after);
        }
        let left = run.length;
        if (left > 3) {
            this.#items.push(run);
            return;
        }
        while (mayClose && left > 0) {
            const length = this.#innermost(mark, left);
            if (length === 0) break;
            this.#closeEmphasis(mark, length);
            left -= length;
        }
        while (mayOpen && left > 0) {
            const length = Math.min(left, 2);
            this.#open.set(mark + length, this.#items.length);
            this.#items.push(mark.repeat(length));
            left -= length;
        }
        if (left > 0) this.#items.push(mark.repeat(left));
    }

    // The length of the last opened marker of this kind that `left` marks can close; 0 if none.
    #innermost(mark, left) {
        const one = this.#open.get(mark + 1) ?? -1;
        const two = left >= 2 ? this.#open.get(mark + 2) ?? -1 : -1;
        if (one < 0 && two < 0) return 0;
        return one > two ? 1 : 2;
    }

    #closeEmphasis(mark, length) {
        const first = this.#open.get(mark + length);
        const name = mark === '~' ? 's' : length === 2 ? 'strong' : 'em';
        this.#wrap(first, element(name));
    }

    // Puts everything after the marker at items[first] into `node`, which takes the marker's place.
    #wrap(first, node) {
        appendItems(node, this.#items, first + 1);
        this.#items.length = first;
        if (this.#lastLink >= first) this.#lastLink = first;
        this.#items.push(node);
        // Markers inside that found no partner are text now.
        for (const [kind, item] of this.#open) {
            if (item >= first) this.#open.delete(kind);
        }
        while (this.#brackets.at(-1)?.item >= first) this.#brackets.pop();
    }

    #takeBareLink(scheme, start) {
        const before = this.#text[start - 1] ?? ' ';
        BARE_LINK.lastIndex = start;
        const match = /[\p{L}\p{N}]/u.test(before) ? null : BARE_LINK.exec(this.#text);
        if (!match) {
            this.#items.push(scheme);
            return start + scheme.length;
        }
        const address = safeAddress(match[0]);
        if (!address) {
            this.#items.push(match[0]);
            return start + match[0].length;
        }
        const link = linkTo(address);
        link.append(match[0]);
        this.#items.push(link);
        return start + match[0].length;
    }

    #takeBracketEnd(end) {
        const bracket = this.#brackets.pop();
        DESTINATION.lastIndex = end;
        const match = bracket ? DESTINATION.exec(this.#text) : null;
        if (!match) {
            this.#items.push(']');
            return end;
        }
        const text = bracket.image || this.#lastLink > bracket.item;  // no images, no nested links
        const address = text ? null : safeAddress(match[1]);
        if (address) {
            const link = linkTo(address);
            this.#wrap(bracket.item, link);
            this.#lastLink = bracket.item;
            for (const bare of link.querySelectorAll('a')) bare.replaceWith(bare.textContent);
            if (link.textContent !== address && link.textContent !== match[1]) {
                this.#items.push(element('span', ` (${shortened(address)})`, 'link-target'));
            }
        } else {
            this.#items.push(`]${match[0]}`);
        }
        return end + match[0].length;
    }
}

function element(name, text = '', className = '') {
    const node = document.createElement(name);
    if (text !== '') node.textContent = text;
    if (className !== '') node.className = className;
    return node;
}

function linkTo(address) {
    const link = element('a');
    link.href = address;
    link.rel = 'noopener noreferrer';
    link.target = '_blank';
    link.title = address;
    return link;
}

function shortened(address) {
    return address.length <= LONGEST_TARGET ? address : `${address.slice(0, LONGEST_TARGET)}…`;
}
