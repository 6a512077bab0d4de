// The browser's storage; where it is forbidden, a stand-in that lasts as long as the page.

class PageStorage {
    #entries = new Map();

    get length() { return this.#entries.size; }
    key(index) { return [...this.#entries.keys()][index] ?? null; }
    getItem(key) { return this.#entries.get(key) ?? null; }
    setItem(key, value) { this.#entries.set(key, value); }
    removeItem(key) { this.#entries.delete(key); }
}

function storageOr(kind) {
    try {
        window[kind].getItem('');
        return window[kind];
    } catch {
        return new PageStorage();
    }
}

export const local = storageOr('localStorage');
export const session = storageOr('sessionStorage');

// Keeps a value beyond the page; false when there is no room.
export function remember(key, value) {
    try {
        local.setItem(key, value);
        return true;
    } catch {
        return false;
    }
}
