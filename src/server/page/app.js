// The page: joins the message box, the transcript, the stored conversations and the server.
import { Composer } from './composer.js';
import { ConversationStore, downloadConversation, newConversation } from './conversations.js';
import { Generation } from './generation.js';
import { KeyKeeper } from './key.js';
import { listenForCopy } from './messages.js';
import { listenForBackdrop, Panel } from './panels.js';
import { liveFigures, newReply } from './reply.js';
import { ServerState } from './server_state.js';
import { SettingsForm } from './settings.js';
import { local, remember } from './storage.js';
import { startTheme } from './theme_button.js';
import { Transcript } from './transcript.js';
import { requestBody } from './wire.js';

const SAVE_EVERY_MS = 1000;
const CURRENT = 'percheron.current';

class App {
    #store = new ConversationStore();
    #conversation;
    #running = new Map();    // conversation id -> Generation
    #editingFrom = -1;       // index of the message that is being edited
    #frame = 0;
    #lastSaved = 0;

    constructor(root) {
        this.root = root;
        this.systemPrompt = root.getElementById('system-prompt');
        this.announcer = root.getElementById('announcer');
        this.figures = root.getElementById('live-figures');
        this.keys = new KeyKeeper(root, () => this.#keyGiven());
        this.server = new ServerState({
            name: root.getElementById('model-name'),
            line: root.getElementById('server-line'),
            facts: root.getElementById('server-facts'),
        }, this.keys, () => this.#running.size > 0);
        this.settings = new SettingsForm(
            root.getElementById('settings-form'), root.getElementById('settings-notice'));
        this.settingsPanel = new Panel(root, 'settings', { openWhenWide: false });
        this.conversationsPanel = new Panel(root, 'conversations', { openWhenWide: true });
        this.transcript = new Transcript(root, {
            onEdit: () => this.#edit(),
            onRetry: () => this.#retry(),
            onResults: (results) => this.#send(results),
            announce: (text) => this.#announce(text),
        });
        this.composer = new Composer(root, {
            onSend: (message) => this.#send([{ role: 'user', ...message }]),
            onCancelEditing: () => this.#cancelEditing(),
        });
        this.#listen();
        startTheme(root.getElementById('toggle-theme'));
        listenForCopy(root);
        listenForBackdrop(root);
        this.#show(this.#store.load(local.getItem(CURRENT) ?? '') ?? newConversation());
        this.server.refresh();
        this.composer.focus();
    }

    #listen() {
        const { root } = this;
        root.getElementById('new-conversation').addEventListener('click', () => this.#startNew());
        root.getElementById('export-conversation').addEventListener(
            'click', () => downloadConversation(this.#conversation));
        root.getElementById('change-key').addEventListener(
            'click', () => this.keys.ask({ refused: false }));
        root.getElementById('stop').addEventListener('click', () => this.#stop());
        this.systemPrompt.addEventListener('input', () => {
            this.#conversation.system = this.systemPrompt.value;
            if (this.#conversation.messages.length > 0) this.#save();
        });
        this.#store.onOtherTab((id) => this.#changedElsewhere(id));
        root.addEventListener('keydown', (event) => this.#escape(event));
        // Browsers cut connections before pagehide, and some know no beforeunload.
        addEventListener('beforeunload', () => this.#leave());
        addEventListener('pagehide', () => this.#leave());
    }

    // Escape undoes the topmost thing: an open panel, an edit, a running reply.
    #escape(event) {
        if (event.key !== 'Escape' || this.root.querySelector('dialog[open]')) return;
        if (Panel.closeOverlay()) return;
        if (this.composer.isEditing) this.#cancelEditing();
        else this.#stop();
    }

    // ---- conversations -------------------------------------------------------------------------

    #show(conversation) {
        this.composer.set({ content: '', images: [] }, { editing: false });
        this.#editingFrom = -1;
        remember(CURRENT, conversation.id);
        this.#showMessages(conversation);
    }

    #showMessages(conversation) {
        this.#conversation = conversation;
        this.systemPrompt.value = conversation.system;
        this.transcript.show(conversation.messages);
        this.#showList();
        this.#showRunning();
        this.transcript.follow();
    }

    // The other tab's version of a conversation is the newer one, unless a reply runs here.
    #changedElsewhere(id) {
        const mine = id === this.#conversation.id && !this.#running.has(id) && !this.composer.isEditing;
        const changed = mine ? this.#store.load(id) : null;
        if (changed) this.#showMessages(changed);
        else this.#showList();
    }

    #startNew() {
        this.#show(newConversation(this.#conversation.system));
        this.#afterChoice();
    }

    #open(id) {
        const running = this.#running.get(id)?.conversation;
        const conversation = running ?? this.#store.load(id);
        if (conversation) this.#show(conversation);
        this.#afterChoice();
    }

    #afterChoice() {
        Panel.closeOverlay();
        this.composer.focus();
    }

    #remove(id) {
        this.#running.get(id)?.stop();
        this.#running.delete(id);
        this.#store.remove(id);
        if (id === this.#conversation.id) this.#show(newConversation(this.#conversation.system));
        else this.#showList();
        this.root.getElementById('new-conversation').focus();
    }

    #showList() {
        const items = this.#store.list().map(({ id, title }) => {
            const item = document.createElement('li');
            item.dataset.conversation = id;
            const open = document.createElement('button');
            open.type = 'button';
            open.className = 'conversation';
            open.textContent = title;
            open.title = title;
            open.dir = 'auto';
            if (id === this.#conversation.id) open.setAttribute('aria-current', 'true');
            open.addEventListener('click', () => this.#open(id));
            item.append(open, this.#removeButton(id, title));
            return item;
        });
        // The list is shown anew while somebody walks through it by keyboard: focus stays.
        const focused = this.root.activeElement?.closest('#conversation-list button');
        const row = focused?.closest('li').dataset.conversation;
        this.root.getElementById('conversation-list').replaceChildren(...items);
        if (!focused) return;
        items
            .find((item) => item.dataset.conversation === row)
            ?.querySelector(focused.matches('.remove') ? '.remove' : '.conversation')
            .focus();
    }

    // Deleting takes a second press: there is no way back.
    #removeButton(id, title) {
        const remove = document.createElement('button');
        remove.type = 'button';
        remove.className = 'icon-button remove';
        const reset = () => {
            remove.classList.remove('sure');
            remove.replaceChildren(icon('trash'));
            remove.setAttribute('aria-label', `Delete ${title}`);
        };
        remove.addEventListener('click', () => {
            if (remove.classList.contains('sure')) {
                this.#remove(id);
                return;
            }
            remove.classList.add('sure');
            remove.textContent = 'Delete?';
            remove.setAttribute('aria-label', `Press again to delete ${title}`);
        });
        remove.addEventListener('blur', reset);
        reset();
        return remove;
    }

    #save(conversation = this.#conversation) {
        conversation.updated = Date.now();
        this.#lastSaved = performance.now();
        this.composer.notify(this.#store.save(conversation));
        this.#showList();
    }

    // ---- sending and receiving -----------------------------------------------------------------

    // Adds messages and asks for a reply; returns whether they were taken.
    #send(messages) {
        if (this.#running.has(this.#conversation.id)) return false;
        if (!this.#settingsFit()) return false;
        if (this.#editingFrom >= 0) this.#cut(this.#editingFrom);
        this.#editingFrom = -1;
        for (const message of messages) {
            this.#conversation.messages.push(message);
            this.transcript.add(message);
        }
        this.#generate();
        return true;
    }

    #settingsFit() {
        const { field } = this.settings.check();
        if (!field) return true;
        this.settingsPanel.set(true, { keep: false });
        this.settings.focus(field);
        return false;
    }

    async #generate() {
        const conversation = this.#conversation;
        const body = requestBody(conversation, this.settings.check().settings);
        const reply = newReply();
        reply.stopped = true;  // what a reload in the middle finds
        conversation.messages.push(reply);
        this.transcript.add(reply);
        const generation = new Generation(
            conversation, reply, this.keys.key, () => this.#scheduleUpdate());
        this.#running.set(conversation.id, generation);
        this.#save(conversation);
        this.#showRunning();
        this.transcript.follow();
        this.#announce('Waiting for the reply.');
        this.server.refresh();

        reply.stopped = false;
        await generation.run(body, this.server);
        this.#ended(generation);
    }

    #ended(generation) {
        const { conversation, reply } = generation;
        if (this.#running.get(conversation.id) !== generation) return;  // deleted meanwhile
        this.#running.delete(conversation.id);
        this.#save(conversation);
        if (conversation === this.#conversation) this.#showRunning();
        const outcome = reply.stopped ? 'Stopped.' : 'The reply is complete.';
        this.#announce(reply.error?.message ?? outcome);
        if (reply.error?.status !== 401) this.server.refresh();
        else if (generation.key !== this.keys.key) this.#keyGiven();  // given in the meantime
        else this.keys.ask({ refused: true });
    }

    #stop() {
        this.#running.get(this.#conversation.id)?.stop();
        this.composer.focus();
    }

    // All that arrived is shown once a frame; a hidden page gets no frames, so a timer stands in.
    #scheduleUpdate() {
        if (this.#frame !== 0) return;
        const update = () => {
            this.#frame = 0;
            this.#showProgress();
        };
        this.#frame = document.hidden ? setTimeout(update, 250) : requestAnimationFrame(update);
    }

    #showProgress() {
        if (performance.now() - this.#lastSaved > SAVE_EVERY_MS) this.#keepRunning();
        const generation = this.#running.get(this.#conversation.id);
        if (!generation) return;
        this.transcript.at(this.#conversation.messages.length - 1).update({ running: true });
        this.figures.textContent = liveFigures(generation.reply).join(' · ');
    }

    // Stores replies as they stand, marked as stopped: what the next visit finds if this one ends.
    #keepRunning() {
        this.#lastSaved = performance.now();
        for (const { conversation, reply } of this.#running.values()) {
            reply.stopped = true;
            this.#store.save(conversation);
            reply.stopped = false;
        }
    }

    // Brings buttons, figures and the last message in line with whether a reply is running.
    #showRunning() {
        const { messages, id } = this.#conversation;
        const running = this.#running.has(id);
        this.root.getElementById('send').hidden = running;
        this.root.getElementById('stop').hidden = !running;
        this.figures.textContent = '';
        if (messages.at(-1)?.role === 'assistant') {
            this.transcript.at(messages.length - 1).update({ running });
        }
        this.transcript.offerActions(messages, running);
    }

    #leave() {
        this.#keepRunning();
        for (const generation of this.#running.values()) generation.stop();
    }

    // ---- the end of the conversation, again ----------------------------------------------------

    #cut(index) {
        this.#conversation.messages.splice(index);
        this.transcript.cut(index);
    }

    #retry() {
        if (this.#running.has(this.#conversation.id) || !this.#settingsFit()) return;
        this.#cut(this.#conversation.messages.length - 1);
        this.#generate();
        this.composer.focus();
    }

    #edit() {
        const { messages } = this.#conversation;
        this.#editingFrom = messages.findLastIndex((message) => message.role === 'user');
        this.composer.set(messages[this.#editingFrom], { editing: true });
        this.composer.focus();
    }

    #cancelEditing() {
        this.#editingFrom = -1;
        this.composer.set({ content: '', images: [] }, { editing: false });
        this.composer.focus();
    }

    // A request that was refused for want of a key is sent again.
    #keyGiven() {
        this.server.retry();
        if (this.#conversation.messages.at(-1)?.error?.status === 401) this.#retry();
        this.composer.focus();
    }

    // For screen readers: whole parts of the reply, never single tokens.
    #announce(text) {
        const part = document.createElement('p');
        part.textContent = text.replace(/[*_`#>|]/g, '').trim();
        if (part.textContent === '') return;
        this.announcer.append(part);
        while (this.announcer.childElementCount > 20) this.announcer.firstChild.remove();
    }
}

function icon(name) {
    const space = 'http://www.w3.org/2000/svg';
    const picture = document.createElementNS(space, 'svg');
    picture.classList.add('icon');
    picture.setAttribute('aria-hidden', 'true');
    const use = document.createElementNS(space, 'use');
    use.setAttribute('href', `#icon-${name}`);
    picture.append(use);
    return picture;
}

new App(document);
