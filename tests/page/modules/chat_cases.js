// What stands between the stream and the page: replies, requests, settings, stored conversations.
const { acceptance, addChunk, endingOf, finalFigures, formatDuration, liveFigures, newReply, reasoningCount, tokenCount, tokensPerSecond } =
    await import('/assets/reply.js');
const { requestBody } = await import('/assets/wire.js');
const { readSettings } = await import('/assets/settings.js');
const { ConversationStore, newConversation, titleOf } = await import('/assets/conversations.js');

function chunkOf(delta, rest = {}) {
    return { object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason: null, ...rest }] };
}

// ---- replies ----
{
    const reply = newReply();
    addChunk(reply, chunkOf({ role: 'assistant' }), 5);
    equal(reply.timing.first_ms, null, 'a role is not a token');
    addChunk(reply, chunkOf({ reasoning_content: 'let ', reasoning: 'let ' }), 100);
    addChunk(reply, chunkOf({ reasoning: 'me' }), 200);
    addChunk(reply, chunkOf({ content: 'an' }), 300);
    equal([reply.reasoning, reply.content], ['let me', 'an'], 'either name of the reasoning field, once');
    equal([tokenCount(reply), reasoningCount(reply)], [3, 2], 'pieces stand in for tokens without usage');
    addChunk(reply, { ...chunkOf({ content: 'swer' }), seed: 7, usage: { prompt_tokens: 1200, completion_tokens: 41,
        completion_tokens_details: { reasoning_tokens: 30 }, prompt_tokens_details: { cached_tokens: 64 },
        draft: { proposer: 'mtp', rounds: 10, drafted: 30, accepted: 24 } } }, 500);
    addChunk(reply, chunkOf({}, { finish_reason: 'length', stop_reason: 'context' }), 600);
    equal([tokenCount(reply), reasoningCount(reply), acceptance(reply), tokensPerSecond(reply)], [41, 30, 0.8, 100], 'usage counts');
    equal(liveFigures(reply), ['41 tokens', '100.0 tok/s', '80 % accepted'], 'live figures');
    equal(finalFigures(reply), ['1,200 in (64 cached)', '41 tokens', '100.0 tok/s', '80 % accepted', 'first after 0.1 s', 'drafted by mtp', 'seed 7'], 'final figures');
    check(endingOf(reply).includes('context is full'), 'stop_reason says more than finish_reason');
    equal(reply.timing, { first_ms: 100, answer_ms: 300, last_ms: 500 }, 'times of tokens, not of the end');
}
for (const reason of ['stop', 'eos', null]) {
    equal(endingOf({ ...newReply(), content: 'yes', stop_reason: reason }), '', `an ordinary end is not mentioned: ${reason}`);
}
for (const reason of ['max_tokens', 'context', 'loop', 'deadline', 'stop_string', 'tool_calls', 'something_new']) {
    check(/^[A-Z].*\.$/.test(endingOf({ ...newReply(), stop_reason: reason })), `a sentence about ${reason}`);
}
equal(endingOf({ ...newReply(), stop_reason: 'eos' }), 'The model ended without an answer.', 'an empty answer');
equal(endingOf({ ...newReply(), stopped: true }), 'Stopped.', 'stopped by hand');
equal([40, 950, 12400, 200000].map(formatDuration), ['40 ms', '0.9 s', '12 s', '3 min 20 s'], 'durations');

// Tool calls in any pieces.
const random = randomSource(22);
const CALLS = [['call_1', 'get_weather', '{"city": "Bergen 😀", "days": 3}'], ['call_2', 'list_rooms', '{}']];
for (let trial = 0; trial < 100; ++trial) {
    const reply = newReply();
    CALLS.forEach(([id, name, text], index) => {
        addChunk(reply, chunkOf({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] }), 1);
        for (const piece of randomPieces(text, random, 1 + trial % 9)) {
            addChunk(reply, chunkOf({ tool_calls: [{ index, function: { arguments: piece } }] }), 2);
        }
    });
    addChunk(reply, chunkOf({}, { finish_reason: 'tool_calls', stop_reason: 'tool_calls' }), 3);
    equal(reply.tool_calls, CALLS.map(([id, name, text]) => ({ id, name, arguments: text })), 'tool calls join');
}
{
    const reply = newReply();
    for (const index of [5, -1, 1]) addChunk(reply, chunkOf({ tool_calls: [{ index, function: { arguments: 'x' } }] }), 1);
    equal(reply.tool_calls, [], 'a call that was never opened is dropped');
}

// ---- requests ----
{
    const cut = { ...newReply(), content: 'half', tool_calls: [{ id: 'a', name: 'f', arguments: '{"x"' }], stopped: true };
    const called = { ...newReply(), reasoning: 'why', tool_calls: [{ id: 'b', name: 'g', arguments: '{}' }], finish_reason: 'tool_calls' };
    const conversation = { system: 'Be brief.', messages: [
        { role: 'user', content: 'hi', images: [] }, cut,
        { role: 'user', content: '', images: [{ url: 'data:image/png;base64,AA', name: 'a.png' }] }, { ...newReply(), error: { message: 'no' } },
        { role: 'user', content: 'look', images: [{ url: 'data:image/png;base64,AA', name: 'a.png' }] }, called,
        { role: 'tool', tool_call_id: 'b', name: 'g', content: '42' }, newReply()] };
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } };
    const body = requestBody(conversation, { temperature: 0, draft: false });
    equal(body.messages, [
        { role: 'system', content: 'Be brief.' }, { role: 'user', content: 'hi' }, { role: 'assistant', content: 'half' },
        { role: 'user', content: [image] }, { role: 'user', content: [image, { type: 'text', text: 'look' }] },
        { role: 'assistant', content: '', reasoning_content: 'why', tool_calls: [{ id: 'b', type: 'function', function: { name: 'g', arguments: '{}' } }] },
        { role: 'tool', tool_call_id: 'b', content: '42' }], 'messages on the wire');
    equal([body.temperature, body.draft, body.stream, body.stream_options.include_usage], [0, false, true, true], 'settings on the wire');
    equal(requestBody({ system: '  ', messages: [] }, {}).messages, [], 'a blank system prompt is none');
}

// ---- settings ----
const EMPTY = { temperature: '', top_p: '', max_tokens: '', seed: '', reasoning_effort: '', draft: true, tools: '' };
equal(readSettings(EMPTY), { settings: {} }, 'empty fields are left to the server');
equal(readSettings({ ...EMPTY, temperature: ' 0 ', top_p: '0,9', max_tokens: '100', seed: '0', reasoning_effort: 'low', draft: false, tools: '[{"type":"function"}]' }),
    { settings: { temperature: 0, top_p: 0.9, max_tokens: 100, seed: 0, reasoning_effort: 'low', draft: false, tools: [{ type: 'function' }] } }, 'all fields');
equal(JSON.stringify(readSettings({ ...EMPTY, seed: '18446744073709551615' })), '{"settings":{"seed":18446744073709551615}}', 'a seed of 64 bits is sent whole');
for (const [field, value] of [['temperature', '-1'], ['temperature', 'warm'], ['temperature', 'NaN'], ['top_p', '0'], ['top_p', '1.1'], ['max_tokens', '0'],
    ['max_tokens', '1.5'], ['max_tokens', '1e99'], ['seed', '-3'], ['seed', '1.5'], ['seed', '18446744073709551616'], ['tools', '{}'], ['tools', '[{']]) {
    const result = readSettings({ ...EMPTY, [field]: value });
    check(result.field === field && /^[A-Z].*\.$/.test(result.problem) && !result.settings, `${field} = ${value} is refused: ${JSON.stringify(result)}`);
}

// ---- stored conversations ----
{
    const store = new ConversationStore();
    const before = store.list().length;
    const conversation = newConversation('system');
    conversation.messages.push({ role: 'user', content: `\n${'x'.repeat(100)}\nsecond line`, images: [] }, newReply());
    equal(store.save(conversation), '', 'saved');
    equal(store.load(conversation.id), conversation, 'loaded as it was');
    equal(store.list().length, before + 1, 'listed');
    equal(titleOf(conversation), `${'x'.repeat(60)}…`, 'titled by its first words');
    const name = `percheron.conversation.${conversation.id}`;
    for (const broken of ['', '{', 'null', '[]', '{"id": 3}', JSON.stringify({ ...conversation, messages: [{ role: 'root', content: '' }] }),
        JSON.stringify({ ...conversation, messages: [{ role: 'user', content: 7, images: [] }] }), JSON.stringify({ ...conversation, messages: [{ role: 'assistant', content: '' }] })]) {
        localStorage.setItem(name, broken);
        equal([store.load(conversation.id), store.list().length], [null, before], `broken: ${broken}`);
    }
    store.remove(conversation.id);
    equal(localStorage.getItem(name), null, 'removed');

    const large = newConversation();
    large.messages.push({ role: 'user', content: 'x'.repeat(6 << 20), images: [] });
    check(/no room/.test(store.save(large)), 'a conversation that does not fit is named');
    check(newConversation().id !== newConversation().id, 'ids differ');
}
return outcome;
