// Server-sent events out of bytes that arrive in any pieces: a chunk may end inside a character, a
// line ending or a field.  Every byte is looked at once.

const END_OF_LINE = /\r\n|\r|\n/g;

export class EventStreamParser {
    #decoder = new TextDecoder();  // keeps the first bytes of a split character; drops a BOM
    #line = [];                    // pieces of the line that has not ended
    #data = [];                    // data lines of the event that has not ended
    #afterReturn = false;          // the last piece ended in CR: an LF next belongs to it

    // The data of every event that these bytes complete, in order.
    push(bytes) {
        let text = this.#decoder.decode(bytes, { stream: true });
        if (text === '') return [];
        if (this.#afterReturn && text[0] === '\n') text = text.slice(1);
        this.#afterReturn = text === '' ? false : text.endsWith('\r');

        const events = [];
        let start = 0;
        for (const end of text.matchAll(END_OF_LINE)) {
            this.#line.push(text.slice(start, end.index));
            start = end.index + end[0].length;
            this.#takeLine(this.#line.join(''), events);
            this.#line = [];
        }
        if (start < text.length) this.#line.push(text.slice(start));
        return events;
    }

    #takeLine(line, events) {
        if (line === '') {
            if (this.#data.length > 0) events.push(this.#data.join('\n'));
            this.#data = [];
            return;
        }
        const colon = line.indexOf(':');
        const field = colon < 0 ? line : line.slice(0, colon);
        if (field !== 'data') return;  // a comment, or a field this page has no use for
        const value = colon < 0 ? '' : line.slice(colon + 1);
        this.#data.push(value.startsWith(' ') ? value.slice(1) : value);
    }
}
