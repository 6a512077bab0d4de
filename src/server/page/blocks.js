// Block Markdown as DOM nodes, line by line: paragraphs, headings, lists, quotes, tables, fenced
// code and rules.  A line is looked at a fixed number of times, so the cost grows with the text.
import { appendInline } from './inline.js';

const HEADING = /^ {0,3}(#{1,6})(?: (.*))?$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DELIMITERS = /^\|?(?: *:?-+:? *\|)* *:?-+:? *\|?$/;  // of a trimmed line
const DEEPEST = 8;  // nested lists and quotes beyond this stay on the last level

// {indent, mark, length, info} of a line that opens fenced code, else null.
export function fenceOf(line) {
    const indent = widthOf(line);
    const mark = line[indent];
    if (mark !== '`' && mark !== '~') return null;
    let end = indent;
    while (line[end] === mark) end += 1;
    const info = line.slice(end);
    if (end - indent < 3 || (mark === '`' && info.includes('`'))) return null;
    return { indent, mark, length: end - indent, info };
}

export function closesFence(line, fence) {
    const trimmed = line.trim();
    return trimmed.length >= fence.length && trimmed === fence.mark.repeat(trimmed.length);
}

export function isListItem(line) {
    return ITEM.test(line) && !RULE.test(line);
}

function make(name, className = '') {
    const node = document.createElement(name);
    if (className !== '') node.className = className;
    return node;
}

function widthOf(line) {
    return line.length - line.trimStart().length;
}

// Without the closing marks of `## title ##`.
function headingText(text) {
    const trimmed = text.trim();
    let end = trimmed.length;
    while (trimmed[end - 1] === '#') end -= 1;
    return end === 0 || trimmed[end - 1] === ' ' ? trimmed.slice(0, end).trimEnd() : trimmed;
}

export class BlockBuilder {
    #parent;
    #depth;
    #lists = [];        // open lists, outermost first: {element, ordered, item, marker, content};
                        // marker and content are the indents of the item's marker and text
    #leaf = null;       // {kind: 'paragraph' | 'quote' | 'table' | 'code', …} that is still open
    #afterBlank = false;

    constructor(parent, depth = 0) {
        this.#parent = parent;
        this.#depth = depth;
    }

    get inCode() { return this.#leaf?.kind === 'code'; }
    get fence() { return this.#leaf?.fence; }

    line(text) {
        if (this.inCode) {
            if (closesFence(text, this.#leaf.fence)) this.#closeLeaf();
            else this.code(text, '\n');
            return;
        }
        const line = text.replaceAll('\t', '    ');
        if (line.trim() === '') {
            this.#closeLeaf();
            this.#afterBlank = true;
            return;
        }
        const item = RULE.test(line) ? null : ITEM.exec(line);
        if (item && !this.#goesOn(item[2])) this.#takeItem(item);
        else this.#takeOther(line);
        this.#afterBlank = false;
    }

    // Appends to the open code block: a line, or a piece of one that does not start or end it.
    code(text, ending, startsLine = true) {
        const { lines, fence } = this.#leaf;
        const indent = startsLine ? Math.min(fence.indent, widthOf(text)) : 0;
        lines.push(text.slice(indent), ending);
    }

    // Shows the code lines taken since the last call: one text node for all of them.
    flushCode() {
        if (!this.inCode || this.#leaf.lines.length === 0) return;
        this.#leaf.element.append(this.#leaf.lines.join(''));
        this.#leaf.lines = [];
    }

    // The node that code goes into, for showing a line before it has ended.
    get codeElement() { return this.#leaf.element; }

    end() {
        this.#closeLeaf();
        this.#lists = [];
    }

    // "in the year\n1986. After that" is text: only a 1 starts a list in the middle of a paragraph.
    #goesOn(marker) {
        return this.#leaf?.kind === 'paragraph' && this.#lists.length === 0 &&
            /\d/.test(marker) && parseInt(marker, 10) !== 1;
    }

    #container() {
        return this.#lists.at(-1)?.item ?? this.#parent;
    }

    #takeItem([, spaces, marker, gap = ' ', rest = '']) {
        this.#closeLeaf();
        const indent = spaces.length;
        while (this.#lists.length > 0 && indent < this.#lists.at(-1).marker) this.#lists.pop();
        const ordered = /\d/.test(marker);
        let list = this.#lists.at(-1);
        const nested = list !== undefined && indent >= list.content && this.#lists.length < DEEPEST;
        if (list !== undefined && !nested && list.ordered !== ordered) {
            this.#lists.pop();
            list = undefined;
        }
        if (list === undefined || nested) {
            const element = make(ordered ? 'ol' : 'ul');
            if (ordered && parseInt(marker, 10) !== 1) element.start = parseInt(marker, 10);
            this.#container().append(element);
            list = { element, ordered };
            this.#lists.push(list);
        }
        list.item = make('li');
        list.marker = indent;
        list.content = indent + marker.length + Math.min(gap.length, 4);
        list.element.append(list.item);
        if (rest !== '') this.#takeContent(rest, list.content);
    }

    #takeOther(line) {
        const indent = widthOf(line);
        const startsBlock = fenceOf(line) !== null || HEADING.test(line) || RULE.test(line) ||
            QUOTE.test(line);
        // Text on the next line goes on with the item; after a blank line, or when it starts a
        // block of its own, it has to be indented to belong to it.
        if (this.#afterBlank || startsBlock) {
            while (this.#lists.length > 0 && indent <= this.#lists.at(-1).marker) {
                this.#closeLeaf();
                this.#lists.pop();
            }
        }
        const inner = Math.min(indent, this.#lists.at(-1)?.content ?? 0);
        this.#takeContent(line.slice(inner), inner);
    }

    // `line` stands in the innermost open item, `column` characters to the right of the margin.
    #takeContent(line, column) {
        const fence = fenceOf(line);
        if (fence) {
            fence.indent += column;
            this.#openCode(fence);
            return;
        }
        const heading = HEADING.exec(line);
        if (heading) {
            this.#closeLeaf();
            // The page has its own first and second level.
            const level = heading[1].length;
            const element = make(`h${Math.min(level + 2, 6)}`, `level-${level}`);
            appendInline(element, headingText(heading[2] ?? ''));
            this.#container().append(element);
            return;
        }
        if (RULE.test(line)) {
            this.#closeLeaf();
            this.#container().append(make('hr'));
            return;
        }
        const quote = QUOTE.exec(line);
        if (quote && this.#depth < DEEPEST) {
            this.#takeLeafLine('quote', quote[1]);
            return;
        }
        if (this.#leaf?.kind === 'table') {
            this.#leaf.rows.push(cellsOf(line));
            return;
        }
        if (this.#becomesTable(line)) {
            const head = cellsOf(this.#leaf.lines[0]);
            this.#leaf = { kind: 'table', head, sides: sidesOf(line), rows: [] };
            return;
        }
        this.#takeLeafLine('paragraph', line.trimStart());
    }

    #takeLeafLine(kind, line) {
        if (this.#leaf?.kind !== kind) {
            this.#closeLeaf();
            this.#leaf = { kind, lines: [] };
        }
        this.#leaf.lines.push(line);
    }

    #becomesTable(line) {
        return this.#leaf?.kind === 'paragraph' && this.#leaf.lines.length === 1 &&
            line.includes('-') && line.includes('|') && DELIMITERS.test(line.trim()) &&
            cellsOf(this.#leaf.lines[0]).length === cellsOf(line).length;
    }

    #openCode(fence) {
        this.#closeLeaf();
        const { block, code } = codeBlock(fence.info);
        this.#container().append(block);
        this.#leaf = { kind: 'code', fence, element: code, lines: [] };
    }

    #closeLeaf() {
        const leaf = this.#leaf;
        if (leaf === null) return;
        this.flushCode();
        this.#leaf = null;
        if (leaf.kind === 'paragraph') {
            const paragraph = make('p');
            appendInline(paragraph, leaf.lines.join('\n').trimEnd());
            this.#container().append(paragraph);
        } else if (leaf.kind === 'quote') {
            const quote = make('blockquote');
            const inside = new BlockBuilder(quote, this.#depth + 1);
            for (const line of leaf.lines) inside.line(line);
            inside.end();
            this.#container().append(quote);
        } else if (leaf.kind === 'table') {
            this.#container().append(tableOf(leaf));
        }
    }
}

function codeBlock(info) {
    const block = make('div', 'code-block');
    const bar = make('div', 'code-bar');
    const language = make('span');
    language.textContent = info.trim().split(/\s/, 1)[0].slice(0, 24);
    const copy = make('button', 'quiet-button copy-code');
    copy.type = 'button';
    copy.textContent = 'Copy';
    bar.append(language, copy);
    const pre = make('pre');
    pre.tabIndex = 0;  // wide code scrolls, also by keyboard
    const code = make('code');
    pre.append(code);
    block.append(bar, pre);
    return { block, code };
}

function cellsOf(line) {
    const cells = [];
    let cell = '';
    for (const piece of line.trim().split(/(\\?\|)/)) {
        if (piece === '|') {
            cells.push(cell.trim());
            cell = '';
        } else {
            cell += piece === '\\|' ? '|' : piece;
        }
    }
    cells.push(cell.trim());
    if (cells.length > 1 && cells[0] === '') cells.shift();
    if (cells.length > 1 && cells.at(-1) === '') cells.pop();
    return cells;
}

function sidesOf(delimiters) {
    return cellsOf(delimiters).map((cell) => {
        const left = cell.startsWith(':');
        const right = cell.endsWith(':');
        return left && right ? 'center' : right ? 'right' : '';
    });
}

function tableOf({ head, sides, rows }) {
    const frame = make('div', 'table-frame');
    frame.tabIndex = 0;
    const table = make('table');
    const addRow = (section, cells, name) => {
        const row = make('tr');
        head.forEach((_, column) => {
            const cell = make(name, sides[column]);
            appendInline(cell, cells[column] ?? '');
            row.append(cell);
        });
        section.append(row);
    };
    const top = make('thead');
    addRow(top, head, 'th');
    const body = make('tbody');
    for (const cells of rows) addRow(body, cells, 'td');
    table.append(top, body);
    frame.append(table);
    return frame;
}
