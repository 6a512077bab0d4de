// One reply on its way: the request, the chunks that come, and how it ends.
import { ApiError, streamChat } from './api.js';
import { addChunk } from './reply.js';

export class Generation {
    #controller = new AbortController();
    #onProgress;

    // `reply`, the last message of the conversation, grows in place; `onProgress` is called after
    // each change.
    constructor(conversation, reply, key, onProgress) {
        this.conversation = conversation;
        this.key = key;
        this.reply = reply;
        this.#onProgress = onProgress;
    }

    // Resolves when the reply has ended, in whatever way: its fields say how.
    async run(body, server) {
        const { signal } = this.#controller;
        try {
            const model = await server.modelName();
            const sent = performance.now();
            for await (const chunk of streamChat({ model, ...body }, { key: this.key, signal })) {
                addChunk(this.reply, chunk, performance.now() - sent);
                this.#onProgress();
            }
        } catch (error) {
            if (error.name === 'AbortError') this.reply.stopped = true;
            else if (error instanceof ApiError) this.reply.error = described(error);
            else throw error;
        }
    }

    // Closes the connection; the server ends the work within a step.
    stop() {
        this.#controller.abort();
    }
}

function described({ message, code, status }) {
    return { message, code, status };
}
