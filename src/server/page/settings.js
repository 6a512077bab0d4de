// The sampling settings of the side panel: kept in the browser, checked before they are sent.
// An empty field is left out of the request, so that the server's default holds.

import { local, remember } from './storage.js';

const KEY = 'percheron.settings';

const NUMBERS = {
    temperature: { label: 'Temperature', least: 0, most: 100 },
    top_p: { label: 'Top p', least: 0, most: 1, above: true },
    max_tokens: { label: 'Max tokens', least: 1, most: 2 ** 31 - 1, whole: true },
};
const LARGEST_SEED = 2n ** 64n - 1n;

// {settings}: what goes into the request; or {field, problem}: the first field that is wrong, and a
// sentence about it.
export function readSettings(fields) {
    const settings = {};
    for (const [name, kind] of Object.entries(NUMBERS)) {
        const text = fields[name].trim().replace(',', '.');
        if (text === '') continue;
        const value = Number(text);
        if (!fits(value, kind)) return wrong(name, kind);
        settings[name] = value;
    }
    const seed = fields.seed.trim();
    if (seed !== '') {
        if (!/^\d{1,20}$/.test(seed) || BigInt(seed) > LARGEST_SEED) {
            const problem = `Seed must be a whole number of at most ${LARGEST_SEED}.`;
            return { field: 'seed', problem };
        }
        // Digits that a Number would round go into the request as they are, where the browser can.
        settings.seed = JSON.rawJSON?.(BigInt(seed).toString()) ?? Number(seed);
    }
    if (fields.reasoning_effort !== '') settings.reasoning_effort = fields.reasoning_effort;
    if (!fields.draft) settings.draft = false;
    if (fields.tools.trim() !== '') {
        const tools = parseTools(fields.tools);
        if (tools === null) {
            const problem = 'Tools must be a JSON list of {"type": "function", "function": {…}}.';
            return { field: 'tools', problem };
        }
        if (tools.length > 0) settings.tools = tools;
    }
    return { settings };
}

function fits(value, { least, most, above, whole }) {
    const inRange = value >= least && value <= most && !(above && value === least);
    return inRange && (!whole || Number.isInteger(value));
}

function wrong(field, { label, least, most, above, whole }) {
    const kind = whole ? 'a whole number' : 'a number';
    const range = whole ? `of at least ${least}`
        : above ? `above ${least} and up to ${most}` : `from ${least} to ${most}`;
    return { field, problem: `${label} must be ${kind} ${range}; clear it for the default.` };
}

function parseTools(text) {
    try {
        const tools = JSON.parse(text);
        return Array.isArray(tools) ? tools : null;
    } catch {
        return null;
    }
}

export class SettingsForm {
    #form;
    #notice;

    constructor(form, notice) {
        this.#form = form;
        this.#notice = notice;
        this.#restore();
        form.addEventListener('submit', (event) => event.preventDefault());
        form.addEventListener('input', () => {
            this.check();
            this.#keep();
        });
        this.check();
    }

    // Shows what is wrong, if anything; returns what readSettings says.
    check() {
        const result = readSettings(this.#fields());
        for (const element of this.#named()) {
            if (element.name === result.field) element.setAttribute('aria-invalid', 'true');
            else element.removeAttribute('aria-invalid');
        }
        this.#notice.textContent = result.problem ?? '';
        this.#notice.hidden = !result.problem;
        return result;
    }

    focus(name) {
        this.#form.elements[name].focus();
    }

    #named() {
        return [...this.#form.elements].filter((element) => element.name);
    }

    #fields() {
        return Object.fromEntries(this.#named().map((element) =>
            [element.name, element.type === 'checkbox' ? element.checked : element.value]));
    }

    #keep() {
        remember(KEY, JSON.stringify(this.#fields()));
    }

    #restore() {
        let kept = null;
        try {
            kept = JSON.parse(local.getItem(KEY));
        } catch {
            // Unreadable: start from the defaults.
        }
        if (kept === null || typeof kept !== 'object') return;
        for (const element of this.#named()) {
            const value = kept[element.name];
            if (typeof value === 'boolean' && element.type === 'checkbox') element.checked = value;
            if (typeof value === 'string' && element.type !== 'checkbox') element.value = value;
        }
    }
}
