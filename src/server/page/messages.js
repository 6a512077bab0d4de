// One message on the page.  Text from outside is only ever set as text.
import { MarkdownView } from './markdown.js';
import { endingOf, finalFigures, formatCount, formatDuration, reasoningCount } from './reply.js';

function make(name, className = '', text = '') {
    const node = document.createElement(name);
    if (className !== '') node.className = className;
    if (text !== '') node.textContent = text;
    return node;
}

function button(label, onClick, className = 'quiet-button') {
    const node = make('button', className, label);
    node.type = 'button';
    node.addEventListener('click', onClick);
    return node;
}

// Sets the text only when it differs: a screen reader or a selection is not disturbed for nothing.
function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

async function copy(text, label) {
    try {
        await navigator.clipboard.writeText(text);
        label.textContent = 'Copied';
    } catch {
        label.textContent = 'Not allowed';
    }
    setTimeout(() => { label.textContent = 'Copy'; }, 1500);
}

// Every code block's copy button, present and future.
export function listenForCopy(root) {
    root.addEventListener('click', (event) => {
        const label = event.target.closest('.copy-code');
        if (label) copy(label.closest('.code-block').querySelector('code').textContent, label);
    });
}

export class UserView {
    constructor(message, { onEdit }) {
        this.element = make('li', 'message user');
        this.element.append(make('h3', 'hidden-label', 'You'));
        if (message.images.length > 0) {
            const images = make('div', 'images');
            for (const { url, name } of message.images) {
                const picture = make('img');
                picture.src = url;
                picture.alt = name;
                images.append(picture);
            }
            this.element.append(images);
        }
        if (message.content !== '') {
            const text = make('div', 'bubble', message.content);
            text.dir = 'auto';
            this.element.append(text);
        }
        this.actions = make('div', 'actions');
        this.actions.append(button('Edit', onEdit));
        this.element.append(this.actions);
    }
}

export class ToolResultView {
    constructor(message) {
        this.element = make('li', 'message tool');
        const heading = make('h3', '', `Result of ${message.name}`);
        this.element.append(heading, make('pre', '', message.content));
        this.actions = make('div');
    }
}

export class ReplyView {
    #reply;
    #markdown;
    #shownContent = 0;
    #shownReasoning = 0;
    #calls = [];

    // `announce(text)` is called with each finished part of a running reply.
    constructor(reply, { onRetry, onResults, announce }) {
        this.#reply = reply;
        this.element = make('li', 'message assistant');
        this.element.append(make('h3', 'hidden-label', 'Reply'));

        this.reasoning = make('details', 'reasoning');
        this.reasoning.hidden = true;
        this.summary = make('summary');
        this.reasoningText = make('div', 'reasoning-text');
        this.reasoningText.dir = 'auto';
        this.reasoning.append(this.summary, this.reasoningText);

        this.waiting = make('p', 'waiting');
        this.waiting.append(make('span', 'hidden-label', 'Waiting for the first token'),
            make('span', 'dot'), make('span', 'dot'), make('span', 'dot'));

        this.prose = make('div', 'prose');
        this.prose.dir = 'auto';
        this.#markdown = new MarkdownView(this.prose, (text, inCode) => {
            if (!inCode) announce(text);
        });
        this.calls = make('div', 'calls');
        this.ending = make('p', 'ending');
        this.error = make('p', 'error');
        this.foot = make('div', 'foot');
        this.figures = make('span', 'figures');
        this.actions = make('div', 'actions');
        this.copyButton = button('Copy', () => copy(this.#reply.content, this.copyButton));
        this.actions.append(this.copyButton, button('Retry', onRetry));
        this.foot.append(this.figures, this.actions);
        this.resultForm = null;
        this.onResults = onResults;
        this.element.append(this.reasoning, this.waiting, this.prose, this.calls, this.ending,
            this.error, this.foot);
    }

    // Shows what has been added to the reply since the last call.
    update({ running }) {
        const reply = this.#reply;
        this.element.setAttribute('aria-busy', String(running));
        this.waiting.hidden = !running || reply.timing.first_ms !== null;

        if (reply.reasoning.length > this.#shownReasoning) {
            this.reasoning.hidden = false;
            this.reasoningText.append(reply.reasoning.slice(this.#shownReasoning));
            this.#shownReasoning = reply.reasoning.length;
        }
        if (!this.reasoning.hidden) setText(this.summary, this.#reasoningSummary(running));
        if (reply.content.length > this.#shownContent) {
            this.#markdown.push(reply.content.slice(this.#shownContent));
            this.#shownContent = reply.content.length;
        }
        this.#showCalls(running);
        if (!running) this.#showEnd();
        else this.foot.hidden = this.ending.hidden = this.error.hidden = true;
    }

    #reasoningSummary(running) {
        const { timing } = this.#reply;
        const tokens = formatCount(reasoningCount(this.#reply), 'token');
        const thinking = running && timing.answer_ms === null;
        if (thinking) return `Thinking… ${tokens}`;
        const duration = (timing.answer_ms ?? timing.last_ms) - timing.first_ms;
        const time = duration < 100 ? 'briefly' : `for ${formatDuration(duration)}`;
        return `Thought ${time} · ${tokens}`;
    }

    #showCalls(running) {
        this.#reply.tool_calls.forEach((call, index) => {
            if (index === this.#calls.length) {
                const card = make('section', 'call');
                const name = make('h4');
                const text = make('pre');
                text.tabIndex = 0;
                card.append(name, text);
                this.calls.append(card);
                this.#calls.push({ name, text });
            }
            const { name, text } = this.#calls[index];
            setText(name, call.name);
            setText(text, running ? call.arguments : prettyArguments(call.arguments));
        });
    }

    #showEnd() {
        const reply = this.#reply;
        this.#markdown.end();
        const ending = endingOf(reply);
        this.ending.hidden = ending === '';
        setText(this.ending, ending);
        this.error.hidden = reply.error === null;
        setText(this.error, reply.error?.message ?? '');
        this.foot.hidden = false;
        this.copyButton.hidden = reply.content === '';
        setText(this.figures, finalFigures(reply).join(' · '));
    }

    // Fields for what the tools returned; offered on the last message only.
    offerResults(offered) {
        const wanted = offered && this.#reply.finish_reason === 'tool_calls';
        if (wanted === (this.resultForm !== null)) return;
        if (!wanted) {
            this.resultForm.remove();
            this.resultForm = null;
            return;
        }
        const form = make('form', 'results');
        const fields = this.#reply.tool_calls.map((call) => {
            const label = make('label', 'field');
            const text = make('textarea', 'code');
            text.rows = 2;
            text.spellcheck = false;
            label.append(make('span', '', `Result of ${call.name}`), text);
            form.append(label);
            return text;
        });
        const send = make('button', 'primary-button', 'Send results');
        form.append(send);
        form.addEventListener('submit', (event) => {
            event.preventDefault();
            this.onResults(this.#reply.tool_calls.map(({ id, name }, index) => (
                { role: 'tool', tool_call_id: id, name, content: fields[index].value })));
        });
        this.resultForm = form;
        this.element.insertBefore(form, this.foot);
    }
}

function prettyArguments(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text;  // cut off in the middle: shown as far as it came
    }
}
