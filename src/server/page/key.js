// The API key: asked for when the server wants one, kept for the tab, or for longer on request.

import { local, session } from './storage.js';

const KEY = 'percheron.api-key';

export class KeyKeeper {
    #dialog;
    #input;
    #remember;
    #notice;
    #onKey;
    #askedAbout = null;  // the key that was refused when the reader was last asked

    // `onKey` is called when the reader has given a key.
    constructor(root, onKey) {
        this.#dialog = root.getElementById('key-dialog');
        this.#input = root.getElementById('key-input');
        this.#remember = root.getElementById('key-remember');
        this.#notice = root.getElementById('key-notice');
        this.#onKey = onKey;
        root.getElementById('key-form').addEventListener('submit', (event) => {
            event.preventDefault();
            this.#keep(this.#input.value.trim());
        });
        root.getElementById('key-cancel').addEventListener('click', () => this.#dialog.close());
    }

    get key() {
        return session.getItem(KEY) ?? local.getItem(KEY) ?? '';
    }

    // Asks unless the reader has been asked about this key and had no better one.
    askOnce() {
        if (this.#askedAbout !== this.key) this.ask({ refused: true });
    }

    // `refused`: the server has just answered 401 to the key there is.
    ask({ refused }) {
        this.#askedAbout = this.key;
        if (this.#dialog.open) return;
        const wrong = refused && this.key !== '';
        this.#notice.textContent = wrong ? 'The server does not accept this key.' : '';
        this.#notice.hidden = !wrong;
        this.#input.value = this.key;
        this.#remember.checked = local.getItem(KEY) !== null;
        this.#dialog.showModal();
        this.#input.select();
    }

    #keep(key) {
        session.removeItem(KEY);
        local.removeItem(KEY);
        if (key !== '') (this.#remember.checked ? local : session).setItem(KEY, key);
        this.#dialog.close();
        this.#onKey();
    }
}
