// One rate over the last minutes, as a line over a filled ground.
import { rateText } from './figures.js';
import { WINDOW_MS } from './history.js';

const SPACE = 'http://www.w3.org/2000/svg';
const WIDTH = 600;
const HEIGHT = 120;
const GAP_MS = 5000;  // a longer silence breaks the line

// The line of points [{time, value}], `now` at the right edge and `most` at the top; in pieces where
// nothing was known in between.
export function linePath(points, now, most) {
    let path = '';
    let last = -Infinity;
    for (const { time, value } of points) {
        const x = WIDTH * (1 - (now - time) / WINDOW_MS);
        const y = HEIGHT * (1 - value / most);
        path += `${time - last > GAP_MS ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
        last = time;
    }
    return path;
}

// The same, closed along the bottom.
export function groundPath(line) {
    return line.replace(/M([\d.-]+) [^M]*/g, (piece, first) => {
        const last = piece.match(/.*[ML]([\d.-]+) /)[1];
        return `${piece}L${last} ${HEIGHT}L${first} ${HEIGHT}Z`;
    });
}

// The smallest of 1, 2, 5, 10, 20, … that is not below the value.
export function niceCeiling(value) {
    const decade = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
    return [1, 2, 5, 10].map((step) => step * decade).find((limit) => limit >= value);
}

export class Chart {
    #picture;
    #line;
    #ground;
    #scale;
    #name;

    // `figure` holds an svg and an element of class `scale`.
    constructor(figure, name) {
        this.#name = name;
        this.#picture = figure.querySelector('svg');
        this.#scale = figure.querySelector('.scale');
        this.#picture.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
        this.#ground = this.#part('ground');
        this.#line = this.#part('line');
    }

    #part(name) {
        const path = document.createElementNS(SPACE, 'path');
        path.setAttribute('class', name);
        this.#picture.append(path);
        return path;
    }

    show(points) {
        const now = points.at(-1).time;
        const highest = Math.max(...points.map(({ value }) => value));
        const most = niceCeiling(highest);
        const line = linePath(points, now, most);
        this.#line.setAttribute('d', line);
        this.#ground.setAttribute('d', groundPath(line));
        this.#scale.textContent = rateText(most);
        this.#picture.setAttribute('aria-label', `${this.#name} over the last 5 minutes, in tokens a ` +
            `second: now ${rateText(points.at(-1).value)}, highest ${rateText(highest)}`);
    }
}
