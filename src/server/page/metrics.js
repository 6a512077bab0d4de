// Prometheus text, and what the dashboard takes from it and from /status.  docs/WATCHING.md defines
// each figure; `percheron top` reads the same ones.

// {name: [{labels: {name: value}, value}]} of text in the exposition format.
export function parseMetrics(text) {
    const metrics = new Map();
    for (const line of text.split('\n')) {
        if (line === '' || line.startsWith('#')) continue;
        const [, name, labels, value] = line.match(/^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/) ?? [];
        if (name === undefined) throw new Error(`not a metric: ${line.slice(0, 100)}`);
        if (!metrics.has(name)) metrics.set(name, []);
        metrics.get(name).push({ labels: parseLabels(labels ?? ''), value: parseNumber(value) });
    }
    return metrics;
}

function parseLabels(text) {
    const labels = {};
    for (const [, name, value] of text.matchAll(/([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"/g)) {
        labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    return labels;
}

function parseNumber(text) {
    return Number(text.replace('Inf', 'Infinity'));
}

// The value below which a share of a histogram's observations lies: linear inside its bucket, from
// 0 in the first; the largest finite bound where the bucket has no end.  null without observations.
export function quantile({ buckets, count }, share) {
    if (!(count > 0) || buckets.length === 0) return null;
    const rank = share * count;
    let below = 0;
    let boundBelow = 0;
    for (const bucket of buckets) {
        if (bucket.bound === Infinity) break;
        if (bucket.count >= rank && bucket.count > below) {
            const part = Math.min(1, Math.max(0, (rank - below) / (bucket.count - below)));
            return boundBelow + (bucket.bound - boundBelow) * part;
        }
        below = bucket.count;
        boundBelow = bucket.bound;
    }
    return boundBelow;
}

// part / whole, null when there is no whole.
export function shareOf(part, whole) {
    return whole > 0 ? part / whole : null;
}

export function readSample(metricsText, status) {
    const metrics = parseMetrics(metricsText);
    const lines = (name) => metrics.get(`percheron:${name}`) ?? [];
    const figure = (name) => lines(name)[0]?.value ?? 0;
    const histogram = (name) => ({
        buckets: lines(`${name}_bucket`)
            .map(({ labels, value }) => ({ bound: parseNumber(labels.le), count: value }))
            .sort((one, other) => one.bound - other.bound),
        count: figure(`${name}_count`),
    });
    return {
        model: status.model,
        context: status.context_tokens,
        draining: status.draining === true,
        uptime: figure('uptime_seconds'),
        running: figure('num_requests_running'),
        waiting: figure('num_requests_waiting'),
        prefill: figure('prefill_tokens_per_second'),
        decode: figure('decode_tokens_per_second'),
        kvUsed: figure('kv_tokens_used'),
        kvTotal: figure('kv_tokens_total'),
        checkpoints: figure('checkpoints'),
        resident: figure('resident_memory_bytes'),
        cacheHits: figure('prefix_cache_hits_total'),
        cacheQueries: figure('prefix_cache_queries_total'),
        accepted: figure('spec_decode_num_accepted_tokens_total'),
        drafted: figure('spec_decode_num_draft_tokens_total'),
        imagesEncoded: figure('images_encoded_total'),
        imagesReused: figure('images_reused_total'),
        loops: figure('loops_total'),
        disconnects: figure('disconnects_total'),
        preemptions: figure('preemptions_total'),
        replies: lines('http_replies_total').map(({ labels, value }) => [labels.status, value]),
        firstToken: histogram('time_to_first_token_seconds'),
        nextToken: histogram('inter_token_latency_seconds'),
        wholeRequest: histogram('e2e_request_latency_seconds'),
        requests: status.requests ?? [],
        leftOut: status.requests_left_out ?? 0,
    };
}
