// The two side panels.  On a wide screen a panel stands beside the chat; on a narrow
// one it lies over it, the rest is out of reach, and Escape closes it.

import { local, remember } from './storage.js';

const NARROW = matchMedia('(max-width: 899px)');

export class Panel {
    static #all = [];
    #panel;
    #toggle;
    #name;

    constructor(root, name, { openWhenWide }) {
        this.#name = name;
        this.#panel = root.getElementById(name);
        this.#toggle = root.getElementById(`toggle-${name}`);
        this.#toggle.addEventListener('click', () => this.set(!this.isOpen, { keep: true }));
        this.#panel.querySelector('.panel-close').addEventListener('click', () => {
            this.set(false, { keep: true });
            this.#toggle.focus();
        });
        Panel.#all.push(this);
        const kept = local.getItem(`percheron.panel.${name}`);
        this.set(!NARROW.matches && (kept ?? String(openWhenWide)) === 'true', { keep: false });
        NARROW.addEventListener('change', () => this.set(false, { keep: false }));
    }

    get isOpen() { return this.#panel.classList.contains('open'); }

    set(open, { keep }) {
        if (open && NARROW.matches) {
            for (const other of Panel.#all) if (other !== this) other.set(false, { keep: false });
        }
        this.#panel.classList.toggle('open', open);
        this.#toggle.setAttribute('aria-expanded', String(open));
        if (keep && !NARROW.matches) remember(`percheron.panel.${this.#name}`, String(open));
        Panel.#coverRest();
        if (open && keep) this.#panel.querySelector('.panel-close').focus();
    }

    // Closes what lies over the chat; returns whether anything did.
    static closeOverlay() {
        const open = NARROW.matches ? Panel.#all.find((panel) => panel.isOpen) : undefined;
        if (!open) return false;
        open.set(false, { keep: true });
        open.#toggle.focus();
        return true;
    }

    static #coverRest() {
        const covered = NARROW.matches && Panel.#all.some((panel) => panel.isOpen);
        document.getElementById('backdrop').hidden = !covered;
        document.querySelector('main').inert = covered;
        document.querySelector('.top').inert = covered;
    }
}

export function listenForBackdrop(root) {
    root.getElementById('backdrop').addEventListener('click', () => Panel.closeOverlay());
}
