// Markdown that is still being written, as DOM nodes.
//
// The text is cut into segments (blocks that nothing later can change).  A finished segment is
// rendered once and left alone; only the open one is rendered again when text arrives, and it is
// cut when it grows past a bound.  So the work for a reply is linear in its length, and the nodes
// are the same for any way the text was split into pieces.
import { BlockBuilder, closesFence, fenceOf, isListItem } from './blocks.js';

const LONG_SEGMENT = 8192;   // characters after which the next line starts a new segment
const LONGEST_SEGMENT = 2 * LONG_SEGMENT;  // characters after which even a line is cut

export class MarkdownView {
    #parent;
    #onSegment;
    #builder = null;     // of the open code block, once a part of it is final
    #open = '';          // text that is not final
    #line = 0;           // where its line that has not been looked at begins
    #fence = null;       // fence that is open at #line
    #afterBlank = false;
    #listed = false;     // the open segment holds list items
    #midLine = false;    // #open starts inside a line that was cut
    #tail = [];          // nodes that show #open

    // `onSegment(text, inCode)` is called with each segment when it is final; a code block at the
    // margin comes line by line.
    constructor(parent, onSegment = () => {}) {
        this.#parent = parent;
        this.#onSegment = onSegment;
    }

    push(text) {
        if (text === '') return;
        this.#removeTail();
        this.#open += text;
        this.#takeLines();
        this.#builder?.flushCode();
        this.#showTail();
    }

    end() {
        this.#removeTail();
        this.#commit(this.#open.length);
        this.#builder?.end();
        this.#builder = null;
    }

    #takeLines() {
        let searched = this.#line;
        for (;;) {
            const newline = this.#open.indexOf('\n', searched);
            if ((newline < 0 ? this.#open.length : newline) > LONGEST_SEGMENT) {
                const cutsLine = this.#open[LONGEST_SEGMENT] !== '\n';
                this.#commit(this.#wholeCharacters(LONGEST_SEGMENT), cutsLine);
                searched = this.#line;
                continue;
            }
            if (newline < 0) return;
            this.#takeLine(this.#open.slice(this.#line, newline), newline + 1);
            searched = this.#line;
        }
    }

    // Never between the halves of a surrogate pair.
    #wholeCharacters(length) {
        const unit = this.#open.charCodeAt(length - 1);
        return unit >= 0xd800 && unit < 0xdc00 ? length - 1 : length;
    }

    #takeLine(line, end) {
        const whole = !this.#midLine || this.#line > 0;
        if (this.#fence) {
            const closes = whole && closesFence(line, this.#fence);
            if (closes) this.#fence = null;
            this.#line = end;
            if (this.#builder || end >= LONG_SEGMENT) this.#commit(end);
            return;
        }
        const fence = whole ? fenceOf(line) : null;
        const blank = line.trim() === '';
        const indented = /^[ \t]/.test(line);
        const listItem = isListItem(line);
        const startsSegment = !blank && !indented &&
            (fence !== null || (this.#afterBlank && !(this.#listed && listItem)));
        if (startsSegment && this.#line > 0) {
            const length = end - this.#line;
            this.#commit(this.#line);
            return this.#takeLine(line, length);
        }
        this.#afterBlank = blank;
        this.#listed ||= listItem;
        this.#fence = fence;
        this.#line = end;
        // A code block at the margin is final line by line.
        if ((fence && !indented) || end >= LONG_SEGMENT) this.#commit(end);
    }

    // Makes the first `length` characters of the open text final.
    #commit(length, cutsLine = false) {
        if (length === 0) return;
        const text = this.#open.slice(0, length);
        this.#open = this.#open.slice(length);
        const builder = this.#builder ?? new BlockBuilder(this.#parent);
        feed(builder, text, { midLine: this.#midLine, cutsLine });
        if (builder.inCode) {
            this.#builder = builder;
        } else {
            builder.end();
            this.#builder = null;
        }
        this.#fence = builder.inCode ? builder.fence : null;
        this.#line = 0;
        this.#midLine = cutsLine;
        this.#afterBlank = false;
        this.#listed = false;
        this.#onSegment(text, builder.inCode);
    }

    #showTail() {
        if (this.#open === '') return;
        if (this.#builder) {
            // A line that may become the closing fence waits for its end.
            if (!this.#midLine && /^ *[`~]+$/.test(this.#open)) return;
            const node = document.createTextNode(this.#open);
            this.#builder.codeElement.append(node);
            this.#tail = [node];
            return;
        }
        const fragment = document.createDocumentFragment();
        const builder = new BlockBuilder(fragment);
        feed(builder, this.#open, { midLine: this.#midLine, cutsLine: false });
        builder.end();
        this.#tail = [...fragment.childNodes];
        this.#parent.append(fragment);
    }

    #removeTail() {
        for (const node of this.#tail) node.remove();
        this.#tail = [];
    }
}

// Hands text to the builder line by line; its first line may go on with one that was cut, and its
// last may be cut itself.
function feed(builder, text, { midLine, cutsLine }) {
    const lines = text.split('\n');
    if (lines.at(-1) === '') lines.pop();
    lines.forEach((line, index) => {
        const cut = cutsLine && index === lines.length - 1;
        const resumed = midLine && index === 0;
        if (builder.inCode && (cut || resumed)) builder.code(line, cut ? '' : '\n', !resumed);
        else builder.line(line);
    });
}

export function renderMarkdown(parent, text) {
    const view = new MarkdownView(parent);
    view.push(text);
    view.end();
}
