const { parseMetrics, quantile, readSample, shareOf } = await import('/assets/metrics.js');
const figures = await import('/assets/figures.js');
const { groundPath, linePath, niceCeiling } = await import('/assets/chart.js');
const { History, WINDOW_MS } = await import('/assets/history.js');
const { RequestTable } = await import('/assets/request_table.js');

// ---- figures: as tests/tools/top_view_test.cpp has them ------------------------------------------

for (const [number, text] of [[0, '0'], [999, '999'], [1000, '1,000'], [1234567, '1,234,567'],
    [-1, '-'], [1e300, '-'], [NaN, '-']]) {
    equal(figures.wholeText(number), text, `wholeText(${number})`);
}
equal(figures.rateText(0), '0.0', 'no rate');
equal(figures.rateText(12345.67), '12,345.7', 'a rate');
equal(figures.rateText(0.25), '0.3', 'a half goes up');
equal(figures.shareText(0.6125), '61.3 %', 'a share');
equal(figures.shareText(1), '100.0 %', 'all');
equal(figures.shareText(null), '-', 'no share');
for (const [seconds, text] of [[0.0008, '0.8 ms'], [0.00994, '9.9 ms'], [0.00996, '10 ms'],
    [0.25, '250 ms'], [0.9996, '1.00 s'], [12.345, '12.35 s'], [null, '-']]) {
    equal(figures.latencyText(seconds), text, `latencyText(${seconds})`);
}
for (const [seconds, text] of [[0, '0.0 s'], [9.94, '9.9 s'], [9.96, '10 s'], [119.4, '119 s'],
    [119.6, '2 min'], [7199, '119 min'], [7200, '2 h 00 min'], [172799, '47 h 59 min'],
    [172800, '2 d 00 h']]) {
    equal(figures.durationText(seconds), text, `durationText(${seconds})`);
}
equal(figures.bytesText(851443712), '812 MiB', 'mebibytes');
equal(figures.bytesText(1.6 * 1024 ** 3), '1.6 GiB', 'gibibytes');

// ---- Prometheus text -----------------------------------------------------------------------------

const metrics = parseMetrics('# HELP a_total What it is.\na_total 5\nb:c{} 1.5e3\n\n' +
    'odd{path="C:\\\\a\\"b\\nc",empty="",brace="}"} +0.25 1700000000000\n' +
    'many{k="a"} 1\nmany{k="b"} 2\nup +Inf\nlast 9');
equal(metrics.get('a_total'), [{ labels: {}, value: 5 }], 'a plain line');
equal(metrics.get('b:c')[0].value, 1500, 'no labels in braces');
equal(metrics.get('odd')[0], { labels: { path: 'C:\\a"b\nc', empty: '', brace: '}' }, value: 0.25 }, 'escapes');
equal(metrics.get('many').map(({ labels, value }) => [labels.k, value]), [['a', 1], ['b', 2]], 'labels');
equal(metrics.get('up')[0].value === Infinity, true, 'infinity');
equal(metrics.get('last')[0].value, 9, 'no line feed at the end');
let refused = null;
try {
    parseMetrics('<html>');
} catch (error) {
    refused = error.message;
}
equal(refused, 'not a metric: <html>', 'no metrics');
equal(readSample('', {}).running, 0, 'a figure that is missing');
equal(shareOf(1, 0), null, 'a share of nothing');

// ---- quantiles -----------------------------------------------------------------------------------

const histogram = {
    buckets: [{ bound: 1, count: 2 }, { bound: 2, count: 6 }, { bound: 4, count: 8 },
        { bound: Infinity, count: 10 }],
    count: 10,
};
for (const [share, value] of [[0.1, 0.5], [0.2, 1], [0.5, 1.75], [0.7, 3], [0.99, 4]]) {
    check(Math.abs(quantile(histogram, share) - value) < 1e-9, `the quantile ${share} is ${value}`);
}
equal(quantile({ buckets: [{ bound: 1, count: 0 }], count: 0 }, 0.5), null, 'nothing observed');
equal(quantile({ buckets: [], count: 3 }, 0.5), null, 'no buckets');

// ---- charts --------------------------------------------------------------------------------------

for (const [value, ceiling] of [[0, 1], [1, 1], [1.01, 2], [2.5, 5], [5.1, 10], [99, 100], [101, 200], [1e6, 1e6]]) {
    equal(niceCeiling(value), ceiling, `the scale of ${value}`);
}
const points = [0, 1000, 2000, 20_000, 21_000].map((time, index) => ({ time, value: index * 10 }));
const line = linePath(points, 21_000, 50);
equal(line, 'M558.0 120.0L560.0 96.0L562.0 72.0M598.0 48.0L600.0 24.0', 'a line with a gap');
equal(groundPath(line),
    'M558.0 120.0L560.0 96.0L562.0 72.0L562.0 120L558.0 120ZM598.0 48.0L600.0 24.0L600.0 120L598.0 120Z',
    'the ground under it');
equal(linePath([{ time: 5, value: 0 }], 5, 1), 'M600.0 120.0', 'a single point');
equal(groundPath('M600.0 120.0'), 'M600.0 120.0L600.0 120L600.0 120Z', 'the ground of a point');

// ---- history -------------------------------------------------------------------------------------

const history = new History();
for (let second = 0; second <= 400; second += 1) {
    history.add({ uptime: 10 + second, prefill: second, decode: 0, hits: second }, second * 1000);
    const first = Math.max(0, second - 60);
    if (history.earlier.hits !== first) check(false, `the last minute at ${second} began at ${history.earlier.hits}`);
}
equal(history.points.length, WINDOW_MS / 1000 + 1, 'five minutes are kept');
equal(history.points[0].time, 100_000, 'the oldest point');
history.add({ uptime: 1, prefill: 3, decode: 4, hits: 2 }, 401_000);
equal(history.earlier.hits, 2, 'another run of the server counts anew');
equal(history.points.length, WINDOW_MS / 1000 + 1, 'the rates go on');

// ---- rows ----------------------------------------------------------------------------------------

const table = document.createElement('table');
const body = table.createTBody();
const note = document.createElement('p');
const rows = new RequestTable(body, note);
const random = randomSource(7);
const request = (number) => ({
    id: `chatcmpl-${number}`, route: '/v1/chat/completions', phase: 'answer', choices: 1,
    prompt_tokens: 1204, cached_tokens: 64, generated_tokens: Math.floor(random() * 1e4), tok_s: 12.34,
    seconds: 83.2, accepted: number, drafted: 2 * number,
});
let live = [];
let next = 1;
const seen = new Map();
for (let round = 0; round < 300; round += 1) {
    live = live.filter(() => random() > 0.2);
    while (random() < 0.5) {
        live.push(next);
        next += 1;
    }
    if (round % 50 === 49) live = [];
    const requests = live.map(request);
    rows.show(requests, round % 3);
    const shown = [...body.rows].map((row) => row.cells[0].textContent);
    equal(shown, live.map(String), 'the rows in order');
    for (const [index, row] of [...body.rows].entries()) {
        const number = live[index];
        check((seen.get(number) ?? row) === row, 'a row stays the same element');
        seen.set(number, row);
        equal([...row.cells].slice(1).map((cell) => cell.textContent),
            ['answer', '1', '1,204', '64', figures.wholeText(requests[index].generated_tokens), '12.3',
                '83 s', '50.0 %', '/v1/chat/completions'], 'the cells');
    }
    const more = round % 3 === 0 ? '' : `and ${round % 3} more`;
    equal(note.textContent, live.length === 0 ? 'Nothing runs or waits.' : more, 'the note');
}

return outcome;
