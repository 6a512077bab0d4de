// Asks the server once a second while somebody looks, through restarts and changes of the key.
import { ApiError, fetchMetrics, fetchStatus } from './api.js';
import { readSample } from './metrics.js';

const EVERY_MS = 1000;

export class Watch {
    #keys;
    #onSample;
    #onTrouble;
    #timer = 0;
    #asking = false;
    #paused = false;
    #refused = false;  // the key there is: asking again is in vain

    // `onSample(sample, time)` and `onTrouble(sentence)` are called for every look at the server.
    constructor(keys, { onSample, onTrouble }) {
        this.#keys = keys;
        this.#onSample = onSample;
        this.#onTrouble = onTrouble;
        document.addEventListener('visibilitychange', () => this.#look());
    }

    start() {
        this.#look();
    }

    get isPaused() { return this.#paused; }

    set isPaused(paused) {
        this.#paused = paused;
        this.#look();
    }

    // The reader has given another key.
    retry() {
        this.#refused = false;
        this.#look();
    }

    get #wanted() { return !document.hidden && !this.#paused && !this.#refused; }

    // Asks now, unless an answer is already on its way, and again in a second.
    async #look() {
        clearTimeout(this.#timer);
        if (this.#asking || !this.#wanted) return;
        this.#asking = true;
        const began = performance.now();
        await this.#ask();
        this.#asking = false;
        clearTimeout(this.#timer);
        const left = Math.max(0, EVERY_MS - (performance.now() - began));
        this.#timer = setTimeout(() => this.#look(), left);
    }

    async #ask() {
        const { key } = this.#keys;
        try {
            const [metrics, status] = await Promise.all([fetchMetrics(key), fetchStatus(key)]);
            this.#onSample(readSample(metrics, status), performance.now());
        } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            this.#refused = error.status === 401 && key === this.#keys.key;
            this.#onTrouble(error.message);
            if (this.#refused) this.#keys.askOnce();
        }
    }
}
