// The messages of the conversation that is shown, and where the reader stands in them.
import { ReplyView, ToolResultView, UserView } from './messages.js';

const NEAR_END = 80;  // pixels from the end within which new text is followed

export class Transcript {
    #list;
    #scroll;
    #welcome;
    #jump;
    #actions;
    #views = [];
    #following = true;

    // `actions`: {onEdit, onRetry, onResults, announce}.
    constructor(root, actions) {
        this.#list = root.getElementById('transcript');
        this.#scroll = root.getElementById('scroll');
        this.#welcome = root.getElementById('welcome');
        this.#jump = root.getElementById('jump');
        this.#actions = actions;
        this.#scroll.addEventListener('scroll', () => this.#noteScroll());
        this.#jump.addEventListener('click', () => {
            this.#jump.blur();
            this.follow();
        });
        this.#jump.addEventListener('blur', () => this.#showJump(null));
        const resized = new ResizeObserver(() => this.#keepUp());
        resized.observe(this.#list);
        resized.observe(this.#scroll);
    }

    show(messages) {
        this.#views = [];
        this.#list.replaceChildren();
        for (const message of messages) {
            const view = this.#add(message);
            if (message.role === 'assistant') view.update({ running: false });
        }
        this.#welcome.hidden = messages.length > 0;
    }

    // Appends a message; the view is returned so that a running reply can be updated.
    add(message) {
        this.#welcome.hidden = true;
        return this.#add(message);
    }

    // Takes the messages from `index` on off the page.
    cut(index) {
        for (const view of this.#views.splice(index)) view.element.remove();
        this.#welcome.hidden = this.#views.length > 0;
    }

    at(index) { return this.#views[index]; }

    // Only the end of a conversation can be edited, retried or answered, and not while it grows.
    offerActions(messages, running) {
        const lastUser = messages.findLastIndex((message) => message.role === 'user');
        messages.forEach((message, index) => {
            const view = this.#views[index];
            const last = index === messages.length - 1;
            if (message.role === 'user') view.actions.hidden = running || index !== lastUser;
            if (message.role === 'assistant') {
                view.actions.lastChild.hidden = running || !last;
                view.offerResults(last && !running);
            }
        });
    }

    // Goes to the end and stays there.
    follow() {
        this.#following = true;
        this.#keepUp();
    }

    #add(message) {
        const view = message.role === 'user' ? new UserView(message, this.#actions)
            : message.role === 'tool' ? new ToolResultView(message)
                : new ReplyView(message, this.#actions);
        this.#views.push(view);
        this.#list.append(view.element);
        return view;
    }

    #noteScroll() {
        const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
        this.#following = scrollHeight - scrollTop - clientHeight < NEAR_END;
        this.#showJump(document.activeElement);
    }

    // A button that has the focus stays: whoever walks by keyboard would lose their place with it.
    #showJump(focused) {
        this.#jump.hidden = this.#following && focused !== this.#jump;
    }

    #keepUp() {
        if (this.#following) this.#scroll.scrollTop = this.#scroll.scrollHeight;
        this.#noteScroll();
    }
}
