// Prefixed to each file of cases: they call check() and equal(), and the page returns the outcome.
const outcome = { checks: 0, failures: [] };

function check(holds, what) {
    outcome.checks += 1;
    if (!holds && outcome.failures.length < 20) outcome.failures.push(what);
}

function equal(actual, expected, what) {
    const [one, other] = [JSON.stringify(actual), JSON.stringify(expected)];
    check(one === other, `${what}: got ${one?.slice(0, 600)}, expected ${other?.slice(0, 600)}`);
}

// A small generator with a fixed start (mulberry32), so that a failure can be repeated.
function randomSource(seed) {
    return () => {
        seed = (seed + 0x6d2b79f5) | 0;
        let word = Math.imul(seed ^ (seed >>> 15), 1 | seed);
        word = (word + Math.imul(word ^ (word >>> 7), 61 | word)) ^ word;
        return ((word ^ (word >>> 14)) >>> 0) / 4294967296;
    };
}

function randomPieces(whole, random, longest) {
    const pieces = [];
    for (let start = 0; start < whole.length;) {
        const end = Math.min(whole.length, start + 1 + Math.floor(random() * longest));
        pieces.push(whole.slice(start, end));
        start = end;
    }
    return pieces;
}
