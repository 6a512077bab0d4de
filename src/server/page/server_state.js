// The model's name and what the server is doing right now, asked for while somebody looks.
import { ApiError, fetchModel, fetchStatus } from './api.js';

const IDLE_MS = 3000;
const BUSY_MS = 1000;

const whole = new Intl.NumberFormat('en');

export class ServerState {
    #elements;
    #keys;
    #model = null;
    #timer = 0;
    #refused = false;
    #busy = () => false;

    // `elements`: {name, line, facts}; `busy` says whether a reply is running in this page.
    constructor(elements, keys, busy) {
        this.#elements = elements;
        this.#keys = keys;
        this.#busy = busy;
        document.addEventListener('visibilitychange', () => {
            if (!document.hidden && !this.#refused) this.refresh();
        });
    }

    // The name to ask for; throws an ApiError when the server does not tell.
    async modelName() {
        this.#model ??= await fetchModel(this.#keys.key);
        return this.#model.id;
    }

    // Asks now, and from now on.
    async refresh() {
        const { key } = this.#keys;
        this.#stop();
        try {
            await this.modelName();
            this.#show(await fetchStatus(key));
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            this.#showFailure(error);
            // Without the right key every further question is in vain.  A running reply will be
            // refused too, and the key asked for then.
            this.#refused = error.status === 401 && key === this.#keys.key;
            if (this.#refused && !this.#busy()) this.#keys.askOnce();
        }
        this.#stop();
        if (!document.hidden && !this.#refused) {
            this.#timer = setTimeout(() => this.refresh(), this.#busy() ? BUSY_MS : IDLE_MS);
        }
    }

    // Asks again with another key.
    retry() {
        this.#refused = false;
        return this.refresh();
    }

    #stop() {
        clearTimeout(this.#timer);
    }

    #show(status) {
        const { name, line, facts } = this.#elements;
        name.textContent = this.#model.id;
        name.title = this.#model.id;
        const { running, waiting, kv_tokens_free: free, kv_tokens_total: total } = status;
        const { reprefill_pending: pending } = status;
        const parts = [`${running} running`, `${waiting} waiting`];
        if (total > 0) parts.push(`${Math.floor(free * 100 / total)} % KV free`);
        showParts(line, parts);
        line.dataset.state = running > 0 || waiting > 0 ? 'busy' : 'idle';
        showFacts(facts, [
            ['Model', this.#model.id],
            ['Context', tokens(this.#model.max_model_len)],
            ['Running', running],
            ['Waiting', waiting],
            ['KV free', total > 0 ? `${whole.format(free)} of ${tokens(total)}` : null],
            ['Prefill', rate(status.prefill_tok_s)],
            ['Decode', rate(status.decode_tok_s)],
            ['To be cached', pending > 0 ? tokens(pending) : null],
        ]);
    }

    #showFailure(error) {
        const { line, facts } = this.#elements;
        if (error.status === 401) {
            showParts(line, ['API key needed']);
        } else {
            showParts(line, [error.status === 0 ? 'Server not reachable' : 'Server not ready']);
        }
        line.dataset.state = 'down';
        showFacts(facts, [['State', error.message]]);
    }
}

function tokens(count) {
    return Number.isFinite(count) ? `${whole.format(count)} tokens` : null;
}

function rate(perSecond) {
    return perSecond > 0 ? `${perSecond.toFixed(1)} tok/s` : null;
}

function showParts(line, parts) {
    line.replaceChildren(...parts.map((text) => {
        const part = document.createElement('span');
        part.textContent = text;
        return part;
    }));
}

function showFacts(list, facts) {
    const known = facts.filter(([, value]) => value !== null && value !== '');
    list.replaceChildren(...known.map(([term, value]) => {
        const row = document.createElement('div');
        const label = document.createElement('dt');
        label.textContent = term;
        const content = document.createElement('dd');
        content.textContent = value;
        row.append(label, content);
        return row;
    }));
}
