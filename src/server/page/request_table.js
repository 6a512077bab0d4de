// The requests that run or wait, a row each.  Rows stay the same elements as long as their requests
// last, so that what is selected or read aloud is not torn away.
import { durationText, rateText, shareText, wholeText } from './figures.js';
import { shareOf } from './metrics.js';

const CELLS = [
    ({ id }) => id.slice(id.lastIndexOf('-') + 1),
    ({ phase }) => phase,
    ({ choices }) => wholeText(choices),
    ({ prompt_tokens: tokens }) => wholeText(tokens),
    ({ cached_tokens: tokens }) => wholeText(tokens),
    ({ generated_tokens: tokens }) => wholeText(tokens),
    ({ tok_s: rate }) => rateText(rate),
    ({ seconds }) => durationText(seconds),
    ({ accepted, drafted }) => shareText(shareOf(accepted, drafted)),
    ({ route }) => route,
];
const WORDS = 2;  // id and phase; then numbers, and the route

export class RequestTable {
    #body;
    #note;
    #rows = new Map();  // id -> row

    constructor(body, note) {
        this.#body = body;
        this.#note = note;
    }

    show(requests, leftOut) {
        const ids = new Set(requests.map(({ id }) => id));
        for (const [id, row] of this.#rows) {
            if (ids.has(id)) continue;
            row.remove();
            this.#rows.delete(id);
        }
        requests.forEach((request, index) => {
            if (!this.#rows.has(request.id)) this.#rows.set(request.id, newRow(request));
            const row = this.#rows.get(request.id);
            CELLS.forEach((text, cell) => setText(row.cells[cell], text(request)));
            if (this.#body.rows[index] !== row) {
                this.#body.insertBefore(row, this.#body.rows[index] ?? null);
            }
        });
        if (requests.length === 0) setText(this.#note, 'Nothing runs or waits.');
        else setText(this.#note, leftOut > 0 ? `and ${wholeText(leftOut)} more` : '');
    }
}

function newRow({ id }) {
    const row = document.createElement('tr');
    CELLS.forEach((_, index) => {
        const cell = document.createElement(index === 0 ? 'th' : 'td');
        if (index === 0) {
            cell.scope = 'row';
            cell.title = id;
        }
        if (index >= WORDS && index < CELLS.length - 1) cell.className = 'number';
        row.append(cell);
    });
    return row;
}

// Only what changes is written: a selection in the rest stays.
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}
