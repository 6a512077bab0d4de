// The samples of the last minutes: what the charts draw, and where the last minute began.

const MINUTE_MS = 60_000;
export const WINDOW_MS = 5 * MINUTE_MS;

export class History {
    #points = [];  // {time, prefill, decode}, oldest first
    #minute = [];  // {time, sample}, of one run of the server

    // `time` in milliseconds, never going back.
    add(sample, time) {
        const last = this.#minute.at(-1)?.sample;
        // Another run of the server counts from zero again.
        if (last && sample.uptime < last.uptime) this.#minute = [];
        this.#minute.push({ time, sample });
        while (this.#minute[0].time < time - MINUTE_MS) this.#minute.shift();
        this.#points.push({ time, prefill: sample.prefill, decode: sample.decode });
        while (this.#points[0].time < time - WINDOW_MS) this.#points.shift();
    }

    get points() { return this.#points; }

    // The oldest sample of the last minute.
    get earlier() { return this.#minute[0]?.sample; }
}
