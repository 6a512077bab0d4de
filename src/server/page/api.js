// The few calls this page makes, with every failure as an ApiError whose message is a sentence.
import { EventStreamParser } from './sse.js';

export class ApiError extends Error {
    constructor(message, { status = 0, code = '' } = {}) {
        super(message);
        this.status = status;
        this.code = code;
    }
}

const UNREACHABLE = 'The server cannot be reached. Check that percheron serve is still running.';

const PATIENCE_MS = 10_000;  // for what a server that works answers at once

function headers(key) {
    return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
    let response;
    try {
        response = await fetch(path, { cache: 'no-store', ...options });
    } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ApiError(UNREACHABLE);
    }
    if (!response.ok) throw await errorOf(response);
    return response;
}

async function errorOf(response) {
    let body = null;
    try {
        body = await response.json();
    } catch {
        // Not JSON: a proxy in between.  The status line has to do.
    }
    return errorFrom(body?.error, response.status, response.headers.get('Retry-After'));
}

// An ApiError out of the `error` object of a reply or of an event in a stream.
function errorFrom(error, status, retryAfter) {
    let message = typeof error?.message === 'string' && error.message !== ''
        ? asSentence(error.message)
        : `The server answered with status ${status || 'unknown'} and no explanation.`;
    if (retryAfter && /^\d+$/.test(retryAfter)) message += ` Try again in ${retryAfter} s.`;
    const code = typeof error?.code === 'string' ? error.code : '';
    return new ApiError(message, { status, code });
}

function asSentence(text) {
    const word = /^[a-z]+[ ,']/.test(text);  // the name of a field is left as it is
    const sentence = word ? text[0].toUpperCase() + text.slice(1) : text;
    return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

async function json(path, key) {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const response = await request(path, { headers: headers(key), signal });
    try {
        return await response.json();
    } catch {
        throw new ApiError(`The server answered ${path} with something that is not JSON.`);
    }
}

// The first model the server offers: {id, max_model_len?}.
export async function fetchModel(key) {
    const list = await json('/v1/models', key);
    const model = Array.isArray(list.data) ? list.data[0] : null;
    if (!model) throw new ApiError('The server offers no model.');
    return model;
}

// The server's figures as Prometheus text.
export async function fetchMetrics(key) {
    const response = await request('/metrics', {
        headers: headers(key),
        signal: AbortSignal.timeout(PATIENCE_MS),
    });
    return response.text();
}

export function fetchStatus(key) {
    return json('/status', key);
}

// Sends a streamed chat request and yields every chunk as an object.  Ends at [DONE]; throws an
// ApiError when the server reports an error or the stream ends without [DONE], an AbortError when
// the signal fires.
export async function* streamChat(body, { key, signal }) {
    const response = await request('/v1/chat/completions', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', ...headers(key) },
        body: JSON.stringify(body),
        signal,
    });
    const parser = new EventStreamParser();
    const reader = response.body.getReader();
    try {
        for (;;) {
            const { done, value } = await readPiece(reader);
            if (done) break;
            for (const data of parser.push(value)) {
                if (data === '[DONE]') return;
                const chunk = parseChunk(data);
                if (chunk.error) throw errorFrom(chunk.error, response.status, null);
                yield chunk;
            }
        }
    } finally {
        reader.cancel().catch(() => {});  // nothing more is wanted, whether or not it still runs
    }
    throw new ApiError('The reply broke off: the server closed the connection before its end.');
}

async function readPiece(reader) {
    try {
        return await reader.read();
    } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ApiError('The connection to the server was lost in the middle of the reply.');
    }
}

// Seeds have 64 bits, more than a Number holds: they are kept as their digits.
function exactSeed(key, value, context) {
    return key === 'seed' && typeof value === 'number' ? context?.source ?? String(value) : value;
}

function parseChunk(data) {
    try {
        const chunk = JSON.parse(data, exactSeed);
        if (chunk !== null && typeof chunk === 'object') return chunk;
    } catch {
        // Falls through to the sentence below.
    }
    throw new ApiError('The server sent an event that is not a JSON object.');
}
