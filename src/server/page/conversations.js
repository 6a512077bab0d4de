// Conversations in the browser's local storage, each under a key of its own, so that two tabs never
// overwrite each other's.
//
// A conversation: {id, title, created, updated, system, messages}.  A message is
//   {role: 'user', content, images: [{url, name}]}      images as data URLs
//   a reply of reply.js
//   {role: 'tool', tool_call_id, name, content}

import { local, remember } from './storage.js';

const PREFIX = 'percheron.conversation.';
const ROLES = ['user', 'assistant', 'tool'];

export function newConversation(system = '') {
    const now = Date.now();
    const id = crypto.randomUUID?.() ?? randomId();
    return { id, title: '', created: now, updated: now, system, messages: [] };
}

// crypto.randomUUID exists on secure origins only; a server on the local network is not one.
function randomId() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

// What the list shows for a conversation: the start of its first message.
export function titleOf(conversation) {
    if (conversation.title) return conversation.title;
    const first = conversation.messages.find((message) => message.role === 'user');
    const text = first?.content.trim().split('\n', 1)[0] ?? '';
    if (text !== '') return text.length <= 60 ? text : `${text.slice(0, 60)}…`;
    return first ? 'Image' : 'New conversation';
}

export class ConversationStore {
    // Every stored conversation's {id, title, updated}, latest first.
    list() {
        const entries = [];
        for (let i = 0; i < local.length; ++i) {
            const key = local.key(i);
            if (!key.startsWith(PREFIX)) continue;
            const conversation = this.load(key.slice(PREFIX.length));
            if (!conversation) continue;
            const { id, updated } = conversation;
            entries.push({ id, title: titleOf(conversation), updated });
        }
        return entries.sort((one, other) => other.updated - one.updated);
    }

    // null when there is none, or what lies there is not a conversation.
    load(id) {
        try {
            const conversation = JSON.parse(local.getItem(PREFIX + id));
            return isConversation(conversation, id) ? conversation : null;
        } catch {
            return null;
        }
    }

    // '' or a sentence that says why it could not be kept.
    save(conversation) {
        if (remember(PREFIX + conversation.id, JSON.stringify(conversation))) return '';
        return 'This browser has no room left for the conversation: it will be gone when the page ' +
            'closes. Export it, or delete older ones.';
    }

    remove(id) {
        local.removeItem(PREFIX + id);
    }

    // Calls `listener(id)` when another tab changes a conversation.
    onOtherTab(listener) {
        addEventListener('storage', ({ key }) => {
            if (key?.startsWith(PREFIX)) listener(key.slice(PREFIX.length));
        });
    }
}

function isConversation(value, id) {
    return value?.id === id && Number.isFinite(value.updated) && typeof value.system === 'string' &&
        Array.isArray(value.messages) && value.messages.every(isMessage);
}

function isMessage(value) {
    if (!ROLES.includes(value?.role) || typeof value.content !== 'string') return false;
    if (value.role === 'user') return Array.isArray(value.images);
    return value.role === 'tool' || (Array.isArray(value.tool_calls) && Boolean(value.timing));
}

// Hands the conversation to the reader as a file.
export function downloadConversation(conversation) {
    const text = JSON.stringify({ ...conversation, title: titleOf(conversation) }, null, 2);
    const address = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    const link = document.createElement('a');
    link.href = address;
    const day = new Date(conversation.created).toISOString().slice(0, 10);
    link.download = `percheron-${day}-${conversation.id.slice(0, 8)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
}
