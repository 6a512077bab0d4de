// A conversation as the body of a /v1/chat/completions request; the model's name is added later.

export function requestBody(conversation, settings) {
    return {
        messages: wireMessages(conversation),
        stream: true,
        // Usage with every chunk: exact token counts and acceptance while the reply still runs.
        stream_options: { include_usage: true, continuous_usage_stats: true },
        ...settings,
    };
}

function wireMessages({ system, messages }) {
    const wire = system.trim() === '' ? [] : [{ role: 'system', content: system }];
    for (const message of messages) {
        if (message.role === 'user') wire.push({ role: 'user', content: userContent(message) });
        else if (message.role === 'tool') wire.push(toolResult(message));
        else if (hasAnything(message)) wire.push(assistantMessage(message));
    }
    return wire;
}

function userContent({ content, images }) {
    if (images.length === 0) return content;
    const parts = images.map(({ url }) => ({ type: 'image_url', image_url: { url } }));
    return content === '' ? parts : [...parts, { type: 'text', text: content }];
}

function toolResult({ tool_call_id, content }) {
    return { role: 'tool', tool_call_id, content };
}

function hasAnything(reply) {
    return reply.content !== '' || reply.reasoning !== '' || reply.tool_calls.length > 0;
}

function assistantMessage(reply) {
    const message = { role: 'assistant', content: reply.content };
    if (reply.reasoning !== '') message.reasoning_content = reply.reasoning;
    // Calls of a reply that was cut are not whole; the model must not read them as if they were.
    if (reply.finish_reason === 'tool_calls') {
        message.tool_calls = reply.tool_calls.map(({ id, name, arguments: text }) => (
            { id, type: 'function', function: { name, arguments: text } }));
    }
    return message;
}
