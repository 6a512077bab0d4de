// An assistant message as it grows out of stream chunks, and what there is to say about it.

export function newReply() {
    return {
        role: 'assistant',
        reasoning: '',
        content: '',
        tool_calls: [],      // {id, name, arguments}: arguments is JSON text
        finish_reason: null,
        stop_reason: null,
        seed: null,
        usage: null,
        pieces: 0,           // token-bearing chunks, for servers that report no usage on the way
        reasoning_pieces: 0,
        timing: { first_ms: null, answer_ms: null, last_ms: null },  // since the request was sent
        error: null,         // {message, code, status}
        stopped: false,      // by the reader, or by leaving the page
    };
}

// Adds one chat.completion.chunk that arrived `now` milliseconds after the request was sent.
export function addChunk(reply, chunk, now) {
    if (chunk.usage) reply.usage = chunk.usage;
    if (chunk.seed !== undefined && chunk.seed !== null) reply.seed = chunk.seed;
    const choice = chunk.choices?.[0];
    if (!choice) return;

    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
    const content = delta.content ?? '';
    const calls = delta.tool_calls ?? [];
    if (reasoning !== '' || content !== '' || calls.length > 0) {
        reply.pieces += 1;
        reply.timing.first_ms ??= now;
        reply.timing.last_ms = now;
        if (reasoning !== '') reply.reasoning_pieces += 1;
        else reply.timing.answer_ms ??= now;
    }
    reply.reasoning += reasoning;
    reply.content += content;
    for (const call of calls) addToolCall(reply.tool_calls, call);
    if (choice.seed !== undefined && choice.seed !== null) reply.seed = choice.seed;
    if (choice.finish_reason) reply.finish_reason = choice.finish_reason;
    if (choice.stop_reason) reply.stop_reason = choice.stop_reason;
}

function addToolCall(calls, delta) {
    const index = Number.isInteger(delta.index) ? delta.index : calls.length;
    if (index < 0 || index > calls.length) return;  // calls open in order; anything else is noise
    if (index === calls.length) calls.push({ id: '', name: '', arguments: '' });
    const call = calls[index];
    call.id ||= delta.id ?? '';
    call.name += delta.function?.name ?? '';
    call.arguments += delta.function?.arguments ?? '';
}

export function tokenCount(reply) {
    return reply.usage?.completion_tokens ?? reply.pieces;
}

export function reasoningCount(reply) {
    return reply.usage?.completion_tokens_details?.reasoning_tokens ?? reply.reasoning_pieces;
}

// Tokens a second between the first token and the last; null before there is a span to measure.
export function tokensPerSecond(reply) {
    const { first_ms: first, last_ms: last } = reply.timing;
    const tokens = tokenCount(reply);
    if (first === null || last - first < 1 || tokens < 2) return null;
    return (tokens - 1) * 1000 / (last - first);
}

// The share of drafted tokens that were kept; null when nothing was drafted.
export function acceptance(reply) {
    const draft = reply.usage?.draft;
    return draft?.drafted > 0 ? draft.accepted / draft.drafted : null;
}

const whole = new Intl.NumberFormat('en');

export function formatCount(count, noun) {
    return `${whole.format(count)} ${noun}${count === 1 ? '' : 's'}`;
}

export function formatDuration(milliseconds) {
    if (milliseconds < 100) return `${Math.round(milliseconds)} ms`;
    const seconds = milliseconds / 1000;
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

// Short figures for a running reply, in the order they are shown.
export function liveFigures(reply) {
    const figures = [];
    if (tokenCount(reply) > 0) figures.push(formatCount(tokenCount(reply), 'token'));
    const rate = tokensPerSecond(reply);
    if (rate !== null) figures.push(`${rate.toFixed(1)} tok/s`);
    const accepted = acceptance(reply);
    if (accepted !== null) figures.push(`${Math.round(accepted * 100)} % accepted`);
    return figures;
}

// The figures of a reply that has ended.
export function finalFigures(reply) {
    const figures = liveFigures(reply);
    const cached = reply.usage?.prompt_tokens_details?.cached_tokens;
    if (reply.usage?.prompt_tokens > 0) {
        const prompt = `${whole.format(reply.usage.prompt_tokens)} in`;
        figures.unshift(cached > 0 ? `${prompt} (${whole.format(cached)} cached)` : prompt);
    }
    if (reply.timing.first_ms !== null) {
        figures.push(`first after ${formatDuration(reply.timing.first_ms)}`);
    }
    const proposer = reply.usage?.draft?.proposer;
    if (proposer) figures.push(`drafted by ${proposer}`);
    if (reply.seed !== null) figures.push(`seed ${reply.seed}`);
    return figures;
}

const ENDINGS = {
    max_tokens: 'Cut off at the limit of max tokens.',
    length: 'Cut off at the length limit.',
    context: 'Cut off: the context is full. Start a new conversation or shorten this one.',
    loop: 'Stopped by the loop guard: the reply repeated itself.',
    deadline: 'Cut off: the deadline of the request passed.',
    stop_string: 'Ended at a stop string.',
    tool_calls: 'Waiting for the results of the tool calls.',
};

// A sentence about how the reply ended; '' for an ordinary end.
export function endingOf(reply) {
    if (reply.stopped) return 'Stopped.';
    const reason = reply.stop_reason ?? reply.finish_reason;
    if (reason === null) return '';
    if (reason === 'stop' || reason === 'eos') {
        return reply.content.trim() === '' ? 'The model ended without an answer.' : '';
    }
    return ENDINGS[reason] ?? `Ended: ${reason}.`;
}
